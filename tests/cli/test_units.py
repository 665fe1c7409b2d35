"""Human units: what is read, what is refused and in which words, and that printing and reading agree."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.cli import units
from tfm.cli.units import (
    MAX_BATCH,
    MAX_BYTES,
    MAX_COUNT,
    MAX_TOKENS,
    format_bytes,
    format_count,
    format_exact,
    format_flops,
    format_flops_rate,
    format_number,
    format_percent,
    format_rate_bytes,
    format_seconds,
    format_tokens,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_flops_rate,
    parse_int,
    parse_list,
    parse_ratio,
    parse_seconds,
    parse_tokens,
)
from tfm.presets.errors import UsageError

PARSERS: dict[str, Callable[..., float]] = {
    "tokens": parse_tokens,
    "count": parse_count,
    "int": parse_int,
    "bytes": parse_bytes,
    "bandwidth": parse_bandwidth,
    "flops_rate": parse_flops_rate,
    "seconds": parse_seconds,
    "ratio": parse_ratio,
}


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        pytest.param("tokens", "4096", 4096, id="plain"),
        pytest.param("tokens", "32k", 32768, id="k is 1024"),
        pytest.param("tokens", "32K", 32768, id="capital K"),
        pytest.param("tokens", "1m", 1048576, id="m is 1024^2"),
        pytest.param("tokens", "1_000", 1000, id="underscore"),
        pytest.param("tokens", "1.5k", 1536, id="a fraction of k that is whole"),
        pytest.param("tokens", "1e3", 1000, id="exponent"),
        pytest.param("tokens", " 4 k ", 4096, id="blanks"),
        pytest.param("tokens", "+5", 5, id="plus"),
        pytest.param("tokens", str(2**40), MAX_TOKENS, id="largest"),
        pytest.param("count", "7B", 7_000_000_000, id="B is 1e9"),
        pytest.param("count", "7b", 7_000_000_000, id="small b"),
        pytest.param("count", "1.5B", 1_500_000_000, id="decimal is exact"),
        pytest.param("count", "6.738415616B", 6_738_415_616, id="ten digits are exact"),
        pytest.param("count", "0.000000001B", 1, id="one of a billion"),
        pytest.param("count", "350M", 350_000_000, id="M"),
        pytest.param("count", "15T", 15 * 10**12, id="T"),
        pytest.param("count", "4K", 4000, id="K is 1000 here"),
        pytest.param("count", "999_999_999_999_999_999", 10**18 - 1, id="no float on the way"),
        pytest.param("int", "8", 8, id="whole"),
        pytest.param("int", "1_024", 1024, id="whole with underscore"),
        pytest.param("bytes", "80GiB", 80 * 2**30, id="GiB"),
        pytest.param("bytes", "80GB", 80 * 10**9, id="GB"),
        pytest.param("bytes", "80gib", 80 * 2**30, id="small gib"),
        pytest.param("bytes", "80gb", 80 * 10**9, id="small gb"),
        pytest.param("bytes", "512 MiB", 2**29, id="MiB and a blank"),
        pytest.param("bytes", "1KB", 1000, id="KB as people write it"),
        pytest.param("bytes", "1kB", 1000, id="kB as it is written"),
        pytest.param("bytes", "123B", 123, id="B is bytes here"),
        pytest.param("bytes", "123", 123, id="plain bytes"),
        pytest.param("bytes", "0.3GiB", 322_122_547, id="rounded to the nearest byte"),
        pytest.param("bytes", "1.00e+00 EiB", MAX_BYTES, id="largest size"),
        pytest.param("bandwidth", "2.04TB/s", 2.04e12, id="TB/s"),
        pytest.param("bandwidth", "2039GB/s", 2.039e12, id="GB/s"),
        pytest.param("bandwidth", "900GiB/s", 900 * 2.0**30, id="GiB/s"),
        pytest.param("bandwidth", "2039e9", 2.039e12, id="plain B/s"),
        pytest.param("bandwidth", "21.5 gb/s", 2.15e10, id="small gb/s"),
        pytest.param("flops_rate", "312TFLOP/s", 312e12, id="TFLOP/s"),
        pytest.param("flops_rate", "312tflop/s", 312e12, id="small tflop/s"),
        pytest.param("flops_rate", "989.4 TFLOP/s", 989.4e12, id="TFLOP/s with a blank"),
        pytest.param("flops_rate", "312e12", 312e12, id="plain FLOP/s"),
        pytest.param("flops_rate", "312TFLOPS", 312e12, id="TFLOPS can only be the rate"),
        pytest.param("flops_rate", "312tflops", 312e12, id="small tflops too"),
        pytest.param("flops_rate", "2.5PFLOP/s", 2.5e15, id="PFLOP/s"),
        pytest.param("flops_rate", "1EFLOP/s", 1e18, id="E is a prefix, no exponent"),
        pytest.param("seconds", "30", 30.0, id="plain seconds"),
        pytest.param("seconds", "500ms", 0.5, id="ms"),
        pytest.param("seconds", "2min", 120.0, id="min"),
        pytest.param("ratio", "5%", 0.05, id="percent"),
        pytest.param("ratio", "0.05", 0.05, id="share"),
        pytest.param("ratio", ".05", 0.05, id="no digit before the point"),
    ],
)
def test_read(kind: str, text: str, expected: float) -> None:
    value = PARSERS[kind](text)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize("kind", PARSERS)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "no value", id="empty"),
        pytest.param("  ", "no value", id="blank"),
        pytest.param("-1", "negative", id="negative"),
        pytest.param("-0.5k", "negative", id="negative with suffix"),
        pytest.param("0", "zero", id="zero"),
        pytest.param("-0", "zero", id="minus zero"),
        pytest.param("0e5", "zero", id="zero with exponent"),
        pytest.param("nan", "not a number", id="nan"),
        pytest.param("inf", "not a number", id="inf"),
        pytest.param("-inf", "not a number", id="minus inf"),
        pytest.param("1e30", "too large", id="1e30"),
        pytest.param("1e999999999", "out of range", id="huge exponent"),
        pytest.param("1e-999999999", "out of range", id="tiny exponent"),
        pytest.param("9" * 65, "longer than 64", id="too many digits"),
        pytest.param("32kk", "unknown suffix 'kk'", id="kk"),
        pytest.param("5 bananas", "unknown suffix 'bananas'", id="a word"),
        pytest.param("5" + "x" * 50, "unknown suffix 'xxxxxxxxx...'", id="a long word is cut"),
        pytest.param("1,000", "unknown suffix", id="a comma"),
        pytest.param("1__0", "unknown suffix", id="two underscores"),
        pytest.param("_1", "not a number", id="underscore first"),
        pytest.param("096", "leading zero", id="what is left of 4,096"),
        pytest.param("0x10", "unknown suffix", id="hexadecimal"),
        pytest.param("\u0661\u0662", "not a number", id="digits of another script"),
        pytest.param("1\n2", "unknown suffix", id="two lines"),
        pytest.param("k", "not a number", id="suffix alone"),
    ],
)
def test_refused(kind: str, text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        PARSERS[kind](text, name="--option")
    message = str(refused.value)
    assert why in message
    assert message.startswith("--option: ")
    assert "; allowed: " in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        pytest.param("tokens", str(2**40 + 1), "too large", id="tokens over 2^40"),
        pytest.param("tokens", "1.3", "not a whole number", id="part of a token"),
        pytest.param("tokens", "0.3k", "not a whole number", id="307.2 tokens"),
        pytest.param("tokens", "7B", "unknown suffix 'B'", id="billions of tokens"),
        pytest.param("int", str(MAX_BATCH + 1), "too large", id="batch over 2^32"),
        pytest.param("int", "1k", "unknown suffix 'k'", id="no suffix on a plain number"),
        pytest.param("int", "1.5", "not a whole number", id="half a sequence"),
        pytest.param("count", str(MAX_COUNT + 1), "too large", id="count over 1e18"),
        pytest.param("count", "0.0000000001B", "not a whole number", id="a tenth of a parameter"),
        pytest.param("bytes", "80G", "G may be GB or GiB, write which", id="G alone"),
        pytest.param("bytes", "80Gb", "Gb means bits, write GB", id="bits"),
        pytest.param("bytes", "1.5", "not a whole number", id="half a byte"),
        pytest.param("bytes", "0.1B", "too small", id="a byte that rounds to none"),
        pytest.param("bytes", "80GB/s", "unknown suffix 'GB/s'", id="a rate for a size"),
        pytest.param("bandwidth", "80Gb/s", "Gb/s means bits, write GB/s", id="bits per second"),
        pytest.param("bandwidth", "80GB", "unknown suffix 'GB'", id="a size for a rate"),
        pytest.param("bandwidth", "0.5", "too small", id="half a byte per second"),
        pytest.param("flops_rate", "312TFLOPs", "TFLOPs is a count, a rate is TFLOP/s", id="plural"),
        pytest.param("flops_rate", "312TFLOP", "TFLOP is a count, a rate is TFLOP/s", id="singular"),
        pytest.param("flops_rate", "312TOPS", "unknown suffix 'TOPS'", id="integer operations"),
        pytest.param("ratio", "2000%", "too large", id="twenty times"),
        pytest.param("seconds", "1h", "unknown suffix 'h'", id="hours"),
    ],
)
def test_refused_by_kind(kind: str, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=r"^value: ") as refused:
        PARSERS[kind](text, name="value")
    assert why in str(refused.value)


def test_a_message_says_it_all() -> None:
    with pytest.raises(UsageError) as refused:
        parse_tokens("32kk", name="--ctx")
    assert str(refused.value) == (
        "--ctx: unknown suffix 'kk', got '32kk'; "
        "allowed: a whole number of tokens such as 4096, 32k (k = 1024) or 1m (m = 1024^2), from 1 to 2^40"
    )


@pytest.mark.parametrize("kind", PARSERS)
def test_zero_where_it_makes_sense(kind: str) -> None:
    assert PARSERS[kind]("0", allow_zero=True) == 0
    with pytest.raises(UsageError, match="from 0 to"):
        PARSERS[kind]("-1", allow_zero=True)


@pytest.mark.parametrize("kind", PARSERS)
@given(text=st.text(max_size=80) | st.from_regex(r"\A[-+]?[0-9_.]{1,20}([eE][-+]?[0-9]{1,12})?[A-Za-z/%]{0,9}\Z"))
def test_any_text_is_read_or_refused(kind: str, text: str) -> None:
    try:
        value = PARSERS[kind](text)
    except UsageError:
        return
    assert value > 0
    assert math.isfinite(value)


# --- lists -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("1k,4k,32k", (1024, 4096, 32768), id="three"),
        pytest.param("8", (8,), id="one"),
        pytest.param("4, 2 ,4", (4, 2, 4), id="order and repeats are kept"),
    ],
)
def test_list(text: str, expected: tuple[int, ...]) -> None:
    assert parse_list(text, parse_tokens) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "no value", id="nothing"),
        pytest.param("1,,2", "an empty value", id="empty member"),
        pytest.param("1k,", "an empty value", id="comma at the end"),
        pytest.param(",", "an empty value", id="a comma alone"),
        pytest.param("1,x", "not a number", id="a wrong member"),
        pytest.param("4,096", "leading zero", id="thousands with a comma"),
        pytest.param("1," * 10_000 + "1", "too many values, got 10001", id="10,001 members"),
    ],
)
def test_list_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=r"^--ctx: ") as refused:
        parse_list(text, partial(parse_tokens, name="--ctx"), name="--ctx")
    assert why in str(refused.value)
    assert len(str(refused.value)) < 300


def test_list_of_ten_thousand() -> None:
    assert len(parse_list(",".join(["1"] * 10_000), parse_int)) == 10_000


# --- writing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(format_bytes(2**32), "4.00 GiB", id="GiB"),
        pytest.param(format_bytes(0), "0 B", id="no bytes"),
        pytest.param(format_bytes(512), "512 B", id="bytes are whole"),
        pytest.param(format_bytes(1023), "1023 B", id="bytes up to the next unit"),
        pytest.param(format_bytes(1000 * 1024), "1000 KiB", id="integer digits are kept"),
        pytest.param(format_bytes(1024**2 - 1), "1.00 MiB", id="never 1024 KiB"),
        pytest.param(format_bytes(0.5625), "0.562 B", id="bytes of an element"),
        pytest.param(format_bytes(-3 * 2**30), "-3.00 GiB", id="what is missing"),
        pytest.param(format_bytes(524_288), "512 KiB", id="KiB"),
        pytest.param(format_bytes(327.5e9), "305 GiB", id="not GB"),
        pytest.param(format_bytes(2**80), "1.05e+06 EiB", id="beyond every unit"),
        pytest.param(format_rate_bytes(2.039e12), "2039 GB/s", id="GB/s is the largest rate"),
        pytest.param(format_rate_bytes(21.34e9), "21.3 GB/s", id="GB/s"),
        pytest.param(format_rate_bytes(0.5e9), "500 MB/s", id="MB/s"),
        pytest.param(format_flops(53_050_000_000_000), "53.0 TFLOP", id="TFLOP"),
        pytest.param(format_flops(8.4e22), "84.0 ZFLOP", id="ZFLOP"),
        pytest.param(format_flops_rate(312e12), "312 TFLOP/s", id="TFLOP/s"),
        pytest.param(format_flops_rate(2.5e15), "2500 TFLOP/s", id="TFLOP/s is the largest rate"),
        pytest.param(format_count(6_738_415_616), "6.74 B", id="B"),
        pytest.param(format_count(999), "999", id="under a thousand"),
        pytest.param(format_count(999_999), "1.00 M", id="rolls over"),
        pytest.param(format_exact(6_738_415_616), "6,738,415,616", id="exact"),
        pytest.param(format_exact(-33_554_432), "-33,554,432", id="exact and negative"),
        pytest.param(format_exact(4.625), "4.62", id="no whole number"),
        pytest.param(format_seconds(0.00648), "6.48 ms", id="ms"),
        pytest.param(format_seconds(65e-6), "65.0 us", id="us"),
        pytest.param(format_seconds(5e-9), "0.00500 us", id="under the smallest unit"),
        pytest.param(format_seconds(3600), "3600 s", id="s"),
        pytest.param(format_seconds(0), "0 us", id="no time"),
        pytest.param(format_percent(0.663), "66.3%", id="percent"),
        pytest.param(format_percent(1), "100%", id="all"),
        pytest.param(format_percent(0.0000312), "0.00312%", id="little"),
        pytest.param(format_tokens(32768), "32k", id="k"),
        pytest.param(format_tokens(2**21), "2m", id="m"),
        pytest.param(format_tokens(1000), "1000", id="no multiple"),
        pytest.param(format_tokens(0), "0", id="no tokens"),
        pytest.param(format_number(1234567), "1.23e+06", id="large"),
        pytest.param(format_number(99.96), "100", id="rounds up to three digits"),
        pytest.param(format_bytes(math.nan), "-", id="nan"),
        pytest.param(format_seconds(math.inf), "-", id="inf"),
        pytest.param(format_percent(math.nan), "-", id="percent of nan"),
        pytest.param(format_exact(math.inf), "-", id="exact inf"),
    ],
)
def test_written(text: str, expected: str) -> None:
    assert text == expected


ROUNDS = {
    "bytes": (format_bytes, parse_bytes, st.integers(1, MAX_BYTES)),
    "bandwidth": (format_rate_bytes, parse_bandwidth, st.floats(1, 1e18)),
    "flops_rate": (format_flops_rate, parse_flops_rate, st.floats(1, 1e24)),
    "count": (format_count, parse_count, st.integers(1, MAX_COUNT)),
    "seconds": (format_seconds, parse_seconds, st.floats(1e-6, 1e6)),
    "ratio": (format_percent, parse_ratio, st.floats(1e-6, 10)),
}


@pytest.mark.parametrize("kind", ROUNDS)
@given(data=st.data())
def test_what_was_printed_reads_back(kind: str, data: st.DataObject) -> None:
    """Within the three digits, and printed again it is the same text."""
    write, read, values = ROUNDS[kind]
    value = data.draw(values)
    again = read(write(value))
    assert again == pytest.approx(value, rel=0.0051)
    assert write(again) == write(value)


@given(st.integers(1, MAX_TOKENS))
def test_tokens_round_trip_exactly(tokens: int) -> None:
    assert parse_tokens(format_tokens(tokens)) == tokens


@given(st.integers(0, 10**30))
def test_exact_loses_nothing(number: int) -> None:
    assert int(format_exact(number).replace(",", "")) == number


@given(st.integers(1, 10**15), st.sampled_from([("k", 1024), ("m", 1024**2), ("", 1)]))
def test_tokens_are_multiplied_exactly(number: int, unit: tuple[str, int]) -> None:
    suffix, factor = unit
    if number * factor <= MAX_TOKENS:
        assert parse_tokens(f"{number}{suffix}") == number * factor


@given(st.integers(1, 10**9 - 1), st.integers(0, 9))
def test_decimals_are_read_exactly(digits: int, places: int) -> None:
    """123.456B is 123,456,000,000 and not what a float makes of it."""
    whole, part = divmod(digits, 10**places)
    text = f"{whole}.{part:0{places}d}" if places else str(whole)
    assert parse_count(f"{text}B") == digits * 10 ** (9 - places)


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(units).failed == 0
