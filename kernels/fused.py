"""From the sublayers of a model to fused ones (`steps`): which of them can be one call, and what they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..presets import spec as s
from . import grouped
from .blocks import Layer, Sublayer
from .cache import Entry, KeyValue
from .compiled import CACHE_LINE, LOOPS, SHORTEST, VECTOR, shares_heads
from .compiling import REGISTERS
from .feed_forward import FeedForward
from .mixers import Attention, Run
from .modules import Linear, Norm
from .orders import ORDERS
from .steps import Activated, Attended, Normed, Plus, Step, Steps, Times, Width, compiled_steps
from .stored import Stored, StoredLinear

Link = tuple[Step, Sequence[Tensor]]  # a step, and what it needs of the model


@dataclass(frozen=True, kw_only=True, eq=False)
class Fused:
    """A sublayer as one call, for so many rows in one format."""

    rows: int
    dtype: torch.dtype
    steps: Steps
    held: tuple[Tensor, ...]

    def takes(self, x: Tensor, run: Run, entry: Entry | None) -> bool:  # noqa: ARG002
        """Whether x [B,T,D] is what it is for, now."""
        return x.shape[0] * x.shape[1] == self.rows and x.dtype == self.dtype and torch.is_inference_mode_enabled() and not LOOPS

    def live(self, run: Run, entry: Entry | None) -> Sequence[Tensor]:  # noqa: ARG002
        """What the steps need of a pass."""
        return ()

    def __call__(self, x: Tensor, run: Run, entry: Entry | None) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        loop = compiled_steps(self.steps, self.rows, self.dtype, torch.get_num_threads())
        return loop([x.reshape(self.rows, -1).contiguous(), *self.live(run, entry), *self.held])[0].view(x.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class FusedAttention(Fused):
    """Attention of one token of each sequence, to all that its cache keeps."""

    spec: s.Attention

    def takes(self, x: Tensor, run: Run, entry: Entry | None) -> bool:
        """Whether loops were found the faster way to read this cache, and the new token sees all of it."""
        if not (x.shape[1] == 1 and super().takes(x, run, entry) and isinstance(entry, KeyValue)):
            return False
        buffer, S = entry.values.buffer, entry.keys.kept(run.start + 1)
        heads = (*buffer.shape[:2], self.spec.heads // buffer.shape[1])
        return (
            S >= SHORTEST
            and buffer.dtype == self.dtype
            and grouped.CHOSEN.get(grouped.key_for(heads, S, buffer.shape[3], buffer.dtype), False)
            and (entry.keys.limit is not None or isinstance(self.spec.mask, s.Causal))
            and not run.padding
            and run.kernel is None
        )

    def live(self, run: Run, entry: Entry | None) -> Sequence[Tensor]:
        """Buffers, how far the new token's place and what is seen reach, and the angles."""
        assert isinstance(entry, KeyValue)
        keys, limit = entry.keys, entry.keys.limit
        slot = run.start % limit if limit else run.start
        place, seen = run.once(("reach", limit), lambda: [torch.empty(n) for n in (slot + 1, keys.kept(run.start + 1))])
        turning = run.angles_of(self.spec.position, self.spec.head_dim) if isinstance(self.spec.position, s.Rope) else ()
        return (keys.buffer, entry.values.buffer, place, seen, *turning)


# --- from modules -----------------------------------------------------------------------------------------------------------


def fuse(model: nn.Module, rows: int) -> None:
    """Sublayers whose products are stored in panels for so many rows are one call from now on, where they can be."""
    reused = any(isinstance(module, Attention) and module.spec.keys == "reused" for module in model.modules())
    for layer in model.modules():
        if isinstance(layer, Layer) and not layer.parallel:
            for sub in layer.subs:
                assert isinstance(sub, Sublayer)
                if not (reused and isinstance(sub.mixer, Attention)):  # others read what it was about to keep
                    sub.fused = fused(sub, rows)


def unfuse(model: nn.Module) -> None:
    """All sublayers run as their modules do."""
    for module in model.modules():
        if isinstance(module, Sublayer):
            module.fused = None


def fused(sub: Sublayer, rows: int) -> Fused | None:
    """A sublayer as one call; None where something in it is no step, or not stored for it."""
    if len(sub.scales) or not all(has_step(norm) for norm in (sub.norm, sub.output_norm, sub.residual_norm)):
        return None
    if sub.spec.pre_norm is not None and sub.spec.pre_norm.width is not None:
        return None
    match sub.mixer:
        case FeedForward():
            return fused_feed_forward(sub, sub.mixer, rows)
        case Attention():
            return fused_attention(sub, sub.mixer, rows)
    return None


def fused_feed_forward(sub: Sublayer, mixer: FeedForward, rows: int) -> Fused | None:
    """Norm, up, activation, down, residual."""
    ups = [mixer.up_proj] if mixer.gate_proj is None else [mixer.gate_proj, mixer.up_proj]
    up, down = stored_as_one(ups, rows), stored_as_one([mixer.down_proj], rows)
    if up is None or down is None or mixer.act is not None or not has_step(mixer.inner_norm) or not keeps_width(mixer.spec):
        return None
    activated: Step = Activated(name=mixer.spec.activation, gated=len(ups) == 2)
    before: list[Link] = [*normed(sub.norm), times(up, "inner", count=len(ups)), (activated, ())]
    steps, held = linked([*before, *normed(mixer.inner_norm), times(down, "model"), *added(sub)])
    return Fused(rows=rows, dtype=down.numbers.dtype, steps=steps, held=held)


