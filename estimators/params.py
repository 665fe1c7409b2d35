"""How many parameters a model has, and where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ..presets import spec as s
from .ledger import ledger, total
from .rows import Row
from .rule_of_thumb import OUTPUT, GapTerm, gap, rule_of_thumb, weights
from .work import Pass


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one part of the model."""

    name: str
    params: int


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a model, all exact counts.

    `gap` sums to total_params - rule_of_thumb_params. `buffers` are stored beside and counted nowhere.
    """

    total_params: int
    active_params: int
    embedding_params: int
    lm_head_params: int
    non_embedding_params: int
    rule_of_thumb_params: int
    buffers: int
    components: tuple[Component, ...]
    gap: tuple[GapTerm, ...]
    rows: tuple[Row, ...]


def params(spec: s.ModelSpec) -> Params:
    """Count the parameters of a model: unique weights, a tied or shared one once, buffers not at all."""
    rows = ledger(spec, Pass(context=1))
    count = total(rows, "params", per="copies")
    embedding = weights(row for row in rows if row.op == "embedding")
    head = weights(row for row in rows if row.path in OUTPUT)
    rule = rule_of_thumb(spec)
    return Params(
        total_params=count,
        active_params=total(rows, "active", per="copies"),
        embedding_params=embedding,
        lm_head_params=head,
        non_embedding_params=count - embedding - head,
        rule_of_thumb_params=rule,
        buffers=total(rows, "buffers", per="copies"),
        components=tuple(components(rows)),
        gap=tuple(gap(spec, rows)),
        rows=rows,
    )


def components(rows: Iterable[Row]) -> Iterator[Component]:
    """Parameters by component, in the order of the model."""
    sums: dict[str, int] = {}
    for row in rows:
        sums[row.component] = sums.get(row.component, 0) + row.params * row.copies
    for name, count in sums.items():
        if count:
            yield Component(name=name, params=count)
