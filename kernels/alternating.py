"""Two installations measured alternately in one run: the way to gate a change of torch, of a driver's flags or of tfm itself.

Each installation runs a worker (`tfm check-worker`) that builds what a gate runs and measures a block when it is told to. The parent
asks them in turn, A B, B A, A B ..., so that both see the same machine; while one measures, the other waits for a line of text.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from ..estimators.significance import Judgement, compare_pairs
from ..presets.baseline import Gate
from ..presets.errors import TfmError, UnreadableError, UsageError
from .gates import PLAN, Blocked, Plan, block, prepared, quiet_threads, threads_set

Tell = Callable[[str], None]
WORKER = "check-worker"
PATIENCE_S = 120.0  # for a model to be built, or a block to be measured


def own_command() -> tuple[str, ...]:
    """How this installation is run."""
    return sys.executable, "-m", "tfm"


def command_of(text: str) -> tuple[str, ...]:
    """A command as typed, as in `/opt/new/bin/python -m tfm`. Raises UsageError."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--against: {text!r}: {error}; give a command that runs tfm, as in '/opt/new/bin/tfm'") from error
    if not words:
        raise UsageError("--against: got nothing; give a command that runs tfm, as in '/opt/new/bin/tfm'")
    return words


def command_of_python(path: str) -> tuple[str, ...]:
    """A virtual environment, or the python in it. Raises UsageError."""
    given = Path(path).expanduser()
    candidates = (given,) if given.is_file() else (given / "bin" / "python", given / "Scripts" / "python.exe")
    found = next((candidate for candidate in candidates if candidate.is_file()), None)
    if found is None:
        raise UsageError(f"--against-python: {path}: no python there; give a virtual environment's folder, or its python")
    return str(found), "-m", "tfm"


def check_against(
    command: Sequence[str],
    gates: Sequence[Gate],
    *,
    threshold: float,
    threads: int | None = None,
    tell: Tell = lambda _: None,
    plan: Plan = PLAN,
) -> list[tuple[Gate, Judgement]]:
    """Measure gates with this installation and with another that `command` runs, block by block in turn: is the other slower?

    Raises UnreadableError for a worker that does not start, fails or falls silent.
    """
    count = threads or quiet_threads()
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(own_command(), count)), stack.enter_context(Worker(command, count))]
        tell(f"here: {workers[0].said}; there: {workers[1].said}")
        return [(gate, alternated(workers, gate, threshold, tell, plan)) for gate in gates]


def alternated(workers: Sequence[Worker], gate: Gate, threshold: float, tell: Tell, plan: Plan) -> Judgement:
    """One gate: pairs of blocks; what looks slower is measured again."""
    found: tuple[list[Blocked], list[Blocked]] = ([], [])
    judgement = None
    for again in (False, True):
        for build in range(plan.builds):
            tell(f"{gate.id}: {build + 1} of {plan.builds}, both in turn")
            for worker in workers:
                worker.ask({"build": msgspec.to_builtins(gate), "seed": build + plan.builds * again})
            for turn in range(plan.blocks):
                for place in (0, 1) if turn % 2 == 0 else (1, 0):
                    found[place].append(workers[place].block(plan))
        judgement = compare_pairs(*map(steadied, found), threshold=threshold)
        if judgement.verdict not in ("slower", "noisy"):
            return judgement
    assert judgement is not None
    return judgement


def steadied(blocks: Sequence[Blocked]) -> list[float]:
    """Seconds of a step, each block's corrected by its own probes for how fast the machine was: they come out at the run's median pace.

    The probes are not compared between the two installations, whose `mv` need not be equally fast.
    """
    floor = statistics.median(one.efficiency * one.seconds for one in blocks)
    return [floor / one.efficiency for one in blocks]


class Worker:
    """A process that measures when it is told to; leaves with the `with` block."""

    def __init__(self, command: Sequence[str], threads: int) -> None:
        self.command, self.threads, self.said = tuple(command), threads, ""

    def __enter__(self) -> Worker:
        try:
            self.process = subprocess.Popen(
                [*self.command, WORKER, "--threads", str(self.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise UnreadableError(f"{shlex.join(self.command)}: cannot be run ({error.strerror or error})") from error
        try:
            self.said = str(self.heard().get("machine"))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process: at the end of its input, and by force where it does not listen."""
        with suppress(OSError):  # a pipe whose other end has gone
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send one line, give the answer. Raises UnreadableError."""
        with suppress(OSError):  # it has gone: `heard` says so
            self.process.stdin.write(json.dumps(question) + "\n")  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        return self.heard()

    def block(self, plan: Plan) -> Blocked:
        """Measure one block. Raises UnreadableError."""
        found = self.ask({"block": {"pairs": plan.pairs, "seconds": plan.seconds}})
        try:
            return Blocked(efficiency=float(found["efficiency"]), seconds=float(found["seconds"]))
        except (KeyError, TypeError, ValueError):
            raise UnreadableError(
                f"{shlex.join(self.command)} {WORKER}: {found} is no measurement; is it another version of tfm?"
            ) from None

    def heard(self) -> dict[str, Any]:
        """The next line of the worker, read. Raises UnreadableError where there is none or it is an error."""
        line = read_within(self.process.stdout, PATIENCE_S)  # type: ignore[arg-type]
        name = shlex.join(self.command)
        if line is None:
            raise UnreadableError(f"{name} {WORKER}: no answer within {PATIENCE_S:.0f} s")
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            said = f"said {line.strip()[:100]!r}" if line.strip() else "ended"
            raise UnreadableError(f"{name} {WORKER}: {said} in place of a measurement; is it a tfm that has `check`, with torch?")
        if "error" in found:
            raise UnreadableError(f"{name} {WORKER}: {found['error']}")
        return found


def read_within(stream: IO[str], seconds: float) -> str | None:
    """A line of a process, "" at its end, None where it does not come in time."""
    from threading import Thread

    lines: list[str] = []
    reader = Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return lines[0] if lines else None


def work(questions: IO[str], answers: IO[str], *, threads: int | None) -> None:
    """The worker: a line of JSON in, a line out, until the input ends."""

    def answer(**found: Any) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    with threads_set(threads):
        answer(machine=said_machine())
        for found in answered(questions):
            answer(**found)


def answered(questions: IO[str]) -> Iterator[dict[str, Any]]:
    """The answers to questions; what cannot be done is an answer as well."""
    import gc

    ready = None
    for line in questions:
        asked = json.loads(line)
        try:
            if "build" in asked:
                ready = None
                gc.collect()
                ready = prepared(msgspec.convert(asked["build"], Gate), seed=asked["seed"])
                yield {"built": True}
            elif ready is not None:
                found = block(ready, Plan(**asked["block"]))
                yield {"seconds": found.seconds, "efficiency": found.efficiency}
            else:
                yield {"error": "nothing was built yet"}
        except (TfmError, msgspec.ValidationError) as error:
            yield {"error": str(error)}


def said_machine() -> str:
    """This installation in a line."""
    import torch

    from .. import __version__

    return f"tfm {__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread(s)"
