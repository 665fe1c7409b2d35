"""Weight-only int8 and int4: a matrix stored narrow, widened by PyTorch's own kernels while they multiply."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..presets.errors import UsageError

INT4_GROUP = 128


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Int8Weight:
    """A weight in int8 with one bf16 scale an output channel: values [O,I], scales [O]."""

    values: Tensor
    scales: Tensor

    @property
    def stored_bytes(self) -> int:
        """Bytes of values and scales."""
        return self.values.nbytes + self.scales.nbytes

    def dense(self) -> Tensor:
        """The weight these numbers stand for, fp32 [O,I]."""
        return self.values.float() * self.scales.float()[:, None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Int4Weight:
    """A weight in int4, groups of `group` inputs with a bf16 scale and offset: w = (q - 8) * scale + offset.

    Attributes:
        packed: uint8 [O,I/2] in the order PyTorch's kernel wants.
        grid: bf16 [I/group,O,2], scale and offset.
        levels: int32 [O,I], the numbers 0..15 before packing, kept for tests only; else None.
    """

    packed: Tensor
    grid: Tensor
    group: int
    levels: Tensor | None = None

    @property
    def stored_bytes(self) -> int:
        """Bytes of numbers, scales and offsets."""
        return self.packed.nbytes + self.grid.nbytes


def int8_weight(weight: Tensor) -> Int8Weight:
    """Round a weight [O,I] to int8, symmetric, the largest of each output channel at 127."""
    scales = (weight.float().abs().amax(dim=1).clamp(min=1e-12) / 127).to(torch.bfloat16)
    values = (weight.float() / scales.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
    return Int8Weight(values=values, scales=scales)


def int4_weight(weight: Tensor, group: int = INT4_GROUP, *, keep_levels: bool = False) -> Int4Weight:
    """Round a weight [O,I] to int4, the 16 levels of each group spread between its smallest and largest value.

    Raises UsageError where PyTorch's kernel cannot take the shape: I a multiple of the group (32, 64, 128 or 256), O of 16.
    """
    outputs, inputs = weight.shape
    if group not in (32, 64, 128, 256) or inputs % group or outputs % 16:
        raise UsageError(
            f"int4 weights need I a multiple of the group (32, 64, 128 or 256) and O of 16; got O {outputs}, I {inputs}, group {group}."
        )
    grouped = weight.float().view(outputs, inputs // group, group)
    low, high = grouped.amin(dim=2), grouped.amax(dim=2)
    scale = ((high - low).clamp(min=1e-9) / 15).to(torch.bfloat16)
    offset = (low + 8 * scale.float()).to(torch.bfloat16)
    steps = (grouped - offset.float()[..., None]) / scale.float()[..., None]
    levels = steps.round().add(8).clamp(0, 15).to(torch.int32).view(outputs, inputs)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    grid = torch.stack([scale, offset], dim=-1).transpose(0, 1).contiguous()
    return Int4Weight(packed=packed, grid=grid, group=group, levels=levels if keep_levels else None)


def weight_only_linear(x: Tensor, weight: Int8Weight | Int4Weight) -> Tensor:
    """x [...,I] times an int8 or int4 weight [O,I] transposed: [...,O] in x's dtype.

    By PyTorch's CPU kernels, which are vectorised for bf16 activations only (fp32 ones run 20 times slower): x is rounded to bf16.
    They multiply one row after another, so that from about 8 rows on a bf16 weight is faster than either.
    """
    rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
    if isinstance(weight, Int8Weight):
        out = torch._weight_int8pack_mm(rows, weight.values, weight.scales)
    else:
        out = torch._weight_int4pack_mm_for_cpu(rows, weight.packed, weight.group, weight.grid)
    return out.to(x.dtype).reshape(*x.shape[:-1], out.shape[-1])
