"""What `tfm calibrate` measured on this machine, stored as the hardware `local`: readable without torch.

One JSON file in the user's data folder. A datasheet says what a device can do, this file what PyTorch reached on it:
seconds of matrix products, of attention over a cache and of the operators around them, each at several sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from .device import LOCAL, Device
from .errors import UnreadableError, UsageError
from .files import whole_file

SCHEMA = "tfm-calibration/4"
MAX_BYTES = 4 * 2**20

Phase = Literal["decode", "prefill"]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e24)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1e3)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**60)]


class Stream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One plain operator over `size_bytes`, reads and writes together."""

    probe: str
    dtype: str
    size_bytes: Size
    bytes_per_s: Positive


class Product(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of [m, k] @ [k, n], the matrix read from memory: the median and how far the samples lie apart.

    `joins`: the matrix lay in an order of its own, in which a model has those that take the same x as one.
    """

    dtype: str
    m: Size
    k: Size
    n: Size
    seconds: Positive
    spread: Share
    joins: bool = False


class Attended(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of `new` tokens of `batch` sequences attending `context` keys each: heads N, kv_heads K, width H."""

    dtype: str
    batch: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    new: Size
    context: Size
    seconds: Positive
    spread: Share


class Elementwise(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds an element written by one kind of operator over many tokens: norm, add, mul or an activation by its name."""

    name: str
    dtype: str
    seconds_per_element: Positive


class Overhead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds that one operator of the ledger costs beside its bytes and FLOPs, from a model with next to none of them.

    `norm`: what kind of model, by its norms. An RMSNorm and rotary positions are many operators of PyTorch, a LayerNorm is one.
    `between_bytes`: read at each product, which drives Python's own data out of a processor's caches.
    """

    dtype: str
    seconds_per_row: Positive
    between_bytes: Size
    norm: Literal["rms", "layer"] = "rms"


class Check(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A small whole model: what the figures above add up to for it, and what the clock said."""

    phase: Phase
    dtype: str
    model: str
    batch: Size
    context: Size
    predicted_s: Positive
    measured_s: Positive


class Yard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the beats, the plain calls that every measurement runs beside, reached: a run compares its own with the calibration's.

    One streams memory, one computes with vector instructions in the cores' own caches, one multiplies matrices (None where it did
    not run).
    """

    dtype: str
    stream_bytes_per_s: Positive
    vector_elements_per_s: Positive
    matrix_flops_per_s: Positive | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the figures hold for: another device, thread count, torch or driver makes them stale."""

    device: str
    backend: str
    threads: Size
    torch: str
    driver: str | None

    def differences(self, now: Machine) -> list[str]:
        """In which fields another machine is not this one, in words: `threads was 1, is 2`."""
        pairs = {name: (getattr(self, name), getattr(now, name)) for name in self.__struct_fields__}
        return [f"{name} was {old or 'none'}, is {new or 'none'}" for name, (old, new) in pairs.items() if old != new]


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measured device.

    Attributes:
        device: as every estimator takes it: measured bandwidth and matmul rates in place of a datasheet's.
        machine: what it was measured on. made: when, in UTC.
        launch_s: seconds to dispatch one operator on one element.
    """

    schema: str
    made: str
    version: str
    machine: Machine
    device: Device
    launch_s: Positive
    streams: tuple[Stream, ...]
    products: tuple[Product, ...]
    attended: tuple[Attended, ...]
    elementwise: tuple[Elementwise, ...]
    overheads: tuple[Overhead, ...]
    checks: tuple[Check, ...]
    yards: tuple[Yard, ...] = ()

    @property
    def day(self) -> str:
        """The day it was made, as in 2026-11-30."""
        return self.made[:10]


def calibration_path() -> Path:
    """Where the file lives, by the platform's convention."""
    import platformdirs

    return Path(platformdirs.user_data_dir("tfm")) / f"{LOCAL}.json"


def load_calibration(path: Path | None = None) -> Calibration | None:
    """What was measured here, None if nothing was; raises UnreadableError for a file that is not such a one."""
    path = calibration_path() if path is None else path
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read ({error.strerror or error}); `tfm calibrate` writes it") from error
    if len(raw) > MAX_BYTES:
        raise UnreadableError(f"{path}: larger than {MAX_BYTES} bytes, no calibration; delete it or run `tfm calibrate` again")
    try:
        found = msgspec.json.decode(raw, type=Calibration)
    except (msgspec.MsgspecError, UsageError) as error:
        raise UnreadableError(f"{path}: {' '.join(str(error).split())[:200]}; `tfm calibrate` writes it anew") from error
    if found.schema != SCHEMA:
        raise UnreadableError(f"{path}: schema {found.schema[:40]!r}, expected {SCHEMA!r}; `tfm calibrate` writes it anew")
    return found


def save_calibration(found: Calibration, path: Path | None = None) -> Path:
    """Write the file, whole or not at all, and give its path. Raises OSError."""
    path = calibration_path() if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return path


def local_device() -> Device:
    """The measured device; raises UnreadableError where nothing was measured yet."""
    found = load_calibration()
    if found is None:
        raise UnreadableError("hardware 'local': this machine was not calibrated yet; run `tfm calibrate` (two minutes, needs torch)")
    return found.device
