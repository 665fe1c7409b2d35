"""Quantities: one value with its unit, a column in one unit, and kinds read from names."""

from __future__ import annotations

import doctest
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.cli import quantities
from tfm.cli.quantities import (
    Kind,
    Quantity,
    clean,
    exact_digits,
    format_column,
    format_quantity,
    format_with_exact,
    header_of,
    kind_of,
    plain,
)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        pytest.param(2**32, Kind.BYTES, "4.00 GiB", id="bytes"),
        pytest.param(2.039e12, Kind.BYTES_PER_S, "2039 GB/s", id="byte rate"),
        pytest.param(53.05e12, Kind.FLOPS, "53.0 TFLOP", id="flops"),
        pytest.param(312e12, Kind.FLOPS_PER_S, "312 TFLOP/s", id="flop rate"),
        pytest.param(0.00648, Kind.SECONDS, "6.48 ms", id="seconds"),
        pytest.param(6738415616, Kind.COUNT, "6.74 B", id="count"),
        pytest.param(6738415616, Kind.EXACT, "6,738,415,616", id="exact"),
        pytest.param(32768, Kind.TOKENS, "32k", id="tokens"),
        pytest.param(222.4, Kind.TOKENS, "222", id="tokens that are not whole"),
        pytest.param(0.61, Kind.RATIO, "61.0%", id="ratio"),
        pytest.param(4.625, Kind.NUMBER, "4.62", id="number"),
        pytest.param("bandwidth", Kind.TEXT, "bandwidth", id="text"),
        pytest.param(8, Kind.TEXT, "8", id="a number as text"),
        pytest.param([2, 3, 8], Kind.TEXT, "[2,3,8]", id="shape"),
        pytest.param([], Kind.TEXT, "[]", id="shape of a scalar"),
        pytest.param(True, Kind.BYTES, "yes", id="true is no number"),
        pytest.param(None, Kind.BYTES, "-", id="unknown"),
        pytest.param(math.nan, Kind.SECONDS, "-", id="nan"),
        pytest.param(math.inf, Kind.TOKENS, "-", id="inf"),
        pytest.param(1.5e306, Kind.RATIO, "1.5e+306", id="beyond arithmetic"),
        pytest.param(10**310, Kind.BYTES, str(10**310), id="beyond a float"),
        pytest.param(np.int64(2**32), Kind.BYTES, "4.00 GiB", id="numpy int"),
        pytest.param(np.float64(0.00648), Kind.SECONDS, "6.48 ms", id="numpy float64"),
        pytest.param(np.float32("nan"), Kind.SECONDS, "-", id="numpy nan"),
        pytest.param(np.bool_(True), Kind.TEXT, "yes", id="numpy bool"),
        pytest.param(Fraction(37, 8), Kind.NUMBER, "4.62", id="fraction"),
    ],
)
def test_quantity(value: object, kind: Kind, expected: str) -> None:
    assert format_quantity(Quantity(value, kind)) == expected


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        pytest.param(6738415616, Kind.COUNT, "6.74 B (6,738,415,616)", id="count"),
        pytest.param(524288, Kind.BYTES, "512 KiB (524,288 B)", id="bytes"),
        pytest.param(512, Kind.BYTES, "512 B", id="nothing to add"),
        pytest.param(0.5625, Kind.BYTES, "0.562 B", id="no integer"),
        pytest.param(0.5, Kind.SECONDS, "500 ms", id="a time"),
        pytest.param(None, Kind.COUNT, "-", id="unknown"),
    ],
)
def test_with_exact(value: object, kind: Kind, expected: str) -> None:
    assert format_with_exact(Quantity(value, kind)) == expected


def test_every_kind_prints() -> None:
    for kind in Kind:
        for value in (0, 1, -7, 0.25, 10**30, None, "x", (2, 3)):
            assert format_quantity(Quantity(value, kind))
            assert format_column([value], kind).cells[0]


