"""Tables for people, still holding raw values: columns know their kind, and only printing turns values into text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .quantities import Kind, Quantity, exact_digits, format_column, header_of, kind_of


class Column(msgspec.Struct, frozen=True):
    """One column of a table.

    Attributes:
        name: the JSON key of its values, unit included (`kv_bytes`).
        kind: how its values are printed.
        header: its heading, without unit; from the name if empty.
        bar: whether a bar is drawn beside a RATIO (terminal only).
    """

    name: str
    kind: Kind
    header: str = ""
    bar: bool = False

    @property
    def heading(self) -> str:
        """The heading, without unit."""
        return self.header or header_of(self.name)

    @property
    def is_text(self) -> bool:
        """Whether it is left-aligned and may be folded."""
        return self.kind is Kind.TEXT


class Table(msgspec.Struct, frozen=True):
    """A table for people: rows of raw values (or `Quantity`, where a cell has its own unit), or mappings by name."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Sequence[object] | Mapping[str, object], ...]

    def values(self, index: int) -> list[object]:
        """The raw values of one column; None where a row has none."""
        name = self.columns[index].name
        return [row.get(name) if isinstance(row, Mapping) else row[index] for row in self.rows]

    def formatted(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Headings with units, and the cells, column by column."""
        texts = [format_column(self.values(index), column.kind) for index, column in enumerate(self.columns)]
        headings = [
            f"{column.heading} ({text.unit})" if text.unit else column.heading for column, text in zip(self.columns, texts, strict=True)
        ]
        return headings, [text.cells for text in texts]


def table_of(rows: Sequence[Mapping[str, object]], *, title: str = "", known: Iterable[Column] = ()) -> Table:
    """A table of flat results, its columns from the keys; a column of `known` with the same name is preferred."""
    flat = [flatten(row) for row in rows]
    by_name = {column.name: column for column in known}
    names = list(dict.fromkeys(name for row in flat for name in row))
    columns = (by_name.get(name) or Column(name, kind_of(name, [row.get(name) for row in flat])) for name in names)
    return Table(title, tuple(columns), tuple(flat))


def card(title: str, pairs: Iterable[tuple[str, Quantity]]) -> Table:
    """A table of single numbers, each with its own unit and the exact integer beside."""
    rows = tuple((label, quantity, exact_digits(quantity)) for label, quantity in pairs)
    columns = (Column("quantity", Kind.TEXT), Column("value", Kind.MIXED), Column("exact", Kind.MIXED))
    return Table(title, columns, rows)


def flatten(row: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested mappings as dotted keys: {"policies": {"full": 1}} as {"policies.full": 1}."""
    flat: dict[str, object] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
