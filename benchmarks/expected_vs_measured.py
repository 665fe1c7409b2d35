"""Expected times against measured ones, at points that the calibration has not seen: docs/measuring.md.

python benchmarks/expected_vs_measured.py               calibrate, then measure every point; about nine minutes
python benchmarks/expected_vs_measured.py --stored      with the calibration that is stored

The expected time is worked out twice: from the file alone, and at the pace that the run's own probes have (a shared machine is not
equally fast every minute). Misses are printed like the rest.
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
from tfm.kernels.probes import dtype_name
from tfm.kernels.timing import HarnessError, Stopping
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
DECODING = Setting(stopping=Stopping(min_samples=8, min_seconds=1.0, max_seconds=7.0, target_spread=0.03))
PREFILLING = Setting(stopping=Stopping(min_samples=5, min_seconds=1.0, max_seconds=20.0, target_spread=0.03))


def measured(phase: str, model: str, dtype: torch.dtype, batch: int, context: int) -> tuple[float, float] | None:
    """Relative errors of the expected time: from the file alone, and at the pace of the run's own probes; None where refused."""
    spec, stored = load_model(model), load_calibration()
    assert stored is not None
    guess = expected(spec, pass_of(phase, dtype, batch=batch, context=context), stored)
    bench, setting = (bench_decode, DECODING) if phase == "decode" else (bench_prefill, PREFILLING)
    try:
        (found,) = bench(spec, dtype=dtype, points=[(batch, context)], setting=setting)
    except HarnessError as error:  # a probe was disturbed, and with it the bound
        print(f"| {phase} | {model} | {dtype_name(dtype)} | {batch} | {context} | refused: {str(error)[:60]} | | | | | | |", flush=True)
        return None
    finally:
        gc.collect()
    assert guess is not None
    assert found.expected is not None
    took, paced = found.sample.median_s, found.expected
    errors = guess.seconds / took - 1, paced.seconds / took - 1
    cells = (
        phase, model, found.dtype, batch, context, f"{found.facts['layers_timed']} of {found.facts['layers_total']}",
        f"{1e3 * guess.seconds:.1f}", f"{1e3 * paced.seconds:.1f} ({1e3 * paced.low_s:.1f} to {1e3 * paced.high_s:.1f})",
        f"{1e3 * took:.1f}", f"{found.sample.spread:.1%}", f"{errors[0]:+.1%}", f"{errors[1]:+.1%}",
    )  # fmt: skip
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return errors


def main(*, stored: bool) -> int:
    """Print the table; 1 where, at the pace of the run, the median error exceeds 5 % or the worst 10 % (prefill: one 10 %)."""
    if not stored:
        save_calibration(calibrate(DECODING, version=tfm.__version__))
        gc.collect()
    print("| pass | model | dtype | batch | ctx | layers | file (ms) | at the run's pace (ms) | measured (ms) | spread | file | pace |")
    print("|:--|:--|:--|--:|--:|:--|--:|--:|--:|--:|--:|--:|")
    failed = False
    for phase, points, limit in (("decode", DECODE, 0.05), ("prefill", PREFILL, 0.10)):
        pairs = [errors for errors in (measured(phase, *point) for point in points) if errors]
        print()
        for place, name in enumerate(("file alone", "at the run's pace")):
            errors = [abs(pair[place]) for pair in pairs]
            print(f"{phase}, {name}: median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, {len(errors)} points")
            failed |= place == 1 and (statistics.median(errors) > limit or max(errors) > 0.10)
        print()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(stored="--stored" in sys.argv))
