"""Gemma 4's text model: heads of two widths, layers that read an earlier layer's cache, an input for every layer, experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...spec import (
    Attention,
    Chain,
    Embedding,
    FeedForward,
    Full,
    HeadNorm,
    Layer,
    Linear,
    Local,
    Mask,
    MoE,
    Norm,
    Parameter,
    Part,
    Sublayer,
)
from ..blocks import Heads, Text, biases, decoder, gated, grouped, rms, sliding_types, window_mask
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, self_attention, tied
from .dense_gemma import gemma_sizes


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of layer: does it slide, does it read an earlier layer's cache in place of one of its own."""

    sliding: bool
    shared: bool

    @property
    def name(self) -> str:
        """What the layer is called."""
        return ("sliding" if self.sliding else "global") + ("_shared" if self.shared else "")


@text_family("gemma4_text")
def gemma4(cfg: Config) -> Text:
    """Gemma 4: five sliding layers, then a full one; the last layer is always full, whatever a list says."""
    size = gemma_sizes(cfg, vocab=262144, d_model=2304, d_ff=9216, depth=30, positions=131072)
    norm = rms(cfg)
    kinds = layer_kinds(cfg, size.depth)
    both_ways = both_directions(cfg)
    window = cfg.integer("sliding_window", default=512)
    shape = grouped(cfg, size.d_model, heads=8, kv_heads=4, head_dim=256)
    attentions = {
        True: attention_of(cfg, norm, shape, sliding=True),
        False: attention_of(cfg, norm, full_heads(cfg, shape, kinds), sliding=False),
    }
    masks = {True: sliding_mask(window, both_ways=both_ways), False: Full() if both_ways else window_mask(None)}
    wide = cfg.flag("use_double_wide_mlp", default=False)
    per_layer = cfg.optional_integer("hidden_size_per_layer_input", default=256, least=0) or 0
    after = (*expert_sublayers(cfg, size, norm), *per_layer_sublayer(size, norm, per_layer))
    made = {}
    for kind in dict.fromkeys(kinds):
        attention = msgspec.structs.replace(attentions[kind.sliding], mask=masks[kind.sliding])
        if kind.shared:
            attention = msgspec.structs.replace(attention, keys="reused")
        mlp = gated(size.d_ff * (2 if wide and kind.shared else 1), activation=size.act)
        made[kind] = one_layer(kind.name, attention, mlp, norm, after)
    stack = decoder(
        size.d_model,
        size.vocab,
        [made[kind] for kind in kinds],
        final=norm,
        max_positions=size.positions,
        embeddings=tables(cfg, size, norm, per_layer),
    )
    text = Text(stack=stack, vocab=size.vocab, tied=tied(cfg, default=True), softcap=cfg.optional_number("final_logit_softcapping"))
    return text.restack(role="encoder") if both_ways else text


def layer_kinds(cfg: Config, depth: int) -> list[Kind]:
    """Every layer's kind; the last `num_kv_shared_layers` own no keys and values."""
    types = list(sliding_types(cfg, depth, lambda index: (index + 1) % 6 != 0))
    types[-1] = "full_attention"
    shared = cfg.integer("num_kv_shared_layers", default=0, least=0, most=depth)
    first = depth - shared
    if shared and set(types[:first]) != set(types):
        raise cfg.refuse(f"num_kv_shared_layers {shared} of {depth} layers leaves none of some kind to share from")
    return [Kind(sliding=kind == "sliding_attention", shared=index >= first) for index, kind in enumerate(types)]


def full_heads(cfg: Config, shape: Heads, kinds: Sequence[Kind]) -> Heads:
    """Heads of the full layers: `per_layer_config` where a file states them layer by layer, else the keys that begin with global."""
    width = cfg.integer("global_head_dim", default=512)
    groups = cfg.optional_integer("num_global_key_value_heads")
    kv_heads = groups if cfg.flag("attention_k_eq_v", default=False) and groups else shape.kv_heads
    stated = cfg.section("per_layer_config")
    if stated is not None:
        width, kv_heads = stated_heads(cfg, stated, shape, kinds)
    if shape.heads % kv_heads:
        raise cfg.refuse(f"{kv_heads} key and value heads of the full layers do not divide num_attention_heads {shape.heads}")
    return Heads(heads=shape.heads, kv_heads=kv_heads, head_dim=width)


