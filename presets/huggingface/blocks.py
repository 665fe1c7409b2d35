"""What many families share: norms, heads of attention, feed-forwards, layers, and the text model that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from ..spec import (
    Attention,
    Block,
    Causal,
    Embedding,
    FeedForward,
    Head,
    Layer,
    Linear,
    Mask,
    Mixer,
    Norm,
    Part,
    Sliding,
    Stack,
    Sublayer,
)
from .config import Config

Projection = Literal["q", "k", "v", "o"]
LONGEST_PATTERN = 64
# Elementwise functions that the library knows; two of them learn numbers of their own.
ACTIVATIONS = frozenset(
    """
    gelu gelu_10 gelu_fast gelu_new gelu_python gelu_pytorch_tanh gelu_python_tanh gelu_accurate hardswish laplace leaky_relu
    linear mish quick_gelu relu relu2 relu6 sigmoid silu sqrtsoftplus swish tanh prelu xielu
""".split()
)
ACT_PARAMS = {"prelu": 1, "xielu": 2}


# --- norms, masks, widths of heads ----------------------------------------------------------------------------------


def rms(cfg: Config, *, key: str = "rms_norm_eps", default: float = 1e-6, unit_offset: bool = False) -> Norm:
    """An RMS norm with the configuration's epsilon."""
    return Norm(type="rms", eps=cfg.number(key, default=default), unit_offset=unit_offset)


def layer_norm(cfg: Config, *keys: str, default: float = 1e-5, bias: bool = True) -> Norm:
    """A layer norm with the configuration's epsilon."""
    return Norm(type="layer" if bias else "layer_unbiased", eps=cfg.number(*(keys or ("layer_norm_eps",)), default=default))


def window_mask(window: int | None) -> Mask:
    """Causal, and with a window where there is one."""
    return Causal() if window is None else Sliding(window=window)


@dataclass(frozen=True, kw_only=True)
class Heads:
    """N query heads, K key and value heads, H wide."""

    heads: int
    kv_heads: int
    head_dim: int


def grouped(
    cfg: Config,
    d_model: int,
    *,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    kv_keys: Sequence[str] = ("num_key_value_heads",),
    must_divide: bool = False,
) -> Heads:
    """Heads of grouped-query attention by the usual keys.

    Args:
        cfg: the section that holds the keys.
        d_model: width of the stack.
        heads: default of `num_attention_heads`.
        kv_heads: default of the key and value heads where the key is absent (null always means as many as heads).
        head_dim: default of `head_dim`; None: d_model // heads.
        kv_keys: names of the key and value heads.
        must_divide: the library refuses a d_model that heads do not divide, even where head_dim is given.
    """
    n = cfg.integer("num_attention_heads", default=heads)
    k = cfg.optional_integer(*kv_keys, default=kv_heads) or n
    width = cfg.optional_integer("head_dim", default=head_dim)
    if d_model % n and must_divide:
        raise cfg.refuse(f"num_attention_heads {n} does not divide hidden_size {d_model}")
    if n % k:
        raise cfg.refuse(f"{kv_keys[0]} {k} does not divide num_attention_heads {n}")
    return Heads(heads=n, kv_heads=k, head_dim=width or floor_width(cfg, d_model, n))


def floor_width(cfg: Config, d_model: int, heads: int) -> int:
    """d_model // heads, as classes have it that do not check the rest."""
    if d_model < heads:
        raise cfg.refuse(f"{heads} heads are more than the width {d_model}, and head_dim is not given")
    if d_model % heads:
        cfg.assume(f"head_dim is not given and {heads} heads do not divide {d_model}: {d_model // heads} as the library rounds it")
    return d_model // heads


def even_width(cfg: Config, d_model: int, heads: int) -> int:
    """d_model / heads, refused where that is no whole number."""
    if d_model % heads:
        raise cfg.refuse(f"{heads} heads do not divide the width {d_model}, and head_dim is not given")
    return d_model // heads


def biases(*, qkv: bool = False, out: bool = False) -> tuple[Projection, ...]:
    """Which projections have a bias."""
    made: tuple[Projection, ...] = ("q", "k", "v") if qkv else ()
    return (*made, "o") if out else made


# --- feed-forwards and layers ---------------------------------------------------------------------------------------


def activation(cfg: Config, *keys: str, default: str) -> str:
    """The elementwise function of a feed-forward; `hidden_act` where no key is said."""
    return cfg.choice(*(keys or ("hidden_act",)), allowed=sorted(ACTIVATIONS), default=default)


def gated(d_ff: int, *, activation: str = "silu", bias: bool = False) -> FeedForward:
    """Gate, up and down."""
    return FeedForward(d_ff=d_ff, activation=activation, gated=True, bias=bias, act_params=ACT_PARAMS.get(activation, 0))


def plain(d_ff: int, *, activation: str = "gelu", bias: bool = True) -> FeedForward:
    """Up and down."""
    return FeedForward(d_ff=d_ff, activation=activation, bias=bias, act_params=ACT_PARAMS.get(activation, 0))


def sublayer(name: str, mixer: Mixer, norm: Norm | None, *, output_norm: Norm | None = None) -> Sublayer:
    """One residual branch, normed before."""
    return Sublayer(name=name, mixer=mixer, pre_norm=norm, output_norm=output_norm)


def pre_norm(norm: Norm, attention: Mixer, feed_forward: Mixer, *, name: str = "", attention_name: str = "attention") -> Layer:
    """The common layer: norm, mixer, norm, feed-forward (routed ones are called `moe`)."""
    second = "feed_forward" if isinstance(feed_forward, FeedForward) else "moe"
    return Layer(name=name, sublayers=(sublayer(attention_name, attention, norm), sublayer(second, feed_forward, norm)))


