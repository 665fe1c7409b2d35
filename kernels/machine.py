"""What this machine is: the names, sizes and versions that a measurement holds for."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from ..presets.calibration import Machine


def device_title(device: torch.device) -> str:
    """What the device is called: a GPU by its driver, a processor by the system."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type == "xpu":
        return str(torch.xpu.get_device_name(device))
    return processor_name()


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name; its architecture where the system does not tell."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine() or "CPU"


def driver_version(device: torch.device) -> str | None:
    """The CUDA (or ROCm) runtime that torch was built for; None on a processor."""
    return (torch.version.hip or torch.version.cuda) if device.type == "cuda" else None


def machine(device: torch.device) -> Machine:
    """What a calibration made now would hold for."""
    return Machine(
        device=device_title(device),
        backend=device.type,
        threads=torch.get_num_threads(),
        torch=str(torch.__version__),
        driver=driver_version(device),
    )


def total_memory_bytes(device: torch.device) -> int:
    """Memory of the device, free or not; of a container, what it may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "xpu":
        return int(torch.xpu.get_device_properties(device).total_memory)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        limit = "max"
    return whole if limit == "max" else min(whole, int(limit))
