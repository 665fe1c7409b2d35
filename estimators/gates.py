"""Exact gates: the numbers of a model and a pass with the terms they are made of, and how they compare with a baseline.

Every value is a sum that another module makes over the ledger's rows; here it only gets its terms, row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal

import msgspec

from ..presets.baseline import QUANTITIES, Exact, Figure, Quantity, Setting, applies, entry_id
from ..presets.device import Device
from ..presets.dtypes import ACTIVATION_DTYPES, CACHE_DTYPES, get_dtype
from ..presets.errors import TfmError, UnreadableError, UsageError
from ..presets.spec import ModelSpec
from .counts import larger
from .flops import flops, row_flops
from .kvcache import sum_stored
from .latency import Roofline, roofline, row_bytes, row_times
from .ledger import ledger, total
from .rows import Row
from .sizes import bytes_of, stored_bytes, weight_bytes
from .work import Pass, Phase

Terms = dict[str, Figure]
Verdict = Literal["ok", "changed", "gone", "not run"]
CACHES: Mapping[str, tuple[str, ...]] = {"kv_bytes": ("self",), "cross_kv_bytes": ("cross",), "state_bytes": ("state", "tail")}

# Counts are compared exactly. The last bits of a sum of seconds are Python's: sum() of floats is compensated from 3.12 on and
# was not before, so a baseline written by one version is read by another with this much to spare, and no more.
LAST_BITS = 1e-12


# --- what there is --------------------------------------------------------------------------------------------------


def phase_of(quantity: str) -> Phase:
    """The phase whose rows a quantity is a sum over; parameters and caches are the same in each.

    >>> phase_of("prefill_floor_s"), phase_of("kv_bytes")
    ('prefill', 'decode')
    """
    if quantity.startswith("train"):
        return "train"
    return "decode" if quantity.startswith("decode") or quantity in CACHES else "prefill"


def work_of(quantity: str, setting: Setting) -> Pass:
    """The pass of an entry. Raises UnknownNameError for a format that there is not."""
    sizes = {name: getattr(setting, name) for name in ("batch", "context", "source", "images") if getattr(setting, name) is not None}
    formats = {"weight_dtype": None, "kv_dtype": CACHE_DTYPES, "activation_dtype": ACTIVATION_DTYPES}
    named = {name: get_dtype(value, known) for name, known in formats.items() if (value := getattr(setting, name)) is not None}
    return Pass(phase=phase_of(quantity), **{"context": 1, **sizes, **named})


def exact(spec: ModelSpec, model: str, quantity: Quantity, setting: Setting, device: Device | None = None) -> Exact:
    """One number with its terms. `spec`: the model with the setting's KV heads. Raises UsageError where it does not exist."""
    work = work_of(quantity, setting)
    if quantity.startswith("decode") and not spec.decodes:
        raise UsageError(f"{model} has no decoder and so no {quantity}")
    if quantity.endswith("_s"):
        value, terms = seconds(spec, work, quantity, device)
    elif quantity.endswith("_flops"):
        found = flops(spec, work)
        value, terms = found.total_flops, of_rows(found.rows, lambda row: row_flops(row, work) * row.repeat)
    else:
        value, terms = stored(ledger(spec, work), work, quantity)
    return Exact(id=entry_id(model, quantity, setting), model=model, quantity=quantity, setting=setting, value=value, terms=terms)


def stored(rows: tuple[Row, ...], work: Pass, quantity: str) -> tuple[Figure, Terms]:
    """Parameters, and bytes of weights and caches."""
    if quantity in CACHES:
        kinds = CACHES[quantity]
        kept = [row for row in rows if row.store is not None and row.store.of in kinds]
        return sum_stored(rows, work, kinds), of_rows(kept, lambda row: stored_bytes(row, work))
    if quantity == "weight_bytes":
        return weight_bytes(rows, work), weight_terms(rows, work)
    field = {"total_params": "params", "active_params": "active"}[quantity]
    return total(rows, field, per="copies"), of_rows(rows, lambda row: getattr(row, field) * row.copies)


def weight_terms(rows: Sequence[Row], work: Pass) -> Terms:
    """Bytes by row: what each adds to the blocks of the rows before it, so that they add up to the blocks of all."""
    marks = [bytes_of(count, work.weight_dtype) for count in accumulate((row.params * row.copies for row in rows), initial=0)]
    return sums((row.path, after - before) for row, (before, after) in zip(rows, pairwise(marks), strict=True))


def seconds(spec: ModelSpec, work: Pass, quantity: str, device: Device | None) -> tuple[Figure, Terms]:
    """A floor with its operators, or a bound with its two walls. Raises UsageError where the device's peak is not known."""
    if device is None:
        raise UsageError(f"{quantity} needs a device")
    line = roofline(spec, work, device)
    value = line.floor_s if quantity.endswith("_floor_s") else line.bound_s
    if value is None:
        raise UsageError(f"{device.name} has no published peak in {work.activation_dtype.name}, and so no {quantity} of a model")
    if quantity.endswith("_bound_s"):
        return value, {"arithmetic": line.compute_s or 0.0, "memory": line.memory_s}
    return value, of_rows(line.rows, lambda row: floor_of(row, line))


def floor_of(row: Row, line: Roofline) -> Figure:
    """Seconds of all runs of a row, as the floor adds them up."""
    if line.peak_flops_per_s is None:  # a decode step's floor is then that of its bytes
        return row_bytes(row, line.work) / line.device.memory_bytes_per_s  # type: ignore[no-any-return]
    return larger(*row_times(row, line.work, line.device, line.peak_flops_per_s))  # type: ignore[no-any-return]


