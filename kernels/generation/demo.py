"""A tiny trained model at its task, token by token, with what each step took beside what its bytes would take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...estimators.latency import roofline
from ...estimators.work import Pass
from ...presets.device import Device
from ...presets.dtypes import DTYPES
from ...presets.errors import UsageError
from ...presets.spec import ModelSpec
from ..benchmarks.yardstick import measured_device
from ..model import Model
from ..probes import Bandwidth, measured_bandwidth, op_launch_cost
from ..timing import Stopping
from ..training.exact_match import until_end
from ..training.tasks import BOS, COPY, EOS, REVERSE, SPECIAL, Example, Task
from ..training.teacher import prompt_of, source_of
from ..training.tiny import DECODER_ONLY
from ..training.trainer import Plan, begin, has_encoder
from .beam import beam_search
from .loop import generate
from .reader import Reader, Step
from .sampling import Sampler

BRIEF = Stopping(min_samples=5, min_seconds=0.2, max_seconds=2.0)
PROBE_BYTES = 2**28  # a quarter of what a benchmark streams: enough to leave the caches, and quick
DTYPE = "fp32"


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the next tokens are found: `beams` hypotheses, or by a sampler (greedy where its temperature is 0)."""

    sampler: Sampler
    beams: int | None = None
    length_penalty: float = 0.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One step: the token it gave, what it read, what is kept after it, its seconds, and the floor of its bytes."""

    token: int
    read: int
    cache_length: int
    cache_bytes: int
    seconds: float
    floor_s: float


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A demonstration.

    Attributes:
        said: the answer, without its end. right: whether it is what was asked for. log_prob: of all its tokens.
        operators: that PyTorch runs in one decode step. launch_s: what one costs on one element.
    """

    said: tuple[int, ...]
    right: bool
    log_prob: float
    lines: tuple[Line, ...]
    operators: int
    launch_s: float
    bandwidth: Bandwidth

    @property
    def step_s(self) -> float:
        """Median of the steps after the first, which reads the prompt (of it, where there is no other)."""
        return median(line.seconds for line in (self.lines[1:] or self.lines))

    @property
    def floor_s(self) -> float:
        """Median floor of the same steps."""
        return median(line.floor_s for line in (self.lines[1:] or self.lines))


def trained(steps: int, seed: int, tell: Callable[[str], None]) -> tuple[ModelSpec, Model, Task]:
    """A tiny decoder trained for so many steps, fewer once its loss is small, for who has no saved model."""
    task = Task(letters="abcdefgh", longest=5)
    trainer = begin(DECODER_ONLY, task, Plan(seed=seed, batch=64))
    for loss in trainer.run(steps, lambda: trainer.step > 0 and trainer.losses[-1] < 0.01):
        tell(f"training a tiny model: step {trainer.step} of {steps}, loss {loss:.3f}")
    return trainer.spec, trainer.model.eval(), task


def example_of(text: str, task: Task) -> Example:
    """`reverse abc`, `copy abc`, or letters alone for the first of the task's orders. Raises UsageError."""
    words = text.split()
    orders = {"copy": COPY, "reverse": REVERSE}
    order = orders[words.pop(0)] if words and words[0] in orders else task.orders[0]
    if order not in task.orders:
        raise UsageError(f"this model was trained to {task.name}; got the prompt {text!r}")
    letters = "".join(words)
    strange = sorted({letter for letter in letters if letter not in task.letters})
    if not letters or strange:
        raise UsageError(f"a prompt is `copy` or `reverse` and letters of {task.letters}; got {text!r}")
    return Example(order=order, letters=tuple(len(SPECIAL) + task.letters.index(letter) for letter in letters))


def demonstrate(model: Model, example: Example, way: Way) -> Shown:
    """The answer to one example, measured step by step, with the bandwidth of the same run. Raises TfmError."""
    bandwidth = measured_bandwidth(torch.float32, model.make.device, size_bytes=PROBE_BYTES, stopping=BRIEF)
    device = measured_device(model.make.device, bytes_per_s=bandwidth.bytes_per_s, peaks={DTYPE: None}, source=bandwidth.winner.name)
    answered(model, example, way, [])  # warms up
    steps: list[Step] = []
    tokens, log_prob = answered(model, example, way, steps)
    said = until_end(tokens) if EOS in tokens else tokens
    return Shown(
        said=said,
        right=EOS in tokens and said == example.answer,
        log_prob=log_prob,
        lines=tuple(lines(model.spec, example, tokens, steps, device)),
        operators=operators_of_step(model, example),
        launch_s=op_launch_cost(model.make.device, stopping=BRIEF).median_s,
        bandwidth=bandwidth,
    )


def asked(model: Model, example: Example) -> tuple[list[int], dict[str, Any]]:
    """The decoder's prompt, and what its encoder reads, if it has one."""
    if has_encoder(model.spec):
        return [BOS], {"source": torch.tensor([source_of(example)], device=model.make.device)}
    return list(prompt_of(example)), {}


def answered(model: Model, example: Example, way: Way, steps: list[Step]) -> tuple[tuple[int, ...], float]:
    """New tokens, the end's too where it was reached, and the log of their probability; every step goes to `steps`."""
    prompt, given = asked(model, example)
    new = len(example.letters) + 2
    if way.beams is not None:
        best = beam_search(model, prompt, new=new, beams=way.beams, eos=EOS, length_penalty=way.length_penalty, told=steps.append, **given)[
            0
        ]
        return best.tokens, best.log_prob
    made = generate(model, [prompt], new=new, sampler=way.sampler, eos=EOS, seed=way.seed, told=steps.append, **given)
    return made.tokens[0], made.log_probs[0]


def lines(spec: ModelSpec, example: Example, tokens: tuple[int, ...], steps: list[Step], device: Device) -> Iterator[Line]:
    """A line for each token of the answer, with the floor of its step."""
    for place, (token, step) in enumerate(zip(tokens, steps, strict=False)):
        fp32 = DTYPES[DTYPE]
        sequences = 1 if place == 0 else max(len(steps[place - 1].tokens), 1)
        work = Pass(
            phase="decode" if place else "prefill", batch=sequences, context=step.cache_length, new=step.read,
            source=len(source_of(example)), weight_dtype=fp32, kv_dtype=fp32, activation_dtype=fp32,
        )  # fmt: skip
        floor = float(roofline(spec, work, device).memory_s)
        yield Line(
            token=token, read=step.read, cache_length=step.cache_length, cache_bytes=step.cache_bytes, seconds=step.seconds, floor_s=floor
        )  # fmt: skip


class Counted(TorchDispatchMode):
    """Counts the operators that reach PyTorch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, then run as usual."""
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_of_step(model: Model, example: Example) -> int:
    """Operators of one decode step."""
    prompt, given = asked(model, example)
    reader = Reader(model, 1, len(prompt) + 1, **given)
    reader.read(torch.tensor([prompt], device=model.make.device))
    with Counted() as seen:
        reader.read(torch.tensor([[EOS]], device=model.make.device))
    return int(seen.count)
