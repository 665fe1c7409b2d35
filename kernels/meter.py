"""A stopwatch for machines that are not equally fast every second: it counts in beats, plain calls that run beside what is timed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..presets.calibration import Yard
from .beats import BEATS, Beat, computing, multiplying, repeated, streaming
from .probes import dtype_name
from .timing import Call, Stopping, interleave, watch_for

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
    """A stopwatch of one format that counts in beats, of memory, of vector arithmetic and of matrix products."""

    device: torch.device
    dtype: torch.dtype
    stopping: Stopping
    memory: Tempo
    vector: Tempo
    matrix: Tempo

    @classmethod
    def of(cls, dtype: torch.dtype, device: torch.device, *, pool_bytes: int, start: Stopping, usual: Stopping) -> Meter:
        """Start counting. `start`: how long the beats are measured for it; `usual`: how long each call is, unless said."""
        beats = {
            "memory": streaming(dtype, device, pool_bytes=pool_bytes),
            "vector": computing(dtype, device),
            "matrix": multiplying(dtype, device),
        }
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
        return Yard(
            dtype=dtype_name(self.dtype),
            stream_bytes_per_s=self.memory.rate,
            vector_elements_per_s=self.vector.rate,
            matrix_flops_per_s=self.matrix.rate,
        )

    def multiplies(self, moved_bytes: float, flops: float) -> bool:
        """Whether so many FLOPs take longer than so many bytes."""
        return moved_bytes / self.memory.rate < flops / self.matrix.rate

    def timed(
        self, call: Call, *, moved_bytes: float = 0.0, matrix: bool = False, stopping: Stopping | None = None, alone: bool = False
    ) -> Point:
        """Seconds of one call, by the beats that ran beside it: what its bytes take follows memory, what it takes beyond follows the
        vector beat; all of it the beat of matrix products where the call is one (`matrix`).

        A short one is called several times in a row: in a model too it follows its like, and the first after something else is slower.
        `alone`: once, so that it finds the caches full of other things. The beats take half as long, each at least one.
        """
        watch = watch_for(self.device)
        once = watch(call, 1)
        if once < SLOW_S:  # else the first call is as good as any
            once = watch(call, 1)
        row = 1 if alone else min(MOST_IN_A_ROW, max(1, round(SHORTEST_S / once)))
        tempos = {"matrix": self.matrix} if matrix else {"vector": self.vector} | ({"memory": self.memory} if moved_bytes else {})
        counts = {name: min(MOST_BEATS, max(1, round(row * once / 2 / len(tempos) / tempo.seconds(1)))) for name, tempo in tempos.items()}
        calls = {"": repeated(call, row)} | {name: repeated(tempo.beat.call, counts[name]) for name, tempo in tempos.items()}
        found = interleave(calls, watch=watch, stopping=stopping or self.stopping, warmup=0)
        slower = [
            {name: sample / tempos[name].seconds(counts[name]) for name, sample in zip(tempos, samples, strict=True)}
            for samples in zip(*(found[name].times for name in tempos), strict=False)
        ]
        streaming = row * moved_bytes / self.memory.rate
        seconds = (at_start(seconds, streaming, now) for seconds, now in zip(found[""].times, slower, strict=False))
        return Point(seconds=statistics.median(seconds) / row, spread=found[""].spread)


def at_start(seconds: float, streaming: float, slower: Mapping[str, float]) -> float:
    """What would have taken how long at the start of the calibration: `streaming` of it waits for memory there, the rest for arithmetic.

    slower: by beat, how many times as long it takes now. The inverse of `estimators.expected.paced`.
    """
    memory = min(seconds, streaming * slower.get("memory", 0.0))
    beyond = slower.get("matrix") or slower["vector"]
    return (memory / slower["memory"] if memory else 0.0) + (seconds - memory) / beyond
