"""How a measured time changes with the machine's speed: seconds at one moment from seconds at another, by beats that ran beside both.

A shared machine is not equally fast every minute, and not all of it equally: its memory may be half as fast again while its
arithmetic stays as it is. What a call takes then depends on how far one hides behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..presets.calibration import Yard

PRODUCT_OVERLAP, ATTENTION_OVERLAP = 4.0, 2.0  # see `paced`; from `benchmarks/pace.py`, by either change of the machine


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds now over seconds at another time, of what waits for memory, for vector arithmetic, and of matrix products."""

    memory: float = 1.0
    vector: float = 1.0
    matrix: float = 1.0


def paced(seconds: float, streaming: float, pace: Pace, overlap: float = PRODUCT_OVERLAP) -> float:
    """Seconds of a call at another pace, of whose `seconds` its bytes alone would take `streaming` at the memory beat's rate.

    A call takes (memory^p + arithmetic^p)^(1/p): with p = 1 one follows the other, with p = inf the shorter of them costs nothing,
    and nobody sees what it would take by itself until the longer one gets faster. `overlap` is p.

    >>> round(paced(1.1, 1.0, Pace(memory=0.5)), 3)  # not 0.5 + 0.1: its arithmetic, 0.83, was hidden
    0.852
    """
    if seconds <= streaming:
        return seconds * pace.memory
    arithmetic = seconds * (1 - (streaming / seconds) ** overlap) ** (1 / overlap)
    longer, shorter = sorted((streaming * pace.memory, arithmetic * pace.vector), reverse=True)
    return float(longer * (1 + (shorter / longer) ** overlap) ** (1 / overlap))


def pace_of(calibrated: Iterable[Yard], now: Yard) -> Pace:
    """How fast the machine is now, by the probes of a run, against those of the calibration in that format; 1 without any."""
    then = next((yard for yard in calibrated if yard.dtype == now.dtype), now)
    vector = then.vector_elements_per_s / now.vector_elements_per_s
    before, after = then.matrix_flops_per_s, now.matrix_flops_per_s
    matrix = before / after if before and after else vector  # where matrix products did not run, vectors stand for them
    return Pace(memory=then.stream_bytes_per_s / now.stream_bytes_per_s, vector=vector, matrix=matrix)
