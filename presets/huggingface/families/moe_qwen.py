"""Qwen's sparse models: fine-grained experts in all layers but those that are listed or stepped over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...spec import HeadNorm, MoE
from ..blocks import Heads, Text, biases, gated, grouped, rms, sliding_types
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sight, Sizes, alike, by_kind, self_attention, sizes
from .moe_blocks import Branch, attention_branches, feeds_of, routing, two_branch_text, unread


def stepped_feeds(cfg: Config, size: Sizes, *, experts: int, top_k: int, d_ff: int, shared: int | None, normalize: bool) -> list[Branch]:
    """Experts in every `decoder_sparse_step`-th layer that `mlp_only_layers` does not name; `shared`: width of the shared one."""
    step = cfg.integer("decoder_sparse_step", default=1)
    dense_layers = frozenset(cfg.integers("mlp_only_layers", default=()) or ())
    count = cfg.integer("num_experts", "num_local_experts", default=experts, least=0)
    width = cfg.integer("moe_intermediate_size", default=d_ff)
    chosen = cfg.integer("num_experts_per_tok", default=top_k)
    how = routing(cfg, scoring="softmax", normalize=normalize)

    def is_routed(index: int) -> bool:
        return count > 0 and index not in dense_layers and (index + 1) % step == 0

    beside = shared_expert(cfg, shared, size.act) if shared is not None else {}
    routed = MoE(experts=count, top_k=chosen, expert=gated(width, activation=size.act), **beside, **how) if count else None
    return feeds_of(size.depth, is_routed, gated(size.d_ff, activation=size.act), routed)


def shared_expert(cfg: Config, default: int, act: str) -> dict[str, Any]:
    """The expert that always runs, behind a gate of one value a token."""
    width = cfg.integer("shared_expert_intermediate_size", default=default, least=0)
    return {"shared": gated(width, activation=act) if width else None, "shared_gate": True}


@text_family("qwen2_moe")
def qwen2_moe(cfg: Config) -> Text:
    """Qwen1.5-MoE and Qwen2-MoE (arXiv:2407.10671): a gated shared expert; of the lower layers every other one may slide."""
    size = sizes(cfg, vocab=151936, d_model=2048, d_ff=5632, depth=24, positions=32768)
    shape = grouped(cfg, size.d_model, heads=16, kv_heads=16)
    used, first = cfg.flag("use_sliding_window", default=False), cfg.integer("max_window_layers", default=28, least=0)
    window = cfg.optional_integer("sliding_window", default=4096, least=0) or None
    types = sliding_types(cfg, size.depth, lambda index: used and index % 2 == 0 and index < first)
    attention = self_attention(shape, bias=biases(qkv=cfg.flag("qkv_bias", default=True)))
    mixers = attention_branches(attention, by_kind(types, window if used else None, rope(cfg, shape.head_dim)))
    return two_branch_text(
        cfg, size, rms(cfg), mixers, stepped_feeds(cfg, size, experts=60, top_k=4, d_ff=1408, shared=5632, normalize=False)
    )


def qwen3_sparse(cfg: Config, size: Sizes, shape: Heads, sights: list[Sight], feeds: Callable[[], list[Branch]]) -> Text:
    """Norms on queries and keys, biases on all four projections or on none, routed experts."""
    bias = cfg.flag("attention_bias", default=False)
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias), head_norm=HeadNorm(eps=rms(cfg).eps))
    unread(cfg, shared_expert_intermediate_size=0, qkv_bias=False, use_qk_norm=True)
    return two_branch_text(cfg, size, rms(cfg), attention_branches(attention, sights), feeds())


@text_family("qwen3_moe")
def qwen3_moe(cfg: Config) -> Text:
    """Qwen3-MoE (arXiv:2505.09388): no shared expert; all layers slide where `use_sliding_window` says so."""
    size = sizes(cfg, vocab=151936, d_model=2048, d_ff=6144, depth=24, positions=32768)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=4)
    window = cfg.optional_integer("sliding_window", default=4096, least=0) or None
    window = window if cfg.flag("use_sliding_window", default=False) else None
    cfg.ignore("max_window_layers")
    types = sliding_types(cfg, size.depth, lambda _: window is not None)
    sights = by_kind(types, window, rope(cfg, shape.head_dim))
    return qwen3_sparse(
        cfg, size, shape, sights, lambda: stepped_feeds(cfg, size, experts=128, top_k=8, d_ff=768, shared=None, normalize=False)
    )


@text_family("qwen3_vl_moe_text")
def qwen3_vl_moe_text(cfg: Config) -> Text:
    """The text model of Qwen3-VL-MoE: Qwen3-MoE with other defaults, and never a window."""
    size = sizes(cfg, vocab=151936, d_model=2048, d_ff=5632, depth=24, positions=128000)
    shape = grouped(cfg, size.d_model, heads=16, kv_heads=16)
    cfg.ignore("sliding_window", "use_sliding_window", "max_window_layers")
    return qwen3_sparse(
        cfg,
        size,
        shape,
        alike(size.depth, rope(cfg, shape.head_dim)),
        lambda: stepped_feeds(cfg, size, experts=60, top_k=4, d_ff=1408, shared=None, normalize=True),
    )
