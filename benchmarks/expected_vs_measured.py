"""Expected times against measured ones, at points that the calibration has not seen: docs/measuring.md.

python benchmarks/expected_vs_measured.py               calibrate, then measure every point; about nine minutes
python benchmarks/expected_vs_measured.py --stored      with the calibration that is stored

The expected time is worked out from the file alone, before the point is measured. Misses are printed like the rest.
"""

from __future__ import annotations

import gc
import statistics
import sys

import torch

import tfm
from tfm.estimators.expected import expected
from tfm.kernels.benchmarks.passes import bench_decode, bench_prefill
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.benchmarks.whole import pass_of
from tfm.kernels.calibration import calibrate
from tfm.kernels.timing import Stopping
from tfm.presets.calibration import load_calibration, save_calibration
from tfm.presets.loader import load_model

FP32, BF16 = torch.float32, torch.bfloat16
DECODE = [
    ("gpt-2-xl", FP32, 1, 512), ("gpt-2-xl", BF16, 1, 1000), ("gpt-2-large", FP32, 4, 300), ("gpt-2-medium", BF16, 8, 700),
    ("llama-7b", FP32, 1, 700), ("llama-7b", BF16, 1, 2000), ("llama-7b", BF16, 4, 1500), ("mistral-7b", FP32, 2, 3000),
    ("mistral-7b", BF16, 1, 6000), ("qwen2.5-7b", BF16, 16, 900), ("qwen3-8b", FP32, 3, 1300), ("llama-3-8b", BF16, 2, 8000),
    ("gemma-2-9b", BF16, 1, 2500), ("whisper-large-v3", BF16, 1, 400),
]  # fmt: skip
PREFILL = [
    ("gpt-2-xl", BF16, 1, 500),
    ("gpt-2-large", FP32, 1, 200),
    ("llama-7b", BF16, 1, 350),
    ("qwen2.5-7b", BF16, 2, 300),
    ("mistral-7b", FP32, 1, 100),
]
SETTING = Setting(stopping=Stopping(min_samples=8, min_seconds=1.0, max_seconds=10.0, target_spread=0.02))


def measured(phase: str, model: str, dtype: torch.dtype, batch: int, context: int) -> tuple[float, float, float]:
    """Expected, median measured seconds, and the spread of the samples."""
    spec, stored = load_model(model), load_calibration()
    assert stored is not None
    guess = expected(spec, pass_of(phase, dtype, batch=batch, context=context), stored)
    assert guess is not None
    bench = bench_decode if phase == "decode" else bench_prefill
    (found,) = bench(spec, dtype=dtype, points=[(batch, context)], setting=SETTING)
    gc.collect()
    print(
        f"| {phase} | {model} | {found.dtype} | {batch} | {context} | {found.facts['layers_timed']} of {found.facts['layers_total']} "
        f"| {1e3 * guess.seconds:.1f} ({1e3 * guess.low_s:.1f} to {1e3 * guess.high_s:.1f}) | {1e3 * found.sample.median_s:.1f} "
        f"| {found.sample.spread:.1%} | {guess.seconds / found.sample.median_s - 1:+.1%} |",
        flush=True,
    )
    return guess.seconds, found.sample.median_s, found.sample.spread


def main(*, stored: bool) -> int:
    """Print the table; 1 where the median error exceeds 5 %, the worst 10 % (decode), or one of prefill 10 %."""
    if not stored:
        save_calibration(calibrate(SETTING, version=tfm.__version__))
        gc.collect()
    print("| pass | model | dtype | batch | ctx | layers | expected (ms) | measured (ms) | spread | error |")
    print("|:--|:--|:--|--:|--:|:--|--:|--:|--:|--:|")
    failed = False
    for phase, points, median_limit in (("decode", DECODE, 0.05), ("prefill", PREFILL, 0.10)):
        errors = [abs(guess / took - 1) for guess, took, _ in (measured(phase, *point) for point in points)]
        print(f"\n{phase}: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, {len(errors)} points\n")
        failed |= statistics.median(errors) > median_limit or max(errors) > 0.10
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(stored="--stored" in sys.argv))
