"""SGD and Adam from PyTorch, and the schedule of the original Transformer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ...presets.errors import UnknownNameError

OPTIMIZERS = ("adam", "sgd-momentum", "sgd")


def warmup_rate(step: int, *, width: int, warmup: int) -> float:
    """Learning rate of a step, the first being 1: d^-0.5 · min(step^-0.5, step · warmup^-1.5) (Vaswani et al. 2017, section 5.3).

    >>> round(warmup_rate(4000, width=512, warmup=4000) * 1e4, 3)
    6.988
    """
    return float(width**-0.5 * min(step**-0.5, step * warmup**-1.5))


def make_optimizer(name: str, weights: Iterable[Tensor], *, rate: float = 1.0, momentum: float = 0.9, fused: bool = False) -> Optimizer:
    """An optimizer by its name in `tfm memory --optimizer`; Adam with the betas and epsilon of section 5.3.

    `fused`: as one kernel, where PyTorch has it for the device.
    """
    match name:
        case "adam":
            return Adam(weights, lr=rate, betas=(0.9, 0.98), eps=1e-9, fused=fused)
        case "sgd-momentum":
            return SGD(weights, lr=rate, momentum=momentum, fused=fused)
        case "sgd":
            return SGD(weights, lr=rate, fused=fused)
        case _:
            raise UnknownNameError("optimizer", name, OPTIMIZERS, f"Allowed: {', '.join(OPTIMIZERS)}.")


def schedule(optimizer: Optimizer, *, width: int, warmup: int, done: int = 0) -> LambdaLR:
    """The warm-up schedule after `done` steps; the optimizer's own rate is a factor on it."""
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])
    return LambdaLR(optimizer, lambda step: warmup_rate(step + 1, width=width, warmup=warmup), last_epoch=done - 1)


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of what the optimizer keeps for every element of a weight: moments, momentum; step counters of one number apart."""
    kept = (tensor for held in optimizer.state.values() for tensor in held.values() if isinstance(tensor, torch.Tensor) and tensor.ndim)
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)
