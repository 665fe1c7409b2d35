"""Norms elsewhere than before: OLMo without weights in them, OLMo 2 and EXAONE 4 after a sublayer, GLM-4 on both sides."""

from __future__ import annotations

from ...spec import HeadNorm, Norm
from ..blocks import Heads, Text, biases, gated, grouped, rms, sliding_types
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Order, Sight, Sizes, alike, by_kind, self_attention, sizes, standard, tied


@text_family("olmo")
def olmo(cfg: Config) -> Text:
    """OLMo (arXiv:2402.00838): layer norms without weights."""
    size = sizes(cfg, vocab=50304, d_model=4096, d_ff=11008, depth=32)
    shape = grouped(cfg, size.d_model, heads=32)
    bias = cfg.flag("attention_bias", default=False)
    cfg.ignore("clip_qkv")  # clamps values
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias)),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim)),
        norm=Norm(type="layer_plain"),
        tied=tied(cfg, default=False),
    )


def olmo2_like(cfg: Config, size: Sizes, shape: Heads, sights: list[Sight]) -> Text:
    """Norms after each sublayer, and on all queries and all keys together."""
    bias = cfg.flag("attention_bias", default=False)
    norm = rms(cfg, default=1e-5)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias), head_norm=HeadNorm(over="all", eps=norm.eps)),
        gated(size.d_ff, activation=size.act),
        sights,
        norm=norm,
        order="post",
        tied=tied(cfg, default=False),
    )


@text_family("olmo2")
def olmo2(cfg: Config) -> Text:
    """OLMo 2 (arXiv:2501.00656)."""
    size = sizes(cfg, vocab=50304, d_model=4096, d_ff=11008, depth=32)
    shape = grouped(cfg, size.d_model, heads=32)
    return olmo2_like(cfg, size, shape, alike(size.depth, rope(cfg, shape.head_dim)))


@text_family("olmo3")
def olmo3(cfg: Config) -> Text:
    """OLMo 3: three of four layers slide."""
    size = sizes(cfg, vocab=50304, d_model=4096, d_ff=11008, depth=32)
    shape = grouped(cfg, size.d_model, heads=32)
    window = cfg.optional_integer("sliding_window", default=4096)
    types = sliding_types(cfg, size.depth, lambda index: (index + 1) % 4 != 0)
    local = rope(cfg, shape.head_dim, theta=500000.0, kind="sliding_attention")
    full = rope(cfg, shape.head_dim, theta=500000.0, kind="full_attention")
    return olmo2_like(cfg, size, shape, by_kind(types, window, local, full=full))


@text_family("exaone4")
def exaone4(cfg: Config) -> Text:
    """EXAONE 4 (arXiv:2507.11407): norms after each sublayer and on heads; full layers have no positions where others slide."""
    size = sizes(cfg, vocab=102400, d_model=4096, d_ff=16384, depth=32)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=32)
    window = cfg.optional_integer("sliding_window", default=4096)
    every = pattern_length(cfg)
    types = sliding_types(cfg, size.depth, lambda index: window is not None and every > 0 and (index + 1) % every != 0)
    position = rope(cfg, shape.head_dim)
    norm = rms(cfg, default=1e-5)
    return standard(
        size,
        self_attention(shape, head_norm=HeadNorm(eps=norm.eps)),
        gated(size.d_ff, activation=size.act),
        by_kind(types, window, position, full="none" if window else None),
        norm=norm,
        order="post",
        tied=tied(cfg, default=False),
    )


def pattern_length(cfg: Config) -> int:
    """`sliding_window_pattern` as a number, or as letters of which the last is the full layer (LLLG); 0: no layer slides."""
    value = cfg.raw("sliding_window_pattern", default=4)
    if value is None:
        return 0
    if isinstance(value, str):
        if not value or set(value[:-1]) - {"L"} or value[-1] != "G":
            raise cfg.refuse(f"sliding_window_pattern {value[:40]!a} must be letters L that end in one G, or a number")
        return len(value)
    return cfg.integer("sliding_window_pattern", default=4, least=0)


def glm_like(cfg: Config, order: Order) -> Text:
    """Half of a head rotated in neighbouring pairs; biases on queries, keys and values."""
    size = sizes(cfg, vocab=151552, d_model=4096, d_ff=13696, depth=40, positions=131072)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=2, head_dim=128)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=cfg.flag("attention_bias", default=True))),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim, partial=0.5, interleaved=True)),
        norm=rms(cfg),
        order=order,
        tied=tied(cfg, default=False),
    )


@text_family("glm")
def glm(cfg: Config) -> Text:
    """GLM-4-9B."""
    return glm_like(cfg, "pre")


@text_family("glm4")
def glm4(cfg: Config) -> Text:
    """GLM-4-0414: four norms a layer."""
    return glm_like(cfg, "sandwich")
