"""Whole models on the clock: how many layers fit, what is built, and from the layers timed to all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...estimators.latency import roofline, row_times
from ...estimators.ledger import ledger, total
from ...estimators.memory import Recipe, memory
from ...estimators.sizes import bytes_of, stored_bytes
from ...estimators.training_step import row_step, training_step
from ...estimators.work import Pass
from ...presets.device import Device
from ...presets.dtypes import DTYPES
from ...presets.errors import UsageError
from ...presets.spec import ModelSpec
from ..cache import Cache
from ..inputs import cross_tokens, random_inputs
from ..model import Model, cut
from ..probes import dtype_name, free_memory_bytes, require_memory
from ..timing import Sample
from ..tuning import MOST_ROWS, tune, untune
from .setting import Setting

AUTO_STEP_S = 0.25  # `auto` takes so many layers that one pass of them lasts about this long
RESERVE = 0.9  # of the free memory, so that what the machine does meanwhile does not swap


def pass_of(phase: str, dtype: torch.dtype, *, batch: int, context: int, **more: Any) -> Pass:
    """The pass that a benchmark runs: one format for weights, cache and arithmetic."""
    kind = DTYPES[dtype_name(dtype)]
    return Pass(phase=phase, batch=batch, context=context, weight_dtype=kind, kv_dtype=kind, activation_dtype=kind, **more)  # type: ignore[arg-type]


# --- how many layers ------------------------------------------------------------------------------------------------


def needed_bytes(spec: ModelSpec, work: Pass) -> int:
    """Weights, cache and activations of one model that runs this pass, as PyTorch holds them; in training gradients and moments too."""
    if work.phase == "train":
        return training_bytes(spec, work)
    rows = ledger(spec, work)
    weights = bytes_of(total(rows, "params", per="copies"), work.weight_dtype)
    cache = sum(stored_bytes(row, work) for row in rows)
    widest = max((row.reads + row.writes for row in rows if row.repeat), default=0)
    return int(weights + cache + 3 * bytes_of(widest, work.activation_dtype))


def training_bytes(spec: ModelSpec, work: Pass) -> int:
    """Weights, gradients and Adam's moments in one format, what fused attention keeps, and the loss's copies of the logits."""
    kind = work.weight_dtype
    found = memory(spec, work, Recipe(gradient_dtype=kind, master_weights=False, recompute="selective"))
    logits = sum(row.saved_bytes for row in found.rows if row.path == "lm_head/cross_entropy")
    return int(4 * found.weight_bytes + found.activation_bytes + 3 * logits)


def depth(spec: ModelSpec) -> int:
    """Layers of the largest stack: what `layers` counts."""
    return max(stack.depth for stack in spec.stacks)


def layers_for(wanted: str, spec: ModelSpec, works: list[Pass], setting: Setting, device: Device) -> int:
    """How many layers to time: `all`, a number, or as many as fit the memory and AUTO_STEP_S (`auto`).

    Raises UnreadableError, with what would fit, where the memory is not there.
    """
    whole, free = depth(spec), free_memory_bytes(setting.device)
    if wanted == "auto":
        return automatic(spec, works, device, None if free is None else int(RESERVE * free))
    layers = whole if wanted == "all" else number_of_layers(wanted, whole)
    needed = most_bytes(spec, works, layers)
    require_memory(
        needed, setting.device, what=f"{spec.name} with {layers} of {whole} layers", fits=lambda room: said_fit(spec, works, room)
    )
    return layers


def number_of_layers(wanted: str, whole: int) -> int:
    """A number of layers as typed; raises UsageError."""
    if not wanted.isdecimal() or not 1 <= int(wanted) <= whole:
        raise UsageError(f"--layers: got {wanted!r}; allowed: auto, all or a number from 1 to {whole}")
    return int(wanted)


def most_bytes(spec: ModelSpec, works: list[Pass], layers: int) -> int:
    """What the largest of some passes needs."""
    short = cut(spec, layers)
    return max(needed_bytes(short, work) for work in works)


def automatic(spec: ModelSpec, works: list[Pass], device: Device, room: int | None) -> int:
    """All layers where they are quick and fit, else as many as do, at least one."""

    def serves(layers: int) -> bool:
        quick = all((bound_of(cut(spec, layers), work, device) or 0.0) <= AUTO_STEP_S for work in works)
        return quick and (room is None or most_bytes(spec, works, layers) <= room)

    low, high = 1, depth(spec)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if serves(middle) else (low, middle - 1)
    return low


def bound_of(spec: ModelSpec, work: Pass, device: Device) -> float | None:
    """The bound of a pass in seconds."""
    bound = (training_step if work.phase == "train" else roofline)(spec, work, device).bound_s
    return None if bound is None else float(bound)


def said_fit(spec: ModelSpec, works: list[Pass], room: int) -> str:
    """In words, how many layers so many free bytes have room for."""
    fitting = [layers for layers in range(1, depth(spec) + 1) if most_bytes(spec, works, layers) <= room]
    return f"--layers {max(fitting)} ({dtype_of(works[0])})" if fitting else "a smaller model, a narrower dtype or a shorter context"


def dtype_of(work: Pass) -> str:
    """The format computed in."""
    return work.activation_dtype.name


# --- from the layers timed to all -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How the time of some layers becomes that of all: outside + (time - outside) · factor."""

    timed: int
    whole: int
    factor: float

    @property
    def said(self) -> str:
        """In words."""
        return f"{self.timed} of {self.whole} layers timed" + (", scaled" if self.timed < self.whole else "")

    def apply(self, sample: Sample, outside: Sample | None) -> Sample:
        """The sample of the whole model; `outside` was taken side by side with it, and ran embedding and heads alone."""
        if self.timed == self.whole or outside is None:
            return sample
        pairs = zip(sample.times, outside.times, strict=False)
        return replace(sample, times=tuple(rest + max(0.0, time - rest) * self.factor for time, rest in pairs))


