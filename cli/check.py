"""`tfm check`: a gate for CI. Exact numbers compared with a baseline, and measured efficiency, each in its own way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from ..presets.errors import UnknownNameError, UnreadableError, UsageError
from . import options as o
from .bench import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .baselining import Update, Wanted
    from .checking import Checked, Line, Tell
    from .output import Answer
    from .tables import Table

MOST_ROWS = 40  # of a table for people; beyond that, and where something is not ok, exact gates that are ok are left out

File = Annotated[str | None, typer.Argument(metavar="[BASELINE]", help="A file that --update wrote, as in tfm.json.")]
Updating = Annotated[bool, typer.Option("--update", help="Write the file: what --model ... asks for, else its own entries once more.")]
Models = Annotated[
    str | None,
    typer.Option("--model", help="Models to gate, with commas; all: every preset.", autocompletion=o.complete_model),
]
Phases = Annotated[str | None, typer.Option("--phase", help="Passes: prefill, decode, train; prefill,decode if not given.")]
Batches = Annotated[str | None, typer.Option("--batch", help="Sequences; a comma takes several.")]
AllDtypes = Annotated[str | None, typer.Option("--dtype", help="Format of weights, cache and arithmetic; bf16 if not given.")]
Weights = Annotated[str | None, typer.Option("--weight-dtype", help="Format of the weights alone; a comma takes several.")]
Caches = Annotated[str | None, typer.Option("--kv-dtype", help="Format of the cache alone.")]
Activations = Annotated[str | None, typer.Option("--activation-dtype", help="Format computed in.")]
Measure = Annotated[str | None, typer.Option("--measure", help="Measured gates: decode, attention or both (needs torch and scipy).")]
Layers = Annotated[int | None, typer.Option("--layers", min=1, help="Layers of a measured decode step; what suits the model if not given.")]
Only = Annotated[str | None, typer.Option("--only", help="exact or measured: this half of the baseline alone.")]
Threshold = Annotated[
    str | None,
    typer.Option(
        "--threshold", help="A slowdown smaller than this is no finding, and what --update measures long enough for; 5% if not given."
    ),
]
Against = Annotated[str | None, typer.Option("--against", help="Another tfm, as in '/opt/new/bin/tfm': both measured alternately.")]
AgainstPython = Annotated[str | None, typer.Option("--against-python", help="The same, by its virtual environment or python.")]
Junit = Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")]
Summary = Annotated[str | None, typer.Option("--summary", metavar="FILE", help="Write Markdown; GitHub's job summary if not given.")]


def check(
    baseline: File = None,
    update: Updating = False,
    model: Models = None,
    phase: Phases = None,
    batch: Batches = None,
    ctx: o.Ctx = None,
    src: o.Src = None,
    images: o.Images = None,
    dtype: AllDtypes = None,
    weight_dtype: Weights = None,
    kv_dtype: Caches = None,
    activation_dtype: Activations = None,
    gqa: o.Gqa = None,
    hardware: o.Hardware = None,
    measure: Measure = None,
    layers: Layers = None,
    only: Only = None,
    threshold: Threshold = None,
    threads: Threads = None,
    against: Against = None,
    against_python: AgainstPython = None,
    junit: Junit = None,
    summary: Summary = None,
    presets: o.Presets = None,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Compare with a baseline: exact numbers to the digit, measured efficiency by a test that holds on noisy machines.

    Exit 0 nothing found, 3 a finding, 1 something could not be read or run, 4 measured on another machine; the first that applies
    of 3, 1, 4, and every gate is printed all the same.

    \b
    Examples:
      tfm check --update tfm.json --model llama-7b,mistral-7b --ctx 4k,32k --hardware h100-80gb-sxm
      tfm check tfm.json
      tfm check tfm.json --only exact --junit tfm.xml --summary tfm.md
    """
    from ..estimators.significance import USUAL_THRESHOLD
    from .baselining import Wanted
    from .output import one_format

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    wanted = Wanted(
        model=model, phase=phase, batch=batch, ctx=ctx, src=src, images=images, dtype=dtype, weight_dtype=weight_dtype, kv_dtype=kv_dtype,
        activation_dtype=activation_dtype, gqa=gqa, hardware=hardware, measure=measure, layers=layers, threshold=threshold, threads=threads,
        presets=presets,
    )  # fmt: skip
    other = other_command(against, against_python)
    refuse_mixtures(baseline, wanted, update=update, against=other is not None)
    refuse_idle(wanted, only, update=update, against=other is not None)
    refuse_files(baseline, junit, summary)
    clock = {"--threshold": wanted.threshold, "--threads": wanted.threads}
    said_of_clock = tuple(option for option, value in clock.items() if value is not None)
    show = Show(
        as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, junit=junit, summary=summary, of_the_clock=said_of_clock
    )  # fmt: skip
    if update:
        write(str(baseline), wanted, only, show)
        return
    checked = compare(baseline, wanted, other, only=only)
    said: dict[str, object] = {"baseline": baseline, "threshold": threshold or f"{USUAL_THRESHOLD:.0%}", "only": only}
    show.checked(checked, baseline or "two installations", inputs=said)
    if checked.exit_code:
        raise typer.Exit(checked.exit_code)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(check)


