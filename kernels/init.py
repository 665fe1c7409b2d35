"""Random weights, made in place and fast: a model of 13.5 GB has no second copy, and is not drawn number by number."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BLOCK = (1 << 20) + 7  # numbers drawn once and repeated; odd, so that the rows of a matrix differ


class Drawer:
    """Fills tensors with normal numbers that repeat every BLOCK elements; a tensor that it has filled is left alone."""

    def __init__(self, seed: int, device: torch.device) -> None:
        if device.type == "meta":
            device = torch.device("cpu")
        generator = torch.Generator(device=device).manual_seed(seed)
        once = torch.randn(BLOCK, generator=generator, device=device)
        self.block = torch.cat([once, once])  # so that it can be read from any place
        self.offset, self.done = 0, set[int]()

    @torch.no_grad()
    def __call__(self, tensor: Tensor, spread: float, centre: float) -> None:
        """centre + spread x N(0, 1), in place."""
        if tensor.is_meta or id(tensor) in self.done:
            return
        self.done.add(id(tensor))
        count = tensor.numel()
        self.offset = (self.offset + 10007) % BLOCK
        numbers = (self.block[self.offset : self.offset + min(count, BLOCK)] * spread + centre).to(tensor.dtype)
        flat, whole = tensor.view(-1), count // BLOCK * BLOCK
        if whole:
            flat[:whole].view(-1, BLOCK).copy_(numbers)
        flat[whole:].copy_(numbers[: count - whole])


def fill(model: nn.Module, *, seed: int = 0) -> None:
    """Random numbers for every weight and buffer: each module that has `reset` says of which size."""
    first = next(model.parameters(), None)
    if first is None or first.is_meta:
        return
    draw = Drawer(seed, first.device)
    for module in model.modules():
        reset = getattr(module, "reset", None)
        if reset is not None:
            reset(draw)
