"""How a call's time changes when the machine's memory gets faster or slower, and how well it is foreseen: docs/measuring.md.

python benchmarks/pace.py          measure for five minutes
python benchmarks/pace.py 20       or for twenty: until both states of the machine were seen for a while

Products of few rows and attention of one token run in turn with beats. Rounds are sorted by the memory beat; what takes how long in
the slower state is worked out from the faster one and back (`estimators.pace.paced`), with several values of `overlap`: 1 adds memory
and arithmetic up. A machine that stays as it is prints no table.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tfm.estimators.pace import Pace, paced
from tfm.kernels import tuning
from tfm.kernels.attention import kernel_named
from tfm.kernels.beats import BEATS, computing, repeated, streaming
from tfm.kernels.calibration import over
from tfm.kernels.probes import dtype_name, random_tensor
from tfm.kernels.timing import Call, Stopping, interleave, quiet_watch, rotated

CPU, POOL_BYTES = torch.device("cpu"), 1 << 30
ROWS, SHAPES = (1, 2, 3, 4, 8, 16), ((2048, 2048), (4096, 4096), (11008, 4096), (4096, 11008))
CACHES = ((32, 32, 128, 4096), (32, 8, 128, 4096), (32, 32, 64, 8192), (32, 4, 128, 16384), (32, 8, 128, 16384))  # N, K, H, S
OVERLAPS = (1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 8.0)
TURN = Stopping(min_samples=5, min_seconds=0.15, max_seconds=0.3, target_spread=0.05)
LASTS_S, APART = 0.012, 1.25  # of one sample; how much longer the memory beat takes in the slower state


@dataclass(frozen=True, kw_only=True)
class Point:
    """A call to be foreseen: what it belongs to in the table, its bytes."""

    kind: str
    call: Call
    moved_bytes: int


Times = tuple[float, float, float]  # of a call, of its bytes at the memory beat's rate, of the vector beat
States = tuple[Times, Times]  # of the slow memory and the fast one


def points(pool: Tensor) -> Iterator[Point]:
    """Products and attention over a pool."""
    name = dtype_name(pool.dtype)
    for m in ROWS:
        for k, n in SHAPES:
            matrices = list(pool[: pool.numel() // (k * n) * k * n].view(-1, n, k))
            call = tuning.product(random_tensor((m, k), pool.dtype, CPU), matrices)
            yield Point(kind=f"{name}, {m} rows" if m > 1 else f"{name}, 1 row", call=call, moved_bytes=matrices[0].nbytes)
    for heads, kv_heads, width, context in CACHES:
        each = 2 * kv_heads * context * width
        caches = pool[: pool.numel() // each * each].view(-1, 2, 1, kv_heads, context, width)
        q = random_tensor((1, heads, 1, width), pool.dtype, CPU)
        attend = torch.inference_mode()(partial(over, kernel_named("grouped"), q))
        call = rotated(attend, [(keys, values) for keys, values in caches])
        tuning.tune_attention(call, min(len(caches), 8))
        yield Point(kind=f"{name}, attention, {heads // kv_heads} a group", call=call, moved_bytes=each * pool.itemsize)


def measured(seconds: float) -> list[tuple[str, list[Times]]]:
    """Every point again and again, beside the beats."""
    pools = [random_tensor((POOL_BYTES // dtype.itemsize,), dtype, CPU) for dtype in (torch.float32, torch.bfloat16)]
    every = [(pool.dtype, list(points(pool))) for pool in pools]
    beats = {dtype: (streaming(dtype, CPU).times(BEATS), computing(dtype, CPU)) for dtype, _ in every}
    found = [(point.kind, list[Times]()) for _, several in every for point in several]
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        places = iter(found)
        for dtype, several in every:
            memory, vector = beats[dtype]
            for point in several:
                count = max(1, round(LASTS_S * 40e9 / point.moved_bytes))
                calls = {"": repeated(point.call, count), "memory": memory.call, "vector": vector.call}
                samples = interleave(calls, watch=quiet_watch(), stopping=TURN, warmup=0)
                rounds = zip(samples[""].times, samples["memory"].times, samples["vector"].times, strict=False)
                next(places)[1].extend((t / count, m / memory.amount * point.moved_bytes, v) for t, m, v in rounds)
    return found


def two_states(times: list[Times]) -> States | None:
    """Medians of the rounds in which memory was slow, and of those in which it was fast; None where it was much the same."""
    beats = sorted(beat for _, beat, _ in times)
    fast, slow = beats[len(beats) // 20], beats[-1 - len(beats) // 20]
    if slow < APART * fast:
        return None
    return middle([t for t in times if t[1] > 0.87 * slow]), middle([t for t in times if t[1] < 1.15 * fast])


def middle(times: list[Times]) -> Times:
    """Each column's median."""
    call, memory, vector = (statistics.median(column) for column in zip(*times, strict=True))
    return call, memory, vector


def error(known: Times, other: Times, overlap: float) -> float:
    """Of what is foreseen from one state for the other."""
    pace = Pace(memory=other[1] / known[1], vector=other[2] / known[2])
    return paced(known[0], known[1], pace, overlap) / other[0] - 1


def errors(states: list[States], overlap: float) -> tuple[list[float], list[float]]:
    """From slow to fast, and from fast to slow."""
    return [error(slow, fast, overlap) for slow, fast in states], [error(fast, slow, overlap) for slow, fast in states]


def line(kind: str, states: list[States]) -> str:
    """Medians of calls of a kind: how long in beats, and what is foreseen wrongly by each overlap."""
    slow, fast = (statistics.median(state[side][0] / state[side][1] for state in states) for side in (0, 1))
    wrong = [" and ".join(f"{statistics.median(way):+.0%}" for way in errors(states, overlap)) for overlap in OVERLAPS]
    return f"| {kind} | {slow:.2f} | {fast:.2f} | " + " | ".join(wrong) + " |"


def main(minutes: float) -> int:
    """Print the table."""
    kinds: defaultdict[str, list[States]] = defaultdict(list)
    for kind, times in measured(60 * minutes):
        if found := two_states(times):
            kinds[kind].append(found)
    if not kinds:
        print("The machine's memory was equally fast all the time: nothing to foresee.")
        return 1
    print("| calls | in beats, slow | in beats, fast | " + " | ".join(f"overlap {x:g}" for x in OVERLAPS) + " |")
    print("|:--|--:|--:|" + "--:|" * len(OVERLAPS))
    for kind, states in kinds.items():
        print(line(kind, states))
    for what, chosen in (("products", False), ("attention", True)):
        every = [state for kind, states in kinds.items() if ("attention" in kind) is chosen for state in states]
        if not every:
            continue
        means = [statistics.mean(abs(wrong) for way in errors(every, overlap) for wrong in way) for overlap in OVERLAPS]
        print(f"| {what}, mean error | | | " + " | ".join(f"{mean:.1%}" for mean in means) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0))
