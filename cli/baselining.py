"""What `tfm check --update` writes: the entries that were asked for, or those of the file once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ..estimators.gates import entries_of, updated
from ..estimators.work import Phase
from ..presets.baseline import (
    SCHEMA,
    Baseline,
    Exact,
    Gate,
    Measured,
    Measurements,
    load_baseline,
    looks_like_baseline,
    may_replace,
    save_baseline,
)
from ..presets.baseline import Setting as Point
from ..presets.errors import UnknownNameError, UnreadableError, UsageError
from .checking import Known, Line, Tell, median, need_gates, share_of

ALL = "all"
PHASES: tuple[Phase, ...] = ("prefill", "decode", "train")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, as typed; None is what was not said.

    `dtype` is all three formats at once, of measured gates too. `measure`: kinds of measured gates. `layers`, `threshold`: theirs.
    """

    model: str | None = None
    phase: str | None = None
    batch: str | None = None
    ctx: str | None = None
    src: str | None = None
    images: int | None = None
    dtype: str | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    activation_dtype: str | None = None
    gqa: str | None = None
    hardware: str | None = None
    measure: str | None = None
    layers: int | None = None
    threshold: str | None = None
    threads: int | None = None
    presets: str | None = None

    @property
    def said(self) -> dict[str, object]:
        """What was said, by the name of the option."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


# --- exact ----------------------------------------------------------------------------------------------------------


def model_list(wanted: Wanted, folders: Sequence[Path]) -> tuple[str, ...]:
    """The models by name; `all` is every preset."""
    from ..presets.loader import model_names
    from .units import parse_list

    if wanted.model is None:
        return ()
    if wanted.model == ALL:
        return model_names(folders)
    return tuple(dict.fromkeys(parse_list(wanted.model, str.strip, name="--model")))


def phase_list(wanted: Wanted) -> tuple[Phase, ...]:
    """The phases; prefill and decode if not said. Raises UnknownNameError."""
    from .units import parse_list

    chosen = parse_list("prefill,decode" if wanted.phase is None else wanted.phase, str.strip, name="--phase")
    for name in chosen:
        if name not in PHASES:
            raise UnknownNameError("phase", name, PHASES, f"Allowed: {', '.join(PHASES)}.")
    return tuple(phase for phase in PHASES if phase in chosen)


def exact_entries(wanted: Wanted, folders: Sequence[Path]) -> list[Exact]:
    """Every number of every model in every combination. Raises TfmError."""
    found: dict[str, Exact] = {}
    phases = phase_list(wanted)
    for name in model_list(wanted, folders):
        for entry in model_entries(wanted, name, phases):
            found[entry.id] = entry
    return list(found.values())


def model_entries(wanted: Wanted, name: str, phases: tuple[Phase, ...]) -> Iterator[Exact]:
    """Every number of one model."""
    from .request import Options, cases

    every = "bf16" if wanted.dtype is None else wanted.dtype
    weights, caches, computed = (every if own is None else own for own in (wanted.weight_dtype, wanted.kv_dtype, wanted.activation_dtype))
    options = Options(
        model=name, batch="1" if wanted.batch is None else wanted.batch, ctx=wanted.ctx, src=wanted.src, images=wanted.images,
        weight_dtype=weights, kv_dtype=caches, activation_dtype=computed,
        gqa=wanted.gqa, hardware=wanted.hardware, presets=wanted.presets,
    )  # fmt: skip
    for case in cases(options):
        if phases == ("decode",) and not case.spec.decodes and wanted.model != ALL:
            raise UsageError(f"{name} has no decoder and so no decode phase; leave --phase out")
        kv_heads = case.inputs.get("gqa")
        reads = {stack.tokens for stack in case.spec.stacks}  # a setting that changes nothing of this model is not written
        axes = {name: values for name, values in case.axes.items() if name != "source" or name in reads}
        for sizes in product(*axes.values()):
            work = case.work
            point = Point(
                gqa=kv_heads if isinstance(kv_heads, int) else None,
                **dict(zip(axes, sizes, strict=True)),
                images=wanted.images if "image" in reads else None,
                weight_dtype=work.weight_dtype.name,
                kv_dtype=work.kv_dtype.name,
                activation_dtype=work.activation_dtype.name,
                hardware=case.device.name if case.device else None,
            )
            yield from entries_of(case.spec, name, point, phases, case.device)


# --- measured -------------------------------------------------------------------------------------------------------


def gates_of(wanted: Wanted, kinds: Sequence[str]) -> tuple[Gate, ...]:
    """The measured gates that were asked for. Raises UsageError, MissingExtraError."""
    need_gates()
    from ..kernels.gates import default_gates

    models = None if wanted.model in (None, ALL) else list(model_list(wanted, ()))
    changes: dict[str, object] = {}
    if wanted.dtype is not None:
        from ..kernels.benchmarks.setting import DTYPES

        if wanted.dtype not in DTYPES:
            raise UnknownNameError("dtype of measured gates", wanted.dtype, DTYPES, f"Allowed: one of {', '.join(DTYPES)}.")
        changes["dtype"] = wanted.dtype
    deeper = {} if wanted.layers is None else {"layers": wanted.layers}
    found = default_gates(kinds, models)
    return tuple(replace(gate, **changes, **(deeper if gate.what == "decode" else {})) for gate in found)


def kinds_of(text: str) -> tuple[str, ...]:
    """decode, attention, or both. Raises UsageError."""
    from .units import parse_list

    return parse_list(text, str.strip, name="--measure")


def measurements(wanted: Wanted, old: Baseline | None, parts: Sequence[str], tell: Tell) -> Measurements | None:
    """The measured half: what was asked for; without --model what the file has, measured again; else as it stands there."""
    kept = None if old is None else old.measured
    if wanted.measure is not None:
        gates, threads = gates_of(wanted, kinds_of(wanted.measure)), wanted.threads
    elif wanted.model is None and kept is not None and "measured" in parts:
        need_gates()
        gates, threads = tuple(entry.gate for entry in kept.entries), wanted.threads or kept.machine.threads
    else:
        return kept
    from ..kernels.gates import measure_gates

    found = measure_gates(gates, threshold=share_of(wanted.threshold), threads=threads, tell=tell)
    return replace(found, entries=tuple(replace(entry, efficiencies=short(entry.efficiencies)) for entry in found.entries))


def short(efficiencies: Sequence[float]) -> tuple[float, ...]:
    """Four digits, which is far more than they are sure of: a line is to be readable in a diff."""
    return tuple(float(f"{value:.4g}") for value in efficiencies)


# --- the file -------------------------------------------------------------------------------------------------------


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, beside what had been there."""

    baseline: Baseline
    lines: tuple[Line, ...]


