"""Positions: published values, and the properties they exist for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tfm.kernels.positions import (
    alibi_bias,
    alibi_slopes,
    dynamic_ntk_base,
    learned,
    linear_scaled,
    llama3_scaled,
    longrope_attention_factor,
    longrope_scaled,
    ntk_base,
    relative_bias,
    relative_buckets,
    rotary_frequencies,
    rotate,
    rotation,
    sinusoidal,
    yarn_attention_factor,
    yarn_scaled,
)

FP64 = torch.float64


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=FP64)


def turned(x: Tensor, positions: Tensor, *, width: int, interleaved: bool) -> Tensor:
    cos, sin = rotation(positions, rotary_frequencies(width), dtype=x.dtype)
    return rotate(x, cos, sin, interleaved=interleaved)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize("width", [12, 8, 2], ids=["whole head", "partial", "one pair"])
@given(first=st.integers(0, 3000), second=st.integers(0, 3000), shift=st.integers(1, 5000))
@settings(max_examples=15, deadline=None)
def test_scores_depend_on_the_distance_alone(interleaved: bool, width: int, first: int, second: int, shift: int) -> None:
    q, k = numbers(1, 12), numbers(1, 12, seed=1)

    def score(a: int, b: int) -> float:
        pair = (turned(x, torch.tensor([p]), width=width, interleaved=interleaved) for x, p in ((q, a), (k, b)))
        left, right = pair
        return float(left @ right.T)

    assert score(first, second) == pytest.approx(score(first + shift, second + shift), abs=1e-9)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
def test_rotation_is_that_of_complex_numbers(interleaved: bool) -> None:
    x, positions, frequencies = numbers(3, 5, 8), torch.arange(7, 12), rotary_frequencies(6)
    a, b = (x[..., 0:6:2], x[..., 1:6:2]) if interleaved else (x[..., :3], x[..., 3:6])
    want = torch.complex(a, b) * torch.exp(1j * positions[:, None] * frequencies)
    cos, sin = rotation(positions, frequencies, dtype=FP64)
    got = rotate(x, cos, sin, interleaved=interleaved)
    a, b = (got[..., 0:6:2], got[..., 1:6:2]) if interleaved else (got[..., :3], got[..., 3:6])
    torch.testing.assert_close(torch.complex(a, b), want)
    assert torch.equal(got[..., 6:], x[..., 6:])  # partial rotation leaves the rest


def test_position_zero_turns_nothing() -> None:
    x = numbers(2, 1, 10)
    torch.testing.assert_close(turned(x, torch.tensor([0]), width=10, interleaved=False), x)


def test_frequencies_fall_from_one_by_a_constant_factor() -> None:
    found = rotary_frequencies(128, 10_000.0)
    assert found[0] == 1
    torch.testing.assert_close(found[1:] / found[:-1], torch.full((63,), 10_000 ** (-1 / 64), dtype=FP64))


def test_linear_scaling_slows_all_pairs() -> None:
    torch.testing.assert_close(linear_scaled(rotary_frequencies(64), 4.0) * 4, rotary_frequencies(64))


def test_ntk_keeps_the_fastest_pair_and_stretches_the_slowest_by_the_factor() -> None:
    plain, scaled = rotary_frequencies(128, 10_000.0), rotary_frequencies(128, ntk_base(10_000.0, 128, 8.0))
    assert scaled[0] == plain[0]
    assert float(plain[-1] / scaled[-1]) == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("length", "expected"),
    [(4096, 10_000.0), (8192, 10_000.0), (16384, ntk_base(10_000.0, 128, 3.0))],
    ids=["shorter", "as trained", "twice: 2 * 2 - 1"],
)
def test_dynamic_ntk_grows_with_the_sequence(length: int, expected: float) -> None:
    assert dynamic_ntk_base(10_000.0, 128, 2.0, length, 8192) == expected


# transformers 5.24, rope types llama3 and yarn, head of 128
LLAMA3 = {0: 1.0, 20: 0.01656044, 30: 0.00137189357, 33: 0.00031269375, 40: 3.42810220e-05, 63: 3.06892599e-07}
YARN = {0: 1.0, 20: 0.05623413, 30: 0.00836656475, 33: 0.00446512854, 40: 0.00080577267, 63: 3.60869370e-06}


@pytest.mark.parametrize("pair", LLAMA3)
def test_llama3_scaling(pair: int) -> None:
    scaled = llama3_scaled(rotary_frequencies(128, 500_000.0), factor=8, low=1, high=4, trained=8192)
    assert float(scaled[pair]) == pytest.approx(LLAMA3[pair], rel=1e-6)


@pytest.mark.parametrize("pair", YARN)
def test_yarn_scaling(pair: int) -> None:
    assert float(yarn_scaled(128, 10_000.0, factor=32, trained=4096)[pair]) == pytest.approx(YARN[pair], rel=1e-6)


def test_yarn_between_its_ends_is_monotonic_and_untruncated_differs() -> None:
    whole, exact = (yarn_scaled(64, 150_000.0, factor=32, trained=4096, truncate=t) for t in (True, False))
    stretch = rotary_frequencies(64, 150_000.0) / whole
    assert (stretch.diff() >= 0).all()
    assert not torch.allclose(whole, exact)
    assert float(stretch[0]) == 1
    assert float(stretch[-1]) == pytest.approx(32)


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 1.0), (0.5, 1.0), (32.0, 1.3465736), (40.0, 1.3688879)])
def test_yarn_attention_factor(factor: float, expected: float) -> None:
    assert yarn_attention_factor(factor) == pytest.approx(expected)


def test_longrope_stretches_each_pair_by_its_own_factor() -> None:
    factors = [1.0, 1.5, 40.0]
    assert (rotary_frequencies(6) / longrope_scaled(rotary_frequencies(6), factors)).tolist() == pytest.approx(factors)
    assert longrope_attention_factor(32.0, 4096) == pytest.approx(1.1902381)
    assert longrope_attention_factor(1.0, 4096) == 1.0


def test_attention_factor_multiplies_cosine_and_sine() -> None:
    plain = rotation(torch.arange(3), rotary_frequencies(4), dtype=FP64)
    scaled = rotation(torch.arange(3), rotary_frequencies(4), dtype=FP64, attention_factor=1.25)
    for a, b in zip(plain, scaled, strict=True):
        torch.testing.assert_close(1.25 * a, b)


def test_sinusoidal_as_in_the_paper() -> None:
    table = sinusoidal(torch.arange(50), 6)
    assert table.shape == (50, 6)
    assert float(table[7, 2]) == pytest.approx(math.sin(7 / 10_000 ** (2 / 6)))
    assert float(table[7, 3]) == pytest.approx(math.cos(7 / 10_000 ** (2 / 6)))


def test_sinusoidal_in_halves_as_in_whisper() -> None:
    table = sinusoidal(torch.arange(9), 8, halves=True)
    assert float(table[5, 1]) == pytest.approx(math.sin(5 * 10_000 ** (-1 / 3)))
    assert float(table[5, 7]) == pytest.approx(math.cos(5 / 10_000))


def test_learned_positions_are_rows_after_an_offset() -> None:
    table = numbers(11, 3)
    assert torch.equal(learned(torch.tensor([0, 4]), table, offset=2), table[[2, 6]])


def test_alibi_slopes_of_the_paper() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]


def test_alibi_slopes_without_a_power_of_two() -> None:
    assert alibi_slopes(12).tolist() == pytest.approx([2.0**-n for n in range(1, 9)] + [2.0 ** -(n / 2) for n in (1, 3, 5, 7)])


def test_alibi_falls_with_the_distance_from_the_own_position() -> None:
    bias = alibi_bias(4, 2, 5)
    assert bias.shape == (4, 2, 5)
    assert (bias[1] * 16).tolist() == [[-3, -2, -1, 0, -1], [-4, -3, -2, -1, 0]]


OFFSETS = [-200, -128, -100, -60, -16, -8, -7, -1, 0, 1, 7, 8, 16, 60, 100, 200]


@pytest.mark.parametrize(
    ("bidirectional", "expected"),
    [
        (True, [15, 15, 15, 13, 10, 8, 7, 1, 0, 17, 23, 24, 26, 29, 31, 31]),
        (False, [31, 31, 30, 26, 16, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
    ],
    ids=["encoder", "decoder"],
)
def test_relative_buckets_as_t5(bidirectional: bool, expected: list[int]) -> None:
    assert relative_buckets(torch.tensor(OFFSETS), bidirectional=bidirectional).tolist() == expected


@given(st.integers(1, 300), st.booleans())
@settings(max_examples=30, deadline=None)
def test_buckets_are_all_of_the_table_and_grow_with_the_distance(span: int, bidirectional: bool) -> None:
    found = relative_buckets(torch.arange(-span, 1), bidirectional=bidirectional)
    assert found.min() >= 0
    assert found.max() < 32
    assert (found.flip(0).diff() >= 0).all()


def test_relative_bias_looks_up_the_distance() -> None:
    table = numbers(32, 3)
    bias = relative_bias(table, 2, 6, bidirectional=False)
    assert bias.shape == (3, 2, 6)
    assert torch.equal(bias[:, 1, 2], table[3])  # query 1 stands at 5, three after key 2
    assert torch.equal(bias[:, 0, 5], table[0])  # a later key is bucket 0
