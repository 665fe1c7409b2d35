"""The timer: warm up, sample until the spread is small or the budget spent, report median, p20 and p80.

PyTorch's own `torch.utils.benchmark` does not serve for the loop: its Timer cannot alternate several functions in one run
(ratios on a busy machine need that), nor keep what was measured when interrupted, nor flush a GPU's L2 between two calls.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from ..presets.errors import TfmError

T = TypeVar("T")
Call = Callable[[], object]
Clock = Callable[[], float]
Watch = Callable[[Call, int], float]  # runs a call so many times, gives seconds of one

TOLERANCE = 1.05
SHORTEST_SAMPLE_S = 2e-4  # a shorter call is repeated within one sample: reading the clock must not count
MOST_CALLS = 10_000
FEWEST = 3
BUSY_SPREAD = 0.2
UNKNOWN_CACHE_BYTES = 32 << 20


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
        """(p80 - p20) / median: about 0.02 on a quiet machine, above BUSY_SPREAD something else is using it."""
        return spread_of(self.times)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the measurement early."""
        return self.stop == "interrupted"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lie, interpolated linearly.

    >>> percentile([4.0, 1.0, 3.0, 2.0, 6.0], 0.9)
    5.2
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread_of(times: Sequence[float]) -> float:
    """(p80 - p20) / median of some times."""
    median = statistics.median(times)
    return (percentile(times, 0.8) - percentile(times, 0.2)) / median if median > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopping:
    """When to stop sampling: at `target_spread` once both minimums are reached, at the latest when `max_seconds` are spent.

    FEWEST samples are taken even then: of one alone nobody could say how far it is to be trusted.
    """

    min_samples: int = 10
    min_seconds: float = 0.5
    max_seconds: float = 10.0
    target_spread: float = 0.05

    def satisfied(self, times: Sequence[float], sampled_s: float) -> bool:
        """Whether these times, sampled within `sampled_s`, are enough."""
        return len(times) >= self.min_samples and sampled_s >= self.min_seconds and spread_of(times) <= self.target_spread


def host_watch(clock: Clock = time.perf_counter, sync: Call | None = None) -> Watch:
    """The host's clock, waiting for the device before and after."""
    wait = sync or (lambda: None)

    def seconds(fn: Call, calls: int) -> float:
        wait()
        start = clock()
        for _ in range(calls):
            fn()
        wait()
        return (clock() - start) / calls

    return seconds


def quiet_watch() -> Watch:
    """With one thread its processor's time, which stands still while a neighbour has the core; with several the clock."""
    return host_watch(time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)


def cuda_watch(device: torch.device) -> Watch:
    """CUDA events around each call, the L2 flushed before it. While the flush runs, the host queues the call: no launch gap is timed."""
    flush = torch.empty(4 * torch.cuda.get_device_properties(device).L2_cache_size, dtype=torch.int8, device=device)

    def seconds(fn: Call, calls: int) -> float:
        marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
        for start, end in marks:
            flush.zero_()
            start.record()
            fn()
            end.record()
        torch.cuda.synchronize(device)
        return math.fsum(start.elapsed_time(end) for start, end in marks) / 1e3 / calls

    return seconds


def watch_for(device: torch.device) -> Watch:
    """The right stopwatch of a device: events on CUDA, else the host's clock around a synchronisation."""
    if device.type == "cuda":
        return cuda_watch(device)
    waits: dict[str, Call] = {"mps": torch.mps.synchronize, "xpu": torch.xpu.synchronize}
    return host_watch(sync=waits.get(device.type))


