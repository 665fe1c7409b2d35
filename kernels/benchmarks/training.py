"""A training step of a whole model on the clock: forward, backward, optimizer, side by side with the bandwidth and matmul probes."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace
from torch.optim import Optimizer

from ...estimators.training_step import training_step
from ...estimators.work import Pass
from ...presets.spec import ModelSpec
from ..inputs import random_inputs
from ..machine import device_title
from ..model import Model, build_model
from ..modules import Make
from ..packed import held_bytes
from ..probes import dtype_name, free_memory_bytes
from ..training.loss import loss_of
from ..training.optimizers import make_optimizer, state_bytes
from .backends import backend_of
from .passes import OUTSIDE, as_float, in_turn, refuse_context
from .record import Record
from .setting import Setting
from .whole import Scale, depth, layers_for, pass_of, scale_of
from .yardstick import Yardstick, beside, yardstick

RATE = 1e-6  # so small that the weights stay what they are


def bench_train(
    spec: ModelSpec,
    *,
    dtype: torch.dtype = torch.bfloat16,
    points: Sequence[tuple[int, int]] = ((1, 256),),
    layers: str = "auto",
    optimizer: str = "adam",
    setting: Setting | None = None,
) -> Iterator[Record]:
    """A step over each (batch, context); gradients and the optimizer's state are in the weights' format. Raises TfmError."""
    setting = setting or Setting()
    works = [pass_of("train", dtype, batch=batch, context=context) for batch, context in points]
    for work in works:
        refuse_context(spec, work)
    yard = yardstick(setting, dtype)
    device = yard.device(dtype_name(dtype), setting.device)
    count = layers_for(layers, spec, works, setting, device)
    setting.tell(f"building {spec.name} in {dtype_name(dtype)}: {count} of {depth(spec)} layers, its gradients and its optimizer")
    trained = [trainable(spec, dtype, count, optimizer, setting, seed=0)]
    copies = setting.copies(predicted_bytes(trained[0]), free_memory_bytes(setting.device))
    trained += [trainable(spec, dtype, count, optimizer, setting, seed=seed) for seed in range(1, copies)]
    for work in works:
        scale = scale_of(spec, count, work, device)
        setting.tell(f"training step of {spec.name}, {work.batch} x {work.context} tokens: {scale.said}")
        ready = [Step(model=one, rest=hollow(one), optimizer=steps, inputs=random_inputs(one, work)) for one, steps in trained]
        calls = {"": in_turn([one.run for one in ready])}
        if scale.timed < scale.whole:
            calls[OUTSIDE] = in_turn([one.outside for one in ready])
        samples, yard = beside(setting, yard, calls, arithmetic=True, warmup=1)
        sample = scale.apply(samples[""], samples.get(OUTSIDE))
        found = line(spec, work, optimizer, scale, ready, yard, setting)
        yield Record(sample=sample, backend=backend_of(ready[0].forward), **found)
        if sample.interrupted:
            raise KeyboardInterrupt
        gc.collect()


@dataclass(frozen=True, kw_only=True)
class Step:
    """A model with its optimizer and one batch; `rest` is the same model without its layers."""

    model: Model
    rest: Model
    optimizer: Optimizer
    inputs: dict[str, Any]

    def run(self) -> None:
        """One step."""
        self.step(self.model)

    def outside(self) -> None:
        """One step of what is not in layers: the optimizer passes over weights without a gradient."""
        self.step(self.rest)

    def forward(self) -> None:
        """The forward pass alone, to see what it runs."""
        self.model(**self.inputs)

    def step(self, model: Model) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad(set_to_none=True)
        loss_of(model.spec, model(**self.inputs)).backward()
        self.optimizer.step()

    @property
    def held_bytes(self) -> int:
        """Weights, gradients and state that are there after a step."""
        weights = sum(weight.nbytes for weight in self.model.parameters())
        gradients = sum(weight.grad.nbytes for weight in self.model.parameters() if weight.grad is not None)
        return int(weights + gradients + state_bytes(self.optimizer))


def trainable(spec: ModelSpec, dtype: torch.dtype, layers: int, optimizer: str, setting: Setting, *, seed: int) -> tuple[Model, Optimizer]:
    """A model with random weights, and its optimizer."""
    model = build_model(spec, device=setting.device, dtype=dtype, layers=layers, seed=seed)
    return model, make_optimizer(optimizer, model.parameters(), rate=RATE, fused=fused(setting.device))


def predicted_bytes(trained: tuple[Model, Optimizer]) -> int:
    """Weights, gradients and moments that will be there after a step."""
    model, optimizer = trained
    moments = {"Adam": 2, "SGD": int(bool(optimizer.defaults.get("momentum")))}[type(optimizer).__name__]
    return (2 + moments) * held_bytes(model)


def fused(device: torch.device) -> bool:
    """Whether PyTorch has the optimizers as one kernel there, which passes over weights, gradients and state once."""
    return device.type in ("cpu", "cuda")


def hollow(model: Model) -> Model:
    """The model's embeddings, final parts, connectors and heads, with its own weights, and no layers."""
    spec = replace(model.spec, stacks=tuple(replace(stack, blocks=()) for stack in model.spec.stacks), total_params=None)
    made = Model(spec, Make(device=torch.device("meta"), dtype=model.make.dtype))
    for empty, full in zip(made.stacks, model.stacks, strict=True):
        empty.embedding, empty.final = full.embedding, full.final
    made.make, made.connectors, made.heads, made.extra = model.make, model.connectors, model.heads, model.extra
    return made


def line(
    spec: ModelSpec, work: Pass, optimizer: str, scale: Scale, ready: Sequence[Step], yard: Yardstick, setting: Setting
) -> dict[str, Any]:
    """The fields of a record but for what the clock said."""
    dtype = work.weight_dtype.name
    predicted = training_step(spec, work, yard.device(dtype, setting.device), optimizer=optimizer)
    cached = setting.in_cache(sum(one.held_bytes for one in ready))
    return {
        "labels": {"model": spec.name, "batch": work.batch, "ctx": work.context},
        "device": device_title(setting.device),
        "dtype": dtype,
        "flops": float(predicted.flops),
        "bytes": float(predicted.bytes),
        "bandwidth_bytes_per_s": yard.bytes_per_s,
        "probe": yard.probe,
        "peak_flops_per_s": yard.flops_per_s,
        "floor_s": None if cached else as_float(predicted.floor_s),
        "bound_s": None if cached else as_float(predicted.bound_s),
        "facts": {
            "weight_dtype": dtype,
            "optimizer": optimizer,
            "layers_timed": scale.timed,
            "layers_total": scale.whole,
            "threads": torch.get_num_threads(),
            "held_bytes": ready[0].held_bytes,
        },
    }
