"""A line plot of text for sweeps and loss curves: braille dots, or ASCII where the stream has no braille.

Drawn here rather than by a library: the best-kept one (plotext) brings a compiled kernel, takes 0.4 s to import, keeps
its figure in global state and has no ASCII form, while a sweep needs one small picture. Several lines are told apart by
the letters at their points and in the legend, never by colour.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .units import format_number

Point = tuple[float, float]
MARKS = "ox+*#@%&"
_MARKS_A_LINE = 8
_LARGEST = 1e300  # beyond it (or, on a logarithmic axis, under its inverse) the arithmetic of an axis overflows
# Bit of each dot of a braille cell, by row and column; U+2800 is the empty cell.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: from the value `low` to `high`, both finite and apart; `log` spaces by ratio."""

    low: float
    high: float
    log: bool

    def place(self, value: float) -> float:
        """Where `value` lies between low (0) and high (1)."""
        low, high, at = (self._scale(number) for number in (self.low, self.high, value))
        return (at - low) / (high - low)

    def value(self, place: float) -> float:
        """The value at `place`, the inverse of `place`."""
        low, high = self._scale(self.low), self._scale(self.high)
        at = low + place * (high - low)
        return float(2.0**at) if self.log else at

    def _scale(self, value: float) -> float:
        return math.log2(value) if self.log else value


def _axis(values: Sequence[float], *, log: bool) -> _Axis:
    low, high = min(values), max(values)
    if low == high or (log and math.log2(low) == math.log2(high)):
        low, high = (low / 2, high * 2) if log else (low - (abs(low) / 2 or 1), high + (abs(high) / 2 or 1))
    return _Axis(low, high, log)


def plot_lines(
    series: Mapping[str, Sequence[Point]],
    x_label: str,
    y_label: str,
    width: int = 72,
    height: int = 16,
    *,
    log_x: bool = False,
    log_y: bool = False,
    ascii_only: bool | None = None,
    x_format: Callable[[float], str] = format_number,
    y_format: Callable[[float], str] = format_number,
) -> str:
    """Lines through the (x, y) of each series, as `height` + 3 lines or so of at most `width` characters.

    Points that are no numbers of a sensible size, or not positive on a logarithmic axis, are left out. `ascii_only` None asks the
    encoding of stdout.
    """
    if ascii_only is None:
        ascii_only = not _can_braille()
    lines = {name: sorted(_drawable(points, log_x=log_x, log_y=log_y)) for name, points in series.items()}
    everything = [point for points in lines.values() for point in points]
    if not everything:
        return f"{y_label}: nothing to plot\n"
    x_axis = _axis([x for x, _ in everything], log=log_x)
    y_axis = _axis([y for _, y in everything], log=log_y)
    height = max(3, height)
    ticks = {row: y_format(y_axis.value(1 - row / (height - 1))) for row in (0, height // 2, height - 1)}
    margin = max(map(len, ticks.values()))
    canvas = _Canvas(max(8, width - margin - 2), height, dots=not ascii_only)
    for number, points in enumerate(lines.values()):
        mark = MARKS[number % len(MARKS)] if len(lines) > 1 else ""
        canvas.line([(x_axis.place(x), y_axis.place(y)) for x, y in points], mark)
    wall = "|" if ascii_only else "│"
    rows = [f"{ticks.get(row, ''):>{margin}} {wall}{text}".rstrip() for row, text in enumerate(canvas.rows())]
    legend = "   ".join(f"{MARKS[number % len(MARKS)]} {name}" for number, name in enumerate(lines)) if len(lines) > 1 else ""
    foot = _x_ticks(x_axis, canvas.columns, margin, x_format, ascii_only=ascii_only)
    return "\n".join([y_label + (f"   {legend}" if legend else ""), *rows, *foot, f"{'':{margin + 2}}{x_label}"]) + "\n"


def _can_braille() -> bool:
    try:
        "⣿│└─".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _drawable(points: Sequence[Point], *, log_x: bool, log_y: bool) -> list[Point]:
    return [(x, y) for x, y in points if _has_place(x, log=log_x) and _has_place(y, log=log_y)]


def _has_place(value: float, *, log: bool) -> bool:
    return abs(value) <= _LARGEST and (not log or value >= 1 / _LARGEST)


def _x_ticks(axis: _Axis, columns: int, margin: int, x_format: Callable[[float], str], *, ascii_only: bool) -> tuple[str, str]:
    """The line under the plot, and the values at its left, middle and right (the middle where there is room)."""
    corner, rule = ("+", "-") if ascii_only else ("└", "─")
    left, middle, right = (x_format(axis.value(place)) for place in (0.0, 0.5, 1.0))
    start = columns // 2 - len(middle) // 2
    if len(left) + 2 > start or start + len(middle) + 2 > columns - len(right):
        start, middle = len(left), ""
    labels = left + " " * (start - len(left)) + middle
    labels += " " * max(1, columns - len(labels) - len(right)) + right
    return f"{'':{margin}} {corner}{rule * columns}", f"{'':{margin + 2}}{labels}"


class _Canvas:
    """A grid of characters, each of 2 x 4 dots or one; written to by `line`, read by `rows`."""

    def __init__(self, columns: int, height: int, *, dots: bool) -> None:
        self.columns, self.height = columns, height
        self._across, self._down = (2, 4) if dots else (1, 1)
        self._bits = [[0] * columns for _ in range(height)]
        self._marks: dict[tuple[int, int], str] = {}

    def line(self, places: Sequence[tuple[float, float]], mark: str) -> None:
        """Join `places` (each from 0 to 1, right and up), and set `mark` at some of them."""
        dots = [self._dot(x, y) for x, y in places]
        for start, end in zip(dots, dots[1:] or dots, strict=False):
            steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
            for step in range(steps + 1):
                self._set(round(start[0] + (end[0] - start[0]) * step / steps), round(start[1] + (end[1] - start[1]) * step / steps))
        for column, row in dots[:: max(1, math.ceil(len(dots) / _MARKS_A_LINE))] if mark else ():
            self._marks[row // self._down, column // self._across] = mark

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        return round(x * (self.columns * self._across - 1)), round((1 - y) * (self.height * self._down - 1))

    def _set(self, column: int, row: int) -> None:
        bit = _DOTS[row % self._down][column % self._across]
        self._bits[row // self._down][column // self._across] |= bit

    def rows(self) -> list[str]:
        """The grid as text, from the top down."""
        return ["".join(self._character(row, column) for column in range(self.columns)) for row in range(self.height)]

    def _character(self, row: int, column: int) -> str:
        bits = self._bits[row][column]
        if (row, column) in self._marks:
            return self._marks[row, column]
        if self._down == 1:
            return "." if bits else " "
        return chr(0x2800 + bits) if bits else " "
