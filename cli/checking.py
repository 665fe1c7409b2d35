"""One run of the gates: what the command, the Python function and the pytest plugin have in common. Typer is not known here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ..estimators.gates import Compared, Moved, check_entries
from ..estimators.significance import USUAL_THRESHOLD
from ..presets.baseline import Baseline, Figure, Gate, Measured, Measurements, load_baseline
from ..presets.device import Device, load_device
from ..presets.errors import IncomparableError, MissingExtraError, TfmError, UsageError
from ..presets.loader import load_model
from ..presets.spec import ModelSpec
from ..presets.variants import with_kv_heads
from .units import format_exact, format_percent, format_seconds, parse_ratio

if TYPE_CHECKING:
    from ..estimators.significance import Judgement

PARTS = ("exact", "measured")
MOST_TERMS = 3  # named in a line of text; JSON has all
FINDINGS = ("changed", "gone", "slower")
NEW_BASELINE = "`tfm check --update` makes it the baseline if that is meant"

Tell = Callable[[str], None]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One gate then and now.

    Attributes:
        kind: "exact", "measured", or "against" for two installations side by side.
        baseline, now: the number, of a measured gate the median efficiency; None where there is none.
        verdict: "ok"; findings: "changed", "gone", "slower"; "faster", "noisy"; "not compared" (another machine); "not run".
        moved: terms of an exact gate that did. why: what no number says.
        slowdown: of a measured gate, with its 95 % interval and p-value.
    """

    id: str
    kind: str
    quantity: str
    baseline: Figure | None
    now: Figure | None
    verdict: str
    moved: tuple[Moved, ...] = ()
    why: str = ""
    slowdown: float | None = None
    slowdown_low: float | None = None
    slowdown_high: float | None = None
    p_value: float | None = None

    @property
    def found(self) -> bool:
        """Whether it is a finding."""
        return self.verdict in FINDINGS

    def figures(self) -> dict[str, object]:
        """The keys of the JSON contract."""
        row = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("moved", "why")}
        moved = [{"term": term.term, "baseline": term.baseline, "now": term.now, "by": term.by} for term in self.moved]
        return {**row, "moved": moved, "why": self.why or None}


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """All gates of a run."""

    lines: tuple[Line, ...]
    interrupted: bool = False

    @property
    def findings(self) -> tuple[Line, ...]:
        """What has changed for the worse or has changed at all."""
        return tuple(line for line in self.lines if line.found)

    @property
    def verdict(self) -> str:
        """A finding is sure whatever else could not be looked at, so it goes first; then what did not run, then what cannot be compared."""
        if self.findings:
            return "finding"
        return next((word for word in ("not run", "not compared") if any(line.verdict == word for line in self.lines)), "ok")

    @property
    def exit_code(self) -> int:
        """0, 3 for a finding, 1 where something could not be read or run, 4 where machines differ, 130 interrupted."""
        return 130 if self.interrupted else {"ok": 0, "finding": 3, "not run": 1, "not compared": 4}[self.verdict]

    @property
    def ok(self) -> bool:
        """Whether everything was looked at and nothing found."""
        return self.exit_code == 0

    def __str__(self) -> str:
        trouble = [line for line in self.lines if line.verdict not in ("ok", "faster", "noisy")]
        return "\n".join([counted(self.lines), *(f"{line.verdict}: {line.id}: {told(line)}" for line in trouble)])


def share_of(threshold: str | None) -> float:
    """The threshold as typed; the usual one where nothing was. Raises UsageError."""
    if threshold is None:
        return USUAL_THRESHOLD
    share = parse_ratio(threshold, name="--threshold")
    if not share < 1:
        raise UsageError(f"--threshold: got {threshold!r}; allowed: more than 0 and less than 1, as in 5% or 0.05")
    return share


# --- exact ----------------------------------------------------------------------------------------------------------