def stated_heads(cfg: Config, stated: Config, shape: Heads, kinds: Sequence[Kind]) -> tuple[int, int]:
    """(head_dim, key and value heads) that every full layer, and no other, is given; a layer's number may begin with zeros."""
    digits = len(str(len(kinds) - 1))
    found = set()
    for index, kind in enumerate(kinds):
        entry = stated.section(str(index).zfill(digits)) or stated.section(str(index))
        if kind.sliding and entry is not None:
            raise cfg.refuse(f"per_layer_config changes layer {index}, which is no full layer")
        if not kind.sliding:
            own = entry or stated
            found.add((own.integer("head_dim", default=shape.head_dim), own.integer("num_key_value_heads", default=shape.kv_heads)))
    if len(found) != 1:
        raise cfg.refuse("per_layer_config must give all full layers the same heads")
    return found.pop()


def both_directions(cfg: Config) -> bool:
    """`use_bidirectional_attention`: all tokens see both ways, or image tokens do (`vision`, no count follows from it)."""
    value = cfg.raw("use_bidirectional_attention")
    if value not in (None, False, "vision", "all"):
        raise cfg.refuse(f"use_bidirectional_attention is {value!a}; known are null, vision and all")
    return bool(value == "all")


def sliding_mask(window: int, *, both_ways: bool) -> Mask:
    """A window back, or half of it to either side."""
    return Local(reach=max(window // 2, 1)) if both_ways else window_mask(window)


def attention_of(cfg: Config, norm: Norm, shape: Heads, *, sliding: bool) -> Attention:
    """Full layers rotate with another base, and perhaps have values made of the keys' projection."""
    equal = cfg.flag("attention_k_eq_v", default=False)
    bias = cfg.flag("attention_bias", default=False)
    kind, base = ("sliding_attention", 10000.0) if sliding else ("full_attention", 1000000.0)
    return self_attention(
        shape,
        bias=biases(qkv=bias, out=bias),
        head_norm=HeadNorm(eps=norm.eps, values=True),
        keys="values_are_keys" if equal and not sliding else "own",
        scale=1.0,
        position=rope(cfg, shape.head_dim, theta=base, kind=kind, partial=1.0 if sliding else 0.25),
    )


def one_layer(name: str, attention: Attention, mlp: FeedForward, norm: Norm, after: tuple[Sublayer, ...]) -> Layer:
    """Norms on both sides of attention and feed-forward, then what else there is."""
    first = Sublayer(name="attention", mixer=attention, pre_norm=norm, output_norm=norm)
    second = Sublayer(name="feed_forward", mixer=mlp, pre_norm=norm, output_norm=norm)
    return Layer(name=name, sublayers=(first, second, *after))


def expert_sublayers(cfg: Config, size: Sizes, norm: Norm) -> tuple[Sublayer, ...]:
    """Experts beside the dense feed-forward: norms on both sides of them, and one on the sum of the two."""
    cfg.ignore("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size")
    if not cfg.flag("enable_moe_block", default=False):
        return ()
    experts = cfg.integer("num_experts")
    scales = (Parameter(name="input_scale", shape=(size.d_model,)), Parameter(name="expert_scale", shape=(experts,)))
    moe = MoE(
        experts=experts,
        top_k=cfg.integer("top_k_experts"),
        expert=gated(cfg.integer("moe_intermediate_size"), activation=size.act),
        extra=scales,
    )
    total = msgspec.structs.replace(norm, name="sum_norm")
    return (Sublayer(name="moe", mixer=moe, pre_norm=norm, output_norm=norm, extra=(total,)),)


def per_layer_sublayer(size: Sizes, norm: Norm, width: int) -> tuple[Sublayer, ...]:
    """Gate down to the layer's own input, times it, back up."""
    if not width:
        return ()
    parts = (Linear(name="gate", d_in=size.d_model, d_out=width), Linear(name="projection", d_in=width, d_out=size.d_model))
    return (Sublayer(name="per_layer_input", mixer=Chain(parts=parts), output_norm=norm),)


def tables(cfg: Config, size: Sizes, norm: Norm, width: int) -> tuple[Part, ...]:
    """The token table, and a second one with an input for every layer, beside a projection to the same."""
    token = Embedding(name="token", rows=size.vocab, scale=size.d_model**0.5)
    rows = cfg.integer("vocab_size_per_layer_input", default=262144)
    if not width:
        return (token,)
    total = size.depth * width
    return (
        token,
        Embedding(name="per_layer", rows=rows, width=total, scale=width**0.5),
        Linear(name="per_layer_projection", d_in=size.d_model, d_out=total),
        msgspec.structs.replace(norm, name="per_layer_norm", width=width),
    )
