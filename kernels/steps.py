"""Sublayers of few rows as one compiled call each: norm, products with panels, attention or activation, residual.

Between the products of a model lie dozens of operators, each of which takes microseconds alone and 10 to 70 where the weights drive code
and Python's data out of the caches; so does the call of a loop. In a model of 1.5 B parameters that is a tenth of a step. A fused sublayer
is its steps as one loop after another in one call: a feed-forward network, or attention of one token with its cache.

Taken by models that `tuning` has stored in panels, for the rows they are stored for, in inference mode (`fused`). Numbers that
PyTorch's operators round to the narrow format between two steps may stay in fp32. `benchmarks/decode_step.py fused` has what is gained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from ..presets import spec as s
from . import compiled, panels
from .between import normed, turn
from .compiling import Compiled, compile_loop, realized
from .modules import activation_named, gated_product

Width = Literal["model", "inner", "heads"]  # of the residual, of a feed-forward network, of all KV heads
Sizes = dict[str, int]  # widths, the number of KV heads, slots of the cache, tokens seen
Shape = tuple[tuple[int, ...], tuple[int, ...]]  # of an input, and which of its dimensions may have other sizes
# What they are traced with: whole panels, and below the 4096 from which Inductor adds up more slowly than fp32 needs here.
USUAL: Sizes = {"model": 2016, "inner": 4064, "slots": 1511, "seen": compiled.USUAL_CONTEXT}
TRIALS: tuple[Sizes, ...] = (
    {"model": 64, "inner": 96, "number": 2, "slots": 131, "seen": 99},
    {"model": 96, "inner": 320, "number": 4, "slots": 600, "seen": 600},
)


@dataclass(kw_only=True, slots=True)
class State:
    """Where the steps are: the residual x [R,D], and what it still has of what it was given.

    live: of this pass, as the cache. held: of the model, as weights.
    """

    x: Tensor
    live: Iterator[Tensor]
    held: Iterator[Tensor]


class Step:
    """One step: h [R,I] -> [R,O]. Unless a step says otherwise it needs nothing, and O is I."""

    def __call__(self, h: Tensor, state: State) -> Tensor:
        """What it gives."""
        raise NotImplementedError

    def live(self, rows: int, sizes: Sizes) -> list[Shape]:
        """What it needs of a pass."""
        return []

    def held(self, width: int, sizes: Sizes) -> list[Shape]:
        """What it needs of the model, where h has a width."""
        return []

    def out(self, width: int, sizes: Sizes) -> int:
        """O, where I is a width."""
        return width


@dataclass(frozen=True, kw_only=True)
class Normed(Step):
    """A norm over the width."""

    kind: str
    eps: float
    offset: float

    def __call__(self, h: Tensor, state: State) -> Tensor:
        """h [R,D] -> [R,D]."""
        return self.of(h, [next(state.held) for _ in range(s.NORM_VECTORS[self.kind])])

    def of(self, h: Tensor, vectors: list[Tensor]) -> Tensor:
        """h [...,D] with as many vectors [D] as its kind has."""
        return normed(h, *vectors, centred=not self.kind.startswith("rms"), eps=self.eps, offset=self.offset)

    def held(self, width: int, sizes: Sizes) -> list[Shape]:
        """Its vectors."""
        vector: Shape = (width,), (0,)
        return s.NORM_VECTORS[self.kind] * [vector]


@dataclass(frozen=True, kw_only=True)
class Times(Step):
    """A product with a weight in panels, to `count` vectors of a width."""

    to: Width
    count: int
    panel: int
    bias: bool

    def __call__(self, h: Tensor, state: State) -> Tensor:
        """h [R,I] -> [R,O]."""
        y = panels.sums(realized(h), next(state.held))
        return (y + next(state.held).float() if self.bias else y).to(h.dtype).flatten(1)

    def held(self, width: int, sizes: Sizes) -> list[Shape]:
        """Panels, and the bias in panels."""
        count = self.out(width, sizes) // self.panel
        return [((count, width, self.panel), (0, 1)), *(self.bias * [((count, self.panel), (0,))])]

    def out(self, width: int, sizes: Sizes) -> int:
        """Width of what it gives."""
        return self.count * sizes[self.to]


@dataclass(frozen=True, kw_only=True)
class Activated(Step):
    """An activation; gated: of the first half of the width, times the second."""

    name: str
    gated: bool

    def __call__(self, h: Tensor, state: State) -> Tensor:
        """h [R,F], gated [R,2F] -> [R,F]."""
        if not self.gated:
            return activation_named(self.name)(h)
        gate, up = h.view(h.shape[0], 2, -1).unbind(1)
        return gated_product(self.name, gate, up)

    def out(self, width: int, sizes: Sizes) -> int:
        """Width of what it gives."""
        return width // 2 if self.gated else width


@dataclass(frozen=True, kw_only=True)
class Plus(Step):
    """The residual, and what came of it, scaled if at all; it is the residual from now on."""

    scale: float | None

    def __call__(self, h: Tensor, state: State) -> Tensor:
        """h [R,D] -> [R,D]."""
        state.x = state.x + (h if self.scale is None else h * self.scale)
        return state.x


@dataclass(frozen=True, kw_only=True)
class Attended(Step):
    """Attention of one token of each of R sequences: queries, keys and values are normed, turned, kept and attended.

    group: query heads of a KV head. width: of a head. scale: of scores. usual: a number of KV heads to trace with.
    norms: of queries and of keys, if any.
    """

    group: int
    width: int
    scale: float
    softcap: float | None
    turned: bool
    norms: tuple[Normed, ...]
    usual: int

    def __call__(self, h: Tensor, state: State) -> Tensor:
        """h [R,(G + 2) K H], queries before keys before values -> [R,G K H]; live: buffers [R,K,slots,H] of keys and of values,
        something as long as the slots up to the new one, and as those that are seen; cos and sin [1,H] where heads are turned.
        """
        keys, values, place, seen = (next(state.live) for _ in range(4))
        (R, K, _, H), G = keys.shape, self.group
        q, k, v = h.view(R, (G + 2) * K, H).split([G * K, K, K], dim=1)
        if self.norms:
            q, k = (
                norm.of(x, [next(state.held) for _ in range(s.NORM_VECTORS[norm.kind])]) for norm, x in zip(self.norms, (q, k), strict=True)
            )
        if self.turned:
            cos, sin = next(state.live), next(state.live)
            q, k = turn(q, cos, sin), turn(k, cos, sin)
        for buffer, new in ((keys, k), (values, v)):
            buffer.narrow(2, place.shape[0] - 1, 1).copy_(new.unsqueeze(2))
        kept = (buffer.view(R * K, -1, H).narrow(1, 0, seen.shape[0]) for buffer in (keys, values))
        queries = realized((q.float() * self.scale).reshape(R * K, G, H))
        out, _ = compiled.attention_loop(queries, *kept, softcap=self.softcap, block=None)
        return out.reshape(R, G * K * H)

    def live(self, rows: int, sizes: Sizes) -> list[Shape]:
        """Buffers, lengths, angles."""
        buffer = (rows, sizes["number"], sizes["slots"], self.width), (1, 2)
        lengths = [((sizes["seen"],), (0,))] * 2
        return [buffer, buffer, *lengths, *(self.turned * 2 * [((1, self.width), ())])]

    def held(self, width: int, sizes: Sizes) -> list[Shape]:
        """The norms' vectors."""
        return [shape for norm in self.norms for shape in s.NORM_VECTORS[norm.kind] * [((self.width,), ())]]

    def out(self, width: int, sizes: Sizes) -> int:
        """Width of what it gives."""
        return width // (self.group + 2) * self.group


