"""Random weights, made in place and fast: a model of 13.5 GB has no second copy, and is not drawn number by number."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .modules import Linear, Norm, Table

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


@torch.no_grad()
def fill_for_training(model: nn.Module, *, seed: int = 0) -> None:
    """Weights to begin a training with: `fill` wants every weight to be noticed, this one wants a signal that neither grows nor fades.

    Matrices keep the variance both ways, 2 / (d_in + d_out) (Glorot and Bengio 2010, eq. 12); those that write to the residual
    stream are smaller by the root of how many do (Radford et al. 2019, section 2.3). Norms begin as the identity, biases at 0,
    tables at 1 / sqrt(width). What is none of these is left as `fill` has it.
    """
    fill(model, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    writers = [module for name, module in model.named_modules() if name.endswith(WRITERS)]
    for module in model.modules():
        if isinstance(module, Norm):
            level(module)
        elif isinstance(module, Table):
            normal(module.weight, module.weight.shape[1] ** -0.5, generator)
        elif isinstance(module, Linear):
            share = len(writers) if any(module is writer for writer in writers) else 1
            if not tied(module, model):
                normal(module.weight, (2 / sum(module.weight.shape) / share) ** 0.5, generator)
            if module.bias is not None:
                module.bias.zero_()


WRITERS = (".o_proj", ".down_proj", ".out_proj")


def level(module: Norm) -> None:
    """The identity on what is normalised."""
    if module.weight is not None:
        module.weight.fill_(0.0 if module.spec.unit_offset else 1.0)
    if module.bias is not None:
        module.bias.zero_()


def normal(weight: Tensor, spread: float, generator: torch.Generator) -> None:
    """spread x N(0, 1), drawn on the CPU: the same numbers on every device."""
    weight.copy_(torch.randn(weight.shape, generator=generator) * spread)


def tied(module: Linear, model: nn.Module) -> bool:
    """Whether the matrix is a table's, which has been drawn."""
    return any(isinstance(other, Table) and other.weight is module.weight for other in model.modules())
