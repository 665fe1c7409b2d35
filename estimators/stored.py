"""Checkpoint against description: the bytes of every row, and every difference by its kind.

Tensors are found by their names (`presets/weights/names.py`). What no name explains is shared out over the rows that
got nothing, in proportion to their parameters, so that the total is always the file's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

import msgspec
from msgspec.structs import replace

from ..presets.spec import Embedding, Linear, ModelSpec, Stack
from ..presets.weights.names import SCALES, Spot, kind_of, locate
from ..presets.weights.stored import PACKED, StoredTensor, StoredWeights
from .held import Beside, Held, Stored
from .ledger import layer_names, ledger
from .rows import Row
from .work import Pass

BUFFERS, TIED, PREDICTION, SCALE = "stored buffers", "tied head stored twice", "MTP layers", "quantisation scales"
TWICE = "a shared table stored twice"
PACKED_VALUES, SHAPES, ABSENT, UNKNOWN = "packed values", "other shapes", "not stored", "not in the description"


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor's part in one row: `values` are its elements, 0 for what comes with a quantised weight."""

    path: str
    dtype: str
    bytes: int
    values: int


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Every tensor with its row or its kind.

    `rows`: those that have weights or buffers, by path. `portions`: what a row was found to hold. `apart`: (kind, tensor)
    of what belongs to no row.
    """

    rows: dict[str, Row]
    portions: tuple[Portion, ...]
    apart: tuple[tuple[str, StoredTensor], ...]
    lenders: dict[str, str]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Stored elements less described parameters, of one kind."""

    kind: str
    elements: int
    why: str


WHY = {
    BUFFERS: "kept beside the parameters: rotary tables, masks, router corrections",
    TIED: "the output matrix is the token table's, and the file holds it again",
    TWICE: "the file holds the same table under two names",
    PREDICTION: "layers that predict further tokens, which a causal model leaves out",
    SCALE: "scales, zero points and the like of quantised weights",
    PACKED_VALUES: "several values in one stored element, so fewer elements than parameters",
    SHAPES: "tensors of another size than described (a padded vocabulary)",
    ABSENT: "described, and not in the file",
    UNKNOWN: "in the file under names that say nothing about the described model",
}


# --- matching -------------------------------------------------------------------------------------------------------


def match(spec: ModelSpec, weights: StoredWeights) -> Match:
    """Find every tensor's row by its name."""
    rows = {row.path: row for row in ledger(spec, Pass(context=1)) if row.params or row.buffers or row.weight_reads}
    lenders = borrowed(spec)
    prefixes = {stack.name: layer_prefixes(stack) for stack in spec.stacks}
    tables = shared_tables(spec)
    portions: list[Portion] = []
    apart: list[tuple[str, StoredTensor]] = []
    whole: set[str] = set()
    for tensor in weights.tensors:
        spot = None if kind_of(tensor.name) else locate(tensor.name)
        paths = paths_of(spec, spot, prefixes, rows, tensor) if spot else ()
        paths = tuple(tables.get(path, path) for path in paths)
        full = len(paths) == 1 and spot is not None and spot.layer is None and tensor.elements == rows[paths[0]].params
        if paths and paths[0] in lenders and not full:
            apart.append((TIED, tensor))
        elif full and paths[0] in whole:
            apart.append((TWICE, tensor))
        elif spot and paths:
            whole |= set(paths) if full else set()
            portions += split(tensor, [rows[path] for path in paths], scale=spot.scale)
        else:
            apart.append((kind_of(tensor.name) or beyond(spec, spot) or UNKNOWN, tensor))
    return Match(rows=rows, portions=tuple(portions), apart=tuple(apart), lenders=lenders)


def borrowed(spec: ModelSpec) -> dict[str, str]:
    """Rows that use another row's weight: path to the lender's path."""
    leaves = ((head, leaf) for head in spec.heads for leaf in head.parts)
    return {f"{head.name}/{leaf.name}": leaf.shares for head, leaf in leaves if isinstance(leaf, Linear) and leaf.shares}


def shared_tables(spec: ModelSpec) -> dict[str, str]:
    """Tables that gather from another stack's table (T5's decoder): path to that table's path."""
    leaves = ((stack, leaf) for stack in spec.stacks for leaf in stack.embeddings)
    return {f"{stack.name}/embedding/{leaf.name}": leaf.shares for stack, leaf in leaves if isinstance(leaf, Embedding) and leaf.shares}


def layer_prefixes(stack: Stack) -> list[str]:
    """Where the rows of every layer stand."""
    names = layer_names(stack)
    return [f"{stack.name}/{names[layer]}" if names[layer] else stack.name for layer in stack.layers()]


def paths_of(
    spec: ModelSpec, spot: Spot, prefixes: Mapping[str, list[str]], rows: Mapping[str, Row], tensor: StoredTensor
) -> tuple[str, ...]:
    """The rows of a spot: the first candidates that the model has, those of the tensor's own size before others."""
    stack = spot.stack or spec.main.name
    if stack not in prefixes or (spot.layer is not None and spot.layer >= len(prefixes[stack])):
        return ()
    base = stack if spot.layer is None else prefixes[stack][spot.layer]
    found = [tuple(end[1:] if end.startswith("/") else f"{base}/{end}" for end in ends) for ends in spot.rows]
    found = [paths for paths in found if all(path in rows for path in paths)]
    sized = [paths for paths in found if sum(rows[path].params for path in paths) == tensor.elements]
    return next(iter(sized or found), ())


