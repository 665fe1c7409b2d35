"""What the benchmarks of one run share: the device, how long to sample, and the yardstick of the same run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ...estimators.expected import Expected, expected
from ...estimators.pace import pace_of
from ...estimators.work import Pass
from ...presets.calibration import Calibration, Yard, load_calibration
from ...presets.errors import UnknownNameError, UsageError
from ...presets.spec import ModelSpec
from ..machine import machine
from ..probes import PROBE_BYTES, pick_device
from ..timing import Stopping, buffers_needed, last_level_cache_bytes

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
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


def current_calibration(device: torch.device) -> Calibration | None:
    """The stored calibration, where it was made on this machine as it is now."""
    found = load_calibration()
    return found if found is not None and found.machine == machine(device) else None


def expected_here(spec: ModelSpec, work: Pass, device: torch.device, now: Yard) -> Expected | None:
    """The expected time of a pass on this machine at the pace that its probes have now; None where it was not calibrated."""
    measured = current_calibration(device)
    return None if measured is None else expected(spec, work, measured, pace_of(measured.yards, now))
