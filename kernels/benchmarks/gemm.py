"""Matrix products [m, k] @ [k, n] as the models run them, the matrix read from memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..machine import device_title
from ..probes import dtype_name, free_memory_bytes, random_tensor, require_memory
from ..timing import Call
from ..tuning import product
from .backends import backend_of
from .record import Record
from .setting import Setting
from .yardstick import beside, yardstick


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A product: x [m, k] times a matrix W [n, k] as PyTorch stores it."""

    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        """2mkn."""
        return 2 * self.m * self.k * self.n

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the matrix: what has to come from memory."""
        return self.k * self.n * dtype.itemsize

    def all_bytes(self, dtype: torch.dtype) -> int:
        """Input, matrix and output."""
        return (self.m * (self.k + self.n) + self.k * self.n) * dtype.itemsize


def gemm_call(shape: Shape, dtype: torch.dtype, setting: Setting) -> tuple[Call, int]:
    """A call that multiplies with another matrix each time, so that none is still in the cache; and the bytes of all matrices."""
    size = shape.weight_bytes(dtype)
    copies = setting.copies(size, free_memory_bytes(setting.device))
    require_memory(size * (copies - 1) + shape.all_bytes(dtype), setting.device, what=f"a product {shape.m} x {shape.k} x {shape.n}")
    pool = random_tensor((copies, shape.n, shape.k), dtype, setting.device)
    x = random_tensor((shape.m, shape.k), dtype, setting.device)
    return product(x, list(pool)), int(pool.nbytes)


def bench_gemm(shapes: Sequence[Shape], *, dtype: torch.dtype = torch.bfloat16, setting: Setting | None = None) -> Iterator[Record]:
    """A line a shape. The best rate of a probe or of a line so far is the peak: no product is faster than the fastest."""
    setting = setting or Setting()
    yard = yardstick(setting, dtype)
    for shape in shapes:
        setting.tell(f"{shape.m} x {shape.k} x {shape.n} in {dtype_name(dtype)}")
        call, held = gemm_call(shape, dtype, setting)
        arithmetic = yard.arithmetic_counts(shape.flops, shape.weight_bytes(dtype))
        samples, yard = beside(setting, yard, {"": call}, arithmetic=arithmetic)
        sample = samples[""]
        peak = max(yard.flops_per_s, shape.flops / sample.median_s)
        bound = None if setting.in_cache(held) else max(shape.flops / peak, shape.weight_bytes(dtype) / yard.bytes_per_s)
        yield Record(
            labels={"m": shape.m, "k": shape.k, "n": shape.n},
            device=device_title(setting.device),
            dtype=dtype_name(dtype),
            sample=sample,
            flops=shape.flops,
            bytes=shape.weight_bytes(dtype),
            bandwidth_bytes_per_s=yard.bytes_per_s,
            probe=yard.probe,
            peak_flops_per_s=peak,
            floor_s=bound,
            bound_s=bound,
            backend=backend_of(call),
        )
        if sample.interrupted:
            raise KeyboardInterrupt
