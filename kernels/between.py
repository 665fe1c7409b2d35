"""What lies between the products of few rows, as one compiled loop each: RMSNorm and the turning of rotary positions.

PyTorch composes them of a dozen and of five operators. Each is a few microseconds in a loop of calls, but 30 to 50 in a model, where the
weights drive code and Python's data out of the caches: 0.19 ms for an RMSNorm of 4096 numbers, a third of that as one loop. Taken by
models that `tuning` has made ready, as long as there are few rows; it gives the same to a rounding.
"""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor

from .compiled import FORMATS
from .compiling import Compiled, compile_loop, gap

MOST_NUMBERS = 1 << 17  # of one x: with more of them the operators have work to do
USUAL_ROWS, USUAL_WIDTH = 3, 2040  # what loops are traced with


def takes(*inputs: Tensor) -> bool:
    """Whether there are loops for these: few numbers in one format, on a processor, in inference mode."""
    x = inputs[0]
    return (
        torch.is_inference_mode_enabled()
        and x.device.type == "cpu"
        and x.dtype in FORMATS
        and 0 < x.numel() <= MOST_NUMBERS
        and all(other.dtype == x.dtype for other in inputs)
        and gap() is None
    )


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, offset: float) -> Tensor:
    """x [...,D] / rms(x), times a weight [D] and `offset`: RMSNorm (Zhang and Sennrich 2019) -> [...,D]."""
    rows = x.reshape(-1, x.shape[-1])
    loop = compiled_norm(min(len(rows), 2), x.dtype, eps, offset, torch.get_num_threads())
    return loop([rows.contiguous(), weight])[0].view(x.shape)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B,N,1,H] turned by angles [1,H], each twice and the first half's sines negative (RoPE, arXiv:2104.09864) -> [B,N,1,H]."""
    rows = x.reshape(-1, x.shape[-1])
    loop = compiled_turning(min(len(rows), 2), x.shape[-1], x.dtype, torch.get_num_threads())
    return loop([rows.contiguous(), cos, sin])[0].view(x.shape)


@cache
def compiled_norm(rows: int, dtype: torch.dtype, eps: float, offset: float, threads: int) -> Compiled:  # noqa: ARG001 - Inductor asks for them
    """The loop for one row, or for two and more, of any width."""

    def inputs(rows: int, width: int) -> list[Tensor]:
        return [torch.randn(rows, width).to(dtype), torch.randn(width).to(dtype)]

    x, weight = inputs(1 if rows == 1 else USUAL_ROWS, USUAL_WIDTH)
    trials = [inputs(1 if rows == 1 else count, width) for count, width in ((2, 19), (5, 4096))]
    loop = partial(norm_loop, eps=eps, offset=offset)
    loop.__name__ = norm_loop.__name__  # type: ignore[attr-defined]
    return compile_loop(loop, [(x, (1,) if rows == 1 else (0, 1)), (weight, (0,))], trials)


def norm_loop(x: Tensor, weight: Tensor, *, eps: float, offset: float) -> tuple[Tensor]:
    """x [R,D], weight [D] -> [R,D]."""
    return (normed(x, weight, centred=False, eps=eps, offset=offset),)


def normed(x: Tensor, *vectors: Tensor, centred: bool, eps: float, offset: float) -> Tensor:
    """RMSNorm, or (`centred`) LayerNorm, of x [...,D], computed in fp32, times a weight [D] and `offset`, plus a bias [D], if given."""
    wide = x.float()
    if centred:
        wide = wide - wide.mean(dim=-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    if vectors:
        wide = wide * (vectors[0].float() + offset)
    return (wide + vectors[1].float() if len(vectors) > 1 else wide).to(x.dtype)


@cache
def compiled_turning(rows: int, width: int, dtype: torch.dtype, threads: int) -> Compiled:  # noqa: ARG001
    """The loop for one row, or for two and more, of a width."""

    def inputs(rows: int) -> list[Tensor]:
        return [torch.randn(count, width).to(dtype) for count in (rows, 1, 1)]

    x, cos, sin = inputs(1 if rows == 1 else 8 * USUAL_ROWS)
    return compile_loop(turning_loop, [(x, () if rows == 1 else (0,)), (cos, ()), (sin, ())], [inputs(1 if rows == 1 else 5)])


def turning_loop(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor]:
    """x [R,H], cos and sin [1,H] -> [R,H]."""
    return (turn(x, cos, sin),)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [...,H] turned by angles [1,H], each twice and the first half's sines negative (RoPE, arXiv:2104.09864)."""
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
    return (x.float() * cos.float() + swapped.float() * sin.float()).to(x.dtype)
