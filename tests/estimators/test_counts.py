"""Multiply-adds and attended pairs, against counting them one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.estimators.counts import attended_pairs, choose, each, expected_distinct, kept_tokens, larger, matmul_flops, smaller
from tfm.presets.spec import Blocked, Causal, Chunked, Full, Local, Mask, Sliding

MASKS = st.one_of(
    st.just(Causal()),
    st.just(Full()),
    st.builds(Sliding, window=st.integers(1, 12)),
    st.builds(Chunked, chunk=st.integers(1, 12)),
)


def sees(mask: Mask, query: int, key: int) -> bool:
    """The definition, position by position."""
    match mask:
        case Sliding(window=window):
            return query - window < key <= query
        case Chunked(chunk=chunk):
            return query // chunk * chunk <= key <= query
        case Local(reach=reach):
            return abs(query - key) <= reach
        case Blocked(size=size):
            return query // size == key // size
        case Causal():
            return key <= query
        case _:
            return True


@given(MASKS, st.integers(1, 20), st.integers(0, 20))
def test_pairs_are_those_of_the_definition(mask: Mask, new: int, before: int) -> None:
    span = before + new
    counted = sum(sees(mask, query, key) for query in range(before, span) for key in range(span))
    assert attended_pairs(mask, new, span) == counted


@given(st.integers(1, 9), st.integers(1, 30))
def test_local_pairs(reach: int, span: int) -> None:
    mask = Local(reach=reach)
    assert attended_pairs(mask, span, span) == sum(sees(mask, query, key) for query in range(span) for key in range(span))


@given(st.integers(1, 9), st.integers(1, 30), st.booleans())
def test_blocks_are_cut_and_no_mask(size: int, span: int, square: bool) -> None:
    mask = Blocked(size=size)
    counted = sum(sees(mask, query, key) for query in range(span) for key in range(span))
    assert attended_pairs(mask, span, span, square=square) == counted


@given(MASKS, st.integers(1, 20), st.integers(0, 20))
def test_the_square_ignores_the_mask(mask: Mask, new: int, before: int) -> None:
    assert attended_pairs(mask, new, before + new, square=True) == new * (before + new)


@given(MASKS, st.integers(1, 30))
def test_a_prefill_is_the_sum_of_its_steps(mask: Mask, span: int) -> None:
    if isinstance(mask, Full):
        return
    assert attended_pairs(mask, span, span) == sum(attended_pairs(mask, 1, n) for n in range(1, span + 1))


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 40))
def test_a_window_over_everything_is_causal(new: int, before: int, more: int) -> None:
    span = new + before
    assert attended_pairs(Sliding(window=span + more), new, span) == attended_pairs(Causal(), new, span)


@pytest.mark.parametrize(
    ("mask", "new", "span", "pairs"),
    [
        pytest.param(Causal(), 4, 10, 34, id="bottom-right aligned, more keys than queries"),
        pytest.param(Causal(), 10, 10, 55, id="square causal"),
        pytest.param(Causal(), 1, 4096, 4096, id="decode attends everything"),
        pytest.param(Sliding(window=4096), 1, 8192, 4096, id="decode in a window"),
        pytest.param(Chunked(chunk=8), 1, 17, 1, id="first of a chunk sees itself"),
    ],
)
def test_pairs(mask: Mask, new: int, span: int, pairs: int) -> None:
    assert attended_pairs(mask, new, span) == pairs


def test_arrays_are_counted_as_ints_are() -> None:
    spans = np.array([1, 5, 4096, 70_000])
    for mask in (Causal(), Sliding(window=7), Chunked(chunk=6), Full()):
        assert attended_pairs(mask, 1, spans).tolist() == [attended_pairs(mask, 1, int(n)) for n in spans]
        assert kept_tokens(mask, spans).tolist() == [kept_tokens(mask, int(n)) for n in spans]


def test_multiply_adds() -> None:
    assert matmul_flops(3, 5, 7) == 210


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens", "distinct"),
    [
        pytest.param(8, 2, 1, 2, id="one token reads k"),
        pytest.param(8, 2, 3, 4.625, id="Mixtral at batch 3"),
        pytest.param(8, 8, 5, 8, id="all chosen, all read"),
    ],
)
def test_distinct(experts: int, top_k: int, tokens: int, distinct: float) -> None:
    assert expected_distinct(experts, top_k, tokens) == distinct


def test_deepseek_v3_reads_most_experts_at_batch_64() -> None:
    assert round(expected_distinct(256, 8, 64), 1) == 222.4


def test_elementwise_helpers() -> None:
    assert (smaller(3, 5), larger(3, 5), choose(condition=False, yes="a", no="b")) == (3, 5, "b")
    values = np.array([2, 6])
    assert (smaller(values, 5).tolist(), larger(values, 5).tolist(), choose(values > 5, "a", "b").tolist()) == ([2, 5], [5, 6], ["b", "a"])


def test_each_visits_a_different_point_once() -> None:
    seen: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        seen.append((a, b))
        return a + b

    assert each(add, 2, 3) == 5
    seen.clear()
    assert each(add, np.array([1, 1, 4]), 3).tolist() == [4, 4, 7]
    assert seen == [(1, 3), (4, 3)]
