"""Tables: columns from keys, cards of single numbers, nested results laid flat."""

from __future__ import annotations

import pytest

from tfm.cli.quantities import Kind, Quantity
from tfm.cli.tables import Column, Table, card, flatten, table_of


def test_columns_from_keys() -> None:
    table = table_of([{"batch": 1, "kv_bytes": 2**30, "policies": {"full": None}}, {"batch": 4, "fits": True}])
    headings, columns = table.formatted()
    assert headings == ["batch", "kv (GiB)", "full", "fits"]
    assert columns == [("1", "4"), ("1.00", "-"), ("-", "-"), ("-", "yes")]
    assert [column.kind for column in table.columns] == [Kind.EXACT, Kind.BYTES, Kind.BYTES, Kind.TEXT]


def test_a_known_column_is_preferred() -> None:
    table = table_of([{"total_params": 6738415616}], known=[Column("total_params", Kind.COUNT, "all")])
    assert table.formatted() == (["all (billion)"], [("6.74",)])


def test_rows_by_position_and_by_name() -> None:
    table = Table("", (Column("a", Kind.EXACT), Column("b_s", Kind.SECONDS)), ((1, 0.5), {"b_s": 0.25, "other": 1}))
    assert table.formatted() == (["a", "b (ms)"], [("1", "-"), ("500", "250")])


def test_card() -> None:
    table = card("t", [("cache", Quantity(524288, Kind.BYTES)), ("floor", Quantity(0.00648, Kind.SECONDS))])
    assert table.formatted()[1] == [("cache", "floor"), ("512 KiB", "6.48 ms"), ("524,288 B", "")]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param({"a": 1}, {"a": 1}, id="flat"),
        pytest.param({"a": {"b": {"c": 1}}, "d": [1]}, {"a.b.c": 1, "d": [1]}, id="nested"),
        pytest.param({"a": {}}, {}, id="empty"),
    ],
)
def test_flatten(row: dict[str, object], expected: dict[str, object]) -> None:
    assert flatten(row) == expected


def test_a_row_that_is_too_short_is_a_mistake_of_the_program() -> None:
    with pytest.raises(IndexError):
        Table("", (Column("a", Kind.TEXT), Column("b", Kind.TEXT)), (("x",),)).formatted()
