"""Weight-only int8 and int4 models: every matrix stored narrow and multiplied by the kernels of `linear.py`.

Activations stay as they are. Bytes halve and quarter; what the clock makes of it is what `tfm bench decode` measures.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..presets.errors import UnknownNameError, UsageError
from .modules import Leaf, Linear, Table
from .quantized import INT4_GROUP, int4_weight, int8_weight, weight_only_linear

KINDS = {"int8": int8_weight, "int4": int4_weight}
MULTIPLE = 16  # rows a matrix must have a multiple of for the int4 kernel


class PackedLinear(Leaf):
    """x [..., d_in] -> [..., d_out] with a matrix in int8 or int4."""

    def __init__(self, linear: Linear, kind: str) -> None:
        super().__init__()
        self.label, self.bias, self.narrow = linear.label, linear.bias, KINDS[kind](linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        y = weight_only_linear(x, self.narrow)
        return y if self.bias is None else y + self.bias


@torch.no_grad()
def quantize(model: nn.Module, kind: str) -> int:
    """Pack every matrix of a model in place, one after another; gives the bytes of all that it then holds.

    A matrix whose shape the kernels do not take stays as it is. Raises UsageError where PyTorch has no kernel for the device
    or the arithmetic's format, or where weights are not matrices (experts, latents).
    """
    if kind not in KINDS:
        raise UnknownNameError("weight-only format", kind, KINDS, f"Allowed: {', '.join(KINDS)}.")
    refuse(model)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear) and packs(child):
                setattr(module, name, PackedLinear(child, kind))
    return held_bytes(model)


def packs(linear: Linear) -> bool:
    """Whether the packed kernels take a matrix of this shape."""
    n, k = linear.weight.shape
    return n % MULTIPLE == 0 and k % INT4_GROUP == 0


def refuse(model: nn.Module) -> None:
    """Raise UsageError for what cannot be packed."""
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        raise UsageError(
            f"--weight-dtype int8 and int4 run here on a CPU in bf16, where PyTorch has kernels for them; got {weight.device.type} in {weight.dtype}"
        )
    for name, module in model.named_modules():
        if not isinstance(module, Linear | Table) and any(held.ndim > 1 for held in module.parameters(recurse=False)):
            raise UsageError(f"{name} is no plain matrix: PyTorch has no weight-only kernel for it. Take a dense model without MLA, or bf16")


def held_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, buffers and packed matrices, a shared one once."""
    held = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    return sum(held.values()) + sum(module.narrow.stored_bytes for module in model.modules() if isinstance(module, PackedLinear))