def of_rows(rows: Iterable[Row], count: Callable[[Row], Figure]) -> Terms:
    """What each row adds, by its path; rows that add nothing are left out."""
    return sums((row.path, count(row)) for row in rows)


def sums(parts: Iterable[tuple[str, Figure]]) -> Terms:
    """Parts of one name together, those of nothing left out."""
    found: Terms = {}
    for name, count in parts:
        if count:
            found[name] = found.get(name, 0) + count
    return found


def entries_of(spec: ModelSpec, model: str, settings: Setting, phases: Sequence[Phase], device: Device | None = None) -> Iterator[Exact]:
    """Everything that can be gated of a model in one setting: without a device no times, without a decoder no decode.

    `settings` says all formats and sizes; every entry takes of it what it depends on.
    """
    for quantity in QUANTITIES:
        phase = quantity.partition("_")[0]
        if phase in ("prefill", "decode", "train") and (phase not in phases or (phase == "decode" and not spec.decodes)):
            continue
        if quantity.endswith("_s") and (device is None or (device.peak_for(str(settings.activation_dtype)) is None and phase != "decode")):
            continue
        chosen = Setting(**{name: getattr(settings, name) for name in applies(quantity)})
        entry = exact(spec, model, quantity, chosen, device)
        if entry.value or quantity not in CACHES:
            yield entry


# --- then and now ---------------------------------------------------------------------------------------------------


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A term that is not what it was; None where it is not there."""

    term: str
    baseline: Figure | None
    now: Figure | None

    @property
    def by(self) -> Figure:
        """How far."""
        return (self.now or 0) - (self.baseline or 0)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """An exact entry then and now.

    `verdict`: "ok"; "changed"; "gone", where the model, the device or the combination is no longer known; "not run", where
    something could not be read. `moved`: the terms that did, the largest first. `why`: what there is no number for, or what
    the terms do not tell.
    """

    id: str
    quantity: Quantity
    baseline: Figure
    now: Figure | None
    verdict: Verdict
    moved: tuple[Moved, ...] = ()
    why: str = ""


def recompute(entry: Exact, model_of: Callable[[str, int | None], ModelSpec], device_of: Callable[[str], Device]) -> Exact:
    """The entry as it is now. `model_of(name, kv_heads)` and `device_of(name)` read; whatever they raise is passed on."""
    setting = entry.setting
    device = None if setting.hardware is None else device_of(setting.hardware)
    return exact(model_of(entry.model, setting.gqa), entry.model, entry.quantity, setting, device)


def compare(entry: Exact, now: Exact | TfmError) -> Compared:
    """An entry of a baseline beside what is computed now, or beside why it cannot be."""
    if isinstance(now, TfmError):
        verdict: Verdict = "gone" if isinstance(now, UsageError) else "not run"
        return Compared(id=entry.id, quantity=entry.quantity, baseline=entry.value, now=None, verdict=verdict, why=str(now))
    rounded = entry.quantity.endswith("_s")
    moved = tuple(moves(entry.terms, now.terms, rounded=rounded))
    same = equal(entry.value, now.value, rounded=rounded)
    why = "" if same or moved else "no term moved: the number in the baseline is not what its terms make (edited?)"
    if moved and same:
        why = "the total is the same"
    return Compared(
        id=entry.id,
        quantity=entry.quantity,
        baseline=entry.value,
        now=now.value,
        verdict="ok" if same and not moved else "changed",
        moved=moved,
        why=why,
    )


def moves(then: Terms, now: Terms, *, rounded: bool) -> list[Moved]:
    """The terms that moved, by how far."""
    names = dict.fromkeys((*then, *now))
    pairs = [Moved(term=name, baseline=then.get(name), now=now.get(name)) for name in names]
    return sorted((pair for pair in pairs if not equal(pair.baseline, pair.now, rounded=rounded)), key=lambda pair: -abs(pair.by))


def equal(then: Figure | None, now: Figure | None, *, rounded: bool) -> bool:
    """Counts to the last digit, seconds (`rounded`) but for the last bits."""
    if then is None or now is None or not rounded:
        return then == now
    return math.isclose(then, now, rel_tol=LAST_BITS, abs_tol=0.0)


def check_entries(
    entries: Iterable[Exact], model_of: Callable[[str, int | None], ModelSpec], device_of: Callable[[str], Device]
) -> list[Compared]:
    """Every entry computed again and compared; one that cannot be computed stops no other."""
    return [compare(entry, attempt(entry, model_of, device_of)) for entry in entries]


def attempt(entry: Exact, model_of: Callable[[str, int | None], ModelSpec], device_of: Callable[[str], Device]) -> Exact | TfmError:
    """The entry as it is now, or why there is none."""
    try:
        return recompute(entry, model_of, device_of)
    except TfmError as error:
        return error


def updated(entries: Iterable[Exact], model_of: Callable[[str, int | None], ModelSpec], device_of: Callable[[str], Device]) -> list[Exact]:
    """The same entries with the numbers of now. Raises UnreadableError for one that has none any more."""
    found = []
    for entry in entries:
        now = attempt(entry, model_of, device_of)
        if isinstance(now, TfmError):
            raise UnreadableError(f"{entry.id}: {now}; remove its line, or say with --model what the file is to hold") from now
        found.append(now)
    return found
