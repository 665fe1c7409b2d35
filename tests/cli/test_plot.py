"""The text plot: its size, its axes, marks instead of colours, and ASCII where there is no braille."""

from __future__ import annotations

import io
import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.cli.plot import plot_lines
from tfm.cli.units import format_tokens

FALLING = [(float(x), 10.0 - x) for x in range(11)]


def tokens(value: float) -> str:
    return format_tokens(round(value))


def test_a_whole_plot() -> None:
    assert plot_lines({"loss": FALLING}, "step", "loss", width=30, height=5, ascii_only=True, x_format=lambda x: f"{x:.0f}") == (
        "loss\n"
        "10.0 |....\n"
        "     |    ....\n"
        "5.00 |        ........\n"
        "     |                ....\n"
        "   0 |                    ....\n"
        "     +------------------------\n"
        "      0           5         10\n"
        "      step\n"
    )


def test_two_lines_are_told_apart_by_marks() -> None:
    text = plot_lines({"sdpa": FALLING, "tiled": [(0, 1), (10, 9)]}, "x", "GB/s", width=40, height=8, ascii_only=True)
    assert text.splitlines()[0] == "GB/s   o sdpa   x tiled"
    body = text.split("\n", 1)[1]
    assert body.count("o") >= 4
    assert body.count("x") - 1 == 2  # two points, and the label of the axis


def test_a_logarithmic_axis_spaces_by_ratio() -> None:
    points = [(1024.0 * 2**step, float(step)) for step in range(7)]
    text = plot_lines(
        {"a": points}, "ctx", "y", width=40, height=7, log_x=True, ascii_only=True, x_format=lambda x: format_tokens(round(x))
    )
    foot = text.splitlines()[-2].split()
    assert foot == ["1k", "8k", "64k"]
    assert len(text.splitlines()[1].rstrip()) == 40  # the last point at the right edge


def test_braille_and_ascii_follow_the_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert any(0x2800 < ord(char) < 0x2900 for char in plot_lines({"a": FALLING}, "x", "y"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert plot_lines({"a": FALLING}, "x", "y").isascii()


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([], id="none"),
        pytest.param([(math.nan, 1.0), (1.0, math.inf)], id="no finite one"),
        pytest.param([(0.0, 1.0), (-1.0, 1.0)], id="none on a logarithmic axis"),
    ],
)
def test_nothing_to_plot(points: list[tuple[float, float]]) -> None:
    assert plot_lines({"a": points}, "x", "loss", log_x=True) == "loss: nothing to plot\n"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("y", [5.0, 0.0, -3.0])
def test_one_point(log: bool, y: float) -> None:
    assert plot_lines({"a": [(2.0, y)]}, "x", "y", width=30, height=5, log_x=log, ascii_only=True).count(".") >= 1


def test_order_of_points_does_not_matter() -> None:
    assert plot_lines({"a": FALLING[::-1]}, "x", "y") == plot_lines({"a": FALLING}, "x", "y")


FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=60)
@given(
    series=st.dictionaries(st.sampled_from("abcdefghijk"), st.lists(st.tuples(FLOATS, FLOATS), max_size=12), max_size=10),
    width=st.integers(1, 90),
    height=st.integers(1, 12),
    log_x=st.booleans(),
    log_y=st.booleans(),
    ascii_only=st.booleans(),
)
def test_any_series_is_drawn_in_its_size(
    series: dict[str, list[tuple[float, float]]], width: int, height: int, log_x: bool, log_y: bool, ascii_only: bool
) -> None:
    text = plot_lines(series, "x", "y", width, height, log_x=log_x, log_y=log_y, ascii_only=ascii_only)
    lines = text.splitlines()[1:]
    assert len(lines) in (0, max(3, height) + 3)
    assert all(len(line) <= max(width, 60) for line in lines)
