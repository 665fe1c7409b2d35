"""Layers that are one mixer or one feed-forward each: Nemotron-H and Nemotron 3."""

from __future__ import annotations

from ...spec import MOST_LAYERS, Layer, Mamba2, Mixer, MoE, Sublayer
from ..blocks import Text, activation, decoder, grouped, plain, rms
from ..config import Config, shown
from ..registry import text_family
from ..standard import self_attention
from .hybrid_mamba import LINEAR
from .moe_blocks import routing, unread
from .statespace import TIMING

LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
WORDS = LINEAR | {"moe": "moe", "mlp": "mlp"}


@text_family("nemotron_h")
def nemotron_h(cfg: Config) -> Text:
    """Nemotron-H and Nemotron 3 (arXiv:2504.03624): every layer is one mixer or one feed-forward; the head is never tied."""
    d_model, vocab = cfg.integer("hidden_size", default=4096), cfg.integer("vocab_size", default=131072)
    norm = rms(cfg, key="layer_norm_epsilon", default=1e-5)
    unread(cfg, attention_bias=False, tie_word_embeddings=False, n_shared_experts=1, sliding_window=None)
    cfg.ignore(*TIMING, *NEMOTRON_UNREAD)
    shape = grouped(cfg, d_model, heads=32, kv_heads=8, head_dim=128)
    bias, act = cfg.flag("mlp_bias", default=False), activation(cfg, "mlp_hidden_act", default="relu2")
    mixers: dict[str, Mixer] = {
        "mamba": nemotron_mamba(cfg),
        "attention": self_attention(shape),
        "mlp": plain(cfg.integer("intermediate_size", default=21504), activation=act, bias=bias),
        "moe": nemotron_moe(cfg, act, bias=bias),
    }
    paths = {"mlp": "feed_forward"}
    subs = {kind: Sublayer(name=paths.get(kind, kind), mixer=mixer, pre_norm=norm) for kind, mixer in mixers.items()}
    layers = [Layer(name=kind, sublayers=(subs[kind],)) for kind in nemotron_types(cfg)]
    stack = decoder(d_model, vocab, layers, final=norm, max_positions=cfg.optional_integer("max_position_embeddings", default=4096))
    return Text(stack=stack, vocab=vocab, tied=False)


NEMOTRON_UNREAD = (
    "expand", "mamba_expand", "mamba_hidden_act", "mamba_proj_bias", "num_nextn_predict_layers", "mtp_layers_block_type",
    "mtp_layer_types", "mtp_hybrid_override_pattern", "moe_shared_expert_overlap", "mamba_dt_min", "mamba_dt_max",
    "mamba_dt_limit", "mamba_dt_init_floor",
)  # fmt: skip


def nemotron_mamba(cfg: Config) -> Mamba2:
    """The Mamba-2 mixer; older files have other names for some sizes, which win."""
    return Mamba2(
        heads=cfg.integer("mamba_num_heads", default=128),
        head_dim=cfg.integer("mamba_head_dim", default=64),
        groups=cfg.integer("mamba_n_groups", "n_groups", default=8),
        state=cfg.integer("ssm_state_size", default=128),
        conv=cfg.integer("mamba_d_conv", "conv_kernel", default=4),
        conv_bias=cfg.flag("mamba_conv_bias", "use_conv_bias", default=True),
        proj_bias=cfg.flag("use_bias", default=False),
    )


def nemotron_moe(cfg: Config, act: str, *, bias: bool) -> MoE:
    """Experts that may work in a narrower, latent width; the shared one works in d_model."""
    return MoE(
        experts=cfg.integer("n_routed_experts", "num_local_experts", default=8),
        top_k=cfg.integer("num_experts_per_tok", default=2),
        expert=plain(cfg.integer("moe_intermediate_size", default=7688), activation=act, bias=False),
        shared=plain(cfg.integer("moe_shared_expert_intermediate_size", default=7688), activation=act, bias=bias),
        latent=cfg.optional_integer("moe_latent_size"),
        latent_bias=bias,
        correction="buffer",
        **routing(cfg, scoring="sigmoid", normalize=True),
    )


def nemotron_types(cfg: Config) -> tuple[str, ...]:
    """The kind of every layer: a list of words, else a string of letters, else one of each; the number of layers follows."""
    depth = cfg.optional_integer("num_hidden_layers", least=0)
    listed = cfg.texts("layers_block_type") or cfg.texts("layer_types")
    letters = cfg.text("hybrid_override_pattern", default="")
    if listed is None and letters:
        listed = tuple(LETTERS.get(letter, letter) for letter in letters)
    listed = listed or ("mamba", "moe", "attention", "mlp")
    unknown = sorted(set(listed) - set(WORDS))
    if unknown or len(listed) > MOST_LAYERS:
        known = f"{', '.join(WORDS)} or the letters {' '.join(LETTERS)}"
        raise cfg.refuse(f"the pattern has {len(listed)} layers and names {shown(unknown)}; known are {known}")
    if depth is not None and depth != len(listed):
        cfg.assume(f"num_hidden_layers = {depth} is not read; the pattern has {len(listed)} layers")
    return tuple(WORDS[kind] for kind in listed)
