"""Equal weights, read as fast as each other? With pages of 4 KiB and with huge ones: docs/measuring.md.

python benchmarks/huge_pages.py        half a minute for each of four processes, two of each kind

Seven pools of 512 MiB are allocated one after another, and streamed in turn by the product that models take. What is printed is how
much longer each takes than the middle one of its round, while memory is slow and while it is fast: such a machine changes by itself.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time

POOLS, IN_A_ROW, SECONDS = 7, 8, 25.0
NAMES = {"0": "4 KiB pages", "1": "huge pages"}


def rounds() -> list[list[float]]:
    """Seconds a byte of each pool, round by round, in random order."""
    import torch

    from tfm.kernels.beats import streaming

    beats = [streaming(torch.bfloat16, torch.device("cpu")).times(IN_A_ROW) for _ in range(POOLS)]
    found, start = [], time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        took = [0.0] * POOLS
        for place in random.sample(range(POOLS), POOLS):
            before = time.perf_counter()
            beats[place].call()
            took[place] = (time.perf_counter() - before) / beats[place].amount
        found.append(took)
    return found


def report(found: list[list[float]]) -> None:
    """A line for the rounds on either side of the middle between the slowest tenth and the fastest."""
    paces = sorted(statistics.median(took) for took in found)
    slow, fast = paces[-len(paces) // 10], paces[len(paces) // 10]
    apart = slow > 1.2 * fast
    for kind in ("slow", "fast") if apart else ("all",):
        chosen = [took for took in found if not apart or (statistics.median(took) > (slow + fast) / 2) is (kind == "slow")]
        rate = 1 / statistics.median(statistics.median(took) for took in chosen)
        longer = [statistics.median(took[pool] / statistics.median(took) for took in chosen) for pool in range(POOLS)]
        name = NAMES[os.environ["THP_MEM_ALLOC_ENABLE"]]
        print(f"| {name} | {kind} | {len(chosen)} | {rate / 1e9:.1f} | " + " | ".join(f"{x:.3f}" for x in longer) + " |", flush=True)


def main() -> int:
    """Each process allocates in the memory that the one before has left."""
    if "--here" in sys.argv:
        report(rounds())
        return 0
    print("| pages | memory | rounds | GB/s | " + " | ".join(f"pool {pool + 1}" for pool in range(POOLS)) + " |")
    print("|:--|:--|--:|--:|" + "--:|" * POOLS, flush=True)
    for huge in ("0", "1", "0", "1"):
        subprocess.run([sys.executable, __file__, "--here"], env=os.environ | {"THP_MEM_ALLOC_ENABLE": huge}, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