class Known:
    """Models and devices by name, each read once."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self.folders = folders
        self.models: dict[tuple[str, int | None], ModelSpec | TfmError] = {}
        self.devices: dict[str, Device] = {}

    def model(self, name: str, kv_heads: int | None) -> ModelSpec:
        """The model, with other KV heads where asked for. Raises TfmError, the same one each time."""
        if (name, kv_heads) not in self.models:
            try:
                spec = load_model(name, self.folders)
                self.models[name, kv_heads] = spec if kv_heads is None else with_kv_heads(spec, kv_heads)
            except TfmError as error:
                self.models[name, kv_heads] = error
        found = self.models[name, kv_heads]
        if isinstance(found, TfmError):
            raise found
        return found

    def device(self, name: str) -> Device:
        """The device. Raises TfmError."""
        if name not in self.devices:
            self.devices[name] = load_device(name)
        return self.devices[name]


def exact_lines(found: Baseline, folders: Sequence[Path] = ()) -> list[Line]:
    """Every exact entry computed again."""
    known = Known(folders)
    return [exact_line(row) for row in check_entries(found.exact, known.model, known.device)]


def exact_line(row: Compared) -> Line:
    """One of them."""
    return Line(
        id=row.id,
        kind="exact",
        quantity=row.quantity,
        baseline=row.baseline,
        now=row.now,
        verdict=row.verdict,
        moved=row.moved,
        why=row.why,
    )


# --- measured -------------------------------------------------------------------------------------------------------


def need_gates() -> None:
    """Refuse in one line where what measured gates need is not installed; raises MissingExtraError."""
    missing = [name for name in ("torch", "numpy", "scipy") if find_spec(name) is None]
    if missing:
        hint = "pip install 'tfm-toolkit[bench,check]' (--only exact leaves them out)"
        raise MissingExtraError(f"measured gates need {' and '.join(missing)}: {hint}")


def measured_lines(found: Measurements, *, threshold: float, threads: int | None, tell: Tell) -> tuple[list[Line], bool]:
    """Every measured gate measured again, one after another, so that an interrupt (then True) leaves what there is."""
    try:
        need_gates()
        from ..kernels.gates import current_machine

        apart = found.machine.differences(current_machine(threads or found.machine.threads))
    except TfmError as error:
        return [not_measured(entry, "not run", str(error)) for entry in found.entries], False
    if apart:
        why = f"the baseline was measured elsewhere: {'; '.join(apart)}"
        return [not_measured(entry, "not compared", why) for entry in found.entries], False
    lines: list[Line] = []
    try:
        for entry in found.entries:
            lines.append(measured_line(found, entry, threshold=threshold, threads=threads, tell=tell))  # noqa: PERF401 - see above
    except KeyboardInterrupt:
        return [*lines, *(not_measured(entry, "not run", "interrupted") for entry in found.entries[len(lines) :])], True
    return lines, False


def measured_line(found: Measurements, entry: Measured, *, threshold: float, threads: int | None, tell: Tell) -> Line:
    """One gate measured and compared."""
    from ..kernels.gates import check_gates

    try:
        ((now, judgement),) = check_gates(replace(found, entries=(entry,)), threshold=threshold, threads=threads, tell=tell)
    except IncomparableError as error:
        return not_measured(entry, "not compared", str(error))
    except UsageError as error:
        return not_measured(entry, "gone", str(error))
    except TfmError as error:
        return not_measured(entry, "not run", str(error))
    return judged(entry.gate, "measured", judgement, baseline=median(entry), now=median(now))


def judged(gate: Gate, kind: str, judgement: Judgement, *, baseline: float | None = None, now: float | None = None) -> Line:
    """A gate with its judgement."""
    return Line(
        id=gate.id,
        kind=kind,
        quantity="efficiency",
        baseline=baseline,
        now=now,
        verdict=judgement.verdict,
        slowdown=judgement.slowdown,
        slowdown_low=judgement.low,
        slowdown_high=judgement.high,
        p_value=judgement.p_value,
    )


def not_measured(entry: Measured, verdict: str, why: str) -> Line:
    """A gate without a number of now."""
    return Line(id=entry.gate.id, kind="measured", quantity="efficiency", baseline=median(entry), now=None, verdict=verdict, why=why)


def median(entry: Measured) -> float:
    """The efficiency that stands for all blocks."""
    return statistics.median(entry.efficiencies)


def against_lines(command: Sequence[str], gates: Sequence[Gate], *, threshold: float, threads: int | None, tell: Tell) -> list[Line]:
    """Gates measured with this installation and another, alternately. Raises TfmError."""
    need_gates()
    from ..kernels.alternating import check_against

    found = check_against(command, gates, threshold=threshold, threads=threads, tell=tell)
    return [judged(gate, "against", judgement) for gate, judgement in found]


# --- a whole file -----------------------------------------------------------------------------------------------------


def check_baseline(
    path: Path,
    *,
    parts: Sequence[str] = PARTS,
    folders: Sequence[Path] = (),
    threshold: float = USUAL_THRESHOLD,
    threads: int | None = None,
    tell: Tell = lambda _: None,
) -> Checked:
    """All gates of a file. Raises UnreadableError where it is no baseline."""
    refuse_numbers(threshold, threads)
    found = load_baseline(path)
    halves = {"exact": found.exact, "measured": found.gates}
    if not any(halves[part] for part in parts):
        raise UsageError(f"{path} holds no {' or '.join(parts)} gates, so there is nothing to check; write some with `tfm check --update`")
    lines = exact_lines(found, folders) if "exact" in parts else []
    interrupted = False
    if found.measured is not None and "measured" in parts:
        measured, interrupted = measured_lines(found.measured, threshold=threshold, threads=threads, tell=tell)
        lines += measured
    return Checked(lines=tuple(lines), interrupted=interrupted)


def refuse_numbers(threshold: float | str, threads: int | None) -> None:
    """A threshold and a number of threads that make no sense. Raises UsageError."""
    if isinstance(threshold, str) or not 0 < threshold < 1:
        raise UsageError(f"threshold {threshold!r}: allowed: more than 0 and less than 1, as in 0.05")
    if threads is not None and threads < 1:
        raise UsageError(f"threads: got {threads}; allowed: at least 1")


# --- in words -------------------------------------------------------------------------------------------------------


def counted(lines: Iterable[Line]) -> str:
    """How many of each verdict, as in `2 changed, 48 ok`."""
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.verdict] = counts.get(line.verdict, 0) + 1
    order = [*FINDINGS, "dropped", "new", "measured", "not run", "not compared", "noisy", "faster", "ok"]
    return ", ".join(f"{counts[word]} {word}" for word in sorted(counts, key=order.index)) or "nothing to check"


def told(line: Line, *, numbers: bool = True) -> str:
    """What is to be said of a gate, "" where it is ok and nothing is; without `numbers` where those stand beside."""
    if line.slowdown is not None:
        return told_measured(line, numbers=numbers)
    if line.verdict != "changed":
        return line.why
    share = "".join(f" ({share})" for share in relative(line))
    if numbers and line.baseline != line.now:
        return f"{said(line.quantity, line.baseline)} -> {said(line.quantity, line.now)}{share}: {told_terms(line)}"
    return ": ".join([*relative(line), told_terms(line)])


def told_terms(line: Line) -> str:
    """The terms that moved, by how much."""
    terms = [f"{term.term} {told_by(line.quantity, term)}" for term in line.moved[:MOST_TERMS]]
    more = len(line.moved) - len(terms)
    return "; ".join([*terms, *([f"and {more} more"] if more else []), *([line.why] if line.why else [])])


def told_measured(line: Line, *, numbers: bool) -> str:
    """The slowdown with its interval."""
    ends = [line.slowdown_low or 0.0, line.slowdown_high or 0.0]
    text = f"time {signed(line.slowdown or 0.0)} (95 %: {signed(ends[0])} to {signed(ends[1])}, p {line.p_value:.2g})"
    if numbers and line.baseline is not None and line.now is not None:
        text = f"efficiency {line.baseline:.3f} -> {line.now:.3f}, {text}"
    if line.verdict == "faster" and line.kind == "measured":
        text += f"; {NEW_BASELINE}"
    if line.verdict == "noisy":
        text += "; too noisy to exclude a slowdown of the threshold's size"
    return text


def signed(share: float) -> str:
    """A relative change in percent, with its sign."""
    return f"{'+' if share >= 0 else '-'}{format_percent(abs(share))}"


def relative(line: Line) -> list[str]:
    """How far the number moved, in percent of what it was; nothing where that is nothing or has no sense."""
    if not line.baseline or line.now is None or line.now == line.baseline:
        return []
    return [signed((line.now - line.baseline) / line.baseline)]


def told_by(quantity: str, term: Moved) -> str:
    """How far a term moved, or that it is new or left out."""
    if term.baseline is None:
        return f"+{said(quantity, term.now)} (new)"
    if term.now is None:
        return f"-{said(quantity, term.baseline)} (left out)"
    return f"{'+' if term.by >= 0 else '-'}{said(quantity, abs(term.by))}"


def said(quantity: str, value: Figure | None) -> str:
    """A number with every digit, seconds in their unit."""
    if value is None:
        return "none"
    return format_seconds(value) if quantity.endswith("_s") else format_exact(value)
