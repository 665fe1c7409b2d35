"""What a gate in CI compares with: the types of a baseline file, reading and writing it.

The file is JSON that a person can read in a diff and may edit: sorted, one entry a line, no checksum. An edited number is a
finding of the next check, never an error of the file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from .calibration import Machine
from .errors import UnreadableError
from .files import whole_file

SCHEMA = "tfm-baseline/1"
MAX_BYTES = 32 * 2**20

MOST = 1e300  # a number that floats can still be computed with

Size = Annotated[int, msgspec.Meta(ge=1, le=2**60)]
Efficiency = Annotated[float, msgspec.Meta(gt=0, le=MOST)]
Figure = int | float  # counts are ints and stay exact; seconds are floats

# --- exact entries --------------------------------------------------------------------------------------------------

Quantity = Literal[
    "total_params", "active_params", "weight_bytes", "prefill_flops", "decode_flops", "train_flops", "kv_bytes", "cross_kv_bytes",
    "state_bytes", "prefill_floor_s", "prefill_bound_s", "decode_floor_s", "decode_bound_s",
]  # fmt: skip
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)

_RUN = ("batch", "context", "source", "images")
_FORMATS = ("weight_dtype", "kv_dtype", "activation_dtype")
OPTIONAL = ("source", "images", "gqa")  # a model's own where an entry does not say


def applies(quantity: str) -> tuple[str, ...]:
    """The settings that a quantity depends on: an entry holds these and no others.

    >>> applies("weight_bytes")
    ('gqa', 'weight_dtype')
    """
    if quantity in ("total_params", "active_params"):
        return ("gqa",)
    if quantity == "weight_bytes":
        return ("gqa", "weight_dtype")
    if quantity.endswith("_flops"):
        return ("gqa", *_RUN)
    if quantity.endswith("_bytes"):
        return ("gqa", *_RUN) if quantity == "state_bytes" else ("gqa", *_RUN, "kv_dtype")
    return ("gqa", *_RUN, *_FORMATS, "hardware")


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a model is run, as far as the quantity depends on it; the phase stands in the quantity's name."""

    gqa: Size | None = None
    batch: Size | None = None
    context: Size | None = None
    source: Size | None = None
    images: Annotated[int, msgspec.Meta(ge=0, le=2**60)] | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    activation_dtype: str | None = None
    hardware: str | None = None

    @property
    def given(self) -> dict[str, int | str]:
        """What is said, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}

    def __str__(self) -> str:
        words = [f"gqa {self.gqa}"] if self.gqa else []
        words += [f"{self.batch} x {self.context}"] if self.batch else []
        words += [f"{name} {value}" for name, value in self.given.items() if name in ("source", "images")]
        formats = [(name.removesuffix("_dtype"), value) for name, value in self.given.items() if name in _FORMATS]
        if len(formats) == 1 or len({value for _, value in formats}) == 1:
            words.append(str(formats[0][1]))
        else:
            words += [f"{name} {value}" for name, value in formats]
        words += [f"on {self.hardware}"] if self.hardware else []
        return ", ".join(words)


class Exact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number that follows from a description alone.

    Attributes:
        id: what it is, in words; follows from model, quantity and setting.
        model: as one types it: a preset, a path, a Hub id.
        value: in base units; the unit stands in the quantity's name.
        terms: by row of the ledger; they add up to the value (of a bound: the larger of the two is the value).
    """

    id: str
    model: str
    quantity: Quantity
    setting: Setting
    value: Figure
    terms: dict[str, Figure]

    def __post_init__(self) -> None:
        for name, value in (("value", self.value), *self.terms.items()):
            if not 0 <= value <= MOST:
                raise ValueError(f"{name[:80]} is {str(value)[:40]}, expected a finite number that is not negative")
        allowed, given = applies(self.quantity), self.setting.given
        wrong = [name for name in given if name not in allowed] or [name for name in allowed if name not in given and name not in OPTIONAL]
        if wrong:
            raise ValueError(f"setting of {self.quantity} is {', '.join(given) or 'empty'}; it takes {', '.join(allowed)}, see {wrong[0]}")
        if self.id != entry_id(self.model, self.quantity, self.setting):
            raise ValueError(f"id is {self.id[:120]!r}, by model, quantity and setting it is {self.named[:120]!r}")

    @property
    def named(self) -> str:
        """What its id has to be."""
        return entry_id(self.model, self.quantity, self.setting)


def entry_id(model: str, quantity: str, setting: Setting) -> str:
    """Name of an entry, as in `llama-7b kv_bytes (1 x 4096, bf16)`."""
    said = str(setting)
    return f"{model} {quantity} ({said})" if said else f"{model} {quantity}"


# --- measured entries -----------------------------------------------------------------------------------------------


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a measured gate runs: a decode step of the first layers of a model, or the attention of one of its layers over its cache.

    `layers` is 1 for attention; `batch` sequences of `context` tokens each; `dtype` of weights, cache and activations.
    """

    what: Literal["decode", "attention"]
    model: str
    layers: Size
    dtype: str
    batch: Size
    context: Size

    @property
    def id(self) -> str:
        """Name of the line, as in `decode llama-7b, 2 layers, bf16, 1 x 512`."""
        layers = "" if self.what == "attention" else f", {self.layers} layers" if self.layers > 1 else ", 1 layer"
        return f"{self.what} {self.model}{layers}, {self.dtype}, {self.batch} x {self.context}"


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured gate and what it reached.

    `efficiencies`: one number a block of the run, the median over the block's interleaved pairs of (floor at the bandwidth that the
    probe of the pair reached) / (seconds of the step): 1 is the roofline. Blocks are what the resampling test resamples.
    """

    gate: Gate
    efficiencies: Annotated[tuple[Efficiency, ...], msgspec.Meta(min_length=1)]