def beyond(spec: ModelSpec, spot: Spot | None) -> str | None:
    """Layers after the last one predict further tokens (DeepSeek-V3 and GLM store them so)."""
    stack = spec.stack(spot.stack) if spot and spot.stack in {one.name for one in spec.stacks} else spec.main
    return PREDICTION if spot and spot.layer is not None and spot.layer >= stack.depth else None


def split(tensor: StoredTensor, rows: list[Row], *, scale: bool) -> list[Portion]:
    """A tensor over the rows it holds, in proportion to their parameters."""
    parts = shares(tensor.bytes, [row.params or row.buffers for row in rows])
    values = shares(0 if scale else tensor.elements, [row.params or row.buffers for row in rows])
    return [
        Portion(path=row.path, dtype=tensor.dtype, bytes=part, values=count) for row, part, count in zip(rows, parts, values, strict=True)
    ]


def shares(amount: int, sizes: list[int]) -> list[int]:
    """Whole parts of `amount` in proportion to `sizes`; they add up exactly.

    >>> shares(10, [1, 2, 4])
    [1, 3, 6]
    """
    whole = sum(sizes)
    marks = [amount * done // whole for done in accumulate(sizes)] if whole else [amount] * len(sizes)
    return [mark - before for before, mark in zip([0, *marks], marks, strict=False)]


# --- bytes of every row ---------------------------------------------------------------------------------------------


def stored(spec: ModelSpec, weights: StoredWeights) -> Stored:
    """The bytes of every row of a model by a checkpoint."""
    found = match(spec, weights)
    held: dict[str, int] = {}
    for portion in found.portions:
        held[portion.path] = held.get(portion.path, 0) + portion.bytes
    named = sum(held.values())
    unknown = sum(tensor.bytes for kind, tensor in found.apart if kind == UNKNOWN)
    empty = [row for row in found.rows.values() if row.path not in held and row.params * row.copies]
    if empty and unknown:
        parts = shares(unknown, [row.params * row.copies for row in empty])
        held |= {row.path: part for row, part in zip(empty, parts, strict=True)}
    rows = {path: Held(bytes=count, elements=elements_of(found.rows[path])) for path, count in held.items()}
    owned = frozenset(rows)
    for path, lender in found.lenders.items():
        if lender in rows and path in found.rows:  # a bias of its own stays its own
            rows[path] = with_loan(rows.get(path), rows[lender])
    counted = sum(row.params * row.copies for row in found.rows.values())
    used = named + (unknown if empty else 0)
    return Stored(
        origin=weights.origin or ", ".join(weights.files[:1]),
        total_bytes=weights.bytes,
        rows=rows,
        owned=owned,
        mean=Held(bytes=used or weights.bytes, elements=counted),
        beside=tuple(beside(found, shared_out=bool(empty))),
        named_bytes=weights.bytes - (unknown if empty else 0),
        elements=weights.elements,
        by_dtype=tuple((share.dtype, share.bytes) for share in weights.by_dtype()),
    )


def elements_of(row: Row) -> int:
    """Values of all copies of a row."""
    return (row.params or row.buffers) * max(row.copies, 1)


def with_loan(own: Held | None, lender: Held) -> Held:
    """A tied head: the lender's matrix, and a bias of its own where it has one."""
    return lender if own is None else Held(bytes=own.bytes + lender.bytes, elements=own.elements + lender.elements)


def beside(found: Match, *, shared_out: bool) -> Iterable[Beside]:
    """What belongs to no row, by kind; what was shared out belongs to some."""
    kinds: dict[str, list[StoredTensor]] = {}
    for kind, tensor in found.apart:
        if not (shared_out and kind == UNKNOWN):
            kinds.setdefault(kind, []).append(tensor)
    for kind, group in kinds.items():
        yield Beside(
            kind=kind,
            tensors=len(group),
            elements=sum(tensor.elements for tensor in group),
            bytes=sum(tensor.bytes for tensor in group),
        )


def with_stored(work: Pass, spec: ModelSpec, weights: StoredWeights) -> Pass:
    """The pass with the bytes of a checkpoint in place of a format for all."""
    return replace(work, stored=stored(spec, weights))


# --- comparing counts -----------------------------------------------------------------------------------------------


def differences(spec: ModelSpec, weights: StoredWeights) -> tuple[Difference, ...]:
    """Stored elements less described parameters, by kind; they add up exactly."""
    found = match(spec, weights)
    sums: dict[str, int] = {}

    def add(kind: str, count: int) -> None:
        sums[kind] = sums.get(kind, 0) + count

    for kind, tensor in found.apart:
        add(SCALE if kind == UNKNOWN and tensor.name.rsplit(".", 1)[-1] in SCALES else kind, tensor.elements)
    values, packed = by_row(found)
    for path, row in found.rows.items():
        described = row.params * row.copies
        if path not in values:
            add(ABSENT, -described)
        elif not row.params:
            add(BUFFERS, values[path])
        else:
            add(PACKED_VALUES if path in packed else SHAPES, values[path] - described)
    other = min(sums.get(UNKNOWN, 0), -sums.get(ABSENT, 0))  # the same under names that say nothing: no difference
    add(UNKNOWN, -other)
    add(ABSENT, other)
    add(SCALE, weights.elements - sum(values.values()) - sum(tensor.elements for _, tensor in found.apart))
    return tuple(Difference(kind=kind, elements=count, why=WHY[kind]) for kind, count in sums.items() if count)


def by_row(found: Match) -> tuple[dict[str, int], set[str]]:
    """Values found of every row, and the rows whose weights are packed."""
    values: dict[str, int] = {}
    packed = set()
    for portion in found.portions:
        values[portion.path] = values.get(portion.path, 0) + portion.values
        if portion.values and portion.dtype in PACKED:
            packed.add(portion.path)
    return values, packed
