"""Floor and bound of a training step: forward, backward, and the optimizer's pass over everything that it keeps.

Compulsory bytes, the weights being larger than any cache: they are read in the forward and again in the backward pass; a
gradient is written once and read by the optimizer; weight and state are read and written by it. Activations are not counted,
as in `latency.roofline`. A table that is gathered from is not read, but its gradient is dense, as PyTorch's is.
"""

from __future__ import annotations

import msgspec

from ..presets.device import Device
from ..presets.dtypes import Dtype
from ..presets.spec import ModelSpec
from .counts import Number, larger
from .ledger import ledger
from .rows import Row
from .sizes import bytes_of, weight_read_bytes
from .work import Pass

# Tensors as large as the weights that an optimizer keeps, in the weights' own format, as PyTorch's optimizers make them.
MOMENTS = {"adam": 2, "sgd-momentum": 1, "sgd": 0}


class TrainingStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step; times in seconds, None where the device's peak is not known.

    `forward_flops` + `backward_flops` = flops; `read_bytes` of weights in both passes, `gradient_bytes` written by the backward
    pass, `update_bytes` of the optimizer: gradients read, weights and state read and written; their sum is `bytes`.
    """

    floor_s: Number | None
    bound_s: Number | None
    flops: Number
    forward_flops: Number
    backward_flops: Number
    bytes: Number
    read_bytes: Number
    gradient_bytes: Number
    update_bytes: Number
    held_bytes: Number


def training_step(spec: ModelSpec, work: Pass, device: Device, *, optimizer: str = "adam") -> TrainingStep:
    """A step of `work` (its phase `train`) with the gradients and the optimizer's state in the weights' format.

    `held_bytes`: weights, gradients and state, what is there beside the activations.
    """
    rows = ledger(spec, work)
    forward = sum(row.flops * row.repeat for row in rows)
    backward = sum(row.flops * row.backward * row.repeat for row in rows)
    reads = 2 * sum(weight_read_bytes(row, work) for row in rows)
    weights = sum(weight_size(row, work.weight_dtype) for row in rows)
    update = weights * (3 + 2 * MOMENTS[optimizer])
    moved = reads + weights + update
    peak = device.peak_for(work.activation_dtype.name)
    floor = None if peak is None else sum(row_step(row, work, device, peak, optimizer=optimizer) for row in rows)
    return TrainingStep(
        floor_s=floor,
        bound_s=None if peak is None else larger((forward + backward) / peak, moved / device.memory_bytes_per_s),
        flops=forward + backward,
        forward_flops=forward,
        backward_flops=backward,
        bytes=moved,
        read_bytes=reads,
        gradient_bytes=weights,
        update_bytes=update,
        held_bytes=weights * (2 + MOMENTS[optimizer]),
    )


def weight_size(row: Row, dtype: Dtype) -> Number:
    """Bytes of the weights of a row, every copy; the gradient has as many."""
    return bytes_of(row.params * row.copies, dtype)


def row_step(row: Row, work: Pass, device: Device, peak: float, *, optimizer: str = "adam") -> Number:
    """Seconds of a row's forward and backward pass and of the update of its weights."""
    update = weight_size(row, work.weight_dtype) * (3 + 2 * MOMENTS[optimizer])
    return row_floor(row, work, device, peak) + update / device.memory_bytes_per_s


def row_floor(row: Row, work: Pass, device: Device, peak: float) -> Number:
    """Seconds of a row's forward pass and of its backward pass, one after the other."""
    read = weight_read_bytes(row, work)
    written = weight_size(row, work.weight_dtype)
    flops, rate = row.flops * row.repeat, device.memory_bytes_per_s
    return larger(flops / peak, read / rate) + larger(flops * row.backward / peak, (read + written) / rate)