def test_exact_digits_of_flops() -> None:
    assert exact_digits(Quantity(10**15 + 1, Kind.FLOPS)) == "1,000,000,000,000,001 FLOP"


@pytest.mark.parametrize(
    ("values", "kind", "unit", "cells"),
    [
        pytest.param([2**29, 2**30, 2**34], Kind.BYTES, "GiB", ["0.50", "1.00", "16.00"], id="one unit"),
        pytest.param([2**34, 2**35], Kind.BYTES, "GiB", ["16.0", "32.0"], id="three digits"),
        pytest.param([100, 2000], Kind.BYTES, "KiB", ["0.098", "1.953"], id="small"),
        pytest.param([100, 999], Kind.BYTES, "B", ["100", "999"], id="bytes are whole"),
        pytest.param([0.00648, 0.1035], Kind.SECONDS, "ms", ["6.48", "103.50"], id="times"),
        pytest.param([6738415616, 131072000], Kind.COUNT, "billion", ["6.74", "0.13"], id="counts in words, not B"),
        pytest.param([6738415616, 4096], Kind.COUNT, "million", ["6,738.416", "0.004"], id="a smaller unit for the smallest"),
        pytest.param([10**15, 1], Kind.COUNT, "trillion", ["1,000.000", "<0.001"], id="under a million of the unit"),
        pytest.param([0, 2**40, -(2**40)], Kind.BYTES, "TiB", ["0.00", "1.00", "-1.00"], id="zero and negative"),
        pytest.param([-1, 10**15], Kind.COUNT, "trillion", [">-0.001", "1,000.000"], id="small and negative"),
        pytest.param([0, 0], Kind.BYTES, "B", ["0", "0"], id="zeros"),
        pytest.param([2.039e12, 21.3e9], Kind.BYTES_PER_S, "GB/s", ["2,039.0", "21.3"], id="rates"),
        pytest.param([0.973, 0.0266, 6e-7], Kind.RATIO, "%", ["97.30", "2.66", "<0.01"], id="percent"),
        pytest.param([0.61, 0.88], Kind.RATIO, "%", ["61.0", "88.0"], id="percent, three digits"),
        pytest.param([1024, 32768], Kind.TOKENS, "", ["1,024", "32,768"], id="tokens in full"),
        pytest.param([6738415616, 7], Kind.EXACT, "", ["6,738,415,616", "7"], id="exact"),
        pytest.param([4.625, 222.4], Kind.NUMBER, "", ["4.62", "222.40"], id="numbers"),
        pytest.param([8, 64], Kind.NUMBER, "", ["8", "64"], id="whole numbers"),
        pytest.param([None, 2**30, math.nan], Kind.BYTES, "GiB", ["-", "1.00", "-"], id="unknown among known"),
        pytest.param([None, None], Kind.BYTES, "", ["-", "-"], id="all unknown"),
        pytest.param([], Kind.BYTES, "", [], id="no rows"),
        pytest.param([True, "x", None], Kind.TEXT, "", ["yes", "x", "-"], id="text"),
        pytest.param([Quantity(2**30, Kind.BYTES), 0.5], Kind.MIXED, "", ["1.00 GiB", "0.5"], id="mixed"),
        pytest.param([2**30, Quantity(0.5, Kind.RATIO)], Kind.BYTES, "GiB", ["1.00", "50.0%"], id="one cell of its own kind"),
        pytest.param(list(np.array([2**30, 2**31])), Kind.BYTES, "GiB", ["1.00", "2.00"], id="numpy"),
    ],
)
def test_column(values: list[object], kind: Kind, unit: str, cells: list[str]) -> None:
    text = format_column(values, kind)
    assert (text.unit, list(text.cells)) == (unit, cells)


SCALED = [Kind.BYTES, Kind.BYTES_PER_S, Kind.FLOPS, Kind.FLOPS_PER_S, Kind.SECONDS, Kind.COUNT, Kind.RATIO, Kind.NUMBER]


