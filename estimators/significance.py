"""Whether one set of measured efficiencies lies below another: a resampling test and a practical threshold, both needed.

Numbers are one a block of a run (`presets.baseline.Measured`). They are compared as logarithms: a slowdown is a ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from ..presets.errors import MissingExtraError, UsageError

Verdict = Literal["ok", "slower", "faster", "noisy"]

ALPHA = 0.01  # one-sided: how often chance alone may look like this
RESAMPLES = 9999
SEED = 2026  # the same numbers give the same verdict
USUAL_THRESHOLD = 0.05
FEWEST = 5  # with four blocks a side chance alone reaches 1 in 70: no test could find anything


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison says.

    `slowdown`: time over the floor now / in the baseline, less 1: +0.1 takes a tenth longer. `low`, `high`: its 95 % interval.
    `p_value`: how often chance alone gives a slowdown (where it is faster: a gain) as large. `verdict`: "slower" and "faster" need both
    the test and the threshold; "noisy" means that the interval is so wide that a slowdown of the threshold's size cannot be excluded.
    """

    slowdown: float
    low: float
    high: float
    p_value: float
    verdict: Verdict


def compare(baseline: Sequence[float], now: Sequence[float], *, threshold: float) -> Judgement:
    """Efficiencies of two runs, by a permutation test of the difference of their medians (10,000 relabellings).

    The interval is the percentile bootstrap's. Raises UsageError for fewer than five blocks a side or a threshold that is none.
    """
    stats, np = needed()
    require(baseline, now, threshold)
    then, present = np.log(baseline), np.log(now)

    def difference(a: Any, b: Any, axis: int = -1) -> Any:
        return np.median(a, axis=axis) - np.median(b, axis=axis)

    observed = float(difference(then, present))
    test = stats.permutation_test(
        (then, present), difference, alternative="greater" if observed >= 0 else "less", n_resamples=RESAMPLES, rng=SEED, vectorized=True
    )
    spread = stats.bootstrap((then, present), difference, method="percentile", n_resamples=RESAMPLES, rng=SEED, vectorized=True)
    return judged(observed, spread.confidence_interval, float(test.pvalue), threshold)


def uncertainty(efficiencies: Sequence[float]) -> float:
    """How surely blocks of one run say their median: half of its 95 % interval (percentile bootstrap of the logarithms), 0.02 is 2 %."""
    stats, np = needed()
    found = stats.bootstrap((np.log(efficiencies),), np.median, method="percentile", n_resamples=RESAMPLES, rng=SEED, vectorized=True)
    return float(found.confidence_interval.high - found.confidence_interval.low) / 2


def sure(efficiencies: Sequence[float], threshold: float) -> bool:
    """Whether blocks are sure enough to gate a slowdown with this threshold: to half of it.

    Two such runs differ by chance with a standard deviation of about a third of the threshold, so that a slowdown of twice the
    threshold shows itself to test and threshold alike.
    """
    return uncertainty(efficiencies) <= threshold / 2


def compare_pairs(before: Sequence[float], after: Sequence[float], *, threshold: float) -> Judgement:
    """Seconds of two installations, block by block side by side, by a sign-flip test of the median of their logarithmic ratios.

    Raises UsageError where the numbers are not pairs, fewer than seven, or the threshold is none.
    """
    stats, np = needed()
    require(before, after, threshold)
    if len(before) != len(after) or len(before) < 7:
        raise UsageError(f"pairs of blocks: got {len(before)} and {len(after)}; expected as many of each, at least 7")
    ratios = np.log(after) - np.log(before)

    def middle(sample: Any, axis: int = -1) -> Any:
        return np.mean(sample, axis=axis)  # not the median: flips of the sign leave few distinct ones

    observed = float(np.median(ratios))
    test = stats.permutation_test(
        (ratios,), middle, permutation_type="samples", alternative="greater" if observed >= 0 else "less", n_resamples=RESAMPLES, rng=SEED
    )
    spread = stats.bootstrap((ratios,), np.median, method="percentile", n_resamples=RESAMPLES, rng=SEED)
    return judged(observed, spread.confidence_interval, float(test.pvalue), threshold)


def judged(observed: float, interval: Any, p_value: float, threshold: float) -> Judgement:
    """Threshold and test together."""
    slowdown, low, high = (math.expm1(float(value)) for value in (observed, interval.low, interval.high))
    verdict: Verdict = "ok"
    if p_value <= ALPHA and slowdown >= threshold:
        verdict = "slower"
    elif p_value <= ALPHA and 1 / (1 + slowdown) - 1 >= threshold:
        verdict = "faster"
    elif high >= 2 * threshold:
        verdict = "noisy"
    return Judgement(slowdown=slowdown, low=low, high=high, p_value=p_value, verdict=verdict)


def require(first: Sequence[float], second: Sequence[float], threshold: float) -> None:
    """Raise UsageError where nothing could be tested."""
    if min(len(first), len(second)) < FEWEST:
        raise UsageError(f"blocks to compare: got {len(first)} and {len(second)}; at least {FEWEST} on each side")
    if not all(value > 0 and math.isfinite(value) for value in (*first, *second)):
        raise UsageError("blocks to compare: every number must be positive and finite")
    if not 0 < threshold < 1:
        raise UsageError(f"threshold: got {threshold:g}; allowed: more than 0 and less than 1, as in 0.05 (5%)")


def needed() -> tuple[Any, Any]:
    """scipy.stats and numpy; raises UnreadableError with what to install."""
    try:
        import numpy as np
        from scipy import stats
    except ImportError as error:
        raise MissingExtraError("the test of measured gates needs scipy: pip install 'tfm-toolkit[check]'") from error
    return stats, np