# --- one call ---------------------------------------------------------------------------------------------------------------

Steps = tuple[Step, ...]


@cache
def compiled_steps(steps: Steps, rows: int, dtype: torch.dtype, threads: int) -> Compiled:  # noqa: ARG001 - Inductor asks for them
    """Steps as one call over [x [R,D], what they need of a pass, what they need of the model], for any widths."""
    usual = [(torch.empty(shape, dtype=dtype), opened) for shape, opened in shapes(steps, rows, USUAL)]
    trials = [[numbers(shape, dtype) for shape, _ in shapes(steps, rows, sizes)] for sizes in TRIALS]
    loop = partial(steps_loop, steps=steps, live=sum(len(step.live(rows, TRIALS[0])) for step in steps))
    loop.__name__ = steps_loop.__name__  # type: ignore[attr-defined]
    return compile_loop(loop, usual, trials)


def steps_loop(x: Tensor, *given: Tensor, steps: Steps, live: int) -> tuple[Tensor]:
    """x [R,D], `live` tensors of a pass and those of the model -> [R,O]."""
    state, h = State(x=x, live=iter(given[:live]), held=iter(given[live:])), x
    for step in steps:
        h = step(h, state)
    return (h,)


def shapes(steps: Steps, rows: int, sizes: Sizes) -> list[Shape]:
    """Of all that steps are given, in order."""
    for step in steps:
        if isinstance(step, Attended):
            number = sizes.get("number", step.usual)
            sizes = {**sizes, "number": number, "heads": number * step.width}
    width, held = sizes["model"], []
    for step in steps:
        held += step.held(width, sizes)
        width = step.out(width, sizes)
    return [((rows, sizes["model"]), (1,)), *(shape for step in steps for shape in step.live(rows, sizes)), *held]


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random numbers that keep a product with panels near 1."""
    return (torch.randn(shape) / (shape[1] ** 0.5 if len(shape) == 3 else 1.0)).to(dtype)
