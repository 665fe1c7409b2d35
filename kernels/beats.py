"""Beats: short plain calls that run beside what is measured, and say how fast the machine is at that moment."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .probes import ROW, random_tensor
from .timing import Call
from .tuning import product

SLICE_BYTES = 61 << 20  # of a product that streams; quarters a power of two apart would meet in the same banks of memory
POOL_BYTES = 512 << 20  # of the rotation that a beat's calls step through
BEATS = 4  # a beat of a benchmark is so many calls, long enough to see what a step sees
PRODUCT = (256, 1024, 2048)  # m, k, n of the beat of matrix products
ELEMENTS, EXPONENTIALS = 1 << 20, 4  # of the vector beat: what caches hold, and calls a beat


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """A short plain call to be run beside others, `amount` bytes, elements or FLOPs: how long it takes is how fast the machine is now."""

    call: Call
    amount: float

    def times(self, count: int) -> Beat:
        """So many calls as one."""
        return Beat(call=repeated(self.call, count), amount=count * self.amount)


def repeated(call: Call, count: int) -> Call:
    """So many calls as one."""

    def several() -> None:
        for _ in range(count):
            call()

    return several


def streaming(dtype: torch.dtype, device: torch.device, *, pool_bytes: int | None = None, slice_bytes: int = SLICE_BYTES) -> Beat:
    """One row times the next `slice_bytes` of a pool, each time others, by the call that the models take for it."""
    pool_bytes = pool_bytes or POOL_BYTES
    slice_bytes = min(slice_bytes, pool_bytes)
    rows = max(1, slice_bytes // dtype.itemsize // ROW)
    pool = random_tensor((pool_bytes // slice_bytes, rows, ROW), dtype, device)
    vector = random_tensor((1, ROW), dtype, device)
    return Beat(call=product(vector, list(pool)), amount=rows * ROW * dtype.itemsize)


def computing(dtype: torch.dtype, device: torch.device) -> Beat:
    """Exponentials of what the caches hold: vector instructions that wait for no memory, long enough for threads to start and join."""
    x = random_tensor((ELEMENTS,), dtype, device)
    out = torch.empty_like(x)
    return Beat(call=lambda: torch.exp(x, out=out), amount=x.numel()).times(EXPONENTIALS)


def multiplying(dtype: torch.dtype, device: torch.device) -> Beat:
    """A matrix product over the same operands each time."""
    m, k, n = PRODUCT
    left, right = random_tensor((m, k), dtype, device), random_tensor((k, n), dtype, device)
    return Beat(call=lambda: left @ right, amount=2 * m * k * n)
