"""Memory bandwidth: sum, matrix-vector product and copy, in fp32 and another format, over several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..machine import device_title
from ..probes import PROBE_BYTES, Bandwidth, measured_bandwidth
from ..timing import Stopping
from .record import Record
from .setting import Setting

LARGE = PROBE_BYTES


def bench_bandwidth(
    *, dtype: torch.dtype = torch.bfloat16, sizes: Sequence[int] = (LARGE,), setting: Setting | None = None
) -> Iterator[Record]:
    """A line a probe, format and size; what lies in the cache has no bound. The yardstick is the best over the largest size."""
    setting = setting or Setting()
    found: dict[int, Bandwidth] = {}
    for size in sorted(set(sizes), reverse=True):
        setting.tell(f"plain probes over {size / 2**20:.4g} MiB")
        short = Stopping(min_samples=10, min_seconds=0.3, max_seconds=setting.stopping.max_seconds)
        found[size] = measured_bandwidth(dtype, setting.device, size_bytes=size, stopping=short)
        yield from records(found[size], found[max(found)], size, setting)
        if any(probe.sample.interrupted for probe in found[size].probes):
            raise KeyboardInterrupt


def records(found: Bandwidth, best: Bandwidth, size: int, setting: Setting) -> Iterator[Record]:
    """The lines of one size."""
    for probe in found.probes:
        in_memory = size >= 4 * setting.cache_bytes or size >= LARGE
        bound = probe.moved_bytes / best.bytes_per_s
        yield Record(
            labels={"probe": probe.name, "dtype": probe.dtype, "size_bytes": size},
            device=device_title(setting.device),
            dtype=probe.dtype,
            sample=probe.sample,
            flops=0,
            bytes=probe.moved_bytes,
            bandwidth_bytes_per_s=best.bytes_per_s,
            probe=f"{best.winner.name} {best.winner.dtype}",
            peak_flops_per_s=None,
            floor_s=bound if in_memory else None,
            bound_s=bound if in_memory and found is best else None,
            backend=f"torch.{probe.name} on {setting.device.type}",
        )
