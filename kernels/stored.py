"""Linear layers whose matrix lies in another order (`orders`), by itself or as one with those that multiply the same x."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .modules import Linear, become
from .orders import Order


class Stored:
    """The matrices of some linear layers as one, in an order for so many rows: their outputs lie side by side, and are made at once.

    Which layer asks first does not matter. What it made for the others waits for them, for the same x; x must not change meanwhile.
    """

    def __init__(self, layers: Sequence[Linear], order: Order, rows: int) -> None:
        self.order, self.rows = order, rows
        self.sizes = [layer.weight.shape[0] for layer in layers]
        self.numbers = order.store(layers[0].weight if len(layers) == 1 else torch.cat([layer.weight for layer in layers]), rows)
        self.bias = joined_bias(layers)
        self.x: Tensor | None = None
        self.waiting: dict[int, Tensor] = {}

    def product(self, x: Tensor, index: int) -> Tensor:
        """x [...,I] times the matrix of one layer transposed, plus its bias: [...,O]."""
        if len(self.sizes) == 1:
            return self.order.product(x, self.numbers, self.bias)
        if x is not self.x or index not in self.waiting:
            self.x, self.waiting = x, dict(enumerate(self.order.product(x, self.numbers, self.bias).split(self.sizes, dim=-1)))
        part = self.waiting.pop(index)
        if not self.waiting:
            self.x = None
        return part

    def weights(self) -> Iterator[Tensor]:
        """The matrices [O,I] as they lay."""
        for weight in self.order.back(self.numbers).split(self.sizes):
            yield weight if len(self.sizes) == 1 else weight.clone()


def joined_bias(layers: Sequence[Linear]) -> Tensor | None:
    """Biases one after another, zeros for those that have none; None if no layer has one."""
    if all(layer.bias is None for layer in layers):
        return None
    biases = [layer.weight.new_zeros(layer.weight.shape[0]) if layer.bias is None else layer.bias.detach() for layer in layers]
    return biases[0] if len(layers) == 1 else torch.cat(biases)


class StoredLinear(Linear):
    """x [..., d_in] -> [..., d_out], the matrix stored otherwise: what a `Linear` becomes, where it stands."""

    stored: Stored
    index: int

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        return self.stored.product(x, self.index)


@torch.no_grad()
def reorder(layers: Sequence[Linear], order: Order, rows: int) -> None:
    """Store matrices as one in an order for so many rows, and let go of the old ones; the numbers stay the same."""
    stored = Stored(layers, order, rows)
    for index, layer in enumerate(layers):
        become(layer, StoredLinear)
        layer.stored, layer.index = stored, index  # type: ignore[assignment]


@torch.no_grad()
def lay_back(model: nn.Module, rows: int) -> None:
    """Matrices of a model that are stored for another number of rows than this one lie as they did, one store after another."""
    layers: dict[Stored, list[StoredLinear]] = {}
    for module in model.modules():
        if isinstance(module, StoredLinear) and module.stored.rows != rows:
            layers.setdefault(module.stored, []).append(module)
    while layers:
        stored, parts = layers.popitem()
        for layer in parts:
            del layer.stored
        for layer, weight in zip(sorted(parts, key=lambda layer: layer.index), stored.weights(), strict=True):
            layer.__class__ = Linear  # type: ignore[assignment]
            layer.weight = nn.Parameter(weight)


@contextmanager
def taking_the_same(model: nn.Module) -> Iterator[list[list[Linear]]]:
    """Collects the linear layers with a matrix that run meanwhile, together those that take the same x one after another; each once."""
    groups: list[list[Linear]] = []
    seen: set[nn.Module] = set()
    last: list[Tensor] = []

    def hear(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if layer in seen:
            return
        seen.add(layer)
        assert isinstance(layer, Linear)
        if last and last[0] is inputs[0]:
            groups[-1].append(layer)
        else:
            groups.append([layer])
        last[:] = inputs[:1]

    hooks = [
        module.register_forward_pre_hook(hear) for module in model.modules() if isinstance(module, Linear) and module.weight is not None
    ]
    try:
        yield groups
    finally:
        for hook in hooks:
            hook.remove()


def stored_bytes(model: nn.Module) -> int:
    """Bytes of matrices that are stored otherwise."""
    return sum(stored.numbers.nbytes for stored in {module.stored for module in model.modules() if isinstance(module, StoredLinear)})
