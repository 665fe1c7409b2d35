"""Models that are state spaces all through: Mamba, Falcon Mamba, Mamba-2."""

from __future__ import annotations

from math import ceil

from ...spec import Layer, Mamba, Mamba2, Mixer, Sublayer
from ..blocks import Text, decoder, rms
from ..config import Config
from ..registry import text_family
from ..standard import tied

# How time steps are initialised and which kernels run: no weights.
TIMING = (
    "time_step_scale", "time_step_min", "time_step_max", "time_step_floor", "time_step_init_scheme", "time_step_limit",
    "rescale_prenorm_residual", "use_mambapy", "use_falcon_mambapy", "use_associative_scan", "use_mamba_kernels", "chunk_size",
    "mamba_chunk_size", "mamba_ssm_dtype", "mamba_ssm_cache_dtype", "num_logits_to_keep", "z_loss_coefficient",
)  # fmt: skip
# Keys of the original repositories that converted files still carry.
ORIGINAL = ("d_model", "d_inner", "n_layer", "ssm_cfg", "rms_norm", "fused_add_norm", "pad_vocab_size_multiple", "norm_before_gate")


def time_step_rank(cfg: Config, key: str, d_model: int) -> int:
    """The rank of the time step: a number, or `auto` for d_model / 16, rounded up."""
    return ceil(d_model / 16) if cfg.raw(key, default="auto") == "auto" else cfg.integer(key)


def inner_width(cfg: Config, d_model: int, *, key: str = "expand", default: float = 2) -> int:
    """`expand` times d_model, which need not be whole."""
    width = int(cfg.number(key, default=default) * d_model)
    if not 1 <= width < 2**31:
        raise cfg.refuse(f"{key} x hidden_size is {width}; it must be from 1 to 2^31 - 1")
    return width


def only(cfg: Config, d_model: int, mixer: Mixer, *, depth: int, vocab: int, head: bool) -> Text:
    """Layers of one normed mixer each."""
    norm = rms(cfg, key="layer_norm_epsilon", default=1e-5)
    layers = [Layer(sublayers=(Sublayer(name="mamba", mixer=mixer, pre_norm=norm),))] * depth
    cfg.ignore(*TIMING, *ORIGINAL)
    return Text(stack=decoder(d_model, vocab, layers, final=norm), vocab=vocab, tied=head)


@text_family("mamba", "falcon_mamba")
def mamba(cfg: Config) -> Text:
    """Mamba (arXiv:2312.00752), and Falcon Mamba (arXiv:2410.05355), which norms time step, B and C without weights."""
    d_model = cfg.integer("hidden_size", default=768)
    # The class computes the inner width, but a width in the file wins over it.
    computed = inner_width(cfg, d_model)
    mixer = Mamba(
        d_inner=cfg.integer("intermediate_size", default=computed),
        state=cfg.integer("state_size", default=16),
        conv=cfg.integer("conv_kernel", default=4),
        dt_rank=time_step_rank(cfg, "time_step_rank", d_model),
        conv_bias=cfg.flag("use_conv_bias", default=True),
        proj_bias=cfg.flag("use_bias", default=False),
    )
    depth, vocab = cfg.layers("num_hidden_layers", default=32), cfg.integer("vocab_size", default=50280)
    return only(cfg, d_model, mixer, depth=depth, vocab=vocab, head=tied(cfg, default=True))


@text_family("mamba2")
def mamba2(cfg: Config) -> Text:
    """Mamba-2 (arXiv:2405.21060)."""
    d_model, inner = cfg.integer("hidden_size", default=4096), inner_width(cfg, cfg.integer("hidden_size", default=4096))
    cfg.ignore("time_step_rank")
    mixer = Mamba2(
        heads=cfg.integer("num_heads", default=128),
        head_dim=cfg.integer("head_dim", default=64),
        groups=cfg.integer("n_groups", default=8),
        state=cfg.integer("state_size", default=128),
        conv=cfg.integer("conv_kernel", default=4),
        conv_bias=cfg.flag("use_conv_bias", default=True),
        proj_bias=cfg.flag("use_bias", default=False),
    )
    if mixer.heads * mixer.head_dim != inner:
        raise cfg.refuse(f"num_heads x head_dim is {mixer.heads * mixer.head_dim}, expand x hidden_size {inner}; they must be the same")
    depth, vocab = cfg.layers("num_hidden_layers", default=64), cfg.integer("vocab_size", default=32768)
    return only(cfg, d_model, mixer, depth=depth, vocab=vocab, head=tied(cfg, default=False))
