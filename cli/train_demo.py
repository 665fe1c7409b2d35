"""`tfm train-demo`: two tiny models learn to copy and to reverse strings, here and now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options as o

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..kernels.training.demo import Outcome
    from .output import Answer

Which = Annotated[str, typer.Option("--model", help="encoder-decoder, decoder-only or both.")]
TaskOption = Annotated[str | None, typer.Option("--task", help="copy, reverse, or both (the default): the first token says which.")]
Steps = Annotated[
    str | None, typer.Option("--steps", help="Steps in all, those before --resume included; enough to learn it if not given.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Weights and strings follow from it; 0 if not given.")]
Save = Annotated[str | None, typer.Option("--save", help="Write the trained model, with all that --resume needs, to this file.")]
Resume = Annotated[str | None, typer.Option("--resume", help="Go on from a file that --save wrote, as if it had never stopped.")]
OwnThreads = Annotated[
    int, typer.Option("--threads", min=1, help="Threads of PyTorch's operators; tensors this small gain little from more.")
]
Strings = Annotated[int, typer.Option("--unseen", min=1, max=100_000, help="Unseen strings to be answered at the end.")]


def train_demo(
    model: Which = "both",
    task: TaskOption = None,
    steps: Steps = None,
    seed: Seed = None,
    save: Save = None,
    resume: Resume = None,
    unseen: Strings = 500,
    threads: OwnThreads = 1,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Train a tiny encoder-decoder and a tiny decoder-only model to copy and reverse strings, in under a minute on a CPU.

    Teacher forcing, Adam with the original warm-up; then strings that training never saw, answered greedily with the cache.

    \b
    Examples:
      tfm train-demo
      tfm train-demo --model decoder-only --task copy --save copy.safetensors
      tfm train-demo --resume copy.safetensors --steps 1200 --json
    """
    from ..presets.errors import UsageError
    from .measuring import need_torch
    from .output import emit, one_format, write
    from .units import parse_int

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    need_torch()
    from ..kernels.benchmarks.setting import use_threads
    from ..kernels.training.demo import prepared, trained, usual_steps

    use_threads(threads)
    wanted = None if steps is None else parse_int(steps, name="--steps")
    trainers = prepared(None if resume and model == "both" else model, task, seed, resume)
    if save and len(trainers) > 1:
        raise UsageError("--save writes one model; give --model encoder-decoder or --model decoder-only with it")
    found: list[Outcome] = []
    with interruptible() as interrupted, Bars() as bars:
        for trainer in trainers:
            if not interrupted():
                total = usual_steps(trainer) if wanted is None else wanted
                bars.begin(trainer.spec.name, total, trainer.step)
                found.append(trained(trainer, total, unseen=unseen, stop=interrupted, tell=bars.advance, path=save))
    emit(answer(found, interrupted=interrupted()), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    if not (as_json or as_csv or as_markdown):
        write(plot(found), end="")
    if interrupted():
        raise typer.Exit(130)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train-demo")(train_demo)


class interruptible:  # noqa: N801 - used as `with interruptible() as interrupted`
    """Ctrl-C is noted and looked at between two steps, so that no step is left half done; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Callable[[], bool]:
        import signal
        import threading

        self.main = threading.current_thread() is threading.main_thread()
        if self.main:
            self.before: Any = signal.signal(signal.SIGINT, self.note)
        return lambda: self.asked

    def note(self, *_: object) -> None:
        """The first Ctrl-C."""
        import signal

        self.asked = True
        signal.signal(signal.SIGINT, self.before)

    def __exit__(self, *_: object) -> None:
        import signal

        if self.main:
            signal.signal(signal.SIGINT, self.before)


class Bars:
    """A progress bar a model on stderr, drawn between steps; nothing where stderr is no terminal."""

    def __enter__(self) -> Bars:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"))
        self.bars = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal, auto_refresh=False)
        self.bars.start()
        return self

    def begin(self, name: str, total: int, done: int) -> None:
        """The next model."""
        self.task = self.bars.add_task(name, total=total, completed=done, loss="-")

    def advance(self, step: int, loss: float) -> None:
        """One step more."""
        self.bars.update(self.task, completed=step, loss=f"{loss:.4f}", refresh=step % 10 == 0)

    def __exit__(self, *_: object) -> None:
        self.bars.refresh()
        self.bars.stop()


def answer(found: list[Outcome], *, interrupted: bool) -> Answer:
    """A row a model."""
    from .output import Answer
    from .quantities import Kind
    from .tables import Column, Table

    rows = [one.figures() for one in found]
    columns = (
        Column("model", Kind.TEXT), Column("task", Kind.TEXT), Column("params", Kind.EXACT), Column("steps", Kind.EXACT),
        Column("first_loss", Kind.NUMBER, "first loss"), Column("last_loss", Kind.NUMBER, "last loss"), Column("right", Kind.EXACT),
        Column("tried", Kind.EXACT, "unseen"), Column("exact_match", Kind.RATIO, "exact match"), Column("seconds", Kind.SECONDS, "time"),
    )  # fmt: skip
    notes = tuple(f"{one.model}: {one.mistake}" for one in found if one.mistake)
    return Answer(
        command="train-demo",
        inputs={"seed": found[0].seed if found else None, "steps": found[0].steps if found else None},
        assumptions=tuple(assumptions(found, interrupted=interrupted)),
        result={"rows": [row | {"losses": one.losses} for row, one in zip(rows, found, strict=True)]},
        tables=(Table("A tiny model trained", columns, tuple(rows)),),
        notes=notes,
    )


def assumptions(found: list[Outcome], *, interrupted: bool) -> Iterator[str]:
    """What was trained on what, and what the figures mean."""
    if interrupted:
        yield "interrupted: the figures are of the steps that were done"
    if found:
        one = found[0]
        yield f"strings of {one.shortest} to {one.longest} of {one.letters} letters, random; one in 8, by a checksum, is never trained on"
        yield f"seed {one.seed}: the same seed and number of threads give the same losses"
    yield "exact match: unseen strings answered right to the last letter and ended there, greedy, with the cache"
    for one in found:
        if one.path:
            yield f"{one.model} saved as {one.path} (`--resume` goes on from it, `tfm generate-demo` runs it)"


def plot(found: list[Outcome]) -> str:
    """The losses as a picture."""
    from .plot import plot_lines

    series = {one.model: smoothed(one.losses) for one in found if len(one.losses) > 1}
    return "\n" + plot_lines(series, "step", "loss", log_y=True, x_format=lambda value: f"{value:.0f}") if series else ""


def smoothed(losses: tuple[float, ...], points: int = 120) -> list[tuple[float, float]]:
    """Means of equal stretches, at most `points` of them."""
    size = max(1, len(losses) // points)
    starts = range(0, len(losses) - size + 1, size)
    return [(start + (size + 1) / 2, sum(losses[start : start + size]) / size) for start in starts]
