"""Tensors of a pass: sizes with their letters, the operator that makes one, and `Flow`, which writes them from ledger rows.

Every size of a product is taken from the row that counts it (`Flow.linear`, `Flow.experts`), so a shape and its FLOPs are
one number. What a row does not hold (how a width is cut into heads) comes from the description, and `tests` hold the product
of the sizes against the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import msgspec

from ..presets.spec import Attention, Chunked, Mask, Sliding
from .rows import Place, Row


class Dim(msgspec.Struct, frozen=True):
    """One size of a tensor with its letter: N = 32."""

    symbol: str
    size: int

    def __mul__(self, other: Dim) -> Dim:
        """Both side by side: N·H. A size of 1 leaves no trace."""
        if 1 in (self.size, other.size) and "1" in (self.symbol, other.symbol):
            return other if self.symbol == "1" else self
        return Dim(f"{self.symbol}·{other.symbol}", self.size * other.size)

    def __add__(self, other: Dim) -> Dim:
        """One after the other: H+Hv."""
        return Dim(f"{self.symbol}+{other.symbol}", self.size + other.size)


Shape = tuple[Dim, ...]


def number(size: int) -> Dim:
    """A size without a letter."""
    return Dim(str(size), size)


ONE = number(1)


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor and what it is made of.

    Attributes:
        path: where it is made, `decoder/attention/scores`. op: how (linear, scores, softmax, heads ...).
        inputs: shapes of what goes in, weights too. output: its own shape, () for a scalar.
        row: path of the ledger's row that counts it, "" where nothing is counted (a view, a sum).
        contracted: elements multiplied and added for one of the output; 0 where it is no product.
        repeat: how often in the pass.
    """

    path: str
    op: str
    inputs: tuple[Shape, ...]
    output: Shape
    row: str = ""
    contracted: int = 0
    repeat: int = 1

    @property
    def multiply_adds(self) -> int:
        """Of one run, the whole square of an attention."""
        return elements(self.output) * self.contracted


def elements(shape: Shape) -> int:
    """How many elements a shape has."""
    return prod(dim.size for dim in shape)


def sizes(shape: Shape) -> list[int]:
    """[2, 3, 8]."""
    return [dim.size for dim in shape]


def symbols(shape: Shape) -> list[str]:
    """["B", "T", "D"]."""
    return [dim.symbol for dim in shape]