def parallel(attention: Attention, feed_forward: FeedForward, norm: Norm, second: Norm | None = None, *, name: str = "") -> Layer:
    """Attention and feed-forward on the same input; one norm for both, or one each."""
    subs = (sublayer("attention", attention, norm), sublayer("feed_forward", feed_forward, second))
    return Layer(name=name, sublayers=subs, parallel=True)


def compress(layers: Iterable[Layer]) -> tuple[Block, ...]:
    """A list of layers as repeated patterns: always the pattern that covers most, the shortest among equals.

    >>> a, b = Layer(sublayers=(), name="a"), Layer(sublayers=(), name="b")
    >>> [(len(block.pattern), block.repeat) for block in compress([a, a, b, a, a, b, a])]
    [(3, 2), (1, 1)]
    """
    listed = list(layers)
    numbers: dict[Layer, int] = {}
    ids = [numbers.setdefault(layer, len(numbers)) for layer in listed]
    blocks: list[Block] = []
    start = 0
    while start < len(ids):
        period, repeat = best_pattern(ids, start)
        blocks.append(Block(pattern=tuple(listed[start : start + period]), repeat=repeat))
        start += period * repeat
    return tuple(blocks)


def best_pattern(ids: Sequence[int], start: int) -> tuple[int, int]:
    """(length, repeats) of the pattern at `start` that covers most layers; (1, 1) where nothing repeats."""
    best = (1, 1)
    for period in range(1, min(LONGEST_PATTERN, (len(ids) - start) // 2) + 1):
        end = start + period
        while end < len(ids) and ids[end] == ids[end - period]:
            end += 1
        repeat = (end - start) // period
        if repeat > 1 and period * repeat > best[0] * best[1]:
            best = (period, repeat)
    return best


# --- layer kinds ----------------------------------------------------------------------------------------------------

SLIDING_OR_FULL = ("full_attention", "sliding_attention", "attention")


def sliding_types(cfg: Config, depth: int, slides: Callable[[int], bool]) -> tuple[str, ...]:
    """Kinds of layers that slide or do not: the file's list, else by the family's rule on the layer's index."""
    listed = layer_types(cfg, depth, SLIDING_OR_FULL)
    return listed or tuple("sliding_attention" if slides(index) else "full_attention" for index in range(depth))


def layer_types(cfg: Config, depth: int, allowed: Sequence[str], *, key: str = "layer_types") -> tuple[str, ...] | None:
    """The list of layer kinds, None where the file gives none; its length must be the depth."""
    found = cfg.texts(key)
    if found is None:
        return None
    for kind in found:
        if kind not in allowed:
            raise cfg.refuse(f"{key} names {kind[:40]!a}; known are {', '.join(allowed)}")
    if len(found) != depth:
        raise cfg.refuse(f"{key} has {len(found)} entries for {depth} layers")
    return found


def one_window(cfg: Config, depth: int, *, default: int | None = None) -> int | None:
    """The window of a class that treats all layers alike; a list of kinds must say the same."""
    window = cfg.optional_integer("sliding_window", default=default)
    alike = "full_attention" if window is None else "sliding_attention"
    if set(layer_types(cfg, depth, SLIDING_OR_FULL) or (alike,)) != {alike}:
        raise cfg.refuse(f"layer_types must be {alike} throughout: the class of this type treats all layers alike, by sliding_window")
    return window


# --- the text model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Text:
    """A language model before its class is chosen: the stack, and what its output head would be.

    Attributes:
        stack: called `decoder`, its table `token`.
        vocab: columns of the output head. tied: its matrix is the token table's.
        head_bias: the output head has a bias. head_width: width it reads where that is not d_model.
        before_head: what stands between the stack and the head (a projection, a head's norm).
        bare: parts the base model has too, beside the stack.
    """

    stack: Stack
    vocab: int
    tied: bool
    head_bias: bool = False
    head_width: int | None = None
    before_head: tuple[Part, ...] = ()
    softcap: float | None = None
    scale: float | None = None
    extra: tuple[Part, ...] = ()

    def lm_head(self, *, tied: bool | None = None) -> Head:
        """The output head; `tied` overrides (a multimodal class decides at its top level)."""
        shares = f"{self.stack.name}/embedding/token" if (self.tied if tied is None else tied) else None
        width = self.head_width or self.stack.d_model
        matrix = Linear(name="weight", d_in=width, d_out=self.vocab, bias=self.head_bias, shares=shares)
        return Head(name="lm_head", stack=self.stack.name, parts=(*self.before_head, matrix), softcap=self.softcap, scale=self.scale)

    def restack(self, **changes: Any) -> Text:
        """The same with other fields of its stack."""
        return replace(self, stack=msgspec.structs.replace(self.stack, **changes))

    def retied(self, *, tied: bool) -> Text:
        """The same with the tying decided elsewhere."""
        return replace(self, tied=tied)


def decoder(
    d_model: int,
    vocab: int,
    layers: Iterable[Layer],
    *,
    final: Norm | None,
    max_positions: int | None = None,
    scale: float | None = None,
    embeddings: tuple[Part, ...] | None = None,
) -> Stack:
    """The decoder stack over a token table; `embeddings` replaces the table where there is more than that."""
    token = Embedding(name="token", rows=vocab, scale=scale)
    return Stack(
        name="decoder",
        d_model=d_model,
        role="decoder",
        blocks=compress(layers),
        embeddings=(token,) if embeddings is None else embeddings,
        final=() if final is None else (final,),
        max_positions=max_positions,
    )
