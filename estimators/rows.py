"""The ledger's line: one operator, what it weighs, what one run of it costs, and how often it runs.

The makers below (`linear`, `norm`, `vector` ...) are the only places where a shape becomes a count. A generator of an
architecture is a list of them.
"""

from __future__ import annotations

from math import prod
from typing import Literal

import msgspec
from msgspec.structs import replace

from ..presets.spec import NORM_VECTORS, Conv, Embedding, Linear, Norm, Parameter, Part, Similarity, Sinusoidal, StreamMix
from .counts import Number, matmul_flops
from .work import Pass, Tokens

# Activations whose slope follows from their value: that is kept in place of the input.
BY_VALUE = frozenset({"relu", "sigmoid", "tanh", "linear"})
# Tensors that an activation keeps where PyTorch has it as several operators; one where it has a kernel of its own.
KEPT = {"quick_gelu": 2, "sqrtsoftplus": 2, "clamped_swiglu": 4, "linear": 0}
Share = Literal["linear", "attention", "head"]


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of an operator keeps between steps, in elements.

    Attributes:
        of: `self` attention cache, `cross` attention cache, recurrent `state` (fp32), `tail` of a fixed number of past
            positions in the cache's dtype (a convolution's, a rolling window's).
        minimal, full, decompressed, paged: under each policy.
        moved: read or written in the pass, each element once.
        per_token: True where it grows with the context.
    """

    of: Literal["self", "cross", "state", "tail"]
    minimal: Number
    full: Number
    decompressed: Number
    paged: Number
    moved: Number


def constant_store(of: Literal["state", "tail"], elements: Number) -> Store:
    """A store that does not grow: read once and written once in a step."""
    return Store(of=of, minimal=elements, full=elements, decompressed=elements, paged=elements, moved=2 * elements)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One operator of a pass. Everything but `copies`, `repeat` and `fetches` is for one run.

    Attributes:
        path: readable, as `decoder/attention/q_proj`.
        op: linear, conv, experts, norm, embedding, parameter, attention, scan, activation.
        share: which part of the FLOPs it belongs to.
        component: what `params` groups by.
        params: elements of one copy of its weight. active: of them, used for one token.
        copies: distinct weights that exist (0 where another row owns the weight). buffers: stored, not counted.
        repeat: runs in the pass. fetches: how many of them have to bring the weight from memory.
        flops: of one run. weight_reads: weight elements that one fetch reads.
        store: what it keeps between steps.
        reads, writes: activation elements in and out.
        saved: elements kept for the backward pass in the activations' format, saved_bytes: what is kept in a format of
            its own (dropout masks 1 byte, logits fp32); saved_square, square_bytes: those of size T x S; saved_once: elements
            that all runs share (an encoder's output, read by every layer of the decoder).
        backward: FLOPs of the backward pass over those of the forward (2; 1 where no input gradient is needed).
        dims: the sizes in its formula.
    """

    path: str
    op: str
    share: Share = "linear"
    component: str = ""
    params: int = 0
    active: int = 0
    copies: int = 1
    buffers: int = 0
    repeat: int = 1
    fetches: int = 1
    flops: Number = 0
    weight_reads: Number = 0
    store: Store | None = None
    reads: Number = 0
    writes: Number = 0
    saved: Number = 0
    saved_once: Number = 0
    saved_square: Number = 0
    saved_bytes: Number = 0
    square_bytes: Number = 0
    backward: int = 2
    dims: dict[str, Number] = msgspec.field(default_factory=dict)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a row stands: its path, the width there, and the tokens that pass."""

    work: Pass
    path: str
    width: int
    tokens: Tokens
    share: Share = "linear"
    component: str = ""
    sources: dict[str, Number] = msgspec.field(default_factory=dict)
    images: int = 0

    @property
    def positions(self) -> Number:
        """Tokens of all sequences."""
        return self.tokens.sequences * self.tokens.new

    def at(self, name: str, *, component: str | None = None) -> Place:
        """One step deeper in the path."""
        return replace(self, path=f"{self.path}/{name}", component=component or self.component)

    def __truediv__(self, name: str) -> str:
        return f"{self.path}/{name}"


def linear(
    place: Place,
    name: str,
    d_in: int,
    d_out: int,
    *,
    bias: bool = False,
    positions: Number | None = None,
    keeps_input: bool = True,
    runs: bool = True,
    borrowed: bool = False,
    backward: int = 2,
    dropped: bool = False,
) -> Row:
    """x: [m, k] @ W: [k, n] (+ b: [n]); `borrowed`: the matrix belongs to another row, the bias is its own.

    `keeps_input`: its input is kept for the backward pass by this row (not by an earlier one with the same input).
    `dropped`: dropout follows, where the pass has it.
    """
    m = place.positions if positions is None else positions
    weight, own_bias = d_in * d_out, d_out if bias else 0
    own = own_bias if borrowed else weight + own_bias
    return Row(
        path=place / name,
        op="linear",
        share=place.share,
        component=place.component,
        params=own,
        active=own,
        repeat=int(runs and place.tokens.runs),
        fetches=int(runs and place.tokens.runs),
        flops=matmul_flops(m, d_in, d_out),
        weight_reads=weight + own_bias,
        reads=m * d_in,
        writes=m * d_out,
        saved=m * d_in if keeps_input else 0,
        saved_bytes=m * d_out if dropped and place.work.dropout else 0,
        backward=backward,
        dims={"m": m, "k": d_in, "n": d_out},
    )


def vector(place: Place, name: str, size: int, *, op: str = "parameter", buffer: bool = False) -> Row:
    """A bare tensor of `size` elements: no FLOPs, read where its stack runs."""
    runs = int(place.tokens.runs)
    own = 0 if buffer else size
    component = "norm" if op == "norm" else place.component
    return Row(
        path=place / name,
        op=op,
        share=place.share,
        component=component,
        params=own,
        active=own,
        buffers=size if buffer else 0,
        repeat=runs,
        fetches=runs,
        weight_reads=size,
        dims={"n": size},
    )


def norm(place: Place, spec: Norm, *, name: str | None = None, width: int | None = None, positions: Number | None = None) -> Row:
    """A normalisation: its vectors; norms are not FLOPs. Its input is kept for the backward pass."""
    n = width or spec.width or place.width
    m = place.positions if positions is None else positions
    row = vector(place, name or spec.name, NORM_VECTORS[spec.type] * n, op="norm")
    return replace(row, reads=m * n, writes=m * n, saved=m * n)


def activation(place: Place, name: str, width: int, *, operands: int = 1, params: int = 0, positions: Number | None = None) -> Row:
    """An elementwise function over [m, width] (`operands` inputs: 2 for a gated product): not FLOPs.

    For the backward pass it keeps its input, or its value where the slope follows from that (ReLU, tanh); a gated product
    act(g)·u, two operators as PyTorch has it, keeps g, act(g) and u.
    """
    m = place.positions if positions is None else positions
    row = vector(place, name, params, op="activation")
    kept = KEPT.get(name, 1) + (0 if operands == 1 else 2 - int(name in BY_VALUE))
    return replace(row, reads=operands * m * width, writes=m * width, saved=kept * m * width)


def embedding(place: Place, spec: Embedding) -> Row:
    """A gather: 0 FLOPs, and its table is not read, only the rows asked for."""
    width = spec.width or place.width
    runs = int(place.tokens.runs)
    own = spec.rows * width
    return Row(
        path=place / spec.name,
        op="embedding",
        share=place.share,
        component="embedding",
        params=own,
        active=own,
        copies=int(spec.shares is None),
        repeat=runs,
        fetches=0,
        writes=place.positions * width,
        dims={"rows": spec.rows, "n": width},
    )


def conv(place: Place, spec: Conv, positions: Number, *, backward: int = 2) -> Row:
    """A convolution: every output position is a product of [d_in / groups x taps] with [d_out]; with a stride it is given more."""
    given = positions * prod(spec.stride or (1,)) * spec.d_in
    taps = spec.d_in // spec.groups * prod(spec.kernel)
    own = spec.d_out * taps + (spec.d_out if spec.bias else 0)
    runs = int(place.tokens.runs)
    return Row(
        path=place / spec.name,
        op="conv",
        share=place.share,
        component=place.component,
        params=own,
        active=own,
        repeat=runs,
        fetches=runs,
        flops=matmul_flops(positions, taps, spec.d_out),
        weight_reads=own,
        reads=given,
        writes=positions * spec.d_out,
        saved=given + (positions * spec.d_out if spec.activation else 0),
        backward=backward,
        dims={"m": positions, "k": taps, "n": spec.d_out},
    )


def positions_of(place: Place, spec: Linear | Conv) -> Number:
    """Positions a part runs at: once a sequence, or `expand` for every `merge` tokens."""
    if spec.once:
        return place.tokens.sequences
    return place.positions * spec.expand // spec.merge


def stream_mix(place: Place, spec: StreamMix) -> Row:
    """[n, n] @ [n, width] a position, the matrix made by the input: a product without weights."""
    m, n = place.positions, spec.streams
    row = vector(place, spec.name, 0, op="linear")
    return replace(
        row,
        component=place.component,
        fetches=0,
        flops=matmul_flops(m * n, n, spec.width),
        reads=m * n * (n + spec.width),
        writes=m * n * spec.width,
        saved=m * n * (n + spec.width),
        dims={"m": m * n, "k": n, "n": spec.width},
    )


def part(place: Place, spec: Part, *, backward: int = 2) -> Row:
    """The row of one leaf."""
    match spec:
        case Linear():
            positions = positions_of(place, spec)
            borrowed = spec.shares is not None
            row = linear(place, spec.name, spec.d_in, spec.d_out, bias=spec.bias, positions=positions, borrowed=borrowed, backward=backward)
            return replace(row, saved=row.saved + (row.writes if spec.activation else 0))
        case Conv():
            return conv(place, spec, positions_of(place, spec), backward=backward)
        case Norm():
            return norm(place, spec)
        case Embedding():
            return embedding(place, spec)
        case Parameter():
            row = vector(place, spec.name, prod(spec.shape), buffer=spec.buffer)
            return replace(row, active=0, repeat=0, fetches=0) if spec.unused else row
        case Sinusoidal():
            return vector(place, spec.name, 0)
        case StreamMix():
            return stream_mix(place, spec)
        case Similarity(name=name, width=width):
            texts = place.work.batch
            row = linear(place, name, width, 0, positions=texts)
            return replace(
                row, flops=matmul_flops(texts, width, texts * place.images), dims={"m": texts, "k": width, "n": texts * place.images}
            )