# --- what was asked for -----------------------------------------------------------------------------------------------


def other_command(against: str | None, python: str | None) -> tuple[str, ...] | None:
    """The other installation, None where there is none. Raises UsageError."""
    if against is not None and python is not None:
        raise UsageError("--against and --against-python both name the other installation; give one")
    if against is None and python is None:
        return None
    from .checking import need_gates

    need_gates()
    from ..kernels.alternating import command_of, command_of_python

    return command_of(against) if against is not None else command_of_python(str(python))


def refuse_mixtures(baseline: str | None, wanted: Wanted, *, update: bool, against: bool) -> None:
    """Options that say nothing together. Raises UsageError."""
    if update and against:
        raise UsageError("--update writes a baseline and --against compares without one; give one of them")
    if not baseline and (baseline is not None or not against):
        raise UsageError("which baseline? give a file that `tfm check --update FILE --model ...` wrote")
    of_update = {*wanted.said} - {"threshold", "threads", "presets"} - ({"model", "measure", "layers", "dtype"} if against else set())
    if of_update and not update:
        first = min(of_update).replace("_", "-")
        raise UsageError(f"--{first} says what a baseline is to hold and belongs to --update; a check takes it from the file")


def refuse_idle(wanted: Wanted, only: str | None, *, update: bool, against: bool) -> None:
    """Options that would change nothing beside the others. Raises UsageError."""
    measures = wanted.measure is not None or (wanted.model is None and only != "exact")  # of --update
    if against and only is not None:
        raise UsageError("--only chooses a half of a baseline, and two installations are compared by measured gates alone; leave it out")
    if only == "exact" and (wanted.threshold, wanted.threads, wanted.measure) != (None, None, None):
        raise UsageError("--only exact measures nothing: --measure, --threshold and --threads have no part in it; leave them out")
    if not update:
        return
    if only == "measured" and wanted.model is not None and wanted.measure is None:
        raise UsageError("--only measured writes no exact gates: say with --measure what is to be measured of --model, or leave --only out")
    for name, value in (("threads", wanted.threads), ("threshold", wanted.threshold)):
        if value is not None and not measures:
            raise UsageError(f"--{name} is of measured gates; nothing is measured here, --measure asks for it")
    if wanted.layers is not None and "decode" not in (wanted.measure or ""):
        raise UsageError("--layers is of measured decode steps: give --measure decode beside it")
    exact = sorted(
        {*wanted.said} - {"model", "measure", "layers", "threshold", "threads", "presets"} - ({"dtype"} if wanted.measure else set())
    )
    if exact and (wanted.model is None or only == "measured"):
        raise UsageError(f"--{exact[0].replace('_', '-')} says what exact gates are written for --model; without those it changes nothing")


def refuse_files(baseline: str | None, junit: str | None, summary: str | None) -> None:
    """Reports that have no name, or would be written over the baseline or each other. Raises UsageError."""
    given = {"BASELINE": baseline, "--junit": junit, "--summary": summary}
    places: dict[Path, str] = {}
    for name, file in given.items():
        if file is None:
            continue
        if not file:
            raise UsageError(f"{name}: got nothing; give the name of a file")
        other = places.setdefault(Path(os.path.realpath(file)), name)
        if other != name:
            raise UsageError(f"{name} {file} is the file of {other} too; give each a file of its own")


