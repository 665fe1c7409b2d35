"""The loop: batch, forward, loss, backward, step; and everything that it takes to go on another day as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ...presets.errors import UnreadableError, UsageError
from ...presets.spec import ModelSpec
from ..init import fill_for_training
from ..model import Model, build_model
from ..saved import Saved, read_saved, save_model
from .loss import cross_entropy
from .optimizers import make_optimizer, schedule
from .tasks import Example, Task, task_of, training_examples
from .teacher import Batch, decoder_only_batch, encoder_decoder_batch
from .tiny import tiny_spec


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model is trained. Everything that the numbers depend on, but for the machine.

    Attributes:
        batch: strings a step. warmup, rate: of the schedule and the factor on it. smoothing: of the labels.
        clip: the largest norm of the gradient (Pascanu et al. 2012, arXiv:1211.5063).
        average: how much of its past the average of the weights keeps a step. It is the average that answers, as the original
            averaged its last checkpoints (Vaswani et al. 2017, section 6.1).
    """

    seed: int = 0
    batch: int = 64
    optimizer: str = "adam"
    warmup: int = 150
    rate: float = 0.4
    smoothing: float = 0.0
    clip: float = 1.0
    average: float = 0.99

    @classmethod
    def read(cls, saved: object) -> Plan:
        """The plan in a saved model's extra. Raises UnreadableError."""
        base = asdict(cls())
        if isinstance(saved, dict) and saved.keys() == base.keys() and all(type(saved[key]) is type(base[key]) for key in base):
            return cls(**saved)
        raise UnreadableError("the saved model does not say how it was trained; give one that `tfm train-demo` saved")


@dataclass(kw_only=True, eq=False)
class Trainer:
    """A model in training, and `mean`, the average of its weights over the last steps.

    `losses` holds the loss of every step so far, so `step` is their number.
    """

    spec: ModelSpec
    model: Model
    mean: Model
    task: Task
    plan: Plan
    optimizer: Optimizer
    schedule: LambdaLR
    losses: list[float] = field(default_factory=list)

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.losses)

    def run(self, steps: int, stop: Callable[[], bool] = lambda: False) -> Iterator[float]:
        """Train until `steps` steps are done or `stop` says so, between two of them; gives each loss."""
        while self.step < steps and not stop():
            yield self.once()

    def once(self) -> float:
        """One step."""
        batch = batch_of(self.spec, training_examples(self.task, self.plan.batch, seed=self.plan.seed, step=self.step))
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(**batch.inputs, kernel="sdpa")["lm_head"]
        loss = cross_entropy(logits, batch.targets, smoothing=self.plan.smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip)
        self.optimizer.step()
        self.schedule.step()
        self.follow()
        self.losses.append(float(loss.detach()))
        return self.losses[-1]

    @torch.no_grad()
    def follow(self) -> None:
        """Move the average towards the weights, the faster the younger it is."""
        kept = min(self.plan.average, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.mean.parameters()), list(self.model.parameters()), 1 - kept)


def batch_of(spec: ModelSpec, examples: list[Example]) -> Batch:
    """The examples as the model takes them."""
    return encoder_decoder_batch(examples) if has_encoder(spec) else decoder_only_batch(examples)


def has_encoder(spec: ModelSpec) -> bool:
    """Whether strings are read by an encoder."""
    return any(stack.tokens == "source" for stack in spec.stacks)


def begin(model: str, task: Task, plan: Plan) -> Trainer:
    """A new training of the tiny model called `model` (`tiny.MODELS`)."""
    spec = tiny_spec(model, len(task.vocabulary))
    made, mean = build_model(spec), build_model(spec)
    for each in (made, mean):
        fill_for_training(each, seed=plan.seed)
    return trainer_of(spec, (made, mean), task, plan)


def trainer_of(spec: ModelSpec, models: tuple[Model, Model], task: Task, plan: Plan, losses: tuple[float, ...] = ()) -> Trainer:
    """A trainer that has done as many steps as there are losses; the optimizer's state is yet to be put back."""
    model, mean = models
    optimizer = make_optimizer(plan.optimizer, model.parameters(), rate=plan.rate)
    rates = schedule(optimizer, width=spec.main.d_model, warmup=plan.warmup, done=len(losses))
    return Trainer(spec=spec, model=model, mean=mean, task=task, plan=plan, optimizer=optimizer, schedule=rates, losses=list(losses))


# --- saving and going on --------------------------------------------------------------------------------------------


def save(trainer: Trainer, path: str | Path) -> Path:
    """The average as the model; its task, plan and losses, the weights themselves and the optimizer's state beside it, in one file.

    Raises UnreadableError where it cannot be written.
    """
    names: dict[Tensor, str] = {weight: name for name, weight in trainer.model.named_parameters()}
    state = {
        f"optimizer/{names[weight]}/{key}": value
        for weight, held in trainer.optimizer.state.items()
        for key, value in held.items()
        if isinstance(value, Tensor)
    }
    state |= {f"weights/{name}": weight for weight, name in names.items()}
    state["losses"] = torch.tensor(trainer.losses, dtype=torch.float64)
    extra = {**trainer.task.extra(), "plan": asdict(trainer.plan), "step": trainer.step}
    return save_model(path, trainer.spec, trainer.mean, extra, state=state)


def resume(path: str | Path) -> Trainer:
    """The training that `save` wrote, as it was. Raises UnreadableError."""
    found = read_saved(path)
    losses = found.state.get("losses")
    if losses is None or losses.dtype != torch.float64 or losses.ndim != 1:
        raise UnreadableError(f"{path}: holds a model and no training; give a file that `tfm train-demo --save` wrote")
    models = build_model(found.spec), found.model
    trainer = trainer_of(found.spec, models, task_of(found.extra), Plan.read(found.extra.get("plan")), tuple(losses.tolist()))
    put_back(trainer, found, str(path))
    return trainer


def put_back(trainer: Trainer, found: Saved, origin: str) -> None:
    """Every weight as it was, and the optimizer's state of it."""
    for name, weight in trainer.model.named_parameters():
        was = found.state.get(f"weights/{name}")
        if was is None or was.shape != weight.shape:
            raise UnreadableError(f"{origin}: has no weight {name} of the right shape to go on from; the file was changed")
        weight.data.copy_(was)
        prefix = f"optimizer/{name}/"
        held: dict[str, Any] = {key.removeprefix(prefix): value for key, value in found.state.items() if key.startswith(prefix)}
        if any(value.ndim and value.shape != weight.shape for value in held.values()):
            raise UnreadableError(f"{origin}: the optimizer's state of {name} has another shape than the weight; the file was changed")
        if held:
            trainer.optimizer.state[weight] = held


def with_seed(plan: Plan, seed: int) -> Plan:
    """The plan with another seed; raises UsageError for one that no generator takes."""
    if not 0 <= seed < 2**31:
        raise UsageError(f"a seed is from 0 to {2**31 - 1}; got {seed}")
    return replace(plan, seed=seed)
