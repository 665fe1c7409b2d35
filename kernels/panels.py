"""Weights in panels, and the product of few rows with them as one compiled loop: the order in which a weight is read like a sum is.

A weight [O,I] as it lies is I numbers an output. In panels [O/P,I,P] the P numbers that one input is multiplied by lie together: a loop
reads memory from one end to the other, each number of x serves P sums in registers, and no sum is added up across a register at the end.
x is no longer read as often as the weight, which drove it out of the first-level cache; that held the loops of `compiled` back, which
read a weight as it lies. A panel is read once for all rows, as many as there are registers for.

Who stores a weight so gives up the other order (`orders`). `benchmarks/linear_calls.py` has the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from .compiled import LOOPS, VECTOR, WORTH, serves
from .compiling import REGISTERS, Compiled, compile_loop, gap

PANEL, NARROW_PANEL = 2 * VECTOR, VECTOR  # outputs side by side: a line of the cache in 2-byte formats, two in fp32
SUMS = REGISTERS - 4  # for a number of the weight, its products and x
USUAL_PANELS, USUAL_WIDTH = 1021, 2040  # what loops are traced with


def takes(rows: int, weight: Tensor) -> bool:
    """Whether there is a loop for so many rows and this weight [O,I] in panels, and it is worth compiling."""
    return (
        serves(weight, WORTH)
        and weight.dim() == 2
        and weight.shape[0] % NARROW_PANEL == 0
        and weight.shape[1] > 1
        and has_registers(rows, panel_width(rows, weight.shape[0]))
        and gap() is None
    )


def has_registers(rows: int, width: int) -> bool:
    """Whether the sums of so many rows and outputs stay in registers."""
    return rows * width // VECTOR <= SUMS


def panel_width(rows: int, outputs: int) -> int:
    """Outputs of a panel: two registers of them where so many rows leave room for that."""
    return PANEL if outputs % PANEL == 0 and has_registers(rows, PANEL) else NARROW_PANEL


def in_panels(weight: Tensor, rows: int) -> Tensor:
    """A weight [O,I] in panels [O/P,I,P], for products with so many rows."""
    width, threads = panel_width(rows, weight.shape[0]), torch.get_num_threads()
    pieces = weight.detach().contiguous().view(-1, width, weight.shape[1])
    return compiled_turn(width, weight.dtype, threads)([pieces])[0]


def as_it_lay(panels: Tensor) -> Tensor:
    """Panels [O/P,I,P] as a weight [O,I] again."""
    return panels.transpose(1, 2).reshape(-1, panels.shape[1])


def by_panels(x: Tensor, panels: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [...,I] times a weight in panels [O/P,I,P] transposed, plus bias [O]: [...,O].

    A loop where there is one: in inference mode, for as many rows as registers hold. Else as the weight lay, which has to be made first.
    """
    n, inputs, width = panels.shape
    rows = x.reshape(-1, inputs)
    if LOOPS or not torch.is_inference_mode_enabled() or not has_registers(len(rows), width):
        return stood_in(x, panels, bias)
    loop = compiled_product(len(rows), width, panels.dtype, int(bias is not None), torch.get_num_threads())
    given = [rows.contiguous(), panels]
    if bias is not None:
        given.append(bias.view(n, width))
    return loop(given)[0].view(*x.shape[:-1], n * width)


def stood_in(x: Tensor, panels: Tensor, bias: Tensor | None) -> Tensor:
    """The same by PyTorch's call; whoever listens to loops hears of one."""
    if LOOPS:
        LOOPS.tell("product", (panels.shape[0] * panels.shape[2], panels.shape[1]))
    with _disable_current_modes():  # who asks counts operators: not those of a stand-in
        return F.linear(x, as_it_lay(panels), bias)


@cache
def compiled_product(rows: int, width: int, dtype: torch.dtype, biases: int, threads: int) -> Compiled:  # noqa: ARG001 - Inductor asks for them
    """The loop for so many rows, panels of a width, no or one bias, and weights of any size."""

    def inputs(draw: Callable[..., Tensor], panels: int, inputs: int) -> list[Tensor]:
        sizes = ((rows, inputs), (panels, inputs, width), (panels, width))
        return [(draw(size) / inputs**0.5).to(dtype) for size in sizes[: 2 + biases]]

    usual = inputs(torch.empty, USUAL_PANELS, USUAL_WIDTH)
    trials = [inputs(torch.randn, *size) for size in ((2, 19), (5, 64), (3, 2048))]
    return compile_loop(biased_loop if biases else loop, list(zip(usual, ((1,), (0, 1), (0,)), strict=False)), trials)


def loop(rows: Tensor, panels: Tensor) -> tuple[Tensor]:
    """rows [R,I], panels [n,I,P] -> [R,n,P]."""
    return (sums(rows, panels).to(panels.dtype),)


def biased_loop(rows: Tensor, panels: Tensor, bias: Tensor) -> tuple[Tensor]:
    """rows [R,I], panels [n,I,P], bias [n,P] -> [R,n,P]."""
    return ((sums(rows, panels) + bias.float()).to(panels.dtype),)


def sums(rows: Tensor, panels: Tensor) -> Tensor:
    """rows [R,I], panels [n,I,P] -> [R,n,P] in fp32, a register of outputs at a time."""
    pieces = [piece.float() for piece in panels.split(VECTOR, dim=2)]
    return torch.stack([torch.cat([(piece * row[:, None]).sum(dim=1) for piece in pieces], dim=1) for row in rows.float().unbind()])


@cache
def compiled_turn(width: int, dtype: torch.dtype, threads: int) -> Compiled:  # noqa: ARG001
    """`turn` for panels of a width: three to ten times as fast as a copy by PyTorch."""
    trials = [(torch.randn(panels, width, inputs).to(dtype),) for panels, inputs in ((2, 19), (5, 64))]
    return compile_loop(turn, [(torch.empty(USUAL_PANELS, width, USUAL_WIDTH, dtype=dtype), (0, 2))], trials)


def turn(pieces: Tensor) -> tuple[Tensor]:
    """pieces [n,P,I] -> panels [n,I,P]."""
    return (pieces.transpose(1, 2).clone(memory_format=torch.contiguous_format),)
