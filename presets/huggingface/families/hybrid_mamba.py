"""Attention in a few layers, a state space in the others: Jamba, Bamba, Granite 4."""

from __future__ import annotations

from collections.abc import Callable

from ...spec import Mamba, Mamba2, MoE
from ..blocks import Text, biases, gated, grouped, layer_types, rms
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, self_attention, sizes, with_multipliers
from .moe_blocks import Branch, feeds_of, routing, two_branch_text
from .statespace import TIMING, inner_width, time_step_rank


def mamba1(cfg: Config, d_model: int, *, heads: int = 1, inner_norms: bool = False) -> Mamba:
    """A Mamba-1 mixer by `mamba_` keys."""
    cfg.ignore(*TIMING)
    return Mamba(
        d_inner=inner_width(cfg, d_model, key="mamba_expand"),
        state=cfg.integer("mamba_d_state", default=16),
        conv=cfg.integer("mamba_d_conv", default=4),
        dt_rank=time_step_rank(cfg, "mamba_dt_rank", d_model),
        heads=heads,
        conv_bias=cfg.flag("mamba_conv_bias", default=True),
        proj_bias=cfg.flag("mamba_proj_bias", default=False),
        inner_norms=inner_norms,
    )


@text_family("jamba")
def jamba(cfg: Config) -> Text:
    """Jamba (Lieber et al. 2024, arXiv:2403.19887): attention and experts each in every so many layers; no positions."""
    size = sizes(cfg, vocab=65536, d_model=4096, d_ff=14336, depth=32, positions=262144)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    attends = every(cfg, "attn_layer", period=8, offset=4)
    has_experts = every(cfg, "expert_layer", period=2, offset=1)
    experts, top_k = cfg.integer("num_experts", "num_local_experts", default=16), cfg.integer("num_experts_per_tok", default=2)
    kinds = {
        True: Branch("attention", self_attention(shape)),
        False: Branch("mamba", mamba1(cfg, size.d_model, inner_norms=True), "mamba"),
    }
    how = routing(cfg, scoring="softmax", normalize=False)
    expert = gated(size.d_ff, activation=size.act)
    moe = MoE(experts=experts, top_k=top_k, expert=expert, **how) if experts > 1 else None
    feeds = feeds_of(size.depth, lambda index: moe is not None and has_experts(index), expert, moe)
    return two_branch_text(cfg, size, rms(cfg), [kinds[attends(index)] for index in range(size.depth)], feeds)


def every(cfg: Config, key: str, *, period: int, offset: int) -> Callable[[int], bool]:
    """Whether a layer is one of every `period`-th, from `offset` on."""
    step, start = cfg.integer(f"{key}_period", default=period), cfg.integer(f"{key}_offset", default=offset, least=0)
    if start >= step:
        raise cfg.refuse(f"{key}_offset {start} must be smaller than {key}_period {step}")
    return lambda index: index % step == start


def mamba2(cfg: Config, d_model: int) -> Mamba2:
    """A Mamba-2 mixer by `mamba_` keys; its heads make up the inner width."""
    inner, heads = inner_width(cfg, d_model, key="mamba_expand"), cfg.integer("mamba_n_heads", default=128)
    width = inner // heads if cfg.raw("mamba_d_head", default="auto") == "auto" else cfg.integer("mamba_d_head")
    if heads * width != inner:
        raise cfg.refuse(f"mamba_n_heads x mamba_d_head is {heads * width}, mamba_expand x hidden_size {inner}; they must be the same")
    cfg.ignore(*TIMING)
    return Mamba2(
        heads=heads,
        head_dim=width,
        groups=cfg.integer("mamba_n_groups", default=1),
        state=cfg.integer("mamba_d_state", default=256),
        conv=cfg.integer("mamba_d_conv", default=4),
        conv_bias=cfg.flag("mamba_conv_bias", default=True),
        proj_bias=cfg.flag("mamba_proj_bias", default=False),
    )


@text_family("bamba")
def bamba(cfg: Config) -> Text:
    """Bamba (IBM 2024): Mamba-2, attention in the layers that `attn_layer_indices` names."""
    size = sizes(cfg, vocab=128000, d_model=4096, d_ff=14336, depth=32, positions=262144)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    attends = frozenset(cfg.integers("attn_layer_indices", default=()) or ())
    bias = cfg.flag("attention_bias", default=False)
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias), position=rope(cfg, shape.head_dim, partial=0.5))
    kinds = {True: Branch("attention", attention), False: Branch("mamba", mamba2(cfg, size.d_model), "mamba")}
    dense = gated(size.d_ff, activation=size.act, bias=cfg.flag("mlp_bias", default=False))
    mixers = [kinds[index in attends] for index in range(size.depth)]
    return two_branch_text(cfg, size, rms(cfg, default=1e-5), mixers, [Branch("dense", dense)] * size.depth)


LINEAR = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}


@text_family("granitemoehybrid")
def granitemoehybrid(cfg: Config) -> Text:
    """Granite 4: layers by a list, a shared feed-forward beside routed experts, which may be none."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=11008, depth=32)
    shape = grouped(cfg, size.d_model, heads=32)
    bias = cfg.flag("attention_bias", default=False)
    rotary = cfg.raw("position_embedding_type") == "rope"
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias), position=rope(cfg, shape.head_dim) if rotary else None)
    kinds = {"attention": Branch("attention", attention), "mamba": Branch("mamba", mamba2(cfg, size.d_model), "mamba")}
    listed = listed_types(cfg, size.depth, tuple(LINEAR)) or ("mamba",) * size.depth
    mixers = [kinds[LINEAR[kind]] for kind in listed]
    return with_multipliers(cfg, two_branch_text(cfg, size, rms(cfg), mixers, [granite_feed(cfg, size)] * size.depth))


def granite_feed(cfg: Config, size: Sizes) -> Branch:
    """A feed-forward that always runs, alone or beside routed experts."""
    shared = gated(cfg.integer("shared_intermediate_size", default=1024), activation=size.act)
    experts, top_k = cfg.integer("num_local_experts", default=8, least=0), cfg.integer("num_experts_per_tok", default=2, least=0)
    how = routing(cfg, scoring="softmax_topk", normalize=False)
    if not experts:
        return Branch("dense", shared)
    return Branch("moe", MoE(experts=experts, top_k=top_k, expert=gated(size.d_ff, activation=size.act), shared=shared, **how))


def listed_types(cfg: Config, depth: int, allowed: tuple[str, ...]) -> tuple[str, ...] | None:
    """The list of layer kinds under either of its names."""
    return layer_types(cfg, depth, allowed, key="layers_block_type" if cfg.has("layers_block_type") else "layer_types")
