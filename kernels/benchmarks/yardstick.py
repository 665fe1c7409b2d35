"""What plain probes reach in the same run: the bandwidth and the matmul rate that every line is held against."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ...presets.calibration import Yard
from ...presets.device import Device
from ..beats import BEATS, POOL_BYTES, Beat, computing, multiplying, streaming
from ..machine import device_title, total_memory_bytes
from ..probes import PROBE_BYTES, Bandwidth, bandwidth_calls, dtype_name, measured_bandwidth, random_tensor
from ..timing import Call, Sample, Stopping, interleave, last_level_cache_bytes, paired_ratio, watch_for
from .setting import Setting

PROBING = Stopping(min_samples=7, min_seconds=0.5, max_seconds=10.0, target_spread=0.05)
MULTIPLYING = Stopping(min_samples=3, min_seconds=0.3, max_seconds=5.0, target_spread=0.05)
PROBE, PRODUCT = "bandwidth probe", "matmul probe"
STREAM, COMPUTE, MULTIPLY = "memory beat", "vector beat", "matrix beat"
BEAT_NAMES = {STREAM, COMPUTE, MULTIPLY}


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """What plain probes reached in this run, and the winners to be run again beside what is measured.

    `call` moves `moved_bytes`; `product` multiplies matrices with `product_flops`. `memory`, `vector` and `matrix` are the beats that a
    calibration counts in, `pace` what they reached at this moment. `bytes_per_s` and `flops_per_s` are the best seen: the memory beat
    streams as models do, so its rate counts as well. `in_turn_bytes_per_s`: the better of both in the rounds of what was measured last.
    """

    bytes_per_s: float
    probe: str
    call: Call
    moved_bytes: int
    flops_per_s: float
    product: Call
    product_flops: int
    memory: Beat
    vector: Beat
    matrix: Beat
    pace: Yard
    in_turn_bytes_per_s: float | None = None

    def seen(self, samples: Mapping[str, Sample], beside: Sample | None = None) -> Yardstick:
        """The yardstick after its probes ran once more: it keeps the best, and the pace of the last time.

        `beside`: what was measured in turn with them. The pace is then that which it saw, by the ratios of one round each: where
        the machine changes from round to round, medians of the two by themselves are of different rounds.
        """
        rates = {name: amount / samples[name].median_s for name, (_, amount) in self.probes().items() if name in samples}
        best, stream = rates.get(PROBE, 0.0), rates.get(STREAM, 0.0)
        probe = STREAM if stream > max(self.bytes_per_s, best) else self.probe
        if beside is not None:
            for name in {PROBE, *BEAT_NAMES} & set(rates):
                rates[name] *= paired_ratio(beside, samples[name]) / (beside.median_s / samples[name].median_s)
        return replace(
            self,
            bytes_per_s=max(self.bytes_per_s, best, stream),
            probe=probe,
            in_turn_bytes_per_s=max((rates[name] for name in (PROBE, STREAM) if name in rates), default=None),
            flops_per_s=max(self.flops_per_s, rates.get(PRODUCT, 0.0)),
            pace=Yard(
                dtype=self.pace.dtype,
                stream_bytes_per_s=rates.get(STREAM, self.pace.stream_bytes_per_s),
                vector_elements_per_s=rates.get(COMPUTE, self.pace.vector_elements_per_s),
                matrix_flops_per_s=rates.get(MULTIPLY, self.pace.matrix_flops_per_s),
            ),
        )

    def probes(self) -> dict[str, tuple[Call, float]]:
        """What runs beside a measurement: name -> (call, bytes or FLOPs of it)."""
        return {
            PROBE: (self.call, self.moved_bytes),
            PRODUCT: (self.product, self.product_flops),
            STREAM: (self.memory.call, self.memory.amount),
            COMPUTE: (self.vector.call, self.vector.amount),
            MULTIPLY: (self.matrix.call, self.matrix.amount),
        }

    def device(self, dtype: str, target: torch.device) -> Device:
        """A device that has what was measured in this run, for the estimators."""
        return measured_device(
            target, bytes_per_s=self.bytes_per_s, peaks={dtype: self.flops_per_s}, source=f"probes of this run: {self.probe}"
        )

    def arithmetic_counts(self, flops: float, moved_bytes: float) -> bool:
        """Whether the arithmetic of a call may be its bound, so that the matmul probe has to run beside it."""
        return flops / self.flops_per_s > moved_bytes / self.bytes_per_s / 4


def measured_device(target: torch.device, *, bytes_per_s: float, peaks: Mapping[str, float | None], source: str) -> Device:
    """A device with measured rates, called `local`."""
    return Device(
        name="local",
        title=f"{device_title(target)} ({torch.get_num_threads()} threads, measured)",
        vendor="this machine",
        kind="gpu" if target.type in ("cuda", "xpu") else "soc" if target.type == "mps" else "cpu",
        form=None,
        capacity_bytes=max(1, total_memory_bytes(target)),
        memory_bytes_per_s=bytes_per_s,
        peak_flops_per_s=dict(peaks),
        link_bytes_per_s=None,
        cache_bytes=last_level_cache_bytes() if target.type == "cpu" else None,
        tdp_w=None,
        source=(source,),
        retrieved=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        notes="Measured, not published: the best that PyTorch's own plain operators reached.",
    )


def peak_shapes(setting: Setting) -> tuple[tuple[int, int, int], ...]:
    """Matrix products that come near the device's rate; small ones where a test takes small probes."""
    if setting.probe_bytes < PROBE_BYTES:
        return ((64, 512, 512), (256, 1024, 1024))
    return ((8192, 8192, 8192),) if setting.device.type == "cuda" else ((512, 4096, 4096), (2048, 2048, 2048))