def fused_attention(sub: Sublayer, mixer: Attention, rows: int) -> Fused | None:
    """Norm; queries, keys and values; what they attend; output, residual."""
    spec, projections = mixer.spec, [one for one in (mixer.q_proj, mixer.k_proj, mixer.v_proj) if one is not None]
    into, out = stored_as_one(projections, rows), stored_as_one([mixer.o_proj], rows)
    if into is None or out is None or not is_common(spec) or not has_loop(spec, rows, out.numbers):
        return None
    norms = [normed(norm)[0] for norm in (mixer.q_norm, mixer.k_norm) if norm is not None and has_step(norm)]
    if len(norms) != (2 if spec.head_norm else 0):
        return None
    attended = Attended(
        group=spec.heads // spec.kv_heads,
        width=spec.head_dim,
        scale=spec.head_dim**-0.5 if spec.scale is None else spec.scale,
        softcap=spec.softcap,
        turned=spec.position is not None,
        norms=tuple(norm for norm, _ in norms),
        usual=4 * torch.get_num_threads() + 2,
    )
    before: list[Link] = [*normed(sub.norm), times(into, "heads", count=attended.group + 2)]
    held_by_norms = [vector for _, vectors in norms for vector in vectors]
    steps, held = linked([*before, (attended, held_by_norms), times(out, "model"), *added(sub)])
    return FusedAttention(rows=rows, dtype=out.numbers.dtype, steps=steps, held=held, spec=spec)


def is_common(spec: s.Attention) -> bool:
    """Whether this is attention of a stack to itself, each token's heads as wide as its values, turned as a whole if at all."""
    rope = spec.position
    turned = isinstance(rope, s.Rope) and not rope.interleaved and rope.dims in (None, spec.head_dim)
    normed_by_head = spec.head_norm is None or (spec.head_norm.over == "head" and not spec.head_norm.values)
    return (
        spec.source is None
        and spec.keys == "own"
        and spec.gate == "none"
        and not spec.sinks
        and spec.v_dim == spec.head_dim
        and keeps_width(spec)
        and normed_by_head
        and (rope is None or turned)
    )


def has_loop(spec: s.Attention, rows: int, weight: Tensor) -> bool:
    """Whether the loop of `compiled` reads such a cache once, by whole heads."""
    sums = spec.heads // spec.kv_heads * spec.head_dim
    return (
        spec.kv_heads > 1
        and not shares_heads(rows * spec.kv_heads)
        and sums <= VECTOR * REGISTERS
        and spec.head_dim % (CACHE_LINE // weight.itemsize) == 0
    )


def linked(links: Sequence[Link]) -> tuple[Steps, tuple[Tensor, ...]]:
    """Steps, and all that they need of the model."""
    return tuple(step for step, _ in links), tuple(tensor for _, needed in links for tensor in needed)


def has_step(norm: Norm | None) -> bool:
    """Whether a norm, if there is one, is a step: the same vectors everywhere."""
    return norm is None or (norm.heads is None and norm.spec.type in s.NORM_VECTORS and norm.spec.type != "batch")


def normed(norm: Norm | None) -> list[tuple[Normed, list[Tensor]]]:
    """A norm as a link, if there is one."""
    if norm is None:
        return []
    vectors = [vector.detach() for vector in (norm.weight, norm.bias) if vector is not None]
    return [(Normed(kind=norm.spec.type, eps=norm.spec.eps, offset=float(norm.spec.unit_offset)), vectors)]


def times(stored: Stored, to: Width, *, count: int = 1) -> Link:
    """A product with what is stored as a link."""
    n, _, width = stored.numbers.shape
    bias = [] if stored.bias is None else [stored.bias.detach().view(n, width)]
    return Times(to=to, count=count, panel=width, bias=bool(bias)), [stored.numbers, *bias]


def added(sub: Sublayer) -> list[Link]:
    """What follows a sublayer's mixer."""
    return [*normed(sub.output_norm), (Plus(scale=sub.spec.residual_scale), ()), *normed(sub.residual_norm)]


def stored_as_one(layers: Sequence[Linear], rows: int) -> Stored | None:
    """What these layers, in order, and no others are stored as in panels for so many rows; None where they are not."""
    first = layers[0]
    if not isinstance(first, StoredLinear):
        return None
    stored = first.stored
    same = all(isinstance(layer, StoredLinear) and layer.stored is stored and layer.index == index for index, layer in enumerate(layers))
    return stored if same and len(stored.sizes) == len(layers) and stored.order is ORDERS["panels"] and stored.rows == rows else None


def keeps_width(spec: s.FeedForward | s.Attention) -> bool:
    """Whether a mixer is as wide as its stack, on both sides."""
    return spec.d_in is None and spec.d_out is None
