"""What a device IS, as its vendor publishes it: capacity, bandwidth and dense peak rates, each file with its sources.

One YAML a device, `devices/NAME.yaml`, where quantities stand as the vendor writes them ("2.039 TB/s", "312 TFLOP/s",
"80 GiB"). They become base units here, once. Nothing measured ever enters such a file.
"""

from __future__ import annotations

import datetime
import math
import os
import re
from pathlib import Path
from typing import Literal, TypeVar, get_args

import msgspec

from .dtypes import ACTIVATION_DTYPES, get_dtype
from .errors import UnknownNameError, UnreadableError, UsageError
from .plain_yaml import parse_yaml, read_yaml

FOLDER = Path(__file__).parent / "devices"
ALIASES_FILE = "_aliases.yaml"
LOCAL = "local"  # the measured device, in a file of its own (calibration.py)

Kind = Literal["gpu", "soc", "cpu"]
Format = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4"]

_CHOICES = {"`$.kind`": get_args(Kind), "`key` in `$.peak`": get_args(Format)}

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_QUANTITY = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,6}))? ?([A-Za-z/]+)")
_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTE_RATES = {"MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12}
_FLOP_RATES = {"GFLOP/s": 10**9, "TFLOP/s": 10**12, "PFLOP/s": 10**15, "TOP/s": 10**12, "POP/s": 10**15}
_WATTS = {"W": 1}


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device in base units; raises UsageError where a field makes no sense.

    Attributes:
        name: as written on the command line, SKU included (`a100-80gb-sxm`).
        title: as the vendor calls it.
        vendor: who makes it.
        kind: gpu (memory of its own), soc (memory shared with the CPU) or cpu.
        form: SXM, PCIe, OAM ...; None where there is only one.
        capacity_bytes: memory of one device in the unit that the vendor means (the "80 GB" of a GPU are 80 GiB, made
            of power-of-two chips). What a driver leaves to programs is up to some percent less; `notes` says how much.
        memory_bytes_per_s: peak bandwidth of that memory, decimal units, reads and writes together.
        peak_flops_per_s: dense peak rate by number format, never with sparsity. bf16, fp16, fp8 and fp4 are matrix
            (tensor core) rates that accumulate in fp32, int8 in int32; tf32 is the matrix rate for fp32 inputs rounded
            to tf32; fp32 and fp64 are the rates of the ordinary (non-tensor, vector) units. None, or no entry: the
            vendor publishes no such rate or the hardware has none.
        link_bytes_per_s: to other devices by the fastest link that the vendor publishes (NVLink, Infinity Fabric, else
            PCIe), all links of one device and **both directions together**, as NVIDIA and AMD quote it: one direction
            carries half. None where it is not published.
        cache_bytes: last-level cache (L2, or AMD's Infinity Cache). None where it is not published.
        tdp_w: the highest power the vendor lets the board be set to. None where it is not published.
        source: the documents the numbers are from, at least one.
        retrieved: the day they were looked up, as in 2026-11-30.
        notes: what was chosen or converted, and what the numbers do not include.
    """

    name: str
    title: str
    vendor: str
    kind: Kind
    form: str | None
    capacity_bytes: int
    memory_bytes_per_s: float
    peak_flops_per_s: dict[str, float | None]
    link_bytes_per_s: float | None
    cache_bytes: int | None
    tdp_w: float | None
    source: tuple[str, ...]
    retrieved: str
    notes: str = ""

    def __post_init__(self) -> None:
        for field in ("name", "title", "vendor"):
            if not getattr(self, field).strip():
                raise UsageError(f"{field}: is empty")
        if not self.source or not all(line.strip() for line in self.source):
            raise UsageError("source: is empty, a number needs a source")
        if not _is_date(self.retrieved):
            raise UsageError(f"retrieved: is {_brief(self.retrieved)}, expected a day such as 2026-11-30")
        for field in ("capacity_bytes", "memory_bytes_per_s"):
            _require_positive(getattr(self, field), field)
        for field in ("link_bytes_per_s", "cache_bytes", "tdp_w"):
            if getattr(self, field) is not None:
                _require_positive(getattr(self, field), field)
        for dtype, rate in self.peak_flops_per_s.items():
            if rate is not None:
                _require_positive(rate, f"peak_flops_per_s.{dtype}")

    def peak_for(self, dtype_name: str) -> float | None:
        """FLOP/s at which this device multiplies matrices whose activations are `dtype_name`; None if not published.

        bf16 and fp16: dense matrix rate with fp32 accumulation (GeForce boards run twice as fast when they accumulate
        in fp16, which PyTorch does not do by default). fp8: likewise. int8: matrix rate with int32 accumulation.
        fp32: the rate of the ordinary fp32 units, **not** tf32, since PyTorch keeps full fp32 unless told otherwise;
        the tf32 rate is `peak_flops_per_s["tf32"]`. Raises UnknownNameError for what is no activation dtype.
        """
        return self.peak_flops_per_s.get(get_dtype(dtype_name, ACTIVATION_DTYPES).name)


class _DeviceFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a device file. All must be there: what is not known is written as null."""

    name: str
    title: str
    vendor: str
    kind: Kind
    form: str | None
    capacity: str
    memory_bandwidth: str
    peak: dict[Format, str | None]
    link_bandwidth: str | None
    cache: str | None
    tdp: str | None
    source: list[str]
    retrieved: str
    notes: str


def load_device(name: str, folder: Path | None = None) -> Device:
    """The device called `name`, or by an alias of it, from `folder` (default: the presets that come with tfm, and `local`,
    what `tfm calibrate` measured here).

    Opens one file (the aliases too where no file has that name). Raises UnknownNameError with the names that look
    alike, UnreadableError for a bad file.
    """
    if name == LOCAL and folder is None:
        from .calibration import local_device

        return local_device()
    root = FOLDER if folder is None else folder
    path = root / f"{name}.yaml"
    # The pattern keeps a name from leaving the folder; lexists, so that a broken link is reported and not "unknown".
    if _NAME.fullmatch(name) and os.path.lexists(path):
        return _load_file(path)
    aliases = device_aliases(root)
    if name in aliases:
        return _load_file(root / f"{aliases[name]}.yaml")
    raise _unknown(name, device_names(root), aliases)


def device_names(folder: Path | None = None) -> tuple[str, ...]:
    """The names of all device files, and `local` once this machine is calibrated; opens none of them. No folder, no names."""
    root = FOLDER if folder is None else folder
    try:
        entries = [entry.name for entry in root.iterdir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UnreadableError(f"{root}: cannot be listed ({error.strerror or error})") from error
    stems = (entry.removesuffix(".yaml") for entry in entries if entry.endswith(".yaml"))
    return tuple(sorted([*(stem for stem in stems if _NAME.fullmatch(stem)), *(_local() if folder is None else ())]))


def _local() -> tuple[str, ...]:
    """`local`, where this machine has been calibrated."""
    from .calibration import calibration_path

    return (LOCAL,) if calibration_path().is_file() else ()


def device_aliases(folder: Path | None = None) -> dict[str, str]:
    """Alias to device name. Only names that mean one board are aliases: `a100` could be any of four, and is none."""
    path = (FOLDER if folder is None else folder) / ALIASES_FILE
    if not os.path.lexists(path):
        return {}
    aliases = _convert(read_yaml(path), dict[str, str], str(path))
    for alias, target in aliases.items():
        if not _NAME.fullmatch(target):
            raise UnreadableError(f"{path}: {_brief(alias)}: {_brief(target)} is not a device name")
    return aliases


def device_from_yaml(text: str, origin: str) -> Device:
    """The device that the YAML `text` describes; `origin` names it in messages. Raises UnreadableError."""
    return _device_from_data(parse_yaml(text, origin), origin)


def _load_file(path: Path) -> Device:
    device = _device_from_data(read_yaml(path), str(path))
    if device.name != path.stem:
        raise UnreadableError(f"{path}: name: is {_brief(device.name)}, expected {path.stem!r} as the file is called")
    return device


def _device_from_data(data: object, origin: str) -> Device:
    if not isinstance(data, dict):
        found = "nothing" if data is None else type(data).__name__
        raise UnreadableError(f"{origin}: holds {found}, expected a mapping with the fields of a device")
    file = _convert(data, _DeviceFile, origin)
    try:
        return _in_base_units(file)
    except UsageError as error:
        raise UnreadableError(f"{origin}: {error}") from error


def _in_base_units(file: _DeviceFile) -> Device:
    """The only place where units are converted."""
    peaks = {dtype: None if text is None else _quantity(text, _FLOP_RATES, f"peak.{dtype}") for dtype, text in file.peak.items()}
    return Device(
        name=file.name,
        title=file.title,
        vendor=file.vendor,
        kind=file.kind,
        form=file.form,
        capacity_bytes=_whole(file.capacity, _BYTES, "capacity"),
        memory_bytes_per_s=_quantity(file.memory_bandwidth, _BYTE_RATES, "memory_bandwidth"),
        peak_flops_per_s={str(dtype): rate for dtype, rate in peaks.items()},
        link_bytes_per_s=None if file.link_bandwidth is None else _quantity(file.link_bandwidth, _BYTE_RATES, "link_bandwidth"),
        cache_bytes=None if file.cache is None else _whole(file.cache, _BYTES, "cache"),
        tdp_w=None if file.tdp is None else _quantity(file.tdp, _WATTS, "tdp"),
        source=tuple(file.source),
        retrieved=file.retrieved,
        notes=file.notes,
    )


def _quantity(text: str, units: dict[str, int], field: str) -> float:
    """The value in base units (2.039 TB/s is 2.039e12), correctly rounded since the division is of integers."""
    numerator, denominator = _ratio(text, units, field)
    return numerator / denominator


def _whole(text: str, units: dict[str, int], field: str) -> int:
    numerator, denominator = _ratio(text, units, field)
    if numerator % denominator:
        raise UsageError(f"{field}: is {text!r}, not a whole number of bytes")
    return numerator // denominator


def _ratio(text: str, units: dict[str, int], field: str) -> tuple[int, int]:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[3] not in units:
        raise UsageError(f"{field}: is {_brief(text)}, expected a number and a unit, one of {', '.join(units)}")
    whole, decimals, unit = match[1], match[2] or "", match[3]
    numerator = int(whole + decimals) * units[unit]
    if numerator == 0:
        raise UsageError(f"{field}: is {text!r}, must be above 0")
    return numerator, int(10 ** len(decimals))


_T = TypeVar("_T")


def _convert(data: object, type_: type[_T], origin: str) -> _T:
    try:
        return msgspec.convert(data, type_)
    except msgspec.ValidationError as error:
        problem = " ".join(str(error).split())  # it may quote a key of any length, with line breaks
        allowed = next((f", allowed: {', '.join(values)}" for field, values in _CHOICES.items() if problem.endswith(field)), "")
        raise UnreadableError(f"{origin}: {problem[:200]}{allowed}") from error


def _unknown(name: str, names: tuple[str, ...], aliases: dict[str, str]) -> UnknownNameError:
    """For a name that several boards share the beginnings help ("a100"), for any other the look-alikes."""
    begin = [other for other in names if len(name) > 1 and other.startswith(name.lower())]
    hint = f"Names that begin so: {', '.join(begin)}." if begin else "`tfm hardware` lists what is known."
    return UnknownNameError("device", name if len(name) <= 80 else name[:77] + "...", begin or (*names, *aliases), hint)


def _require_positive(value: float, field: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{field}: is {value}, must be finite and above 0")


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _brief(text: str) -> str:
    return repr(text) if len(text) <= 60 else repr(text[:57] + "...")