def parts_of(only: str | None) -> tuple[str, ...]:
    """Which halves of a baseline. Raises UnknownNameError."""
    from .checking import PARTS

    if only is None:
        return PARTS
    if only not in PARTS:
        raise UnknownNameError("part", only, PARTS, f"--only takes {' or '.join(PARTS)}.")
    return (only,)


# --- doing it -----------------------------------------------------------------------------------------------------------


def compare(baseline: str | None, wanted: Wanted, other: Sequence[str] | None, *, only: str | None) -> Checked:
    """Check a file, or two installations by its gates (or those asked for). Raises TfmError."""
    from ..presets.loader import given_folders
    from .checking import check_baseline, share_of
    from .measuring import Progress

    share, parts, progress = share_of(wanted.threshold), parts_of(only), Progress()
    try:
        if other is not None:
            return both(baseline, wanted, other, share, progress)
        folders = given_folders(wanted.presets)
        return check_baseline(Path(str(baseline)), parts=parts, folders=folders, threshold=share, threads=wanted.threads, tell=progress)
    finally:
        progress.done()


def both(baseline: str | None, wanted: Wanted, other: Sequence[str], share: float, progress: Tell) -> Checked:
    """Two installations, measured alternately: the gates of the file where one is given."""
    from ..presets.baseline import load_baseline
    from .baselining import gates_of, kinds_of
    from .checking import Checked, against_lines

    gates = () if baseline is None else load_baseline(Path(baseline)).gates
    if baseline is not None and not gates:
        raise UsageError(f"{baseline} holds no measured gates to compare two installations by; leave it out, or --update it with --measure")
    gates = gates or gates_of(wanted, kinds_of(wanted.measure or "decode,attention"))
    return Checked(lines=tuple(against_lines(other, gates, threshold=share, threads=wanted.threads, tell=progress)))


def write(baseline: str, wanted: Wanted, only: str | None, show: Show) -> None:
    """The body of --update."""
    from .. import __version__
    from ..presets.loader import given_folders
    from .baselining import update
    from .measuring import Progress

    if show.junit or show.summary:
        raise UsageError("--junit and --summary report a check, --update writes a baseline; leave them out")
    progress = Progress()
    folders = given_folders(wanted.presets)
    try:
        made = update(Path(baseline), wanted, parts=parts_of(only), folders=folders, version=__version__, tell=progress)
    finally:
        progress.done()
    show.updated(made, baseline, inputs={"baseline": baseline, **wanted.said})


# --- showing it ---------------------------------------------------------------------------------------------------------


class Show:
    """Where the answer goes."""

    def __init__(
        self, *, as_json: bool, as_csv: bool, as_markdown: bool, junit: str | None, summary: str | None, of_the_clock: tuple[str, ...]
    ) -> None:
        self.of_the_clock = of_the_clock
        self.as_json, self.as_csv, self.as_markdown = as_json, as_csv, as_markdown
        self.junit, self.summary = junit, summary

    def checked(self, found: Checked, name: str, inputs: dict[str, object]) -> None:
        """A check: the answer on stdout, reports in their files, annotations on stderr."""
        from ..presets.baseline import entry_lines
        from .output import write as put
        from .reports import github_lines, summary, write_reports

        if self.as_markdown:
            put(summary(found, name), end="")
        else:
            made = answer(found.lines, found.verdict, name, inputs)
            idle = () if any(line.kind != "exact" for line in found.lines) else self.of_the_clock
            notes = tuple(f"{option} changes nothing: {name} has no measured gates" for option in idle)
            self.emit(replace(made, assumptions=(*made.assumptions, *notes)))
        for line in github_lines(found, name if inputs["baseline"] else None, entry_lines(Path(name))):
            put(line, err=True)
        try:
            write_reports(found, name, junit_file=self.junit, summary_file=self.summary)
        except UnreadableError as error:  # a finding is one even where a report of it cannot be written
            if found.exit_code not in (3, 130):
                raise
            put(f"error: {error}", err=True)

    def updated(self, made: Update, name: str, inputs: dict[str, object]) -> None:
        """An update: what is different from the file that was there."""
        from .output import markdown_table
        from .output import write as put

        if self.as_markdown:
            put(markdown_table(table(made.lines, name)), end="")
        else:
            self.emit(answer(made.lines, "updated", name, inputs))

    def emit(self, found: Answer) -> None:
        """On stdout."""
        from .output import emit

        emit(found, as_json=self.as_json, as_csv=self.as_csv)


