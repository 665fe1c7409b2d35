"""A number with its kind, and how one or a whole column of them is printed: only the printer formats.

Commands hand out raw values in base units. A value alone is printed in the unit that suits it; a column is printed in
one unit, with a fixed number of decimals, so that its numbers can be compared by eye.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from fractions import Fraction

import msgspec

from . import units
from .units import UNKNOWN, Ladder


class Kind(Enum):
    """What a number is: decides unit, digits and alignment."""

    BYTES = "bytes"
    BYTES_PER_S = "bytes per second"
    FLOPS = "FLOPs"
    FLOPS_PER_S = "FLOP/s"
    SECONDS = "seconds"
    COUNT = "count"  # 6.74 B
    EXACT = "exact"  # 6,738,415,616
    TOKENS = "tokens"  # 32k alone, 32,768 in a column
    RATIO = "ratio"  # a share of one, printed in percent
    NUMBER = "number"  # anything else, three significant digits
    MIXED = "mixed"  # a column of Quantity, each with its own unit
    TEXT = "text"


class Quantity(msgspec.Struct, frozen=True):
    """A raw value in base units and its kind; `value` None is what is not known."""

    value: object
    kind: Kind


class ColumnText(msgspec.Struct, frozen=True):
    """A formatted column: the one unit of all its cells ("" for none), and the cells without it."""

    unit: str
    cells: tuple[str, ...]


_PERCENT: Ladder = (("%", Fraction(1, 100)),)
_COLUMN_COUNTS: Ladder = (("", 1), ("thousand", 10**3), ("million", 10**6), ("billion", 10**9), ("trillion", 10**12))
_LADDERS: dict[Kind, Ladder] = {
    Kind.BYTES: units.BYTES,
    Kind.BYTES_PER_S: units.BYTES_PER_S,
    Kind.FLOPS: units.FLOPS,
    Kind.FLOPS_PER_S: units.FLOPS_PER_S,
    Kind.SECONDS: units.SECONDS,
    Kind.COUNT: _COLUMN_COUNTS,  # "(B)" over a column would read as bytes
    Kind.RATIO: _PERCENT,
    Kind.NUMBER: (("", 1),),
}
_FORMATS: dict[Kind, Callable[[float], str]] = {
    Kind.BYTES: units.format_bytes,
    Kind.BYTES_PER_S: units.format_rate_bytes,
    Kind.FLOPS: units.format_flops,
    Kind.FLOPS_PER_S: units.format_flops_rate,
    Kind.SECONDS: units.format_seconds,
    Kind.COUNT: units.format_count,
    Kind.EXACT: units.format_exact,
    Kind.TOKENS: lambda value: units.format_tokens(int(value)) if value == int(value) else units.format_number(value),
    Kind.RATIO: units.format_percent,
    Kind.NUMBER: units.format_number,
}
_EXACT_UNITS = {Kind.BYTES: " B", Kind.FLOPS: " FLOP"}


def plain(value: object) -> object:
    """A numpy scalar or array as Python's own numbers (numpy is not imported), a fraction as int or float."""
    if value is None or type(value) in (int, float, str, bool):
        return value
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    for name in ("tolist", "item"):
        method = getattr(value, name, None)
        if callable(method):
            return method()
    return value