@dataclass(frozen=True, kw_only=True)
class MatmulProbe:
    """The product that came nearest the device's rate, ready to run again."""

    call: Call
    flops: int
    flops_per_s: float


def matmul_probe(setting: Setting, dtype: torch.dtype) -> MatmulProbe:
    """The best of a few products that take their operands from the cache."""
    products = {shape: product_call(shape, dtype, setting) for shape in peak_shapes(setting)}
    runs = {str(shape): run for shape, run in products.items()}
    samples = interleave(runs, watch=watch_for(setting.device), stopping=MULTIPLYING, warmup=1)
    found = [
        MatmulProbe(call=run, flops=2 * m * k * n, flops_per_s=2 * m * k * n / samples[str((m, k, n))].median_s)
        for (m, k, n), run in products.items()
    ]
    return max(found, key=lambda probe: probe.flops_per_s)


def yardstick(setting: Setting, dtype: torch.dtype) -> Yardstick:
    """Measure bandwidth (`probes.bandwidth_calls`, in fp32 and `dtype`) and the matmul rate in `dtype`."""
    setting.tell(f"bandwidth of this run: plain probes over {setting.probe_bytes / 2**30:.3g} GiB")
    found = measured_bandwidth(dtype, setting.device, size_bytes=setting.probe_bytes, stopping=PROBING)
    call, moved = again(found, dtype, setting)
    setting.tell(f"matmul rate in {dtype_name(dtype)}")
    best = matmul_probe(setting, dtype)
    vector, watch = computing(dtype, setting.device).times(BEATS), watch_for(setting.device)
    return Yardstick(
        bytes_per_s=found.bytes_per_s,
        probe=f"{found.winner.name} {found.winner.dtype}",
        call=call,
        moved_bytes=moved,
        flops_per_s=best.flops_per_s,
        product=best.call,
        product_flops=best.flops,
        memory=streaming(dtype, setting.device, pool_bytes=min(POOL_BYTES, setting.probe_bytes)).times(BEATS),
        vector=vector,
        matrix=multiplying(dtype, setting.device).times(BEATS),
        pace=Yard(
            dtype=dtype_name(dtype),
            stream_bytes_per_s=found.bytes_per_s,
            vector_elements_per_s=vector.amount / min(watch(vector.call, 1) for _ in range(3)),
        ),
    )


def again(found: Bandwidth, dtype: torch.dtype, setting: Setting) -> tuple[Call, int]:
    """The winning probe, made anew, and the bytes that it moves."""
    kinds = {dtype_name(kind): kind for kind in (torch.float32, dtype)}
    return bandwidth_calls(kinds[found.winner.dtype], setting.device, setting.probe_bytes)[found.winner.name]


def product_call(shape: tuple[int, int, int], dtype: torch.dtype, setting: Setting) -> Call:
    """[m, k] @ [k, n] over the same operands each time."""
    m, k, n = shape
    left, right = random_tensor((m, k), dtype, setting.device), random_tensor((k, n), dtype, setting.device)
    return lambda: left @ right


def beside(
    setting: Setting, yard: Yardstick, calls: Mapping[str, Call], *, arithmetic: bool, warmup: int = 2
) -> tuple[dict[str, Sample], Yardstick]:
    """Measure calls in turn with the probes, so that the ratios see one state of the machine; the yardstick keeps its best.

    `arithmetic`: matrix products, which take longest, run as well.
    """
    probes = {name: call for name, (call, _) in yard.probes().items() if arithmetic or name not in (PRODUCT, MULTIPLY)}
    samples = interleave({**calls, **probes}, watch=watch_for(setting.device), stopping=setting.stopping, warmup=warmup)
    found = {name: sample for name, sample in samples.items() if name not in probes}
    return found, yard.seen(samples, next(iter(found.values()), None))
