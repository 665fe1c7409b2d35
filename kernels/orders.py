"""Other orders of a weight's numbers in memory, in which its product with few rows may be faster: oneDNN's own, and panels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import panels

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """An order: what it is for, how a weight [O,I] is stored in it, and the product with what was stored. The numbers stay the same."""

    takes: Callable[[int, Tensor], bool]  # so many rows of x, a weight
    loops: bool  # its product is compiled, so that it has to be tried; then it is the usual one, which stays unless another is faster
    store: Callable[[Tensor, int], Tensor]  # a weight for products with so many rows: as many bytes
    back: Callable[[Tensor], Tensor]  # what was stored, as the weight lay
    product: Product  # x [...,I], what was stored, bias [O] or None -> [...,O]; any number of rows


def onednn_takes(_rows: int, weight: Tensor) -> bool:
    """Whether oneDNN has kernels for weights in an order of its own: bf16 on a processor with vector instructions for it."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def in_onednn_order(weight: Tensor, rows: int) -> Tensor:
    """A weight [O,I] as oneDNN's kernels want it for so many rows: an opaque tensor of the same shape and bytes."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows)  # type: ignore[no-any-return]


def by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [...,I] times a weight [O,I] in oneDNN's order transposed, plus bias [O]: [...,O]."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return out.view(*x.shape[:-1], out.shape[-1])  # type: ignore[no-any-return]


ORDERS: dict[str, Order] = {
    "onednn": Order(takes=onednn_takes, loops=False, store=in_onednn_order, back=torch.Tensor.to_dense, product=by_onednn),
    "panels": Order(takes=panels.takes, loops=True, store=panels.in_panels, back=panels.as_it_lay, product=panels.by_panels),
}
