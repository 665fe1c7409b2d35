"""What this machine can do: memory bandwidth, matmul rate, cost of launching an operator, and free memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ..presets.errors import UnreadableError
from . import compiling, panels
from .linear import USUAL
from .panels import PANEL
from .timing import Call, Sample, Stopping, interleave, measure, watch_for

GIB = 1 << 30
PROBE_BYTES = GIB
ROW = 4096  # elements a row of the probes' matrix
TILE_BYTES = 16 << 20  # random numbers are drawn once and repeated: drawing a GiB of them takes longer than measuring
QUICK = Stopping(min_samples=10, min_seconds=0.5, max_seconds=15.0, target_spread=0.05)


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One plain operator that streams memory: how many bytes a call moves, and how long it took."""

    name: str
    dtype: str
    moved_bytes: int
    sample: Sample

    @property
    def bytes_per_s(self) -> float:
        """Bytes read and written per second, by the median."""
        return self.moved_bytes / self.sample.median_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Bandwidth:
    """The measured bandwidth of a run: the best that any plain probe reached in it."""

    probes: tuple[Probe, ...]

    @property
    def winner(self) -> Probe:
        """The fastest probe."""
        return max(self.probes, key=lambda probe: probe.bytes_per_s)

    @property
    def bytes_per_s(self) -> float:
        """What the fastest probe reached."""
        return self.winner.bytes_per_s

    @property
    def spread(self) -> float:
        """How far the winner's samples lie apart."""
        return self.winner.sample.spread


def dtype_name(dtype: torch.dtype) -> str:
    """The name that tfm gives to a torch dtype.

    >>> dtype_name(torch.bfloat16)
    'bf16'
    """
    names = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int8: "int8"}
    return names.get(dtype, str(dtype).removeprefix("torch."))


def pick_device() -> torch.device:
    """The fastest kind of device that PyTorch can use here: CUDA, else MPS, else XPU, else the CPU."""
    there: dict[str, Callable[[], bool]] = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    there["xpu"] = torch.xpu.is_available
    return torch.device(next((kind for kind, usable in there.items() if usable()), "cpu"))


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random numbers in [-1, 1), never zeros; above TILE_BYTES the same ones repeat."""
    count = int(torch.Size(shape).numel())
    drawn = min(count, TILE_BYTES // dtype.itemsize)
    tile = torch.rand(drawn, dtype=torch.float32, device=device).mul_(2).sub_(1).to(dtype)
    if drawn == count:
        return tile.view(shape)
    out = torch.empty(count, dtype=dtype, device=device)
    for start in range(0, count, drawn):
        out[start : start + drawn] = tile[: count - start]
    return out.view(shape)


def bandwidth_calls(dtype: torch.dtype, device: torch.device, size_bytes: int) -> dict[str, tuple[Call, int]]:
    """The plain probes of one dtype over `size_bytes`: name -> (call, bytes a call moves).

    "loop" is the product of "mv" with the matrix in panels, compiled, where that is possible: models take it, and nothing may be faster
    than its bound.
    """
    rows = size_bytes // dtype.itemsize // ROW
    matrix = random_tensor((rows, ROW), dtype, device)
    vector, target = matrix[0].clone(), torch.empty_like(matrix)
    size = matrix.numel() * dtype.itemsize
    calls: dict[str, tuple[Call, int]] = {
        "sum": (matrix.sum, size),
        "mv": (lambda: torch.mv(matrix, vector), size),
        "copy": (lambda: target.copy_(matrix), 2 * size),
    }
    if rows % PANEL == 0 and not USUAL.get() and panels.takes(1, matrix):
        loop = torch.inference_mode()(partial(panels.by_panels, vector[None], matrix.view(-1, ROW, PANEL)))
        if compiling.works(loop):
            calls["loop"] = loop, size
    return calls


def measured_bandwidth(
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    *,
    size_bytes: int = PROBE_BYTES,
    stopping: Stopping = QUICK,
) -> Bandwidth:
    """Sum, matrix-vector product (PyTorch's and a compiled one) and copy, in fp32 and in `dtype`, over at least 1 GiB, measured in turn.

    Raises UnreadableError before allocating where the memory is not there.
    """
    device = device or pick_device()
    dtypes = dict.fromkeys((torch.float32, dtype))
    require_memory(2 * len(dtypes) * size_bytes, device, what="the bandwidth probes")
    found = {(dtype_name(d), name): made for d in dtypes for name, made in bandwidth_calls(d, device, size_bytes).items()}
    calls = {f"{name} {d}": call for (d, name), (call, _) in found.items()}
    samples = interleave(calls, watch=watch_for(device), stopping=stopping, warmup=1)
    return Bandwidth(
        probes=tuple(
            Probe(name=name, dtype=d, moved_bytes=moved, sample=samples[f"{name} {d}"])
            for (d, name), (_, moved) in found.items()
            if f"{name} {d}" in samples
        )
    )


def op_launch_cost(device: torch.device | None = None, *, stopping: Stopping = QUICK) -> Sample:
    """Seconds that PyTorch takes to dispatch one operator on one element: the floor under any operator run eagerly.

    By the host's clock everywhere: on an accelerator calls are queued and the device waits for the host.
    """
    one = random_tensor((1,), torch.float32, device or pick_device())
    waits: dict[str, Callable[[], None]] = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize, "xpu": torch.xpu.synchronize}
    return measure(
        lambda: one.add_(1),
        sync=waits.get(one.device.type),
        min_samples=stopping.min_samples,
        min_seconds=stopping.min_seconds,
        max_seconds=stopping.max_seconds,
        target_spread=stopping.target_spread,
    )


def free_memory_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on a device without swapping; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "xpu":
        return int(torch.xpu.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    known = [free for free in (_free_of_machine(), _free_of_cgroup()) if free is not None]
    return min(known, default=None)


def _free_of_machine(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """MemAvailable on Linux, free pages on other systems that count them."""
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _free_of_cgroup(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What a container's limit (cgroup v2) leaves; None without a limit."""
    try:
        limit, used = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)


def require_memory(
    needed_bytes: int, device: torch.device, *, what: str, fits: Callable[[int], str] | None = None, free_bytes: int | None = None
) -> None:
    """Refuse before anything is allocated: UnreadableError with needed, free and what would fit.

    `fits` says in words what a number of free bytes has room for ("9 of 32 layers in bf16"); `free_bytes` is for tests.
    """
    free = free_memory_bytes(device) if free_bytes is None else free_bytes
    if free is None or needed_bytes <= free:
        return
    advice = fits(free) if fits else f"something of {free / needed_bytes:.0%} of this size"
    raise UnreadableError(
        f"{what} needs {needed_bytes / GIB:.2f} GiB ({needed_bytes} bytes) on {device}; {free / GIB:.2f} GiB ({free} bytes) are free. "
        f"What would fit: {advice}."
    )
