"""What the measuring commands have in common: torch is there, progress, lines as they come, and what an interrupt leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer

from ..presets.errors import MissingExtraError, TfmError, UnreadableError

if TYPE_CHECKING:
    from ..kernels.benchmarks.record import Record
    from ..kernels.benchmarks.setting import Setting
    from ..kernels.timing import Stopping
    from .output import Answer
    from .tables import Table

Lines = Callable[["Setting"], "Iterator[Record]"]

# The keys of the contract, for what was interrupted before its first sample.
KEYS = (
    "device", "dtype", "median_s", "p20_s", "p80_s", "samples", "flops", "bytes", "floor_s", "bound_s", "expected_s",
    "bandwidth_bytes_per_s", "of_bandwidth", "backend",
)  # fmt: skip
TIMES = ("median_s", "p20_s", "p80_s", "samples", "floor_s", "bound_s", "expected_s")
RATES = ("bytes_per_s", "flops_per_s", "of_bandwidth", "of_bandwidth_in_turn", "of_bound", "backend", "verdict")
AXES = ("ctx", "batch", "m", "size_bytes", "k", "n")


def need_torch() -> None:
    """Refuse in one line where torch is not installed; raises MissingExtraError."""
    if find_spec("torch") is None or find_spec("numpy") is None:
        raise MissingExtraError("running PyTorch kernels needs torch and numpy: install them with `pip install 'tfm-toolkit[bench]'`")


class Progress:
    """One line on stderr that says what is going on, rewritten in place; nothing where stderr is no terminal.

    Not a spinner: its thread would take time from what is measured.
    """

    def __init__(self) -> None:
        self.on = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        """Say it."""
        if self.on:
            typer.echo(f"\r\x1b[K{text[:100]}", err=True, nl=False)

    def done(self) -> None:
        """Leave an empty line."""
        self("")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A benchmark as a command shows it.

    Attributes:
        name: the command. inputs: what was asked for. single: one line is expected, whose keys stand in `result` itself.
        labels: what may tell lines apart. y: what a sweep's plot shows.
    """

    name: str
    inputs: Mapping[str, object]
    lines: Lines
    single: bool
    labels: tuple[str, ...]
    y: str = "bytes_per_s"


def setting_for(threads: int | None, seconds: str, progress: Progress) -> Setting:
    """How to measure, from the options."""
    from ..kernels.benchmarks.setting import Setting, use_threads

    use_threads(threads)
    return Setting(stopping=stopping_for(seconds), tell=progress)


def stopping_for(seconds: str) -> Stopping:
    """When a line has been sampled enough, from --seconds."""
    from ..kernels.timing import Stopping
    from .units import parse_seconds

    budget = parse_seconds(seconds, name="--seconds")
    return Stopping(max_seconds=budget, min_seconds=min(0.5, budget))


