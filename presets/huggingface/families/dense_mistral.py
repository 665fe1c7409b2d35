"""Mistral and its successors: LLaMA without biases, with a window on all layers or on some."""

from __future__ import annotations

from ..blocks import Text, gated, grouped, one_window, rms, sliding_types
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import alike, by_kind, self_attention, sizes, standard, tied

UNREAD = ("sliding_window_size", "prefill_chunk_size", "attention_sink_size")  # other engines' keys; no class reads them


@text_family("mistral")
def mistral(cfg: Config) -> Text:
    """Mistral (Jiang et al. 2023, arXiv:2310.06825): all layers slide unless `sliding_window` is null."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=14336, depth=32, positions=131072)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    window = one_window(cfg, size.depth, default=4096)
    cfg.ignore(*UNREAD)
    return standard(
        size,
        self_attention(shape),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim), window=window),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("ministral3")
def ministral3(cfg: Config) -> Text:
    """Ministral 3: Mistral without a window by default."""
    size = sizes(cfg, vocab=131072, d_model=4096, d_ff=14336, depth=34, positions=262144)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8, head_dim=128)
    return standard(
        size,
        self_attention(shape),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim, theta=1000000.0), window=one_window(cfg, size.depth)),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("ministral")
def ministral(cfg: Config) -> Text:
    """Ministral 8B: Mistral where a list says which layers slide."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=14336, depth=32, positions=131072)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    window = cfg.optional_integer("sliding_window", default=4096)
    types = sliding_types(cfg, size.depth, lambda _: window is not None)
    return standard(
        size,
        self_attention(shape),
        gated(size.d_ff, activation=size.act),
        by_kind(types, window, rope(cfg, shape.head_dim)),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("cwm")
def cwm(cfg: Config) -> Text:
    """CWM: LLaMA 3 where three of four layers slide, the first of four not."""
    size = sizes(cfg, vocab=128256, d_model=6144, d_ff=21504, depth=64, positions=131072)
    shape = grouped(cfg, size.d_model, heads=48, kv_heads=8, head_dim=128, must_divide=True)
    window = cfg.integer("sliding_window", default=8192, least=0) or None
    return standard(
        size,
        self_attention(shape),
        gated(size.d_ff, activation=size.act, bias=cfg.flag("mlp_bias", default=False)),
        by_kind(sliding_types(cfg, size.depth, lambda index: index % 4 != 0), window, rope(cfg, shape.head_dim, theta=1000000.0)),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )
