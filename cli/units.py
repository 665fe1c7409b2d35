"""Human units in and out: `32k`, `7B`, `80GiB`, `2.04TB/s` to base units, and base units back to text.

Everything inside tfm is in base units (bytes, FLOPs, seconds, tokens). What is typed is read exactly, as a fraction,
and bounded; what is printed has three significant digits, and integer digits are never dropped. Printing what was read
from a printed text gives the same text (tests).

One convention throughout: `KiB`, `MiB`, `GiB` are powers of 1024; `kB`, `MB`, `GB`, `TFLOP/s` and `B` (billion) are
powers of 1000; of tokens, `k` is 1024. A FLOP count and a rate in FLOP/s are never mixed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeVar

import msgspec

from ..presets.errors import UsageError

T = TypeVar("T")

MAX_TOKENS = 2**40
MAX_BATCH = 2**32
MAX_COUNT = 10**18
MAX_BYTES = 2**60
MAX_BYTES_PER_S = 10**18
MAX_FLOPS_PER_S = 10**24
MAX_LIST = 10_000
UNKNOWN = "-"  # what is not known, does not apply or is no finite number
_MAX_TEXT = 64  # characters of one value: bounds the work on hostile input

Factor = int | Fraction
Ladder = tuple[tuple[str, Factor], ...]  # (unit, its size in base units), smallest first


def _ladder(names: str, base: int, *, start: int = 0) -> Ladder:
    return tuple((name, Fraction(base) ** (start + step)) for step, name in enumerate(names.split()))


BYTES = _ladder("B KiB MiB GiB TiB PiB EiB", 1024)
BYTES_1000 = _ladder("B kB MB GB TB PB EB", 1000)
FLOPS = _ladder("FLOP kFLOP MFLOP GFLOP TFLOP PFLOP EFLOP ZFLOP YFLOP", 1000)
SECONDS = _ladder("us ms s", 1000, start=-2)
COUNTS: Ladder = (("", 1), *_ladder("K M B T", 1000, start=1))
# Rates stop at the unit that data sheets use, so that 21 and 2039 GB/s can be compared by eye.
BYTES_PER_S = _ladder("B/s kB/s MB/s GB/s", 1000)
FLOPS_PER_S = _ladder("FLOP/s kFLOP/s MFLOP/s GFLOP/s TFLOP/s", 1000)


# --- what may be typed -------------------------------------------------------------------------------------------


class _Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of value: its suffixes, its range in base units, and the words for an error."""

    units: Mapping[str, Factor]
    low: Factor = 1
    high: int
    whole: bool = True  # a fraction of a base unit is refused ...
    rounds: bool = False  # ... or, where a suffix was given, rounded to the nearest one
    what: str
    hints: Mapping[str, str] = msgspec.field(default_factory=dict)  # suffixes refused for a reason worth saying

    def allowed(self, *, allow_zero: bool) -> str:
        """What is allowed, for an error message."""
        return f"allowed: {self.what}, from {_bound(0 if allow_zero else self.low)} to {_bound(self.high)}"


def _bound(limit: Factor) -> str:
    """A limit as people write it: 2^40, 1e18, or its digits."""
    if isinstance(limit, int) and limit > 10**6 and limit & (limit - 1) == 0:
        return f"2^{limit.bit_length() - 1}"
    return f"{float(limit):.15g}".replace("e+", "e")


def _suffixes(*ladders: Ladder, per: str = "") -> dict[str, Factor]:
    """Suffixes as written and all in lower case; no other mixture, since `Gb` means bits."""
    units: dict[str, Factor] = {"": 1}
    for name, factor in (pair for ladder in ladders for pair in ladder):
        units[name + per] = units[name.lower() + per] = factor
    return units


def _byte_hints(per: str) -> dict[str, str]:
    bits = {f"{p}b{per}": f"{p}b{per} means bits, write {p}B{per}" for p in "KMGTPE"}
    bare = {p + per: f"{p}{per} may be {p}B{per} or {p}iB{per}, write which" for p in "KMGTPE"}
    return {**bits, **bare}


_BYTE_LADDERS = (BYTES, BYTES_1000, (("KB", 1000),))
_FLOP_NAMES = FLOPS[:7]  # to EFLOP/s
_TOKENS = _Grammar(
    units={"": 1, "k": 1024, "K": 1024, "m": 1024**2, "M": 1024**2},
    high=MAX_TOKENS,
    what="a whole number of tokens such as 4096, 32k (k = 1024) or 1m (m = 1024^2)",
)
_COUNT = _Grammar(
    units=_suffixes(COUNTS),
    high=MAX_COUNT,
    what="a whole number such as 7B, 350M or 6_738_415_616 (K, M, B, T are powers of 1000)",
)
_INT = _Grammar(units={"": 1}, high=MAX_BATCH, what="a whole number such as 8")
_BYTES = _Grammar(
    units=_suffixes(*_BYTE_LADDERS),
    high=MAX_BYTES,
    rounds=True,
    what="a size such as 80GiB (1024s), 80GB (1000s), 512MiB or a whole number of bytes",
    hints=_byte_hints(""),
)
_BANDWIDTH = _Grammar(
    units=_suffixes(*_BYTE_LADDERS, per="/s"),
    high=MAX_BYTES_PER_S,
    whole=False,
    what="a rate such as 2.04TB/s, 2039GB/s, 900GiB/s or a number of bytes per second",
    hints=_byte_hints("/s"),
)
_FLOPS_RATE = _Grammar(
    # TFLOPS, all in capitals or all small, is read as the rate that it can only mean here; it is never written.
    units=_suffixes(tuple((f"{n}/s", f) for n, f in _FLOP_NAMES), tuple((f"{n}S", f) for n, f in _FLOP_NAMES)),
    high=MAX_FLOPS_PER_S,
    whole=False,
    what="a rate such as 312TFLOP/s, 989.4 TFLOP/s or 312e12 (in FLOP/s)",
    hints={n + s: f"{n}{s} is a count, a rate is {n}/s" for n, _ in _FLOP_NAMES for s in ("", "s")},
)
_TIME = _Grammar(
    units={"": 1, "min": 60, **dict(SECONDS)},
    low=Fraction(1, 10**6),
    high=10**6,
    whole=False,
    what="a time such as 30s, 500ms, 2min or a number of seconds",
)
_RATIO = _Grammar(units={"": 1, "%": Fraction(1, 100)}, low=Fraction(1, 10**6), high=10, whole=False, what="a share such as 5% or 0.05")


# --- reading -----------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"([+-]?)((?:[0-9]+(?:_[0-9]+)*)?(?:\.[0-9]+)?)(?:[eE]([+-]?[0-9]+))?\s*(.*)", re.DOTALL)


def _refuse(name: str, why: str, text: str, allowed: str) -> UsageError:
    got = text if len(text) <= 40 else f"{text[:37]}..."
    return UsageError(f"{name}: {why}, got {got!r}; {allowed}")


def _number(text: str, name: str, allowed: str) -> tuple[Fraction, str]:
    """`text` as an exact number and the suffix that follows it."""
    stripped = text.strip()
    if not stripped:
        raise _refuse(name, "no value", text, allowed)
    if len(stripped) > _MAX_TEXT:
        raise _refuse(name, f"longer than {_MAX_TEXT} characters", text, allowed)
    match = _NUMBER.fullmatch(stripped)
    if match is None or not match[2]:
        raise _refuse(name, "not a number", text, allowed)
    sign, digits, exponent, suffix = match.groups()
    if exponent and abs(int(exponent)) > 99:
        raise _refuse(name, "out of range", text, allowed)
    if re.match("0[0-9_]", digits):
        # 4,096 arrives here as 4 and 096: to read it as two values would be a silent mistake.
        raise _refuse(name, "a leading zero (a comma separates values; thousands are written 4_096)", text, allowed)
    value = Fraction(digits.replace("_", "")) * Fraction(10) ** int(exponent or 0)
    if sign == "-" and value:
        raise _refuse(name, "a negative number", text, allowed)
    return value, suffix


