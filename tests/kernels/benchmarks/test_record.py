"""A line of a benchmark: its keys, its verdict, and that what cannot be true is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.kernels.benchmarks.record import Record, busy_note
from tfm.kernels.timing import HarnessError, Sample

KEYS = (
    "device dtype median_s p20_s p80_s samples flops bytes floor_s bound_s expected_s bandwidth_bytes_per_s of_bandwidth backend"
).split()


def record(**fields: Any) -> Record:
    """12 GB read in one second at a bandwidth of 20 GB/s."""
    given: dict[str, Any] = {
        "labels": {"model": "m", "ctx": 7}, "device": "d", "dtype": "bf16", "sample": Sample(times=(1.0, 1.0, 1.0), calls=1, stop="spread"),
        "flops": 3e9, "bytes": 12e9, "bandwidth_bytes_per_s": 20e9, "probe": "mv fp32", "peak_flops_per_s": 1e12, "floor_s": 0.7,
        "bound_s": 0.6, "backend": "mv",
    }  # fmt: skip
    return Record(**given | fields)


def times(*seconds: float, stop: str = "spread") -> Sample:
    return Sample(times=seconds, calls=1, stop=stop)


def test_the_keys_of_the_contract() -> None:
    figures = record(facts={"layers_timed": 4}).figures()
    assert set(KEYS) <= set(figures)
    assert list(figures)[:2] == ["model", "ctx"]
    assert figures["of_bandwidth"] == pytest.approx(0.6)
    assert figures["of_bound"] == pytest.approx(0.6)
    assert figures["bytes_per_s"] == 12e9
    assert (figures["expected_s"], figures["layers_timed"]) == (None, 4)


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        pytest.param({"bound_s": 0.95, "bytes": 19e9}, "at the memory bound", id="at"),
        pytest.param({}, "near the memory bound", id="near"),
        pytest.param({"bound_s": 0.3, "bytes": 6e9}, "far from the memory bound", id="far"),
        pytest.param({"flops": 9e11, "bound_s": 0.9}, "at the arithmetic bound", id="the other wall"),
        pytest.param({"peak_flops_per_s": None, "flops": 9e15}, "near the memory bound", id="no peak: memory"),
        pytest.param({"bound_s": None}, "in the cache: not memory's rate", id="no bound"),
    ],
)
def test_verdicts(fields: dict[str, Any], verdict: str) -> None:
    assert record(**fields).figures()["verdict"] == verdict


def test_faster_than_possible_is_refused() -> None:
    with pytest.raises(HarnessError, match="m 7"):
        record(sample=times(0.5, 0.5), bound_s=0.6)
    assert record(sample=times(0.58, 0.58), bound_s=0.6).sample.median_s == 0.58  # within 5 %
    assert record(sample=times(0.5, stop="interrupted"), bound_s=0.6).sample.interrupted  # a lone sample proves nothing


def test_a_busy_machine_is_named() -> None:
    assert busy_note(record()) is None
    note = busy_note(record(sample=times(1.0, 1.0, 1.0, 3.0, 3.0)))
    assert note is not None
    assert "200%" in note
    assert "busy machine" in note
