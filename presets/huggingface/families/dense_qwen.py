"""Qwen 2 and 3, and MiMo: biases on queries, keys and values, or norms on queries and keys; upper layers may slide."""

from __future__ import annotations

from ...spec import HeadNorm
from ..blocks import Heads, Text, biases, gated, grouped, rms, sliding_types
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sight, Sizes, by_kind, self_attention, sizes, standard, tied


def upper_layers_slide(cfg: Config, depth: int, shape: Heads, *, first: int = 28) -> list[Sight]:
    """With `use_sliding_window`, layers from `max_window_layers` on have a window of `sliding_window`."""
    used = cfg.flag("use_sliding_window", default=False)
    window = cfg.optional_integer("sliding_window", default=4096, least=0)
    start = cfg.integer("max_window_layers", default=first, least=0)
    window = window if used else None
    types = sliding_types(cfg, depth, lambda index: window is not None and index >= start)
    return by_kind(types, window, rope(cfg, shape.head_dim))


def qwen2_like(cfg: Config, size: Sizes, shape: Heads) -> Text:
    """The structure of Qwen 2 in any size: no flag switches its biases."""
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=True)),
        gated(size.d_ff, activation=size.act),
        upper_layers_slide(cfg, size.depth, shape),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("qwen2")
def qwen2(cfg: Config) -> Text:
    """Qwen 1.5, 2 and 2.5 (arXiv:2407.10671)."""
    size = sizes(cfg, vocab=151936, d_model=4096, d_ff=22016, depth=32, positions=32768)
    cfg.ignore("attention_bias", "qkv_bias")
    return qwen2_like(cfg, size, grouped(cfg, size.d_model, heads=32, kv_heads=32))


@text_family("mimo")
def mimo(cfg: Config) -> Text:
    """MiMo (arXiv:2505.07608): Qwen 2; its layers for multi-token prediction are left out, as a causal model leaves them."""
    extra = cfg.optional_integer("num_nextn_predict_layers", least=0)
    if extra:
        cfg.assume(f"{extra} layer(s) for multi-token prediction are in the checkpoint and not counted")
    return qwen2(cfg)


def qwen3_like(cfg: Config, size: Sizes, shape: Heads) -> Text:
    """The structure of Qwen 3 in any size."""
    bias = cfg.flag("attention_bias", default=False)
    norm = rms(cfg)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias), head_norm=HeadNorm(eps=norm.eps)),
        gated(size.d_ff, activation=size.act),
        upper_layers_slide(cfg, size.depth, shape),
        norm=norm,
        tied=tied(cfg, default=False),
    )


@text_family("qwen3")
def qwen3(cfg: Config) -> Text:
    """Qwen 3 (arXiv:2505.09388): every head's queries and keys are normed."""
    size = sizes(cfg, vocab=151936, d_model=4096, d_ff=22016, depth=32, positions=32768)
    cfg.ignore("use_qk_norm")
    return qwen3_like(cfg, size, grouped(cfg, size.d_model, heads=32, kv_heads=32, head_dim=128))
