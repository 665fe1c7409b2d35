"""A stopwatch for machines that are not equally fast every second: it counts in beats, plain calls that run beside what is timed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..presets.calibration import Yard
from .beats import BEATS, Beat, multiplying, repeated, streaming
from .probes import dtype_name
from .timing import Call, Stopping, interleave, paired_ratio, watch_for

MOST_BEATS = 32
MOST_IN_A_ROW = 32
SHORTEST_S, SLOW_S = 0.01, 0.02


@dataclass(frozen=True, kw_only=True)
class Point:
    """Seconds of a call at the pace of the calibration's start, and how far its samples lay apart (in beats)."""

    seconds: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class Tempo:
    """A beat and its seconds at the start of a calibration, once and BEATS times in a row: the first call is a few percent the slower."""

    beat: Beat
    once_s: float
    row_s: float

    def seconds(self, count: int) -> float:
        """Of so many in a row."""
        further = max(0.0, self.row_s - self.once_s) / (BEATS - 1)  # where they are tiny, noise may make one call slower than four
        return self.once_s + (count - 1) * further

    @property
    def rate(self) -> float:
        """Bytes or FLOPs a second, as a benchmark counts them: over BEATS in a row."""
        return BEATS * self.beat.amount / self.row_s


@dataclass(frozen=True, kw_only=True)
class Meter:
    """A stopwatch of one format that counts in beats, of memory or of arithmetic."""

    device: torch.device
    dtype: torch.dtype
    stopping: Stopping
    memory: Tempo
    arithmetic: Tempo

    @classmethod
    def of(cls, dtype: torch.dtype, device: torch.device, *, pool_bytes: int, start: Stopping, usual: Stopping) -> Meter:
        """Start counting. `start`: how long the beats are measured for it; `usual`: how long each call is, unless said."""
        beats = {"memory": streaming(dtype, device, pool_bytes=pool_bytes), "arithmetic": multiplying(dtype, device)}
        calls = {f"{name} {count}": beat.times(count).call for name, beat in beats.items() for count in (1, BEATS)}
        found = interleave(calls, watch=watch_for(device), stopping=start, warmup=1)
        tempos = {
            name: Tempo(beat=beat, once_s=found[f"{name} 1"].median_s, row_s=found[f"{name} {BEATS}"].median_s)
            for name, beat in beats.items()
        }
        return cls(device=device, dtype=dtype, stopping=usual, **tempos)

    @property
    def yard(self) -> Yard:
        """What the beats reached at the start."""
        return Yard(dtype=dtype_name(self.dtype), stream_bytes_per_s=self.memory.rate, flops_per_s=self.arithmetic.rate)

    def waits_for_memory(self, moved_bytes: float, flops: float) -> bool:
        """Which beat goes with so many bytes and FLOPs."""
        return moved_bytes / self.memory.rate > flops / self.arithmetic.rate

    def timed(self, call: Call, *, memory: bool, stopping: Stopping | None = None, alone: bool = False) -> Point:
        """Seconds of one call, by the ratio to the beats that ran beside it.

        A short one is called several times in a row: in a model too it follows its like, and the first after something else is slower.
        `alone`: once, so that it finds the caches full of other things. The beats take half as long, at least one.
        """
        tempo, watch = self.memory if memory else self.arithmetic, watch_for(self.device)
        once = watch(call, 1)
        if once < SLOW_S:  # else the first call is as good as any
            once = watch(call, 1)
        row = 1 if alone else min(MOST_IN_A_ROW, max(1, round(SHORTEST_S / once)))
        count = min(MOST_BEATS, max(1, round(row * once / 2 / tempo.seconds(1))))
        calls = {"": repeated(call, row), "beat": repeated(tempo.beat.call, count)}
        found = interleave(calls, watch=watch, stopping=stopping or self.stopping, warmup=0)
        return Point(seconds=paired_ratio(found[""], found["beat"]) * tempo.seconds(count) / row, spread=found[""].spread)
