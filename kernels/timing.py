"""The timer: warm up, sample until the spread is small or the budget spent, report median, p20 and p80.

PyTorch's own `torch.utils.benchmark` was considered: its Timer cannot alternate several functions in one run (ratios on a
busy machine need that), nor keep what was measured when interrupted, nor flush a GPU's L2 between calls.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from ..presets.errors import TfmError

T = TypeVar("T")
Call = Callable[[], object]
Stopwatch = Callable[[], float]

HARNESS_TOLERANCE = 1.05
SHORTEST_SAMPLE_S = 2e-4  # a shorter call is repeated within one sample, so that reading the clock does not count
MOST_CALLS = 100_000


class HarnessError(TfmError):
    """A measurement that cannot be true: faster than the physical bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Seconds of one call of a function, measured several times.

    Attributes:
        times: seconds per call, in the order measured.
        calls: calls behind each of `times`.
        stop: why sampling ended: "spread", "budget" or "interrupted".
    """

    times: tuple[float, ...]
    calls: int
    stop: str

    @property
    def median_s(self) -> float:
        """Median seconds per call."""
        return statistics.median(self.times)

    @property
    def p20_s(self) -> float:
        """A fifth of the samples are faster."""
        return percentile(self.times, 0.2)

    @property
    def p80_s(self) -> float:
        """A fifth of the samples are slower."""
        return percentile(self.times, 0.8)

    @property
    def samples(self) -> int:
        """How many samples were taken."""
        return len(self.times)

    @property
    def spread(self) -> float:
        """(p80 - p20) / median: 0.02 is a quiet machine, above 0.2 it is busy with something else."""
        return (self.p80_s - self.p20_s) / self.median_s if self.median_s > 0 else 0.0

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the measurement early."""
        return self.stop == "interrupted"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie, interpolated linearly.

    >>> percentile([4.0, 1.0, 3.0, 2.0, 5.0], 0.2)
    1.8
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopping:
    """When to stop sampling: never before `min_samples` and `min_seconds`, then at `target_spread`, at the latest at `max_seconds`."""

    min_samples: int = 10
    min_seconds: float = 0.5
    max_seconds: float = 10.0
    target_spread: float = 0.05

    def reason(self, times: Sequence[float], spent_s: float) -> str | None:
        """"spread" or "budget" once it is time to stop. The budget wins over every minimum, after one sample."""
        if spent_s >= self.max_seconds:
            return "budget"
        if len(times) < self.min_samples or spent_s < self.min_seconds:
            return None
        return "spread" if Sample(times=tuple(times), calls=1, stop="").spread <= self.target_spread else None


def measure(
    fn: Call,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sync: Call | None = None,
    min_samples: int = 10,
    min_seconds: float = 0.5,
    max_seconds: float = 10.0,
    target_spread: float = 0.05,
    warmup: int = 3,
) -> Sample:
    """Seconds of one call of `fn` by the host's clock; `sync` waits for the device after each sample.

    Ctrl-C ends the sampling and keeps what there is; before the first sample it is raised as usual.
    """
    stopping = Stopping(min_samples=min_samples, min_seconds=min_seconds, max_seconds=max_seconds, target_spread=target_spread)
    return interleave({"": fn}, clock=clock, sync=sync, stopping=stopping, warmup=warmup)[""]


def interleave(
    fns: Mapping[str, Call],
    *,
    clock: Callable[[], float] = time.perf_counter,
    sync: Call | None = None,
    stopping: Stopping | None = None,
    warmup: int = 3,
) -> dict[str, Sample]:
    """Several functions measured in turn, one sample each a round, so that all see the same state of the machine.

    The round starts with a different function each time: nobody always runs after the same neighbour. The budget is
    of the whole run. Samples at the same place of two results were taken side by side: see `paired_ratio`.
    """
    stopping = stopping or Stopping()
    wait = sync or (lambda: None)
    begin = clock()
    calls = {name: _warm(fn, clock, wait, warmup) for name, fn in fns.items()}
    watches = {name: _host_stopwatch(fn, calls[name], clock, wait) for name, fn in fns.items()}
    times, stop = _rounds(watches, stopping, clock, begin)
    return {name: Sample(times=tuple(t), calls=calls[name], stop=stop) for name, t in times.items() if t}


def _rounds(watches: Mapping[str, Stopwatch], stopping: Stopping, clock: Callable[[], float], begin: float) -> tuple[dict[str, list[float]], str]:
    """Rounds of one sample each until every function may stop: the samples, and why it ended."""
    times: dict[str, list[float]] = {name: [] for name in watches}
    names, first = list(watches), clock()
    try:
        for turn in itertools.count():
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times[name].append(watches[name]())
            now = clock()
            # The minimum counts the sampling, the budget counts the warm-up too.
            if now - begin >= stopping.max_seconds:
                return times, "budget"
            if all(stopping.reason(t, now - first) for t in times.values()):
                return times, "spread"
    except KeyboardInterrupt:
        if not all(times.values()):
            raise
    return times, "interrupted"