def scale_of(spec: ModelSpec, layers: int, work: Pass, device: Device) -> Scale:
    """Layers of different kinds count by their floors, equal ones are simply counted."""
    whole, timed = (layer_seconds(model, work, device) for model in (spec, cut(spec, layers)))
    return Scale(timed=min(layers, depth(spec)), whole=depth(spec), factor=whole / timed)


def layer_seconds(spec: ModelSpec, work: Pass, device: Device) -> float:
    """The floor of what lies in layers."""
    inside = [row for row in ledger(spec, work) if row.repeat and in_layer(spec, row.path)]
    peak = device.peak_for(work.activation_dtype.name) or float("inf")
    if work.phase == "train":
        return float(sum(row_step(row, work, device, peak) for row in inside))
    return float(sum(max(row_times(row, work, device, peak)) for row in inside))


def in_layer(spec: ModelSpec, path: str) -> bool:
    """Whether a row belongs to a layer: not to embeddings, final norms or heads."""
    stack, _, rest = path.partition("/")
    return stack in {known.name for known in spec.stacks} and rest.partition("/")[0] not in ("embedding", "final")


# --- what runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model with its cache and input, ready to run one pass; `states` [B,T,D]: what each stack gives to the heads in it."""

    model: Model
    inputs: dict[str, Any]
    cache: Cache | None
    work: Pass
    states: dict[str, Tensor] = field(default_factory=dict)

    @torch.inference_mode()
    def run(self) -> dict[str, Tensor]:
        """One pass, as it is timed."""
        return self.step()

    def step(self) -> dict[str, Tensor]:
        """One pass; the cache is as it was before."""
        if self.cache is not None:
            self.cache.length = self.work.context - self.work.new_tokens
        return self.model(**self.inputs, cache=self.cache, last=self.work.last_logits)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def outside(self) -> list[Tensor]:
        """The heads alone, over states of the shape that the pass gives them."""
        spec = self.model.spec
        return [
            module(self.states[head.stack], last=self.work.last_logits) for head, module in zip(spec.heads, self.model.heads, strict=True)
        ]


def subject(model: Model, work: Pass, *, outside: bool = False) -> Subject:
    """A model made ready for a pass: random tokens, a cache full of random numbers up to the new ones.

    `outside`: it will run what is not in layers alone, and so needs the states, from one pass. For a pass of few tokens the
    model's linear layers are tuned: they may lose their parameter to another order of it, until it is made ready for other passes.
    """
    cache = None
    if model.spec.decodes:
        cache = model.cache(work.batch, work.context, source=cross_tokens(model.spec, work))
        if work.decoding:
            cache.randomise(work.context - work.new_tokens)
    made = Subject(model=model, inputs=random_inputs(model, work), cache=cache, work=work)
    rows = work.batch * work.new_tokens
    if work.phase != "train" and rows <= MOST_ROWS:
        tune(model, made.run, rows)
    else:
        untune(model, rows)
    if outside:
        made.states.update({name: states for name, states in made.run().items() if name in {stack.name for stack in model.spec.stacks}})
    return made