def answer(lines: Sequence[Line], verdict: str, name: str, inputs: dict[str, object]) -> Answer:
    """All gates in the envelope; for people those that are not ok, or all where they are few."""
    from .output import Answer

    return Answer(
        command="check",
        inputs={key: value for key, value in inputs.items() if value is not None},
        assumptions=tuple(assumptions(lines, verdict)),
        result={"rows": [line.figures() for line in lines], "verdict": verdict},
        tables=tuple(one for one in (table(lines, name), reasons(lines)) if one),
    )


def assumptions(lines: Iterable[Line], verdict: str) -> Iterable[str]:
    """What was compared how."""
    kinds = {line.kind for line in lines}
    if verdict == "updated":
        return
    if "exact" in kinds:
        yield "exact: counts to the last digit, seconds of a datasheet's device but for the last bits"
    if kinds - {"exact"}:
        yield "measured: slower needs both a resampling test (p <= 0.01) and the threshold; what looks slower was measured again"


def table(lines: Sequence[Line], name: str) -> Table:
    """The gates of a run, each number as text since their units differ."""
    from .checking import counted
    from .quantities import Kind
    from .reports import said_of
    from .tables import Column, Table

    title = f"{name}: {counted(lines)}"
    apart = [line for line in lines if line.verdict not in ("ok", "new") or line.kind != "exact"]
    calm = len(lines) <= MOST_ROWS and all(line.verdict in ("ok", "new", "measured") for line in lines)
    shown = list(lines) if calm else apart
    if not shown:
        kinds = tuple((kind, sum(line.kind == kind for line in lines)) for kind in dict.fromkeys(line.kind for line in lines))
        return Table(title, (Column("kind", Kind.TEXT), Column("gates", Kind.EXACT)), kinds)
    names = {"gate": Kind.TEXT, "baseline": Kind.MIXED, "now": Kind.MIXED, "change": Kind.MIXED, "verdict": Kind.TEXT}
    rows = [(line.id, said_of(line, line.baseline), said_of(line, line.now), change(line), line.verdict) for line in shown]
    cells = [dict(zip(names, row, strict=True)) for row in rows]
    used = [name for name in names if name != "change" or any(cell["change"] for cell in cells)]
    return Table(title, tuple(Column(name, names[name]) for name in used), tuple(cells))


def reasons(lines: Sequence[Line]) -> Table | None:
    """What moved, a term a row, and what no number says; None where there is nothing to say."""
    from .checking import MOST_TERMS, told, told_by
    from .quantities import Kind
    from .tables import Column, Table

    rows: list[tuple[str, str, str]] = []
    for line in lines:
        terms = [(term.term, told_by(line.quantity, term)) for term in line.moved[:MOST_TERMS]]
        if len(line.moved) > MOST_TERMS:
            terms.append((f"and {len(line.moved) - MOST_TERMS} more", ""))
        text = told(line, numbers=False) if line.slowdown is not None else line.why
        found = [*terms, *([(text, "")] if text else [])]
        rows += [(line.id if index == 0 else "", what, by) for index, (what, by) in enumerate(found)]
    columns = (Column("gate", Kind.TEXT), Column("what moved", Kind.TEXT), Column("by", Kind.MIXED))
    if not any(by for _, _, by in rows):
        return Table("", columns[:2], tuple(row[:2] for row in rows)) if rows else None
    return Table("", columns, tuple(rows))


def change(line: Line) -> str:
    """How far a number moved, in percent."""
    from .checking import relative, signed

    return signed(line.slowdown) if line.slowdown is not None else "".join(relative(line))
