"""Linear layers whose matrix is stored in int8 or int4 (weight-only).

Activations stay as they are. Bytes halve and quarter; what the clock makes of it is what `tfm bench decode` measures.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..presets.errors import UnknownNameError, UsageError
from .modules import Linear, Table, become
from .quantized import INT4_GROUP, Int4Weight, Int8Weight, int4_weight, int8_weight, weight_only_linear
from .stored import stored_bytes

KINDS: dict[str, Callable[[Tensor], Int8Weight | Int4Weight]] = {"int8": int8_weight, "int4": int4_weight}
MULTIPLE = 16  # rows a matrix must have a multiple of for the int4 kernel


class PackedLinear(Linear):
    """x [..., d_in] -> [..., d_out] with a matrix in int8 or int4: what a `Linear` becomes, where it stands."""

    narrow: Int8Weight | Int4Weight

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        y = weight_only_linear(x, self.narrow)
        return y if self.bias is None else y + self.bias


def pack(linear: Linear, kind: str) -> None:
    """Round the matrix and let go of it."""
    narrow = KINDS[kind](linear.weight)
    become(linear, PackedLinear)
    linear.narrow = narrow  # type: ignore[assignment]


@torch.no_grad()
def quantize(model: nn.Module, kind: str) -> int:
    """Pack every matrix of a model in place, one after another; gives the bytes of all that it then holds.

    A matrix whose shape the kernels do not take stays as it is. Raises UsageError where PyTorch has no kernel for the device
    or the arithmetic's format, or where weights are not matrices (experts, latents).
    """
    if kind not in KINDS:
        raise UnknownNameError("weight-only format", kind, KINDS, f"Allowed: {', '.join(KINDS)}.")
    refuse(model)
    for module in model.modules():
        if isinstance(module, Linear) and packs(module.weight):
            pack(module, kind)
    return held_bytes(model)


def packs(weight: Tensor) -> bool:
    """Whether the packed kernels take a matrix [n, k] of this shape."""
    return weight.shape[0] % MULTIPLE == 0 and weight.shape[1] % INT4_GROUP == 0


def refuse(model: nn.Module) -> None:
    """Raise UsageError for what cannot be packed."""
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        raise UsageError(
            "--weight-dtype int8 and int4 run on a CPU in bf16, where PyTorch has kernels for them; "
            f"got {weight.device.type} in {weight.dtype}"
        )
    for name, module in model.named_modules():
        if not isinstance(module, Linear | Table) and any(held.ndim > 1 for held in module.parameters(recurse=False)):
            raise UsageError(
                f"{name} is no plain matrix: PyTorch has no weight-only kernel for it. Take a dense model without MLA, or bf16"
            )


def held_bytes(model: nn.Module) -> int:
    """Bytes of all parameters, buffers, packed matrices and those in another order, a shared one once."""
    held = {tensor.data_ptr(): int(tensor.nbytes) for tensor in (*model.parameters(), *model.buffers())}
    packed = sum(module.narrow.stored_bytes for module in model.modules() if isinstance(module, PackedLinear))
    return sum(held.values()) + packed + stored_bytes(model)
