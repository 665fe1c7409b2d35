"""Linear layers for few rows, where the weight's bytes are the cost: the fastest of PyTorch's calls for the same product.

On a CPU those calls differ by up to 2.1. Share of the bandwidth that a matrix-vector product reaches in fp32; weight 4096 x 4096,
one thread of a Xeon with AMX, PyTorch 2.13 (`benchmarks/linear_calls.py`, which has other shapes too, and int8 and int4 weights):

    rows                                     1     2     3     4     8     12    16    64
    bf16  F.linear(x, w)                     0.58  0.58  0.57  0.57  0.60  0.58  0.47  0.34
    bf16  mv(w, x)                           0.90
    bf16  mm(w, x.T)                         0.64  0.91  0.92  0.91  0.88  0.87  0.79  0.52
    fp32  F.linear(x, w)                     1.01  0.99  0.96  0.49  0.33  0.25  0.32  0.17
    fp32  bmm(x, slices of 16 outputs)       1.01  0.97  0.94  0.79  0.62  0.54  0.39  0.17
    fp32  bmm(8 slices, x.T)                 0.53  0.53  0.54  0.54  0.50  0.51  0.51  0.20

F.linear has to repack a bf16 weight for the matrix unit at every call; with the weight on the left it is taken as it lies.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FEW_ROWS = 128  # from here on a product is bound by arithmetic, and all calls are alike
NARROW, SLICES = 16, 8


def linear_call(rows: int, weight: Tensor) -> str:
    """Which call is fastest for so many rows: "mv", "mm", "narrow", "slices" or "linear". Accelerators have one good call."""
    outputs = weight.shape[0]
    if weight.device.type != "cpu" or rows > FEW_ROWS:
        return "linear"
    if rows == 1:
        return "mv"
    if weight.dtype in (torch.bfloat16, torch.float16):
        return "mm"
    if weight.dtype == torch.float32 and 4 <= rows <= 12 and outputs % NARROW == 0:
        return "narrow"
    return "slices" if weight.dtype == torch.float32 and 12 < rows <= 64 and outputs % SLICES == 0 else "linear"


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [...,I] times weight [O,I] transposed, plus bias [O]: [...,O], by the call that `linear_call` names."""
    outputs, inputs = weight.shape
    call = linear_call(x.numel() // inputs, weight)
    if call == "linear":
        return F.linear(x, weight, bias)
    if call == "mv":
        row = x.reshape(inputs)
        out = torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)
        return out.view(*x.shape[:-1], outputs)
    rows = x.reshape(-1, inputs)
    if call == "mm":
        # [O,I] @ [I,R] -> [O,R]
        out = torch.mm(weight, rows.t()).t()
    elif call == "narrow":
        # [n,R,I] @ [n,I,16] -> [n,R,16]
        out = torch.bmm(rows.expand(outputs // NARROW, -1, -1), weight.view(-1, NARROW, inputs).transpose(1, 2)).transpose(0, 1)
    else:
        # [8,O/8,I] @ [8,I,R] -> [O,R]
        out = torch.bmm(weight.view(SLICES, -1, inputs), rows.t().expand(SLICES, -1, -1)).view(outputs, -1).t()
    # rows together again: what follows, the bias first, would walk the columns of a transposed tensor
    out = out.contiguous().view(*x.shape[:-1], outputs)
    return out if bias is None else out + bias
