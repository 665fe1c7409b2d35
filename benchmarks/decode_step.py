"""Whole decode steps of models of 1 to 9 billion parameters, against the bandwidth measured in the same run: docs/measuring.md.

python benchmarks/decode_step.py            the table, and some layers against all of them; about eight minutes
python benchmarks/decode_step.py pairs      only some layers against all of them, step by step in turn
python benchmarks/decode_step.py narrow     int8 and int4 weights beside bf16
python benchmarks/decode_step.py tuned      models tuned (`kernels.tuning`) and by the usual calls, step by step in turn
python benchmarks/decode_step.py fused      tuned models with sublayers as one call (`kernels.fused`) and as modules, step by step in turn
python benchmarks/decode_step.py folded     long bf16 rows folded (`kernels.linear`) and not, step by step in turn

Weights are random, which changes no time. What does not fit the memory takes as many layers as do, and says so.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from functools import partial

import torch

from tfm.estimators.params import params
from tfm.kernels import linear
from tfm.kernels.benchmarks.passes import bench_decode
from tfm.kernels.benchmarks.record import Record
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.benchmarks.whole import pass_of, scale_of, subject
from tfm.kernels.benchmarks.yardstick import measured_device
from tfm.kernels.blocks import Sublayer
from tfm.kernels.linear import as_usual
from tfm.kernels.machine import machine
from tfm.kernels.model import build_model, cut
from tfm.kernels.probes import dtype_name
from tfm.kernels.timing import Stopping, interleave, paired_ratio, watch_for
from tfm.presets.errors import UnreadableError
from tfm.presets.loader import load_model

FP32, BF16 = torch.float32, torch.bfloat16
STEPS = [
    ("gpt-2-xl", FP32, 1024, "all"),
    ("llama-7b", FP32, 1024, "12"),
    ("gpt-2-xl", BF16, 1024, "all"),
    ("llama-7b", BF16, 1024, "all"),
    ("mistral-7b", BF16, 4096, "all"),
    ("qwen2.5-7b", BF16, 4096, "all"),
]
PAIRS = [("llama-7b", BF16, 1024, 4), ("llama-7b", BF16, 1024, 8), ("gpt-2-xl", FP32, 1024, 6), ("gpt-2-xl", BF16, 1024, 12)]
FOLDED = [("mistral-7b", 4096, 8), ("qwen2.5-7b", 4096, 6), ("llama-7b", 1024, 8)]
TUNED = [
    ("llama-7b", FP32, 1024, 6), ("gpt-2-xl", FP32, 1024, 12), ("llama-7b", BF16, 1024, 8), ("mistral-7b", BF16, 4096, 8),
    ("qwen2.5-7b", BF16, 4096, 6), ("gpt-2-xl", BF16, 1024, 24),
]  # fmt: skip
LIMITS = {FP32: 0.88, BF16: 0.75}
SETTING = Setting(stopping=Stopping(min_samples=10, min_seconds=2.0, max_seconds=25.0, target_spread=0.02))


def step(model: str, dtype: torch.dtype, context: int, layers: str, weight_dtype: str | None = None) -> Record:
    """One decode step at batch 1; as many layers as fit where it cannot be as many as asked for."""
    spec = load_model(model)
    try:
        (found,) = bench_decode(spec, dtype=dtype, points=[(1, context)], layers=layers, weight_dtype=weight_dtype, setting=SETTING)
    except UnreadableError:
        (found,) = bench_decode(spec, dtype=dtype, points=[(1, context)], layers="auto", weight_dtype=weight_dtype, setting=SETTING)
    gc.collect()
    return found


def row(found: Record) -> str:
    """One line of the table."""
    figures = found.figures()
    count = params(load_model(str(figures["model"]))).total_params
    layers = f"{figures['layers_timed']} of {figures['layers_total']}"
    cells = (
        figures["model"], f"{count / 1e9:.2f} B", figures["weight_dtype"], figures["ctx"], layers,
        f"{1e3 * found.sample.median_s:.1f}", f"{1e3 * found.sample.p20_s:.1f} to {1e3 * found.sample.p80_s:.1f}", found.sample.samples,
        f"{found.bytes / 1e9:.2f}", f"{found.bytes / found.sample.median_s / 1e9:.2f}",
        f"{found.bandwidth_bytes_per_s / 1e9:.2f} ({found.probe})",
        f"{figures['of_bandwidth']:.3f}", f"{figures['of_bandwidth_in_turn']:.3f}", found.backend,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


@torch.inference_mode()
def pair(model: str, dtype: torch.dtype, context: int, layers: int) -> float:
    """Some layers scaled and the whole model, step by step in turn: prints a line, gives the relative difference."""
    spec, work = load_model(model), pass_of("decode", dtype, batch=1, context=context)
    unit = measured_device(SETTING.device, bytes_per_s=1.0, peaks={}, source="counts")
    whole, part = (subject(build_model(spec, dtype=dtype, layers=count), work, outside=True) for count in (None, layers))
    samples = interleave({"whole": whole.run, "part": part.run, "outside": part.outside}, stopping=SETTING.stopping)
    scaled = scale_of(spec, layers, work, unit).apply(samples["part"], samples["outside"])
    difference = paired_ratio(scaled, samples["whole"]) - 1
    times = (f"{1e3 * sample.median_s:.1f}" for sample in (scaled, samples["whole"]))
    print(
        f"| {model} | {dtype_name(dtype)} | {layers} | {' | '.join(times)} | {samples['whole'].samples} | {difference:+.1%} |", flush=True
    )
    del whole, part
    gc.collect()
    return difference


@torch.inference_mode()
def folding(model: str, context: int, layers: int) -> str:
    """A step whose long rows are folded and one that takes them as they are, in turn: a line."""
    spec = cut(load_model(model), layers)
    with as_usual():
        ready = subject(build_model(spec, dtype=BF16), pass_of("decode", BF16, batch=1, context=context))
    usual = linear.WIDE

    def step(wide: int) -> None:
        linear.WIDE = wide
        ready.run()

    calls = {"folded": as_usual()(partial(step, usual)), "as they are": as_usual()(partial(step, sys.maxsize))}
    samples = interleave(calls, watch=watch_for(SETTING.device), stopping=SETTING.stopping)
    linear.WIDE = usual
    times = (f"{1e3 * samples[name].median_s:.1f}" for name in calls)
    gain = paired_ratio(samples["as they are"], samples["folded"]) - 1
    return f"| {model} | {context} | {layers} | {' | '.join(times)} | {samples['folded'].samples} | {gain:+.1%} |"


@torch.inference_mode()
def tuning(model: str, dtype: torch.dtype, context: int, layers: int) -> str:
    """A step by the usual calls and one of a tuned model, in turn: a line."""
    spec, work = cut(load_model(model), layers), pass_of("decode", dtype, batch=1, context=context)
    with as_usual():
        usual = subject(build_model(spec, dtype=dtype), work)
    tuned = subject(build_model(spec, dtype=dtype), work)
    calls = {"usual": as_usual()(usual.run), "tuned": tuned.run}
    samples = interleave(calls, watch=watch_for(SETTING.device), stopping=SETTING.stopping)
    times = (f"{1e3 * samples[name].median_s:.1f}" for name in calls)
    gain = paired_ratio(samples["usual"], samples["tuned"])
    return f"| {model} | {dtype_name(dtype)} | {context} | {layers} | {' | '.join(times)} | {samples['tuned'].samples} | {gain:.2f} |"


@torch.inference_mode()
def fusing(model: str, dtype: torch.dtype, context: int, layers: int) -> str:
    """A step whose sublayers are one call each and one of the same model through its modules, in turn: a line."""
    spec = cut(load_model(model), layers)
    ready = subject(build_model(spec, dtype=dtype), pass_of("decode", dtype, batch=1, context=context))
    calls_of = {sub: sub.fused for sub in ready.model.modules() if isinstance(sub, Sublayer)}

    def step(*, fused: bool) -> None:
        for sub, made in calls_of.items():
            sub.fused = made if fused else None
        ready.run()

    calls = {"modules": partial(step, fused=False), "fused": partial(step, fused=True)}
    samples = interleave(calls, watch=watch_for(SETTING.device), stopping=SETTING.stopping)
    times = [f"{1e3 * samples[name].median_s:.1f}" for name in calls]
    gain = paired_ratio(samples["modules"], samples["fused"])
    share = f"{sum(made is not None for made in calls_of.values())} of {len(calls_of)}"
    cells = (model, dtype_name(dtype), context, layers, share, *times, samples["fused"].samples, f"{gain:.3f}")
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = (
    "| model | parameters | weights | ctx | layers | median (ms) | p20 to p80 | samples | GB | GB/s | of (GB/s) | share | in turn | ran |"
)
RULE = "|:--|--:|:--|--:|:--|--:|--:|--:|--:|--:|--:|--:|--:|:--|"


def narrow() -> Iterator[str]:
    """int8 and int4 weights beside bf16."""
    for model in ("gpt-2-xl", "llama-7b"):
        for kind in (None, "int8", "int4"):
            yield row(step(model, BF16, 1024, "8", kind))


def main(what: str) -> int:
    """Print the table; 1 where a share is under its limit."""
    here = machine(SETTING.device)
    print(f"{here.device}, {here.threads} threads, torch {here.torch}\n", flush=True)
    if what == "folded":
        print("| model | ctx | layers | folded (ms) | as they are (ms) | samples | as they are takes |\n|:--|--:|--:|--:|--:|--:|--:|")
        for asked in FOLDED:
            print(folding(*asked), flush=True)
        return 0
    if what == "fused":
        print("| model | weights | ctx | layers | sublayers in one call | as modules (ms) | fused (ms) | samples | modules / fused |")
        print("|:--|:--|--:|--:|:--|--:|--:|--:|--:|")
        for case in TUNED:
            print(fusing(*case), flush=True)
            gc.collect()
        return 0
    if what == "tuned":
        print("| model | weights | ctx | layers | usual calls (ms) | tuned (ms) | samples | usual / tuned |")
        print("|:--|:--|--:|--:|--:|--:|--:|--:|")
        for case in TUNED:
            print(tuning(*case), flush=True)
            gc.collect()
        return 0
    if what != "pairs":
        print(f"{HEAD}\n{RULE}", flush=True)
    if what == "narrow":
        for line in narrow():
            print(line, flush=True)
        return 0
    found: dict[tuple[str, torch.dtype, int], Record] = {}
    for model, dtype, context, layers in STEPS if what != "pairs" else ():
        found[model, dtype, context] = step(model, dtype, context, layers)
        print(row(found[model, dtype, context]), flush=True)
    print("\n| model | weights | layers timed | scaled (ms) | whole (ms) | samples | difference |\n|:--|:--|--:|--:|--:|--:|--:|")
    apart = [pair(*asked) for asked in PAIRS]
    shares = {key: one.bytes / one.sample.median_s / one.bandwidth_bytes_per_s for key, one in found.items()}
    low = [f"{key[0]} {key[1]} {share:.3f}" for key, share in shares.items() if share < LIMITS[key[1]]]
    print(f"\nunder the aim (0.88 in fp32, 0.75 in bf16): {', '.join(low) or 'none'}")
    print(f"scaled and whole differ by at most 5 %: {'yes' if all(abs(difference) <= 0.05 for difference in apart) else 'no'}")
    return int(bool(low))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
