"""Gemma 1 to 3: wide heads, a scaled embedding, norms on both sides of a sublayer from Gemma 2 on, windows by pattern."""

from __future__ import annotations

from collections.abc import Sequence

from ...spec import Full, HeadNorm, Local, Mask, Sliding
from ..blocks import Heads, Text, activation, biases, gated, grouped, rms, sliding_types
from ..classes import head_kind
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Order, Sight, Sizes, alike, by_kind, self_attention, standard, tied


def gemma_sizes(cfg: Config, *, vocab: int, d_model: int, d_ff: int, depth: int, positions: int) -> Sizes:
    """The usual keys; the activation stands under one of two names."""
    return Sizes(
        vocab=cfg.integer("vocab_size", default=vocab),
        d_model=cfg.integer("hidden_size", default=d_model),
        d_ff=cfg.integer("intermediate_size", default=d_ff),
        depth=cfg.layers("num_hidden_layers", default=depth),
        positions=cfg.optional_integer("max_position_embeddings", default=positions),
        act=activation(cfg, "hidden_activation", "hidden_act", default="gelu_pytorch_tanh"),
    )


def gemma_like(cfg: Config, size: Sizes, shape: Heads, sights: Sequence[Sight], *, order: Order, head_norm: HeadNorm | None = None) -> Text:
    """What all of them share: biases by one flag, weights that multiply as 1 + w, an embedding times sqrt(d_model)."""
    bias = cfg.flag("attention_bias", default=False)
    return standard(
        size,
        self_attention(
            shape,
            bias=biases(qkv=bias, out=bias),
            head_norm=head_norm,
            softcap=cfg.optional_number("attn_logit_softcapping"),
        ),
        gated(size.d_ff, activation=size.act),
        sights,
        norm=rms(cfg, unit_offset=True),
        order=order,
        tied=tied(cfg, default=True),
        scale=size.d_model**0.5,
        softcap=cfg.optional_number("final_logit_softcapping"),
    )


@text_family("gemma")
def gemma(cfg: Config) -> Text:
    """Gemma (arXiv:2403.08295)."""
    size = gemma_sizes(cfg, vocab=256000, d_model=3072, d_ff=24576, depth=28, positions=8192)
    shape = grouped(cfg, size.d_model, heads=16, kv_heads=16, head_dim=256)
    return gemma_like(cfg, size, shape, alike(size.depth, rope(cfg, shape.head_dim)), order="pre")


@text_family("gemma2")
def gemma2(cfg: Config) -> Text:
    """Gemma 2 (arXiv:2408.00118): every other layer slides, the first does; published files say neither."""
    size = gemma_sizes(cfg, vocab=256000, d_model=2304, d_ff=9216, depth=26, positions=8192)
    shape = grouped(cfg, size.d_model, heads=8, kv_heads=4, head_dim=256, must_divide=True)
    window = cfg.optional_integer("sliding_window", default=4096)
    cfg.ignore("sliding_window_size")  # the same number under an older name
    types = sliding_types(cfg, size.depth, lambda index: index % 2 == 0)
    return gemma_like(cfg, size, shape, by_kind(types, window, rope(cfg, shape.head_dim)), order="sandwich")


@text_family("gemma3_text")
def gemma3(cfg: Config) -> Text:
    """Gemma 3 (arXiv:2503.19786): five sliding layers, then a full one with a rotation of its own; normed queries and keys."""
    size = gemma_sizes(cfg, vocab=262208, d_model=2304, d_ff=9216, depth=26, positions=131072)
    shape = grouped(cfg, size.d_model, heads=8, kv_heads=4, head_dim=256, must_divide=True)
    window = cfg.optional_integer("sliding_window", default=4096)
    bidirectional = cfg.flag("use_bidirectional_attention", default=False)
    embeds = head_kind(cfg) == "base"  # EmbeddingGemma; with a head it generates, and so looks back only
    if bidirectional and window is not None:
        window = window // 2 + 1
    pattern = cfg.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    types = sliding_types(cfg, size.depth, lambda index: (index + 1) % pattern != 0)
    local = rope(cfg, shape.head_dim, kind="sliding_attention", theta_key="rope_local_base_freq")
    full = rope(cfg, shape.head_dim, kind="full_attention", theta=1000000.0)
    sights = by_kind(types, window, local, full=full)
    head_norm = HeadNorm(eps=rms(cfg).eps, unit_offset=True)
    if embeds and bidirectional:
        sights = both_ways(sights, window)
    text = gemma_like(cfg, size, shape, sights, order="sandwich", head_norm=head_norm)
    return text.restack(role="encoder") if embeds and bidirectional else text


def both_ways(sights: Sequence[Sight], window: int | None) -> list[Sight]:
    """Every token sees both ways, on a sliding layer less than the window to either side."""
    made = []
    for sight in sights:
        mask: Mask = Local(reach=max((window or 0) - 1, 1)) if isinstance(sight.mask, Sliding) else Full()
        made.append(Sight(name=sight.name, mask=mask, position=sight.position))
    return made
