"""Seconds at another pace of the machine, against what memory and arithmetic would take each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tfm.estimators.pace import ATTENTION_OVERLAP, PRODUCT_OVERLAP, Pace, pace_of, paced
from tfm.presets.calibration import Yard

RATIOS = st.floats(min_value=0.25, max_value=4.0)
TIMES = st.floats(min_value=1e-6, max_value=10.0)
OVERLAPS = st.sampled_from([1.0, ATTENTION_OVERLAP, PRODUCT_OVERLAP])


@given(TIMES, TIMES, RATIOS, RATIOS, OVERLAPS)
def test_there_and_back(memory: float, arithmetic: float, slower: float, weaker: float, overlap: float) -> None:
    seconds = float((memory**overlap + arithmetic**overlap) ** (1 / overlap))
    pace, back = Pace(memory=slower, vector=weaker), Pace(memory=1 / slower, vector=1 / weaker)
    found = paced(seconds, memory, pace, overlap)
    assert min(slower, weaker) * 0.999 <= found / seconds <= max(slower, weaker) * 1.001
    if arithmetic > memory / 20:  # less is lost in rounding
        assert found == pytest.approx(((slower * memory) ** overlap + (weaker * arithmetic) ** overlap) ** (1 / overlap), rel=1e-6)
        assert paced(found, memory * slower, back, overlap) == pytest.approx(seconds, rel=1e-6)


@given(TIMES, TIMES, OVERLAPS)
def test_at_the_same_pace_nothing_changes(seconds: float, streaming: float, overlap: float) -> None:
    assert paced(seconds, streaming, Pace(), overlap) == pytest.approx(seconds)


def test_limits() -> None:
    assert paced(3.0, 1.0, Pace(memory=2.0, vector=5.0), 1.0) == pytest.approx(2.0 + 2 * 5.0)  # one after the other
    assert paced(2.0, 1.0, Pace(memory=1.9), 99.0) == pytest.approx(2.0, rel=0.01)  # the shorter costs nothing until it is the longer
    assert paced(0.9, 1.0, Pace(memory=2.0, vector=9.0)) == pytest.approx(1.8)  # faster than the beat: all of it is memory's


def test_the_pace_of_a_run() -> None:
    then = [
        Yard(dtype="bf16", stream_bytes_per_s=7.0, vector_elements_per_s=7.0, matrix_flops_per_s=7.0),
        Yard(dtype="fp32", stream_bytes_per_s=30.0, vector_elements_per_s=8.0, matrix_flops_per_s=50.0),
    ]
    now = Yard(dtype="fp32", stream_bytes_per_s=60.0, vector_elements_per_s=4.0, matrix_flops_per_s=25.0)
    assert pace_of(then, now) == Pace(memory=0.5, vector=2.0, matrix=2.0)
    assert pace_of(then, replace(now, matrix_flops_per_s=None, vector_elements_per_s=2.0)).matrix == 4.0  # vectors stand for them
    assert pace_of(then, replace(now, dtype="fp16")) == Pace()