def update(path: Path, wanted: Wanted, *, parts: Sequence[str], folders: Sequence[Path], version: str, tell: Tell) -> Update:
    """Write the file anew and say what is different. Raises TfmError or OSError, and then the file is as it was."""
    may_replace(path)
    old = existing(path, wanted)
    if old is None and wanted.model is None and wanted.measure is None:
        raise UsageError(f"{path} does not exist yet: say with --model (and --measure) what it is to hold")
    if wanted.model is not None and "exact" in parts:
        exact = exact_entries(wanted, folders)
    elif old is not None and "exact" in parts:
        known = Known(folders)
        exact = updated(old.exact, known.model, known.device)
    else:
        exact = [] if old is None else list(old.exact)
    made = Baseline(schema=SCHEMA, version=version, exact=tuple(exact), measured=measurements(wanted, old, parts, tell))
    save_baseline(made, path)
    return Update(baseline=made, lines=tuple(differences(old, made, share_of(wanted.threshold))))


def unsure(entry: Measured, threshold: float) -> str:
    """What to say of numbers that lie too far apart for a threshold; nothing of others."""
    from ..estimators.significance import sure, uncertainty

    if sure(entry.efficiencies, threshold):
        return ""
    return (
        f"its blocks lie so far apart that it is known to {uncertainty(entry.efficiencies):.1%} only; a threshold of {threshold:.1%} asks "
        "for half of itself: write it anew on a quieter machine, or take a wider --threshold"
    )


def existing(path: Path, wanted: Wanted) -> Baseline | None:
    """What the file holds; None where there is none, or one that can be written anew without being read."""
    if not path.exists() or not path.read_bytes().strip():
        return None
    try:
        return load_baseline(path)
    except UnreadableError:
        if wanted.model is None or not looks_like_baseline(path.read_bytes()):
            raise
        return None


def differences(old: Baseline | None, new: Baseline, threshold: float) -> Iterator[Line]:
    """Every entry of old and new: "ok", "changed", "new" or "dropped"; measured ones "measured" where they are new numbers."""
    from ..estimators.gates import compare
    from .checking import exact_line

    then = {} if old is None else {entry.id: entry for entry in old.exact}
    for entry in new.exact:
        if entry.id in then:
            yield exact_line(compare(then.pop(entry.id), entry))
        else:
            yield Line(id=entry.id, kind="exact", quantity=entry.quantity, baseline=None, now=entry.value, verdict="new")
    for entry in then.values():
        yield Line(id=entry.id, kind="exact", quantity=entry.quantity, baseline=entry.value, now=None, verdict="dropped")
    was = {} if old is None or old.measured is None else {entry.gate.id: median(entry) for entry in old.measured.entries}
    same = old is not None and old.measured is new.measured
    for measured in () if new.measured is None else new.measured.entries:
        name = measured.gate.id
        verdict, why = ("ok", "") if same else ("measured", unsure(measured, threshold))
        before, now = was.pop(name, None), median(measured)
        yield Line(id=name, kind="measured", quantity="efficiency", baseline=before, now=now, verdict=verdict, why=why)
    for name, efficiency in was.items():
        yield Line(id=name, kind="measured", quantity="efficiency", baseline=efficiency, now=None, verdict="dropped")