def _parse(text: str, grammar: _Grammar, *, allow_zero: bool, name: str) -> Fraction:
    """`text` in base units, or a UsageError that says what was wrong, what was got and what is allowed."""
    allowed = grammar.allowed(allow_zero=allow_zero)
    value, suffix = _number(text, name, allowed)
    if suffix not in grammar.units:
        shown = suffix if len(suffix) <= 12 else f"{suffix[:9]}..."
        raise _refuse(name, grammar.hints.get(suffix, f"unknown suffix {shown!r}"), text, allowed)
    value *= grammar.units[suffix]
    if value == 0 and not allow_zero:
        raise _refuse(name, "zero", text, allowed)
    if value > grammar.high:
        raise _refuse(name, "too large", text, allowed)
    if grammar.whole and value.denominator != 1:
        if not (grammar.rounds and suffix):
            raise _refuse(name, "not a whole number", text, allowed)
        value = Fraction(round(value))
    if value < grammar.low and not (value == 0 and allow_zero):
        raise _refuse(name, "too small", text, allowed)
    return value


def parse_tokens(text: str, *, allow_zero: bool = False, name: str = "tokens") -> int:
    """Tokens, k = 1024 and m = 1024^2, at most 2^40; raises UsageError.

    >>> parse_tokens("32k")
    32768
    """
    return int(_parse(text, _TOKENS, allow_zero=allow_zero, name=name))


def parse_count(text: str, *, allow_zero: bool = False, name: str = "count") -> int:
    """A count (of parameters, of training tokens); K, M, B, T = powers of 1000, at most 1e18; raises UsageError.

    >>> parse_count("1.5B")
    1500000000
    """
    return int(_parse(text, _COUNT, allow_zero=allow_zero, name=name))


def parse_int(text: str, *, allow_zero: bool = False, name: str = "number") -> int:
    """A whole number without suffix (sequences, heads, layers), at most 2^32; raises UsageError."""
    return int(_parse(text, _INT, allow_zero=allow_zero, name=name))


def parse_bytes(text: str, *, allow_zero: bool = False, name: str = "size") -> int:
    """Bytes, at most 2^60 (1 EiB); a fraction of a byte (`0.3GiB`) is rounded to the nearest; raises UsageError.

    >>> parse_bytes("80GiB"), parse_bytes("80GB")
    (85899345920, 80000000000)
    """
    return int(_parse(text, _BYTES, allow_zero=allow_zero, name=name))


def parse_bandwidth(text: str, *, allow_zero: bool = False, name: str = "bandwidth") -> float:
    """Bytes per second, from 1 to 1e18; raises UsageError.

    >>> parse_bandwidth("2.04TB/s")
    2040000000000.0
    """
    return float(_parse(text, _BANDWIDTH, allow_zero=allow_zero, name=name))


def parse_flops_rate(text: str, *, allow_zero: bool = False, name: str = "peak") -> float:
    """FLOP/s, from 1 to 1e24; `TFLOPs` is refused, being a count; raises UsageError.

    >>> parse_flops_rate("989.4 TFLOP/s")
    989400000000000.0
    """
    return float(_parse(text, _FLOPS_RATE, allow_zero=allow_zero, name=name))


def parse_seconds(text: str, *, allow_zero: bool = False, name: str = "time") -> float:
    """Seconds, from 1 us to 1e6 s; suffixes us, ms, s, min; raises UsageError."""
    return float(_parse(text, _TIME, allow_zero=allow_zero, name=name))


