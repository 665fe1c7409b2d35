"""A stopwatch for machines that are not equally fast every second: it counts in beats, plain calls that run beside what is timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

import torch

from ..estimators.pace import PRODUCT_OVERLAP, Pace, paced
from ..presets.calibration import Yard
from .beats import BEATS, Beat, computing, multiplying, repeated, streaming
from .probes import dtype_name
from .timing import Call, Stopping, Watch, interleave, watch_for

P = ParamSpec("P")
R = TypeVar("R")
AtStart = Callable[[float, Pace], float]  # seconds now, and how many times as long everything takes -> seconds at the start
STREAMING, VECTOR, MATRIX = ("memory", "vector"), ("vector",), ("matrix",)  # which beats run beside a call
MOST_BEATS = 32
MOST_IN_A_ROW, SHORTEST_S = 32, 0.01


@dataclass(frozen=True, kw_only=True)
class Point:
    """Seconds of a call at the pace of the calibration's start, and how far its samples lay apart (in beats)."""

    seconds: float
    spread: float


@dataclass(frozen=True, kw_only=True)
class Tempo:
    """A beat and its seconds at the start of a calibration, one of BEATS in a row.

    Never fewer in a row, here or beside a benchmark: the first after other work is slower, by more where the machine is faster.
    """

    beat: Beat
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes or FLOPs a second, as a benchmark counts them."""
        return self.beat.amount / self.seconds


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
        calls = {name: beat.times(BEATS).call for name, beat in beats.items()}
        found = interleave(calls, watch=watch_for(device), stopping=start, warmup=1)
        tempos = {name: Tempo(beat=beat, seconds=found[name].median_s / BEATS) for name, beat in beats.items()}
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
        self,
        call: Call,
        *,
        by: tuple[str, ...] = VECTOR,
        moved_bytes: float = 0.0,
        overlap: float = PRODUCT_OVERLAP,
        start: AtStart | None = None,
        stopping: Stopping | None = None,
        pauses: Pauses | None = None,
    ) -> Point:
        """Seconds of one call at the start of the calibration, by the beats that ran beside it (`by`).

        They follow from its bytes and `overlap` (`estimators.pace.paced`), or `start` tells them. A short one is called several times
        in a row, as in a model it follows its like: alone, small ones take up to twice as long as there. The beats take half as long,
        BEATS of each at least. `pauses`: what is not to be counted of a call, which then runs once.
        """
        start = start or partial(at_start, streaming=moved_bytes / self.memory.rate, overlap=overlap)
        watch = watch_for(self.device) if pauses is None else pauses.left_out_by(watch_for(self.device))
        once = min(watch(call, 1) for _ in range(2))
        row = 1 if pauses else min(MOST_IN_A_ROW, max(1, round(SHORTEST_S / once)))
        tempos: dict[str, Tempo] = {name: getattr(self, name) for name in by}
        counts = {name: min(MOST_BEATS, max(BEATS, round(row * once / 2 / len(tempos) / tempo.seconds))) for name, tempo in tempos.items()}
        calls = {"": repeated(call, row)} | {name: tempo.beat.times(counts[name]).call for name, tempo in tempos.items()}
        found = interleave(calls, watch=watch, stopping=stopping or self.stopping, warmup=0)
        beats = ([sample / counts[name] / tempos[name].seconds for sample in found[name].times] for name in tempos)
        paces = (whole_pace(dict(zip(tempos, slower, strict=True))) for slower in zip(*beats, strict=False))
        seconds = [start(sample / row, pace) for sample, pace in zip(found[""].times, paces, strict=False)]
        return Point(seconds=statistics.median(seconds), spread=found[""].spread)


class Pauses:
    """What runs within a call and is not to be counted of it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, run: Callable[P, R]) -> Callable[P, R]:
        """The same function, its seconds left out."""

        def paused(*args: P.args, **kwargs: P.kwargs) -> R:
            start = time.perf_counter()
            result = run(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            return result

        return paused

    def left_out_by(self, watch: Watch) -> Watch:
        """A stopwatch that does not count them."""

        def counting(call: Call, calls: int) -> float:
            before = self.seconds
            seconds = watch(call, calls)
            return seconds - (self.seconds - before) / calls

        return counting


def whole_pace(slower: Mapping[str, float]) -> Pace:
    """How many times as long everything takes now, by those beats that ran."""
    beyond = slower.get("matrix") or slower["vector"]
    return Pace(memory=slower.get("memory", beyond), vector=beyond, matrix=beyond)


def at_start(seconds: float, pace: Pace, *, streaming: float, overlap: float) -> float:
    """What takes `seconds` now, at a pace in which everything takes so many times as long as at the start of the calibration, would have
    taken then; its bytes alone took `streaming` there.
    """
    back = Pace(memory=1 / pace.memory, vector=1 / pace.vector, matrix=1 / pace.matrix)
    return paced(seconds, streaming * pace.memory, back, overlap)
