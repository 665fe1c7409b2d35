"""What autograd really keeps for the backward pass: distinct storages, parameters excluded, by the ledger's path.

Counted on `meta`, so a model of any size takes no memory. What is recomputed is what `tfm memory --recompute` names: `none` runs
attention operator by operator, `selective` forgets everything of size T x S (Korthikanti et al. 2022, arXiv:2205.05198, section 5),
`full` checkpoints every layer, and at its worst holds one layer beside the inputs of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..estimators.memory import Recompute
from ..estimators.work import Pass
from .blocks import Layer
from .feed_forward import Experts, FeedForward
from .inputs import random_inputs
from .model import Model
from .modules import Leaf, Named
from .paths import ledger_path
from .training.loss import loss_of

RUNS = {"none": "folded", "selective": "recomputed", "full": "folded"}
LOSS = "lm_head/cross_entropy"


@dataclass(kw_only=True, eq=False)
class Saved:
    """Bytes by path; `layers`: those of every layer but for its input, which layers before it have made."""

    by_path: Counter[str] = field(default_factory=Counter)
    layers: Counter[int] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All of them."""
        return self.by_path.total()


class Watch:
    """Notes every storage that is saved, once, where it is saved first."""

    def __init__(self, model: Model) -> None:
        self.found = Saved()
        self.seen = {id_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.held: list[Tensor] = []  # so that no storage of this pass is freed and its number given to another
        self.places: list[str] = [LOSS]
        self.inputs: list[tuple[int, int]] = []

    def pack(self, tensor: Tensor) -> Tensor:
        """Count, and save as usual."""
        key = id_of(tensor)
        if key not in self.seen:
            self.seen.add(key)
            self.held.append(tensor)
            size = tensor.untyped_storage().nbytes()
            self.found.by_path[self.places[-1]] += size
            if self.inputs:
                self.found.layers[self.inputs[-1][0]] += 0 if key == self.inputs[-1][1] else size
        return tensor

    def enter(self, path: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module begins."""
        self.places.append(path)
        if isinstance(module, Layer):
            self.inputs.append((id(module), id_of(args[0])))

    def leave(self, module: nn.Module) -> None:
        """It ends."""
        self.places.pop()
        if isinstance(module, Layer):
            self.inputs.pop()


def own_row(module: nn.Module) -> str:
    """The row of what a module does between its leaves: a feed-forward's activation."""
    if isinstance(module, FeedForward):
        return f"/{module.spec.activation}"
    return f"/{module.spec.expert.activation}" if isinstance(module, Experts) else ""


def id_of(tensor: Tensor) -> int:
    """The identity of a tensor's storage, on `meta` too."""
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def watched(model: Model) -> Iterator[Watch]:
    """Everything saved meanwhile, by the module that saves it."""
    watch = Watch(model)
    hooks = []
    for name, module in model.named_modules():
        if name and isinstance(module, Named | Leaf):
            path = ledger_path(model, name) + own_row(module)
            hooks.append(module.register_forward_pre_hook(lambda module, args, path=path: watch.enter(path, module, args)))
            hooks.append(module.register_forward_hook(lambda module, *_: watch.leave(module)))
    try:
        with torch.autograd.graph.saved_tensors_hooks(watch.pack, lambda tensor: tensor):
            yield watch
    finally:
        for hook in hooks:
            hook.remove()


def saved_tensors(model: Model, work: Pass, recompute: Recompute = "none", *, kernel: str | None = None) -> Saved:
    """Storages that a forward pass of `work` and its loss keep; with `full`, what the layer adds that is being run again.

    `kernel`: how attention runs in place of what `recompute` means (a key of `attention.KERNELS`).
    """
    inputs = random_inputs(model, work)
    with watched(model) as watch:
        outputs = model(**inputs, kernel=kernel or RUNS[recompute], recompute=recompute == "full")
        watch.places.append(LOSS)
        total = loss_of(model.spec, outputs)
    del total
    found = watch.found
    if recompute == "full":
        again = saved_tensors(model, work, "none", kernel=kernel)
        worst = max(again.layers.values(), default=0)
        found.by_path["the layer that is run again"] += worst
    return found
