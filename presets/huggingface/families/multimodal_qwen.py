"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5: the text models of the Qwens behind a tower that merges 2 x 2 patches."""

from __future__ import annotations

from collections.abc import Callable

from ...spec import HeadNorm, ModelSpec
from ..blocks import Heads, Text, biases, even_width, gated, grouped, rms
from ..config import Config
from ..registry import family, text_family
from ..rope import rope
from ..standard import alike, self_attention, sizes, standard, tied
from .dense_qwen import upper_layers_slide
from .hybrid_delta import qwen3_5, qwen3_5_moe
from .moe_qwen import qwen3_vl_moe_text
from .multimodal_shared import assemble, says, section, text_section
from .vision_qwen import Vision, qwen2_5_vision, qwen2_vision, qwen3_vision

TextReader = Callable[[Config], Text]


@text_family("qwen2_vl_text", "qwen2_5_vl_text")
def qwen2_vl_text(cfg: Config) -> Text:
    """Qwen 2 with the defaults of its largest model; the width of a head is always d_model / heads."""
    size = sizes(cfg, vocab=152064, d_model=8192, d_ff=29568, depth=80, positions=32768)
    cfg.ignore("head_dim")
    heads = cfg.integer("num_attention_heads", default=64)
    kv_heads = cfg.optional_integer("num_key_value_heads", default=8) or heads
    shape = Heads(heads=heads, kv_heads=kv_heads, head_dim=even_width(cfg, size.d_model, heads))
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=True)),
        gated(size.d_ff, activation=size.act),
        upper_layers_slide(cfg, size.depth, shape, first=80),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("qwen3_vl_text")
def qwen3_vl_text(cfg: Config) -> Text:
    """Qwen 3 without windows."""
    size = sizes(cfg, vocab=151936, d_model=4096, d_ff=22016, depth=32, positions=128000)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=32, head_dim=128)
    bias, norm = cfg.flag("attention_bias", default=False), rms(cfg)
    cfg.ignore("sliding_window", "use_sliding_window", "max_window_layers")
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias), head_norm=HeadNorm(eps=norm.eps)),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim)),
        norm=norm,
        tied=tied(cfg, default=False),
    )


def flat_or_nested(cfg: Config, read: Callable[[Config], Vision]) -> ModelSpec:
    """The text model's keys stand in a section, or, in older files, at the top level."""
    seen = read(section(cfg, "vision_config"))
    nested = cfg.section("text_config")
    text = qwen2_vl_text(text_section(cfg) if nested else cfg)
    return assemble(cfg, text, (seen.stack,), seen.joints, tied=says(cfg) or text.tied)


@family("qwen2_vl")
def qwen2_vl(cfg: Config) -> ModelSpec:
    """Qwen2-VL (arXiv:2409.12191)."""
    return flat_or_nested(cfg, qwen2_vision)


@family("qwen2_5_vl")
def qwen2_5_vl(cfg: Config) -> ModelSpec:
    """Qwen2.5-VL (arXiv:2502.13923)."""
    return flat_or_nested(cfg, qwen2_5_vision)


def newer(cfg: Config, read: TextReader, *, deepstack: tuple[int, ...]) -> ModelSpec:
    """Qwen3-VL and Qwen3.5; the top level decides on tying."""
    own = section(cfg, "vision_config")
    layers = own.integers("deepstack_visual_indexes", default=deepstack) or ()
    seen = qwen3_vision(own, deepstack=layers if deepstack else ())
    return assemble(cfg, read(text_section(cfg)), (seen.stack,), seen.joints, tied=says(cfg))


@family("qwen3_vl")
def qwen3_vl(cfg: Config) -> ModelSpec:
    """Qwen3-VL (arXiv:2511.21631)."""
    return newer(cfg, qwen3_vl_text, deepstack=(8, 16, 24))


@family("qwen3_vl_moe")
def qwen3_vl_moe(cfg: Config) -> ModelSpec:
    """Qwen3-VL with routed experts."""
    return newer(cfg, qwen3_vl_moe_text, deepstack=(8, 16, 24))


@family("qwen3_5")
def qwen3_5_vl(cfg: Config) -> ModelSpec:
    """Qwen3.5: nothing is merged in between."""
    return newer(cfg, qwen3_5, deepstack=())


@family("qwen3_5_moe")
def qwen3_5_moe_vl(cfg: Config) -> ModelSpec:
    """Qwen3.5 with routed experts."""
    return newer(cfg, qwen3_5_moe, deepstack=())
