"""The standard decoder: token table, equal layers of attention and feed-forward, a final norm, an output head.

A dense family is this with its own sizes, its own order of norms, and for every layer how its attention sees (`Sight`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from ..spec import Attention, Causal, FeedForward, Layer, Mask, Norm, Position, Sublayer
from .blocks import Heads, Text, activation, decoder, parallel, pre_norm, sublayer, window_mask
from .config import Config

Order = Literal["pre", "post", "sandwich", "parallel", "parallel_two"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes every text configuration has."""

    vocab: int
    d_model: int
    d_ff: int
    depth: int
    positions: int | None
    act: str


def sizes(cfg: Config, *, vocab: int, d_model: int, d_ff: int, depth: int, positions: int = 2048, act: str = "silu") -> Sizes:
    """The usual keys, with a family's defaults."""
    if cfg.raw("use_sliding_window") is False:
        cfg.ignore("sliding_window")  # said to be unused; a family that has windows reads both
    return Sizes(
        vocab=cfg.integer("vocab_size", default=vocab),
        d_model=cfg.integer("hidden_size", default=d_model),
        d_ff=cfg.integer("intermediate_size", default=d_ff),
        depth=cfg.layers("num_hidden_layers", default=depth),
        positions=cfg.optional_integer("max_position_embeddings", default=positions),
        act=activation(cfg, default=act),
    )


@dataclass(frozen=True, kw_only=True)
class Sight:
    """How one layer's attention sees: what its kind is called (empty where all layers are alike), mask, positions."""

    name: str = ""
    mask: Mask
    position: Position | None


def alike(depth: int, position: Position | None, *, window: int | None = None) -> list[Sight]:
    """Every layer the same, with a window or without."""
    return [Sight(mask=window_mask(window), position=position)] * depth


def by_kind(
    types: Sequence[str],
    window: int | None,
    position: Position | None,
    *,
    full: Position | Literal["none"] | None = None,
) -> list[Sight]:
    """Layers by `sliding_attention` and `full_attention`.

    Args:
        types: the kind of every layer.
        window: keys a sliding layer sees; None: no layer slides whatever its kind.
        position: positions of every layer.
        full: positions of the full layers where they differ; `none`: they have none.
    """
    names = {"sliding_attention": "sliding", "full_attention": "global", "attention": "global"}
    mixed = len(set(types)) > 1
    made = []
    for kind in types:
        slides = kind == "sliding_attention"
        other = None if full == "none" else full or position
        mask = window_mask(window if slides else None)
        made.append(Sight(name=names[kind] if mixed else "", mask=mask, position=position if slides else other))
    return made


def tied(cfg: Config, *, default: bool) -> bool:
    """Whether the output head uses the token table."""
    return cfg.flag("tie_word_embeddings", default=default)


def self_attention(heads: Heads, **options: Any) -> Attention:
    """Causal attention with these heads; mask and positions are set layer by layer."""
    return Attention(heads=heads.heads, kv_heads=heads.kv_heads, head_dim=heads.head_dim, mask=Causal(), **options)


def one_layer(order: Order, norm: Norm, attention: Attention, feed_forward: FeedForward, *, name: str) -> Layer:
    """Attention and feed-forward with their norms before, after, or on both sides, or side by side."""
    match order:
        case "pre":
            return pre_norm(norm, attention, feed_forward, name=name)
        case "parallel" | "parallel_two":
            return parallel(attention, feed_forward, norm, norm if order == "parallel_two" else None, name=name)
        case "post" | "sandwich":
            before = norm if order == "sandwich" else None
            first = sublayer("attention", attention, before, output_norm=norm)
            return Layer(name=name, sublayers=(first, sublayer("feed_forward", feed_forward, before, output_norm=norm)))


def standard(
    size: Sizes,
    attention: Attention,
    feed_forward: FeedForward,
    sights: Sequence[Sight],
    *,
    norm: Norm,
    tied: bool,
    order: Order = "pre",
    final: Norm | None = None,
    scale: float | None = None,
    **head: Any,
) -> Text:
    """The text model of a dense family; `head` are further fields of `Text`."""
    made: Mapping[Sight, Layer] = {
        sight: one_layer(
            order,
            norm,
            msgspec.structs.replace(attention, mask=sight.mask, position=sight.position),
            feed_forward,
            name=sight.name,
        )
        for sight in dict.fromkeys(sights)
    }
    layers = [made[sight] for sight in sights]
    stack = decoder(size.d_model, size.vocab, layers, final=final or norm, max_positions=size.positions, scale=scale)
    return Text(stack=stack, vocab=size.vocab, tied=tied, **head)


def with_multipliers(cfg: Config, text: Text) -> Text:
    """Granite's fixed factors: on embeddings, scores, what branches add to the residual, and one that divides the logits."""
    scores, branches = cfg.number("attention_multiplier", default=1.0), cfg.number("residual_multiplier", default=1.0)
    divisor = cfg.number("logits_scaling", default=1.0)
    if not divisor:
        raise cfg.refuse("logits_scaling is 0, and logits are divided by it")

    def scaled(sub: Sublayer) -> Sublayer:
        mixer = msgspec.structs.replace(sub.mixer, scale=scores) if isinstance(sub.mixer, Attention) else sub.mixer
        return msgspec.structs.replace(sub, mixer=mixer, residual_scale=branches)

    stack = text.stack
    blocks = [
        msgspec.structs.replace(
            block, pattern=tuple(msgspec.structs.replace(layer, sublayers=tuple(map(scaled, layer.sublayers))) for layer in block.pattern)
        )
        for block in stack.blocks
    ]
    token = msgspec.structs.replace(stack.embeddings[0], scale=cfg.number("embedding_multiplier", default=1.0))
    return replace(text.restack(blocks=tuple(blocks), embeddings=(token, *stack.embeddings[1:])), scale=1 / divisor)
