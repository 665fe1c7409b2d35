"""Predicted beside observed, in training: what autograd keeps with and without recomputation, gradients, the optimizer's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import get_args

import torch
from msgspec.structs import replace
from torch import Tensor

from ..estimators.ledger import ledger
from ..estimators.memory import Recipe, Recompute, kept, memory
from ..estimators.work import Pass, tokens_of
from ..presets.dtypes import DTYPES
from ..presets.spec import Attention, ModelSpec, RelativeBuckets
from .findings import Finding, equal
from .inputs import random_inputs
from .model import Model
from .saved_tensors import saved_tensors
from .training.loss import loss_of
from .training.optimizers import OPTIMIZERS, make_optimizer, state_bytes

# What the ledger leaves out of what autograd keeps: statistics of norms (8 bytes a position), ids and masks of the loss, tables of
# rotary positions, a router's scores, masks of attention. In a model 8 wide that is not little.
KEPT_TOLERANCE = 0.01
SMALL_BYTES = 32  # a token and sublayer
NOTED = 0.001  # rows that are off by more than this share of all are shown


def validate_training(spec: ModelSpec, model: Model, work: Pass) -> Iterator[Finding]:
    """Findings of a training step of a model on `meta`; `work` is the pass, in the model's format."""
    name = f"train, {work.batch} x {work.context} tokens"
    for recompute in get_args(Recompute):
        yield from kept_findings(spec, model, work, recompute, f"{name}, recompute {recompute}")
    yield from state_findings(spec, model, work, name)


def kept_findings(spec: ModelSpec, model: Model, work: Pass, recompute: Recompute, name: str) -> Iterator[Finding]:
    """Bytes that the backward pass waits for; where the total is off, the rows in which ledger and autograd differ most."""
    predicted = int(memory(spec, work, Recipe(recompute=recompute)).activation_bytes)
    observed = saved_tensors(model, work, recompute)
    whole = near(name, "activation_bytes", predicted, observed.total, tolerance_bytes(spec, work, observed.total))
    yield whole
    if whole.ok or recompute == "full":  # of layers that are forgotten no row is left
        return
    rows = by_path(spec, work, recompute)
    for path in dict.fromkeys((*rows, *observed.by_path)):
        if abs(rows[path] - observed.by_path[path]) > NOTED * observed.total:
            found = Finding(
                name=f"{name}: {path}", quantity="activation_bytes", predicted=rows[path], observed=observed.by_path[path], ok=None
            )
            yield found


def by_path(spec: ModelSpec, work: Pass, recompute: Recompute) -> Counter[str]:
    """Bytes kept, by path, as the ledger has them."""
    found: Counter[str] = Counter()
    for row in ledger(spec, work):
        found[row.path] += kept((row,), work, square=recompute == "none")
    return found


def tolerance_bytes(spec: ModelSpec, work: Pass, observed: int) -> float:
    """How far the ledger may be off: KEPT_TOLERANCE, SMALL_BYTES a token and sublayer, and T5's bucket ids, T x S a stack."""
    small = 0
    for stack in spec.stacks:
        seen = tokens_of(spec, stack, work)
        subs = [sub for layer in stack.layers() for sub in layer.sublayers] if seen.runs else []
        small += SMALL_BYTES * seen.sequences * seen.new * len(subs)
        if any(isinstance(sub.mixer, Attention) and isinstance(sub.mixer.position, RelativeBuckets) for sub in subs):
            small += 8 * seen.new * seen.span
    return float(KEPT_TOLERANCE * observed + small)


def near(name: str, quantity: str, predicted: int, observed: int, tolerance: float) -> Finding:
    """A figure that must not be off by more than `tolerance`."""
    ok = abs(predicted - observed) <= tolerance
    return Finding(name=name, quantity=quantity, predicted=predicted, observed=observed, ok=ok)


def state_findings(spec: ModelSpec, model: Model, work: Pass, name: str) -> Iterator[Finding]:
    """Bytes of the gradients that a backward pass makes, and of the state that PyTorch's optimizers make for them, in fp32."""
    loss_of(spec, model(**random_inputs(model, work))).backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    kind = DTYPES["bf16" if model.make.dtype == torch.bfloat16 else "fp32"]
    recipe = Recipe(gradient_dtype=kind, optimizer="sgd", master_weights=False)
    yield equal(name, "gradient_bytes", int(memory(spec, work, recipe).gradient_bytes), sum(tensor.nbytes for tensor in gradients))
    for optimizer in OPTIMIZERS:
        chosen = replace(recipe, optimizer=optimizer)
        predicted, observed = int(memory(spec, work, chosen).optimizer_bytes), made_state(optimizer, gradients)
        if predicted or observed:
            yield equal(f"{name}, {optimizer}", "optimizer_bytes", predicted, observed)
    model.zero_grad(set_to_none=True)


def made_state(optimizer: str, gradients: list[Tensor]) -> int:
    """Bytes of state after one step over fp32 weights that have these gradients; one number a weight (Adam's step) apart."""
    weights = [torch.nn.Parameter(torch.empty_like(tensor, dtype=torch.float32)) for tensor in gradients]
    for weight in weights:
        weight.grad = torch.empty_like(weight)
    made = make_optimizer(optimizer, weights)
    made.step()
    return state_bytes(made)
