"""Linear layers for few rows, where the weight's bytes are the cost: the fastest of PyTorch's calls for the same product.

On a CPU PyTorch's calls for the same product differ by up to 1.7 in a decode step. Share of the bandwidth of a matrix-vector
product in fp32, weight 4096 x 4096, one thread of a Xeon with AMX, PyTorch 2.13 (`benchmarks/linear_calls.py`):

    rows                          1     2     4     8     16    64
    bf16  F.linear(x, w)          0.60  0.61  0.60  0.61  0.56  0.36
    bf16  mv(w, x)                0.81
    bf16  mm(w, x.T)              0.53  0.81  0.78  0.87  0.87  0.55
    fp32  F.linear(x, w)          1.0   1.0   0.49  0.33  0.34  0.19
    fp32  bmm(w in 8 slices, x.T)       0.51  0.51  0.52  0.45  0.24
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FEW_ROWS = 128  # from here on a product is bound by arithmetic, and all calls are alike
SLICES = 8


def linear_call(rows: int, weight: Tensor) -> str:
    """Which call is fastest for so many rows: "mv", "mm", "bmm" or "linear". Accelerators have one good call."""
    if weight.device.type != "cpu" or rows > FEW_ROWS:
        return "linear"
    if rows == 1:
        return "mv"
    if weight.dtype in (torch.bfloat16, torch.float16):
        return "mm"
    return "bmm" if 7 <= rows <= FEW_ROWS // 2 and weight.shape[0] % SLICES == 0 else "linear"


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [...,I] times weight [O,I] transposed, plus bias [O]: [...,O], by the call `linear_call` names."""
    rows = x.reshape(-1, x.shape[-1])
    call = linear_call(rows.shape[0], weight)
    if call == "linear":
        return F.linear(x, weight, bias)
    if call == "mv":
        out = torch.mv(weight, rows[0]).unsqueeze(0)
    elif call == "mm":
        # [O,I] @ [I,R] -> [O,R]
        out = torch.mm(weight, rows.t()).t()
    else:
        # [8,O/8,I] @ [8,I,R] -> [O,R]
        slices = weight.view(SLICES, weight.shape[0] // SLICES, weight.shape[1])
        out = torch.bmm(slices, rows.t().expand(SLICES, -1, -1)).view(weight.shape[0], -1).t()
    if bias is not None:
        out = out + bias
    # transposed strides would send SDPA to its slow path
    return out.contiguous().view(*x.shape[:-1], weight.shape[0])
