"""What this machine is, and what stands in the way of measuring on it."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from ..presets.calibration import Calibration, calibration_path, load_calibration
from ..presets.device import LOCAL, device_names, load_device
from ..presets.errors import TfmError
from . import compiling
from .attention import backend_that_ran
from .machine import device_title, machine, total_memory_bytes
from .masks import Rules
from .probes import free_memory_bytes, pick_device
from .timing import last_level_cache_bytes

BUSY_LOAD = 0.5  # runnable processes a processor, beyond which measurements are not to be trusted
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PACKAGES = ("torch", "numpy", "transformers", "safetensors", "triton")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line: `value` is raw, in base units; `state` is ok, note or trouble, and `advice` what to do about it."""

    name: str
    value: object
    state: str = "ok"
    advice: str = ""


def examine(device: torch.device | None = None) -> Iterator[Fact]:
    """Every fact, the device first."""
    device = device or pick_device()
    yield Fact(name="device", value=device_title(device))
    yield Fact(name="backend", value=device.type)
    yield from memory_facts(device)
    yield Fact(name="threads", value=torch.get_num_threads())
    yield Fact(name="processors", value=os.cpu_count())
    yield load_fact()
    yield from version_facts(device)
    yield Fact(name="sdpa_backends", value=", ".join(sdpa_backends(device)))
    if device.type == "cpu":
        yield compiler_fact()
        yield pages_fact()
    yield preset_fact(device_title(device))
    yield calibration_fact(device)


def memory_facts(device: torch.device) -> Iterator[Fact]:
    """Memory of the device, and the last-level cache that a benchmark has to exceed."""
    total, free = total_memory_bytes(device), free_memory_bytes(device)
    yield Fact(name="memory_bytes", value=total)
    little = free is not None and free < total // 4
    yield Fact(
        name="free_bytes",
        value=free,
        state="note" if little else "ok",
        advice="less than a quarter is free: large models will not fit" if little else "",
    )
    if device.type == "cpu":
        yield Fact(name="cache_bytes", value=last_level_cache_bytes())
        yield Fact(name="vector_instructions", value=torch.backends.cpu.get_cpu_capability())


def load_fact() -> Fact:
    """How busy the machine is."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return Fact(name="load", value=None)
    busy = load > BUSY_LOAD * (os.cpu_count() or 1)
    advice = "other programs run: measurements will be too slow; see docs/measuring.md, 'busy machine'" if busy else ""
    return Fact(name="load", value=round(load, 2), state="note" if busy else "ok", advice=advice)


def version_facts(device: torch.device) -> Iterator[Fact]:
    """Python, packages, drivers."""
    yield Fact(name="python", value=sys.version.split()[0])
    yield Fact(name="system", value=platform.platform())
    for name in PACKAGES:
        try:
            yield Fact(name=name, value=metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Fact(name=name, value=None)
    if device.type == "cuda":
        yield Fact(name="cuda", value=torch.version.cuda)
        yield Fact(name="compute_capability", value=".".join(map(str, torch.cuda.get_device_capability(device))))


def sdpa_backends(device: torch.device) -> tuple[str, ...]:
    """What SDPA runs here, found by running it: one new token over grouped heads, and many tokens."""
    found = []
    for label, tokens, kv_heads, dtype in (
        ("decode", 1, 2, torch.bfloat16),
        ("prefill", 16, 8, torch.bfloat16),
        ("fp32", 16, 8, torch.float32),
    ):
        q, k = (torch.randn(1, heads, length, 64, device=device).to(dtype) for heads, length in ((8, tokens), (kv_heads, 16)))
        ran = backend_that_ran(q, k, k, impl="sdpa", rules=Rules(causal=True))
        found.append(f"{label}: {ran.removeprefix('sdpa: ')}")
    return tuple(found)


def compiler_fact() -> Fact:
    """Whether loops can be compiled for a decode step."""
    found = compiling.compiler()
    advice = "" if found else "no C++ compiler: decode steps have PyTorch's own calls alone, which are slower on some processors"
    return Fact(name="compiler", value=found, state="ok" if found else "note", advice=advice)


def pages_fact(file: Path = HUGE_PAGES) -> Fact:
    """Whether the system gives huge pages to who asks for them, as PyTorch does here (`THP_MEM_ALLOC_ENABLE`)."""
    if not file.is_file():
        return Fact(name="huge_pages", value=None)  # not a Linux that has them
    chosen = file.read_text().partition("[")[2].partition("]")[0]
    given = chosen == "always" or (chosen == "madvise" and os.environ.get("THP_MEM_ALLOC_ENABLE") == "1")
    advice = "" if given else "none: of two equal weights one may be read a tenth slower, by where it lies in memory"
    return Fact(name="huge_pages", value=chosen, state="ok" if given else "note", advice=advice)


def words(text: str) -> set[str]:
    """The words of a device's name, as presets and drivers have them in common."""
    return {
        word for word in text.lower().replace("-", " ").replace("(r)", "").split() if word not in ("nvidia", "amd", "apple", "graphics")
    }


def preset_for(title: str) -> str | None:
    """The datasheet preset whose name's words are all in the driver's name for the device; the most exact one."""
    seen = words(title)
    found = [name for name in device_names() if name != LOCAL and words(name) <= seen]
    return max(found, key=lambda name: len(words(name)), default=None)


def preset_fact(title: str) -> Fact:
    """Whether a datasheet preset describes this device."""
    name = preset_for(title)
    advice = "no datasheet preset for it; `tfm calibrate` measures one" if name is None else load_device(name).title
    return Fact(name="datasheet_preset", value=name, state="note" if name is None else "ok", advice=advice)


def calibration_fact(device: torch.device) -> Fact:
    """Whether this machine was calibrated, and whether that still holds."""
    try:
        found: Calibration | None = load_calibration()
    except TfmError as error:
        return Fact(name="calibration", value=str(calibration_path()), state="trouble", advice=str(error))
    if found is None:
        return Fact(name="calibration", value=None, state="note", advice="run `tfm calibrate` (two minutes) for expected times")
    changed = found.machine.differences(machine(device))
    if changed:
        return Fact(name="calibration", value=found.made, state="trouble", advice=f"stale: {'; '.join(changed)}. Run `tfm calibrate` again")
    return Fact(name="calibration", value=found.made, advice=str(calibration_path()))
