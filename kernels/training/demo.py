"""The demonstration as a function: prepare, train, look at unseen strings, save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...presets.errors import UnknownNameError, UsageError
from .exact_match import Score, exact_match
from .tasks import TASKS, Task, unseen_examples
from .tiny import DECODER_ONLY, ENCODER_DECODER, MODELS
from .trainer import Plan, Trainer, begin, has_encoder, resume, save, with_seed

STEPS = {ENCODER_DECODER: 700, DECODER_ONLY: 750}  # seeds 0 to 2 then answer all of 500 unseen strings, seed 3 misses one
Tell = Callable[[int, float], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one model; `steps` are all that it has behind it, `seconds` those of this run, its questions included."""

    model: str
    task: str
    letters: int
    shortest: int
    longest: int
    seed: int
    params: int
    steps: int
    losses: tuple[float, ...]
    score: Score
    seconds: float
    mistake: str | None
    path: Path | None

    def figures(self) -> dict[str, object]:
        """The keys of the contract."""
        return {
            "model": self.model,
            "task": self.task,
            "params": self.params,
            "steps": self.steps,
            "first_loss": self.losses[0] if self.losses else None,
            "last_loss": self.losses[-1] if self.losses else None,
            "right": self.score.right,
            "tried": self.score.tried,
            "exact_match": self.score.share,
            "seconds": self.seconds,
            "saved": None if self.path is None else str(self.path),
        }


def prepared(model: str | None, task: str | None, seed: int | None, path: str | None) -> list[Trainer]:
    """Trainers of the models asked for (`both` or None: all), or the one that was saved at `path`.

    Raises UnknownNameError, UnreadableError, and UsageError where a saved training was of something else.
    """
    if model not in (None, "both", *MODELS):
        raise UnknownNameError("model", str(model), ("both", *MODELS), f"Allowed: both, {', '.join(MODELS)}.")
    if task is not None and task not in TASKS:
        raise UnknownNameError("task", task, TASKS, f"Allowed: {', '.join(TASKS)}.")
    if path is None:
        plan = with_seed(Plan(), seed or 0)
        wanted = MODELS if model in (None, "both") else (str(model),)
        return [begin(name, Task(name=task or "both"), plan) for name in wanted]  # type: ignore[arg-type]
    found = resume(path)
    given = {
        "--model": (model, found.spec.name.removeprefix("tiny-")),
        "--task": (task, found.task.name),
        "--seed": (seed, found.plan.seed),
    }
    for option, (wish, was) in given.items():
        if wish is not None and wish != was:
            raise UsageError(f"{option} {wish}: the saved training is one of {was}; leave the option out, or begin anew without --resume")
    return [found]


def trained(
    trainer: Trainer,
    steps: int | None = None,
    *,
    unseen: int = 500,
    stop: Callable[[], bool] = lambda: False,
    tell: Tell = lambda *_: None,
    path: str | None = None,
) -> Outcome:
    """Train up to `steps` steps in all (as many as it takes if None), answer unseen strings, save where a path is given.

    `stop` is asked between steps. Raises UsageError where more steps are done already.
    """
    steps = usual_steps(trainer) if steps is None else steps
    if trainer.step > steps:
        raise UsageError(f"--steps {steps}: {trainer.step} are done already; give more")
    begun = time.perf_counter()
    for loss in trainer.run(steps, stop):
        tell(trainer.step, loss)
    score = exact_match(trainer.mean, unseen_examples(trainer.task, unseen, seed=trainer.plan.seed))
    return Outcome(
        model=trainer.spec.name,
        task=trainer.task.name,
        letters=len(trainer.task.letters),
        shortest=trainer.task.shortest,
        longest=trainer.task.longest,
        seed=trainer.plan.seed,
        params=sum(weight.numel() for weight in trainer.model.parameters()),
        steps=trainer.step,
        losses=tuple(trainer.losses),
        score=score,
        seconds=time.perf_counter() - begun,
        mistake=mistake(trainer.task, score),
        path=save(trainer, path) if path else None,
    )


def usual_steps(trainer: Trainer) -> int:
    """Enough to learn the task, or as many as are done already."""
    return max(trainer.step, STEPS[ENCODER_DECODER if has_encoder(trainer.spec) else DECODER_ONLY])


def mistake(task: Task, score: Score) -> str | None:
    """The first wrong answer, in words."""
    if score.wrong is None:
        return None
    asked, said = score.wrong
    order = task.vocabulary[asked.order].strip("<>")
    return f"{order} {task.text(asked.letters)!r} was answered {task.text(said)!r}"