def as_number(value: object) -> int | float | None:
    """`value` if it is a number that arithmetic can bear (finite; a bool is none), else None."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e300:
        return None
    return value


def format_text(value: object) -> str:
    """Words, shapes and flags: None as "-", True as "yes", [2, 3] as "[2,3]"."""
    value = plain(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return "[" + ",".join(format_text(member) for member in value) + "]"
    return str(value)


def clean(text: str) -> str:
    """`text` with control characters spelt out: a name from a file must not command the terminal."""
    return "".join(ch if ch.isprintable() or ch == "\n" else ch.encode("unicode_escape").decode() for ch in text)


def format_quantity(quantity: Quantity) -> str:
    """One value with its unit, three significant digits.

    >>> format_quantity(Quantity(4294967296, Kind.BYTES))
    '4.00 GiB'
    """
    number = as_number(quantity.value)
    if number is None:
        return format_text(quantity.value)
    return _FORMATS.get(quantity.kind, format_text)(number)


def format_with_exact(quantity: Quantity) -> str:
    """One value with its unit, and the exact integer beside it where there is one.

    >>> format_with_exact(Quantity(4294967296, Kind.BYTES))
    '4.00 GiB (4,294,967,296 B)'
    """
    short, exact = format_quantity(quantity), exact_digits(quantity)
    return f"{short} ({exact})" if exact and exact != short else short


def exact_digits(quantity: Quantity) -> str:
    """Every digit of an integer with its base unit; "" where the value is no integer or the kind has none."""
    number = as_number(quantity.value)
    if not isinstance(number, int) or quantity.kind not in (Kind.BYTES, Kind.FLOPS, Kind.COUNT, Kind.EXACT):
        return ""
    return f"{number:,}{_EXACT_UNITS.get(quantity.kind, '')}"


# --- columns -----------------------------------------------------------------------------------------------------


def format_column(values: Sequence[object], kind: Kind) -> ColumnText:
    """A column in one unit; a `Quantity` among the values keeps its own.

    The unit is that of the largest value, or a smaller one where the smallest would fall under 0.01 of it; decimals
    suit the smallest value, three at most (percent: two), and what would still round to zero is printed as "<0.001".
    """
    numbers = [number for value in values if (number := as_number(value)) is not None]
    ladder = _LADDERS.get(kind)
    if ladder is None or not numbers:
        return ColumnText("", tuple(_lone_cell(value, kind) for value in values))
    unit, factor = _column_unit([abs(number) for number in numbers if number], ladder)
    scaled = [units.divide(number, factor) for number in numbers]
    whole = factor == 1 and all(isinstance(number, int) for number in numbers)
    decimals = 0 if whole else min(_decimals(scaled), 2 if kind is Kind.RATIO else 3)

    def cell(value: object) -> str:
        number = as_number(value)
        return _lone_cell(value, kind) if number is None else _fixed(units.divide(number, factor), decimals)

    return ColumnText(unit, tuple(cell(value) for value in values))


def _lone_cell(value: object, kind: Kind) -> str:
    if isinstance(value, Quantity):
        return format_quantity(value)
    number = as_number(value)
    if number is None or kind in (Kind.TEXT, Kind.MIXED):
        return format_text(value)
    return units.format_exact(number)


def _column_unit(sizes: Sequence[float], ladder: Ladder) -> tuple[str, units.Factor]:
    """The unit in which the largest size is at least 1, or smaller ones while the smallest is under 0.01."""
    if not sizes:
        return ladder[0]
    smallest, largest = min(sizes), max(sizes)
    step = len(ladder) - 1
    while step > 0 and units.divide(largest, ladder[step][1]) < 0.9995:
        step -= 1
    while step > 0 and units.divide(smallest, ladder[step][1]) < 0.01 and units.divide(largest, ladder[step - 1][1]) < 1e6:
        step -= 1
    return ladder[step]


def _decimals(scaled: Sequence[float]) -> int:
    """Decimals that give the smallest value three significant digits, or two where it is under 1."""
    smallest = min((abs(number) for number in scaled if number), default=1000.0)
    return max(0, (2 if smallest >= 1 else 1) - math.floor(math.log10(smallest)))


def _fixed(value: float, decimals: int) -> str:
    value = value or 0.0  # no minus before a zero
    text = f"{value:,.{decimals}f}" if abs(value) < 1e12 else units.format_number(value)
    if value and not text.strip("-0.,"):
        return f"{'>-' if value < 0 else '<'}{10.0**-decimals:.{decimals}f}"
    return text


# --- kinds from names --------------------------------------------------------------------------------------------

_ENDINGS = (
    ("bytes_per_s", Kind.BYTES_PER_S),
    ("flops_per_s", Kind.FLOPS_PER_S),
    ("_per_s", Kind.NUMBER),
    ("_s", Kind.SECONDS),
)
_RATIOS = ("of_", "share", "fraction", "percent", "error", "spread", "efficiency")


def kind_of(key: str, values: Sequence[object] = ()) -> Kind:
    """The kind of a JSON key: the unit stands in its name, what has none is judged by its values."""
    for ending, kind in _ENDINGS:
        if key.endswith(ending):
            return kind
    if "bytes" in key or key.startswith("policies."):
        return Kind.BYTES
    if "flops" in key:
        return Kind.FLOPS
    numbers = [number for value in values if (number := as_number(value)) is not None]
    if any(isinstance(plain(value), str | bool | list | tuple) for value in values):
        return Kind.TEXT
    if key.startswith(_RATIOS) or key.endswith(_RATIOS[1:]):
        return Kind.RATIO
    return Kind.EXACT if all(isinstance(number, int) for number in numbers) else Kind.NUMBER


def header_of(key: str) -> str:
    """A JSON key as a heading: without the unit, which the column states itself, and with spaces."""
    words = key.removeprefix("policies.")
    for unit in ("_bytes_per_s", "_flops_per_s", "_bytes", "_flops", "_s"):
        if words.endswith(unit) and not (unit == "_s" and words.endswith("_per_s")):
            words = words.removesuffix(unit)
            break
    return words.replace("_bytes_per_", "_per_").replace("_flops_per_", "_per_").replace("_", " ")