class Measurements(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measured half of a baseline: it holds for one machine as it was."""

    machine: Machine
    entries: tuple[Measured, ...]


# --- the file -------------------------------------------------------------------------------------------------------


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A baseline file: `version` is that of the tfm that wrote it."""

    schema: str
    version: str
    exact: tuple[Exact, ...] = ()
    measured: Measurements | None = None

    @property
    def gates(self) -> tuple[Gate, ...]:
        """What was measured."""
        return () if self.measured is None else tuple(entry.gate for entry in self.measured.entries)


class _Header(msgspec.Struct, frozen=True):
    """What says of a file whether it is a baseline at all."""

    schema: str = ""


def load_baseline(path: Path) -> Baseline:
    """The baseline in a file. Raises UnreadableError, in one line, for what is none, is broken or is from a newer tfm."""
    raw = _read(path)
    if not raw.strip():
        raise UnreadableError(f"{path}: is empty; `tfm check --update {path} --model ...` writes a baseline")
    try:
        schema = msgspec.json.decode(raw, type=_Header).schema
        if schema != SCHEMA:
            raise _other_schema(path, schema)
        found = msgspec.json.decode(raw, type=Baseline)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, OverflowError) as error:
        hint = "; `tfm check --update` with --model writes it anew" if looks_like_baseline(raw) else "; no baseline of tfm"
        raise UnreadableError(f"{path}: {_brief(error)}{hint}") from error
    _require_unique(path, [entry.id for entry in found.exact])
    _require_unique(path, [gate.id for gate in found.gates])
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UnreadableError(f"{path}: no such file; `tfm check --update {path} --model ...` writes a baseline") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UnreadableError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if len(raw) > MAX_BYTES:
        raise UnreadableError(f"{path}: larger than {MAX_BYTES} bytes, no baseline of tfm")
    return raw


def _other_schema(path: Path, schema: str) -> UnreadableError:
    newer = re.fullmatch(r"tfm-baseline/([0-9]{1,9})", schema)
    if newer and int(newer[1]) > int(SCHEMA.rpartition("/")[2]):
        return UnreadableError(f"{path}: schema {schema!r} is newer than {SCHEMA!r}, which this tfm reads; upgrade tfm")
    return UnreadableError(f"{path}: schema is {schema[:40]!r}, expected {SCHEMA!r}: no baseline of tfm")


def _require_unique(path: Path, ids: list[str]) -> None:
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise UnreadableError(f"{path}: {name[:200]!r} stands there twice; remove one of the lines")
        seen.add(name)


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def looks_like_baseline(raw: bytes) -> bool:
    """Whether a file was a baseline once: what `--update` may write over even where it can no longer be read."""
    return not raw.strip() or re.search(rb'"schema"\s*:\s*"tfm-baseline/', raw[:4096]) is not None


def may_replace(path: Path) -> None:
    """Refuse to write over a file that is something else. Raises UnreadableError."""
    if os.path.lexists(path) and path.exists() and not looks_like_baseline(_read(path)):
        raise UnreadableError(f"{path}: is there and is no baseline of tfm; it is not overwritten, delete it first or give another name")


def save_baseline(found: Baseline, path: Path) -> None:
    """Write the file, whole or not at all; through a link, with the mode that it had. Raises UnreadableError."""
    path = Path(os.path.realpath(path))
    try:
        raw = "".join(baseline_lines(found)).encode()
    except UnicodeEncodeError as error:  # the name of a model is a path that is no text
        raise UnreadableError(f"{path}: {_brief(error)}; a model's name has to be text to stand in a baseline") from error
    _require_unique(path, [entry.id for entry in found.exact])
    try:
        with whole_file(path) as file:
            file.write(raw)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be written ({error.strerror or error})") from error


def baseline_lines(found: Baseline) -> Iterator[str]:
    """The lines of a file: sorted, one entry a line."""
    yield f'{{\n"schema": {_json(found.schema)},\n"version": {_json(found.version)},\n"exact": [\n'
    yield from _entries(sorted((entry.id, _json(entry)) for entry in found.exact))
    yield "]"
    if found.measured is not None:
        yield f',\n"measured": {{\n"machine": {_json(found.measured.machine)},\n"entries": [\n'
        yield from _entries(sorted((entry.gate.id, _json(entry)) for entry in found.measured.entries))
        yield "]\n}"
    yield "\n}\n"


def _entries(entries: Sequence[tuple[str, str]]) -> Iterator[str]:
    for index, (_, line) in enumerate(entries, 1):
        yield line + (",\n" if index < len(entries) else "\n")


def _json(value: object) -> str:
    """One line of JSON with blanks after the marks; Python's own writer knows integers of any size."""
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False, allow_nan=False)


def entry_lines(path: Path) -> dict[str, int]:
    """The line, from 1, at which each exact entry stands, so that an annotation can point at it; empty where that fails."""
    found: dict[str, int] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return found
    for number, line in enumerate(lines, 1):
        if line.startswith('{"id": '):
            try:
                found[json.JSONDecoder().raw_decode(line, 7)[0]] = number
            except (ValueError, TypeError, RecursionError):  # a person wrote it another way
                continue
    return found
