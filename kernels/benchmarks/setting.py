"""What the benchmarks of one run share: the device, how long to sample, and the yardstick of the same run."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from ...estimators.expected import Expected, expected
from ...estimators.work import Pass
from ...presets.calibration import Calibration, load_calibration
from ...presets.device import Device
from ...presets.errors import UnknownNameError, UsageError
from ...presets.spec import ModelSpec
from ..machine import device_title, machine, total_memory_bytes
from ..probes import PROBE_BYTES, bandwidth_calls, dtype_name, matmul_rate, measured_bandwidth, pick_device
from ..timing import Call, Sample, Stopping, buffers_needed, interleave, last_level_cache_bytes, watch_for

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PROBING = Stopping(min_samples=7, min_seconds=0.5, max_seconds=10.0, target_spread=0.05)
MOST_COPIES = 64


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that the benchmarks compute in; raises UnknownNameError."""
    if name not in DTYPES:
        raise UnknownNameError("dtype", name, DTYPES, f"Allowed: {', '.join(DTYPES)}.")
    return DTYPES[name]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a run measures.

    Attributes:
        stopping: when a line has enough samples. probe_bytes: what the bandwidth probes stream, 1 GiB unless a test says less.
        tell: takes one line about what is going on.
    """

    device: torch.device = field(default_factory=pick_device)
    stopping: Stopping = field(default_factory=lambda: Stopping(max_seconds=12.0))
    probe_bytes: int = PROBE_BYTES
    tell: Callable[[str], None] = lambda _: None

    @property
    def cache_bytes(self) -> int:
        """Size of the last-level cache of the device."""
        if self.device.type == "cuda":
            return int(torch.cuda.get_device_properties(self.device).L2_cache_size)
        return last_level_cache_bytes()

    def copies(self, size_bytes: int, free_bytes: int | None = None) -> int:
        """How many copies of a working set to rotate so that none is still in the cache when its turn comes again."""
        return min(MOST_COPIES, buffers_needed(size_bytes, self.cache_bytes, free_bytes=free_bytes))

    def in_cache(self, size_bytes: int) -> bool:
        """Whether a working set, all copies together, may stay in the cache: then memory is no bound. CUDA's timer flushes its L2."""
        return self.device.type != "cuda" and size_bytes < 2 * self.cache_bytes


def use_threads(count: int | None) -> None:
    """Set the number of threads of PyTorch's operators; raises UsageError."""
    if count is None:
        return
    if count < 1:
        raise UsageError(f"--threads: got {count}; allowed: at least 1")
    torch.set_num_threads(count)


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """What plain probes reached in this run, and the winner to be run again beside what is measured."""

    bytes_per_s: float
    probe: str
    flops_per_s: float | None
    call: Call
    moved_bytes: int

    def seen(self, again: Sample | None) -> Yardstick:
        """The yardstick after the winner ran once more: it keeps the best."""
        if again is None:
            return self
        return replace(self, bytes_per_s=max(self.bytes_per_s, self.moved_bytes / again.median_s))

    def device(self, dtype: str, target: torch.device) -> Device:
        """A device that has what was measured in this run, for the estimators."""
        return measured_device(
            target,
            bytes_per_s=self.bytes_per_s,
            peaks={} if self.flops_per_s is None else {dtype: self.flops_per_s},
            source=f"probes of this run: {self.probe}",
        )


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


def peak_shapes(device: torch.device) -> tuple[tuple[int, int, int], ...]:
    """Matrix products that come near the device's rate."""
    return ((8192, 8192, 8192),) if device.type == "cuda" else ((512, 4096, 4096), (2048, 2048, 2048))


def yardstick(setting: Setting, dtype: torch.dtype, *, arithmetic: bool = True) -> Yardstick:
    """Measure bandwidth (sum, mv, copy; fp32 and `dtype`) and, with `arithmetic`, the matmul rate."""
    setting.tell(f"bandwidth of this run: sum, mv and copy over {setting.probe_bytes / 2**30:.3g} GiB")
    found = measured_bandwidth(dtype, setting.device, size_bytes=setting.probe_bytes, stopping=PROBING)
    winner = found.winner
    by_name = {dtype_name(kind): kind for kind in (torch.float32, dtype)}
    call, moved = bandwidth_calls(by_name[winner.dtype], setting.device, setting.probe_bytes)[winner.name]
    rate = None
    if arithmetic:
        setting.tell(f"matmul rate in {dtype_name(dtype)}")
        quick = Stopping(min_samples=3, min_seconds=0.3, max_seconds=3.0, target_spread=0.05)
        shapes = peak_shapes(setting.device) if setting.probe_bytes >= PROBE_BYTES else ((64, 512, 512),)
        rate = max(matmul_rate(*shape, dtype, setting.device, stopping=quick).flops_per_s for shape in shapes)
    return Yardstick(bytes_per_s=found.bytes_per_s, probe=f"{winner.name} {winner.dtype}", flops_per_s=rate, call=call, moved_bytes=moved)


def beside(setting: Setting, yard: Yardstick, calls: Mapping[str, Call], *, warmup: int = 2) -> tuple[dict[str, Sample], Yardstick]:
    """Measure calls in turn with the winning probe, so that the ratio sees one state of the machine; the yardstick keeps its best."""
    samples = interleave({**calls, PROBE: yard.call}, watch=watch_for(setting.device), stopping=setting.stopping, warmup=warmup)
    return {name: sample for name, sample in samples.items() if name != PROBE}, yard.seen(samples.get(PROBE))


PROBE = "bandwidth probe"


def current_calibration(device: torch.device) -> Calibration | None:
    """The stored calibration, where it was made on this machine as it is now."""
    found = load_calibration()
    return found if found is not None and found.machine == machine(device) else None


def expected_here(spec: ModelSpec, work: Pass, device: torch.device) -> Expected | None:
    """The expected time of a pass on this machine; None where it was not calibrated."""
    measured = current_calibration(device)
    return None if measured is None else expected(spec, work, measured)