class Flow:
    """The tensors of one place in the order they are made: `terms` grows, a row is used up by the term that it counts."""

    def __init__(self, place: Place, rows: Iterable[Row], repeat: int = 1) -> None:
        self.place, self.repeat = place, repeat
        self.terms: list[Term] = []
        self.left = {row.path.removeprefix(f"{place.path}/"): row for row in rows if row.repeat}

    # letters of the place

    @property
    def B(self) -> Dim:  # noqa: N802 - the letter of the notation
        """Sequences; of an image tower, images of all sequences."""
        batch, here = self.place.work.batch, self.place.tokens.sequences
        return Dim("B", here) if here == batch else Dim("B", batch) * Dim("M", here // batch)

    @property
    def T(self) -> Dim:  # noqa: N802
        """New tokens."""
        return Dim("T", self.place.tokens.new) if self.place.tokens.new != 1 else ONE

    @property
    def S(self) -> Dim:  # noqa: N802
        """Tokens attended: those of the cache too."""
        return Dim("S", self.place.tokens.span)

    @property
    def lead(self) -> Shape:
        """[B, T]."""
        return (self.B, self.T)

    @property
    def stream(self) -> Shape:
        """[B, T, D]."""
        return (*self.lead, self.wide(self.place.width))

    def wide(self, size: int) -> Dim:
        """A width: D where it is that of the stack, 2·D and the like."""
        times, rest = divmod(size, self.place.width)
        if rest or not times:
            return number(size)
        return Dim("D" if times == 1 else f"{times}·D", size)

    # writing

    def has(self, name: str) -> bool:
        """Whether a row of that name runs and has no tensors yet."""
        return name in self.left

    def make(self, name: str, op: str, inputs: Iterable[Shape], output: Shape, *, row: str | None = None, contracted: int = 0) -> Shape:
        """Write one tensor; `row`: the name of the row that counts it, which may count several."""
        path = "" if row is None else f"{self.place.path}/{row}"
        where = f"{self.place.path}/{name}"
        self.terms.append(Term(path=where, op=op, inputs=tuple(inputs), output=output, row=path, contracted=contracted, repeat=self.repeat))
        return output

    def linear(self, name: str, lead: Shape, k: Dim | None = None, n: str | None = None) -> Shape:
        """x [*lead, k] @ W [k, n] (+ b [n]); sizes from the row, letters from here: `n` that of the output's width."""
        row = self.left.pop(name)
        inside, outside = int(row.dims["k"]), int(row.dims["n"])
        k = self.wide(inside) if k is None else Dim(k.symbol, inside)
        width = self.wide(outside) if n is None else Dim(n, outside)
        bias = ((width,),) if row.weight_reads > inside * outside else ()
        return self.make(name, "linear", ((*lead, k), (k, width), *bias), (*lead, width), row=name, contracted=inside)

    def norm(self, name: str, shape: Shape) -> Shape:
        """A normalisation over the last size."""
        row = self.left.pop(name)
        width = shape[-1]
        vectors = int(row.dims["n"]) // width.size if row.dims["n"] else 0
        weights = ((width,),) * vectors if vectors * width.size == row.dims["n"] and vectors <= 2 else ()
        return self.make(name, "norm", (shape, *weights), shape, row=name)

    def activation(self, name: str, *inputs: Shape) -> Shape:
        """An elementwise function, of one input or, gated, of two."""
        self.left.pop(name)
        return self.make(name, "gated" if len(inputs) > 1 else "activation", inputs, inputs[0], row=name)

    def parameter(self, name: str, *shape: int) -> Shape:
        """A bare tensor."""
        self.left.pop(name)
        return self.make(name, "parameter", (), tuple(number(size) for size in shape), row=name)

    def rest(self) -> None:
        """What no flow has written, from the rows alone."""
        for name in list(self.left):
            self.plain(name)

    def plain(self, name: str) -> Shape:
        """The tensors of a row by its own sizes."""
        row = self.left[name]
        if row.op == "linear" and not row.fetches:
            return self.mixed(name)
        if row.op in ("linear", "conv"):
            return self.linear(name, self.lead_of(int(row.dims["m"])))
        if row.op == "norm" and row.reads:
            m, n = self.place.positions, int(row.reads) // max(self.place.positions, 1)
            return self.norm(name, (*self.lead_of(m), self.wide(n)))
        if row.op == "activation":
            shape = (*self.lead, self.wide(int(row.writes) // max(self.place.positions, 1)))
            return self.activation(name, shape)
        self.left.pop(name)
        if row.op == "embedding":
            width = number(int(row.dims["n"]))
            return self.make(name, "embedding", (self.lead, (number(int(row.dims["rows"])), width)), (*self.lead, width), row=name)
        return self.make(name, "parameter", (), (number(int(row.dims.get("n", 0))),), row=name)

    def mixed(self, name: str) -> Shape:
        """A product whose matrix is made by the input: [n, n] @ [n, width] at every position."""
        row = self.left.pop(name)
        n, width = Dim("n", int(row.dims["k"])), self.wide(int(row.dims["n"]))
        streams = (*self.lead_of(int(row.dims["m"]) // n.size), n)
        return self.make(name, "matmul", ((*streams, n), (*streams, width)), (*streams, width), row=name, contracted=n.size)

    def lead_of(self, positions: int) -> Shape:
        """[B, T] of so many positions: the tokens here, or once a sequence, or another number a sequence."""
        B, T = self.lead
        if positions == B.size * T.size:
            return self.lead
        if positions == B.size:
            return (B,)
        return (B, number(positions // B.size)) if positions % B.size == 0 else (number(positions),)


def window_symbol(mask: Mask) -> str:
    """The letter of what a mask leaves: W a window, C a chunk."""
    return {Sliding: "W", Chunked: "C"}.get(type(mask), "k")


def value_dim(spec: Attention) -> Dim:
    """Width of a value head: H where it is that of a key head."""
    return Dim("H" if spec.v_dim == spec.head_dim else "Hv", spec.v_dim)
