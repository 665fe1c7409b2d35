"""How many (batch, context) points a second the ledger evaluates in one vectorised call.

    python benchmarks/sweep_rate.py [points]

The bar is 1,000,000 points a second for LLaMA-7B decode: rows, FLOPs, bytes and the floor of every point.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from tfm.estimators.latency import roofline
from tfm.estimators.work import Pass
from tfm.presets.device import load_device
from tfm.presets.loader import load_model

BAR = 1_000_000


def main() -> None:
    """Time five calls and print the median rate."""
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    random = np.random.default_rng(0)
    spec, device = load_model("llama-7b"), load_device("a100-80gb-sxm")
    work = Pass(phase="decode", batch=random.integers(1, 512, points), context=random.integers(1, 32768, points))
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        found = roofline(spec, work, device)
        rates.append(points / (time.perf_counter() - start))
        assert found.floor_s is not None
    rate = sorted(rates)[len(rates) // 2]
    print(f"{points:,} points: {rate:,.0f} points/s (median of {len(rates)}; {min(rates):,.0f} to {max(rates):,.0f})")
    print(f"bar {BAR:,}: {'met' if rate >= BAR else 'missed'}")


if __name__ == "__main__":
    main()
