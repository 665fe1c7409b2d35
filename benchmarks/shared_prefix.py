"""A prefix that requests share, read once, against every prompt read whole: predicted beside measured (docs/generation.md).

python benchmarks/shared_prefix.py [MODEL [DEVICE]]      gpt-2 in fp32 on the CPU if not given; llama-7b cuda runs in bf16

Weights are random, which changes no time. Floors are of the bandwidth and matmul rate measured in the same run.
"""

from __future__ import annotations

import sys

import torch

from tfm.estimators.latency import roofline
from tfm.estimators.prefix import saving
from tfm.estimators.work import Pass
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.benchmarks.yardstick import yardstick
from tfm.kernels.generation.prefix import measured_sharing
from tfm.kernels.model import build_model
from tfm.kernels.probes import dtype_name
from tfm.presets.dtypes import DTYPES
from tfm.presets.loader import load_model

POINTS = [(512, 16, 2), (512, 16, 8), (64, 16, 8), (896, 16, 4)]  # prefix, rest, requests


def main(name: str = "gpt-2", device: str = "cpu") -> None:
    """A line a point."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    spec, target = load_model(name), torch.device(device)
    yard = yardstick(Setting(device=target), dtype).device(dtype_name(dtype), target)
    model = build_model(spec, device=target, dtype=dtype)
    kind = DTYPES[dtype_name(dtype)]
    formats = Pass(weight_dtype=kind, kv_dtype=kind, activation_dtype=kind)
    print(f"{name} on {yard.title}")
    print("| prefix + rest | requests | FLOPs saved | bytes more | floor apart (ms) | shared | measured apart | shared | ratio |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for prefix, rest, requests in POINTS:
        found = saving(spec, formats, prefix=prefix, rest=rest, requests=requests)
        once = roofline(spec, formats_at(formats, "prefill", 1, prefix, None), yard).floor_s
        ends = roofline(spec, formats_at(formats, "decode", requests, prefix + rest, rest), yard).floor_s
        apart = roofline(spec, formats_at(formats, "prefill", requests, prefix + rest, None), yard).floor_s
        shared = float(once) + float(ends) + found.copied_bytes / yard.memory_bytes_per_s  # type: ignore[arg-type]
        tokens = torch.randint(1000, (prefix + rest * requests,)).tolist()
        suffixes = [tokens[prefix + i * rest : prefix + (i + 1) * rest] for i in range(requests)]
        real = measured_sharing(model, tokens[:prefix], suffixes, repeats=5)
        cells = (
            f"{prefix} + {rest}", requests, f"{1 - found.shared_flops / found.apart_flops:.0%}",
            f"{found.shared_bytes / found.apart_bytes - 1:.0%}", f"{1e3 * float(apart):.2f}", f"{1e3 * shared:.2f}",  # type: ignore[arg-type]
            f"{1e3 * real.apart_s:.2f}", f"{1e3 * real.shared_s:.2f}", f"{real.apart_s / real.shared_s:.2f}",
        )  # fmt: skip
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def formats_at(formats: Pass, phase: str, batch: int, context: int, new: int | None) -> Pass:
    """A pass in the same formats, the output head at the last position."""
    from msgspec.structs import replace

    return replace(formats, phase=phase, batch=batch, context=context, new=new, last_logits=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