# Without the floats so small that a division by a unit leaves none of them.
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(-1e20, 1e20).filter(lambda value: value == 0 or abs(value) > 1e-300)


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.sampled_from(SCALED))
def test_nothing_vanishes_in_a_column(values: list[float], kind: Kind) -> None:
    """What is not zero is not printed as zero, and its sign is seen."""
    for value, cell in zip(values, format_column(values, kind).cells, strict=True):
        assert (cell.strip("-0.,") == "") == (value == 0)
        assert ("-" in cell.split("e")[0]) == (value < 0)


@given(st.lists(st.integers(1, 10**15), min_size=2, max_size=8), st.sampled_from([Kind.BYTES, Kind.COUNT, Kind.FLOPS]))
def test_a_column_keeps_the_order(values: list[int], kind: Kind) -> None:
    cells = format_column(sorted(values), kind).cells
    numbers = [float(cell.replace(",", "").replace("<", "")) for cell in cells]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        pytest.param("kv_bytes", (), Kind.BYTES, id="bytes"),
        pytest.param("kv_bytes_per_token", (), Kind.BYTES, id="bytes per token"),
        pytest.param("policies.minimal", (1,), Kind.BYTES, id="policies hold bytes"),
        pytest.param("bandwidth_bytes_per_s", (), Kind.BYTES_PER_S, id="byte rate"),
        pytest.param("peak_flops_per_s", (), Kind.FLOPS_PER_S, id="flop rate"),
        pytest.param("tokens_per_s", (1.5,), Kind.NUMBER, id="tokens a second are no time"),
        pytest.param("decode_floor_s", (), Kind.SECONDS, id="seconds"),
        pytest.param("total_flops", (), Kind.FLOPS, id="flops"),
        pytest.param("flops_per_token", (), Kind.FLOPS, id="flops per token"),
        pytest.param("total_params", (1, None), Kind.EXACT, id="params"),
        pytest.param("batch", (1, 2), Kind.EXACT, id="batch"),
        pytest.param("of_bandwidth", (0.6,), Kind.RATIO, id="of"),
        pytest.param("error", (0.01,), Kind.RATIO, id="error"),
        pytest.param("error", ("no kernel",), Kind.TEXT, id="an error in words"),
        pytest.param("decode_bound", ("bandwidth", None), Kind.TEXT, id="text"),
        pytest.param("fits", (True,), Kind.TEXT, id="flag"),
        pytest.param("output", ([2, 3],), Kind.TEXT, id="shape"),
        pytest.param("intensity", (1.5, 2), Kind.NUMBER, id="number"),
    ],
)
def test_kind_of(key: str, values: tuple[object, ...], expected: Kind) -> None:
    assert kind_of(key, values) is expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("kv_bytes", "kv"),
        ("decode_floor_s", "decode floor"),
        ("kv_bytes_per_token", "kv per token"),
        ("memory_bytes_per_s", "memory"),
        ("policies.minimal", "minimal"),
        ("bytes", "bytes"),
        ("flops", "flops"),
        ("ctx", "ctx"),
    ],
)
def test_header_of(key: str, expected: str) -> None:
    assert header_of(key) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("plain µ²", "plain µ²", id="plain"),
        pytest.param("\x1b[2Jgone", "\\x1b[2Jgone", id="escape sequence"),
        pytest.param("a\rb\tc\x07", "a\\rb\\tc\\x07", id="controls"),
        pytest.param("a\nb", "a\nb", id="lines stay"),
        pytest.param("\u202eevil", "\\u202eevil", id="direction override"),
        pytest.param("\udc80", "\\udc80", id="half a surrogate pair"),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_plain_of_an_object_with_item() -> None:
    class Scalar:
        def item(self) -> float:
            return 2.5

    assert plain(Scalar()) == 2.5


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(quantities).failed == 0