def graphed(fn: Call) -> Call:
    """`fn` captured as a CUDA graph, for calls with static shapes: replaying it costs one launch however many kernels it holds."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph.replay


def measure(
    fn: Call,
    *,
    clock: Clock = time.perf_counter,
    sync: Call | None = None,
    watch: Watch | None = None,
    min_samples: int = 10,
    min_seconds: float = 0.5,
    max_seconds: float = 10.0,
    target_spread: float = 0.05,
    warmup: int = 3,
) -> Sample:
    """Seconds of one call of `fn`. `sync` waits for the device; `watch` replaces clock and sync as the stopwatch (CUDA events).

    Ctrl-C ends the sampling and keeps what there is; before the first sample it is raised as usual.
    """
    stopping = Stopping(min_samples=min_samples, min_seconds=min_seconds, max_seconds=max_seconds, target_spread=target_spread)
    return interleave({"": fn}, clock=clock, sync=sync, watch=watch, stopping=stopping, warmup=warmup)[""]


def interleave(
    fns: Mapping[str, Call],
    *,
    clock: Clock = time.perf_counter,
    sync: Call | None = None,
    watch: Watch | None = None,
    stopping: Stopping | None = None,
    warmup: int = 3,
) -> dict[str, Sample]:
    """Several functions measured in turn, one sample each a round, so that all see the same state of the machine.

    Each round starts with another function: nobody always runs after the same neighbour. The budget is that of the whole
    run, warm-up included. Samples at the same place of two results were taken side by side: see `paired_ratio`.
    A function without a sample (Ctrl-C in the first round) is left out.
    """
    watch = watch or host_watch(clock, sync)
    begin = clock()
    calls = {name: _warm(fn, watch, warmup) for name, fn in fns.items()}
    times, stop = _rounds(fns, calls, watch, stopping or Stopping(), clock, begin)
    return {name: Sample(times=tuple(t), calls=calls[name], stop=stop) for name, t in times.items() if t}


def _warm(fn: Call, watch: Watch, warmup: int) -> int:
    """Run `fn` `warmup` times and once more; gives the calls that make a sample long enough."""
    for _ in range(warmup):
        fn()
    once = watch(fn, 1)
    return MOST_CALLS if once <= SHORTEST_SAMPLE_S / MOST_CALLS else max(1, math.ceil(SHORTEST_SAMPLE_S / once))


def _rounds(
    fns: Mapping[str, Call], calls: Mapping[str, int], watch: Watch, stopping: Stopping, clock: Clock, begin: float
) -> tuple[dict[str, list[float]], str]:
    """Rounds of one sample each until every function has enough: the times, and why it ended."""
    times: dict[str, list[float]] = {name: [] for name in fns}
    names, first = list(fns), clock()
    try:
        for turn in itertools.count():
            cut = turn % len(names)
            for name in names[cut:] + names[:cut]:
                times[name].append(watch(fns[name], calls[name]))
            now = clock()
            if all(stopping.satisfied(t, now - first) for t in times.values()):
                return times, "spread"
            if turn + 1 >= FEWEST and now - begin >= stopping.max_seconds:
                return times, "budget"
    except KeyboardInterrupt:
        if not any(times.values()):
            raise
    return times, "interrupted"


def paired_ratio(slow: Sample, fast: Sample) -> float:
    """Median over rounds of slow / fast: how many times longer `slow` takes, with the machine's mood cancelled out."""
    return statistics.median(a / b for a, b in zip(slow.times, fast.times, strict=False))


def rotated(fn: Callable[[T], object], buffers: Sequence[T]) -> Call:
    """A call that takes the next of `buffers` each time, so that none is still in the cache when it comes round again."""
    return in_rotation({"": fn}, buffers)[""]


def in_rotation(fns: Mapping[str, Callable[[T], object]], buffers: Sequence[T]) -> dict[str, Call]:
    """Calls to be measured in turn, all on one rotation: each takes a buffer that none of them has touched for a whole round.

    With a rotation each they would step alike, and all but the first would find the buffer of the round in the cache.
    """
    turn: Iterator[T] = itertools.cycle(buffers)
    return {name: _next_of(turn, fn) for name, fn in fns.items()}


def _next_of(turn: Iterator[T], fn: Callable[[T], object]) -> Call:
    """`fn` on the next of a rotation."""
    return lambda: fn(next(turn))


def last_level_cache_bytes() -> int:
    """Bytes of the processor's largest cache, as Linux tells it; UNKNOWN_CACHE_BYTES elsewhere."""
    sizes = [_cache_bytes(path.read_text()) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max(sizes, default=UNKNOWN_CACHE_BYTES)


def _cache_bytes(text: str) -> int:
    """Bytes of a size as sysfs writes it.

    >>> _cache_bytes("32768K")
    33554432
    """
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    text = text.strip()
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def buffers_needed(buffer_bytes: int, cache_bytes: int, *, free_bytes: int | None = None) -> int:
    """How many buffers to rotate so that all together are four times the cache, within half of the free memory.

    >>> buffers_needed(512, 300)
    3
    """
    wanted = max(1, math.ceil(4 * cache_bytes / buffer_bytes))
    return wanted if free_bytes is None else max(1, min(wanted, free_bytes // 2 // buffer_bytes))


def refuse_impossible(measured: float, bound: float, what: str = "measured rate") -> float:
    """`measured` as it is; raises HarnessError where it exceeds its physical bound by more than 5 %. Rates in one unit."""
    if measured > TOLERANCE * bound:
        raise HarnessError(
            f"{what}: {measured:.4g} is {measured / bound:.2f} of the bound {bound:.4g}. Nothing runs faster than its bound: "
            "the measurement is wrong (data still in a cache, work skipped, or a probe disturbed). Run it again on a quiet machine."
        )
    return measured