def run_bench(bench: Bench, *, threads: int | None, seconds: str, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Measure line by line and print; what was measured before an interrupt or a failure is printed all the same."""
    from ..kernels.benchmarks.record import busy_note
    from .output import emit, one_format, write

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    progress = Progress()
    setting = setting_for(threads, seconds, progress)
    found: list[Record] = []
    failure: BaseException | None = None
    try:
        for record in bench.lines(setting):
            found.append(record)  # noqa: PERF402 - an interrupt must find what there is so far
    except (TfmError, MemoryError, RuntimeError, KeyboardInterrupt) as error:
        failure = in_words(error)
    progress.done()
    if failure is not None and not found and not isinstance(failure, KeyboardInterrupt):
        raise failure
    notes = tuple(note for note in map(busy_note, found) if note)
    rows = [record.figures() for record in found]
    emit(answer(bench, rows, notes), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    if rows and not (as_json or as_csv or as_markdown):
        write(plot(bench, rows), end="")
    if isinstance(failure, KeyboardInterrupt):
        raise typer.Exit(130)
    if failure is not None:
        raise failure


def in_words(error: BaseException) -> BaseException:
    """PyTorch's way of saying that the memory is used up, as an error of ours; any other as it is."""
    text = str(error).lower()
    full = isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
    if isinstance(error, TfmError | KeyboardInterrupt) or not (full or type(error).__name__ == "OutOfMemoryError"):
        return error
    return UnreadableError(
        "the memory was used up although it had looked enough; ask for fewer layers, a shorter context or a smaller batch"
    )


def answer(bench: Bench, rows: list[dict[str, object]], notes: tuple[str, ...]) -> Answer:
    """The lines as an answer: one in full, several as a table."""
    from .output import Answer

    result: Mapping[str, object] = {"rows": rows}
    if bench.single:
        result = rows[0] if rows else dict.fromkeys(KEYS)
    return Answer(
        command=bench.name,
        inputs=bench.inputs,
        assumptions=assumptions(rows),
        result=result,
        tables=tables(bench, rows),
        notes=notes,
    )


def assumptions(rows: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """What floor, bound and expectation rest on."""
    from .units import format_flops_rate, format_rate_bytes

    if not rows:
        return ("interrupted before the first sample",)
    last, lines = rows[-1], []
    yard = f"{format_rate_bytes(as_float(last['bandwidth_bytes_per_s']))} ({last['bandwidth_probe']})"
    peak = last.get("peak_flops_per_s")
    if peak is not None:
        yard += f" and {format_flops_rate(as_float(peak))} (matmul)"
    lines.append(f"floor and bound from what plain probes reached in this run: {yard}")
    if "layers_timed" in last:
        timed, whole = last["layers_timed"], last["layers_total"]
        lines.append(f"{timed} of {whole} layers timed" + (", scaled to the whole model (--layers all runs it)" if timed != whole else ""))
    if all(row["expected_s"] is None for row in rows) and "layers_timed" in last:
        lines.append(
            "expected time: run `tfm calibrate` once" if last["weight_dtype"] == last["dtype"] else "expected time: not calibrated for it"
        )
    return tuple(lines)


def as_float(value: object) -> float:
    """A figure as a float, of what a row holds."""
    return float(value)  # type: ignore[arg-type]


def varying(rows: Sequence[Mapping[str, object]], labels: Sequence[str]) -> list[str]:
    """The labels that tell rows apart; the first one where none does."""
    found = [name for name in labels if len({row.get(name) for row in rows}) > 1]
    return found or [name for name in labels if rows and name in rows[0]][:1]


def tables(bench: Bench, rows: list[dict[str, object]]) -> tuple[Table, ...]:
    """One line as a card; several as two tables, times and rates."""
    from .quantities import Kind
    from .tables import Column, Table

    if not rows:
        return ()
    fixed = [f"{name} {rows[0][name]}" for name in bench.labels if name in rows[0] and name not in varying(rows, bench.labels)]
    title = ", ".join([f"tfm {bench.name} on {rows[0]['device']}", *fixed])
    if bench.single:
        return (one_table(rows[0], title),)
    labels = [Column(name, Kind.BYTES if name == "size_bytes" else Kind.TEXT) for name in varying(rows, bench.labels)]
    kinds = {"backend": Kind.TEXT, "verdict": Kind.TEXT, "samples": Kind.EXACT}
    kinds |= dict.fromkeys(("of_bandwidth", "of_bandwidth_in_turn", "of_bound"), Kind.RATIO)
    kinds |= {"bytes_per_s": Kind.BYTES_PER_S, "flops_per_s": Kind.FLOPS_PER_S}
    return tuple(
        Table(
            heading,
            (*labels, *(Column(name, kinds.get(name, Kind.SECONDS)) for name in names if any(row.get(name) is not None for row in rows))),
            tuple(rows),
        )
        for heading, names in ((title, TIMES), ("", RATES))
    )


def one_table(row: Mapping[str, object], title: str) -> Table:
    """All of one line, a figure a row."""
    from .quantities import Quantity, header_of, kind_of
    from .tables import card

    shown = (
        "dtype",
        "weight_dtype",
        "layers_timed",
        "layers_total",
        *TIMES,
        "expected_low_s",
        "expected_high_s",
        "flops",
        "bytes",
        "bandwidth_bytes_per_s",
        *RATES,
    )
    return card(title, [(header_of(name), Quantity(row[name], kind_of(name, [row[name]]))) for name in shown if row.get(name) is not None])


def plot(bench: Bench, rows: Sequence[Mapping[str, object]]) -> str:
    """A sweep as a picture: the label that takes most values along x, a line for each combination of the others."""
    from .plot import plot_lines
    from .units import UNKNOWN, format_bytes, format_flops_rate, format_rate_bytes, format_seconds

    counts = {name: len({row.get(name) for row in rows}) for name in AXES if name in bench.labels}
    axis = max(counts, key=lambda name: counts[name], default=None)
    if axis is None or counts[axis] < 3:
        return ""
    others = [name for name in varying(rows, bench.labels) if name != axis]
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        name = " ".join(str(row[label]) for label in others) or "measured"
        series.setdefault(name, []).append((as_float(row[axis]), as_float(row[bench.y])))
        if bench.y == "median_s" and row["floor_s"] is not None and not others:
            series.setdefault("floor", []).append((as_float(row[axis]), as_float(row["floor_s"])))
    forms = {"median_s": format_seconds, "bytes_per_s": format_rate_bytes, "flops_per_s": format_flops_rate}
    y_format = forms.get(bench.y, lambda _: UNKNOWN)
    x_format = format_bytes if axis == "size_bytes" else lambda value: f"{value:.0f}"
    return "\n" + plot_lines(
        series,
        axis,
        bench.y.removesuffix("_s").replace("_per", "/s"),
        log_x=True,
        log_y=bench.y == "median_s",
        x_format=x_format,
        y_format=y_format,
    )
