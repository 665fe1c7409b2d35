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

Long bf16 rows are slower, as x no longer stays in the first-level cache beside them. Folded, each row is two of half the length
(the same script and thread, 1, 2 and 8 rows of x; with two threads by the clock 11008 gains 2 % too, see docs/measuring.md):

    weight                  4096 x 8192       4096 x 11008      4096 x 14336      3584 x 18944
    mv or mm                0.90  0.90  0.93  0.81  0.81  0.81  0.80  0.83  0.82  0.64  0.63  0.65
    folded                  0.86  0.86  0.80  0.81  0.78  0.76  0.94  0.92  0.91  0.88  0.85  0.78
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FEW_ROWS = 128  # from here on a product is bound by arithmetic, and all calls are alike
NARROW, SLICES = 16, 8
WIDE, FOLDED_ROWS = 10_240, 8


def linear_call(rows: int, weight: Tensor) -> str:
    """Which call is fastest for so many rows: "mv", "mm", "folded", "narrow", "slices" or "linear". Accelerators have one good call."""
    outputs, inputs = weight.shape
    if weight.device.type != "cpu" or rows > FEW_ROWS:
        return "linear"
    if weight.dtype == torch.bfloat16 and rows <= FOLDED_ROWS and inputs > WIDE and inputs % 2 == 0 and weight.is_contiguous():
        return "folded"
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
    elif call == "folded":
        out = folded(rows, weight).t()
    elif call == "narrow":
        # [n,R,I] @ [n,I,16] -> [n,R,16]
        out = torch.bmm(rows.expand(outputs // NARROW, -1, -1), weight.view(-1, NARROW, inputs).transpose(1, 2)).transpose(0, 1)
    else:
        # [8,O/8,I] @ [8,I,R] -> [O,R]
        out = torch.bmm(weight.view(SLICES, -1, inputs), rows.t().expand(SLICES, -1, -1)).view(outputs, -1).t()
    # rows together again: what follows, the bias first, would walk the columns of a transposed tensor
    out = out.contiguous().view(*x.shape[:-1], outputs)
    return out if bias is None else out + bias


def folded(rows: Tensor, weight: Tensor) -> Tensor:
    """Rows [R,I] times a weight [O,I] transposed, as [O,R]: half rows of the weight times both halves of x, of which one belongs to them.

    The arithmetic doubles, which waits for memory anyway. Each half is rounded to bf16: 1.4 times the error of one rounding.
    """
    (R, inputs), outputs = rows.shape, weight.shape[0]
    halves = rows.reshape(R, 2, inputs // 2).permute(2, 1, 0).reshape(inputs // 2, 2 * R)
    # [2O,I/2] @ [I/2,2R] -> [O,2,2,R]
    both = torch.mm(weight.view(2 * outputs, inputs // 2), halves).view(outputs, 2, 2, R)
    return both[:, 0, 0] + both[:, 1, 1]
