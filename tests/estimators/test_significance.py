"""The test of measured gates, on numbers made up with known differences."""

from __future__ import annotations

import numpy as np
import pytest

from tfm.estimators.significance import FEWEST, compare, compare_pairs
from tfm.presets.errors import UsageError


def blocks(middle: float, spread: float, count: int, seed: int) -> list[float]:
    """Efficiencies of a run: log-normal about `middle`."""
    return [float(value) for value in middle * np.exp(np.random.default_rng(seed).normal(0, spread, count))]


@pytest.mark.parametrize(
    ("now", "spread", "verdict"),
    [
        pytest.param(0.9, 0.02, "ok", id="the same code"),
        pytest.param(0.9 / 1.03, 0.002, "ok", id="clearly slower, by less than the threshold"),
        pytest.param(0.9 / 1.10, 0.02, "slower", id="a tenth slower"),
        pytest.param(0.9 * 1.12, 0.02, "faster", id="a tenth faster"),
        pytest.param(0.9, 0.30, "noisy", id="too noisy to tell"),
        pytest.param(0.9 / 1.5, 0.02, "slower", id="half again as long"),
    ],
)
def test_verdicts(now: float, spread: float, verdict: str) -> None:
    found = compare(blocks(0.9, spread, 15, 1), blocks(now, spread, 15, 2), threshold=0.05)
    assert found.verdict == verdict
    assert found.low <= found.slowdown <= found.high
    assert found.slowdown == pytest.approx(0.9 / now - 1, abs=max(0.03, spread))
    assert found == compare(blocks(0.9, spread, 15, 1), blocks(now, spread, 15, 2), threshold=0.05)  # the same numbers, the same verdict


def test_both_are_needed() -> None:
    """A difference beyond the threshold that chance explains, and a sure one below it."""
    wide = compare([0.8, 0.7, 0.95, 0.6, 1.0, 0.9], [0.72, 0.85, 0.6, 0.9, 0.7, 0.68], threshold=0.05)
    assert wide.slowdown > 0.05
    assert wide.p_value > 0.01
    assert wide.verdict == "noisy"
    sure = compare(blocks(0.9, 0.001, 15, 1), blocks(0.9 / 1.02, 0.001, 15, 2), threshold=0.05)
    assert sure.p_value < 0.01
    assert sure.verdict == "ok"


def test_how_often_chance_alone_fails_the_gate() -> None:
    """The same distribution on both sides, far noisier than the threshold: the test holds what it promises."""
    pairs = [(blocks(0.8, 0.08, 15, 2 * i), blocks(0.8, 0.08, 15, 2 * i + 1)) for i in range(60)]
    failed = sum(compare(then, now, threshold=0.01).verdict == "slower" for then, now in pairs)
    assert failed <= 3


@pytest.mark.parametrize("gap", [0.0, 0.1, -0.1])
def test_pairs_cancel_what_both_sides_see(gap: float) -> None:
    mood = np.exp(np.random.default_rng(3).normal(0, 0.4, 15))  # the machine, forty times noisier than the code
    before = [float(x) for x in mood]
    after = [float(x) for x in mood * np.exp(np.random.default_rng(4).normal(0, 0.01, 15)) * (1 + gap)]
    found = compare_pairs(before, after, threshold=0.05)
    assert found.verdict == {0.0: "ok", 0.1: "slower", -0.1: "faster"}[gap]
    assert found.slowdown == pytest.approx(gap, abs=0.02)


@pytest.mark.parametrize(
    ("then", "now", "threshold", "named"),
    [
        ([1.0] * 4, [1.0] * 9, 0.05, f"at least {FEWEST}"),
        ([1.0] * 9, [1.0] * 4, 0.05, "got 9 and 4"),
        ([1.0] * 9, [1.0] * 8 + [0.0], 0.05, "positive"),
        ([1.0] * 9, [1.0] * 8 + [float("nan")], 0.05, "finite"),
        ([1.0] * 9, [1.0] * 9, 0.0, "threshold"),
        ([1.0] * 9, [1.0] * 9, 1.0, "threshold"),
    ],
)
def test_what_cannot_be_tested(then: list[float], now: list[float], threshold: float, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        compare(then, now, threshold=threshold)


@pytest.mark.parametrize(("before", "after"), [([1.0] * 9, [1.0] * 8), ([1.0] * 6, [1.0] * 6)])
def test_what_is_no_pair(before: list[float], after: list[float]) -> None:
    with pytest.raises(UsageError, match="pairs"):
        compare_pairs(before, after, threshold=0.05)