def parse_ratio(text: str, *, allow_zero: bool = False, name: str = "share") -> float:
    """A share of one, `5%` or `0.05`, at most 10; raises UsageError."""
    return float(_parse(text, _RATIO, allow_zero=allow_zero, name=name))


def parse_list(text: str, parse: Callable[[str], T], *, name: str = "list") -> tuple[T, ...]:
    """Values with commas between them, each read by `parse`; 1 to 10,000 of them; raises UsageError.

    >>> parse_list("1k,4k,32k", parse_tokens)
    (1024, 4096, 32768)
    """
    members = text.split(",")
    allowed = f"allowed: 1 to {MAX_LIST} values with a comma between each two"
    if len(members) > MAX_LIST:
        raise UsageError(f"{name}: too many values, got {len(members)}; {allowed}")
    if any(not member.strip() for member in members):
        raise _refuse(name, "an empty value" if text.strip() else "no value", text, allowed)
    return tuple(parse(member) for member in members)


# --- writing -----------------------------------------------------------------------------------------------------


def format_number(value: float) -> str:
    """Three significant digits; integer digits are kept up to a million.

    >>> [format_number(x) for x in (4, 53.05, 2039.4, 6738415616)]
    ['4.00', '53.0', '2039', '6.74e+09']
    """
    size = abs(value)
    if not math.isfinite(size):
        return UNKNOWN
    if size == 0:
        return "0"
    if size >= 999_999.5:
        return f"{value:.2e}"
    return f"{value:.0f}" if size >= 100 else f"{value:#.3g}".rstrip(".")


def _scaled(value: float, ladder: Ladder) -> str:
    """`value` in the largest unit in which it is at least 1 as printed, so that 1023.9 KiB is 1.00 MiB."""
    base_unit, base = ladder[0]
    if not math.isfinite(value):
        return UNKNOWN
    if base == 1 and isinstance(value, int) and abs(value) < 1000:
        return f"{value} {base_unit}".rstrip()
    for unit, factor in reversed(ladder):
        text = format_number(divide(value, factor))
        if abs(float(text)) >= 1:
            return f"{text} {unit}".rstrip()
    return f"{format_number(divide(value, base))} {base_unit}".rstrip()


def divide(value: float, factor: Factor) -> float:
    """Correctly rounded for ints of any size; a float of a magnitude that a float can hold stays one."""
    factor = Fraction(factor)
    return value * factor.denominator / factor.numerator


def format_bytes(value: float) -> str:
    """Capacity in powers of 1024.

    >>> format_bytes(4294967296)
    '4.00 GiB'
    """
    return _scaled(value, BYTES)


def format_rate_bytes(value: float) -> str:
    """Bytes per second in powers of 1000, at most GB/s."""
    return _scaled(value, BYTES_PER_S)


def format_flops(value: float) -> str:
    """A count of FLOPs."""
    return _scaled(value, FLOPS)


def format_flops_rate(value: float) -> str:
    """FLOP/s, at most TFLOP/s."""
    return _scaled(value, FLOPS_PER_S)


def format_count(value: float) -> str:
    """A count in K, M, B, T.

    >>> format_count(6738415616)
    '6.74 B'
    """
    return _scaled(value, COUNTS)


def format_seconds(value: float) -> str:
    """Time in us, ms or s."""
    return _scaled(value, SECONDS)


def format_percent(value: float) -> str:
    """A share of one in percent."""
    return f"{format_number(100 * value)}%" if math.isfinite(value) else UNKNOWN


def format_tokens(value: int) -> str:
    """Tokens, exact: the inverse of `parse_tokens`.

    >>> format_tokens(32768), format_tokens(1000)
    ('32k', '1000')
    """
    for unit, factor in (("m", 1024**2), ("k", 1024)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def format_exact(value: float) -> str:
    """Every digit of a whole number, in groups of three.

    >>> format_exact(6738415616)
    '6,738,415,616'
    """
    return f"{int(value):,}" if math.isfinite(value) and value == int(value) else format_number(value)
