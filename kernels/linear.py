"""Linear layers for few rows, where the weight's bytes are the cost: the fastest of PyTorch's calls for the same product.

On a CPU those calls differ by up to 2.1, and which one is fastest differs between machines: `tuning` tries them on the machine at hand.
Where nobody has tried, `usual_call` follows this table. Share of the bandwidth that a matrix-vector product reaches in fp32; weight
4096 x 4096, one thread of a Xeon with AMX, PyTorch 2.13 (`benchmarks/linear_calls.py`, which has other shapes too, and int8 and int4):

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

On an AMD EPYC (Zen 4) the same library runs `mv` on one thread, and the order is another: two threads by the clock, one row, weight
4096 x 4096, share of `sum` in fp32: fp32 mv 0.59, parts 0.98; bf16 mv 0.31, F.linear 0.57, parts 0.60, in oneDNN's order 0.71. What is
compiled for the purpose reaches it there (`panels`, `compiled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional as F

from . import compiled
from .listening import Ears

FEW_ROWS = 128  # from here on a product is bound by arithmetic, and all calls are alike
NARROW, SLICES, PARTS = 16, 8, 16
WIDE, FOLDED_ROWS = 10_240, 8

Call = Callable[[Tensor, Tensor], Tensor]
Key = tuple[int, tuple[int, ...], torch.dtype, bool, int]
CHOSEN: dict[Key, str] = {}  # what `tuning` found the fastest here; empty until it was asked
USUAL: ContextVar[bool] = ContextVar("usual", default=False)  # see `as_usual`
WEIGHTS: Ears[Key, Tensor] = Ears()  # told what linear layers with few rows on a CPU multiply by


def key_of(rows: int, weight: Tensor) -> Key:
    """What the fastest call depends on: rows of x, the weight's shape, format and layout, and the threads."""
    return rows, tuple(weight.shape), weight.dtype, weight.is_contiguous(), torch.get_num_threads()


@contextmanager
def as_usual() -> Iterator[None]:
    """The usual calls meanwhile, and nothing is tried: what a busy machine found the fastest may differ from what a quiet one does."""
    before = USUAL.set(True)
    try:
        yield
    finally:
        USUAL.reset(before)


def linear_call(rows: int, weight: Tensor) -> str:
    """Which of CALLS so many rows take: what was found fastest here, else the usual one. Accelerators have one good call."""
    if weight.device.type != "cpu" or rows > FEW_ROWS:
        return "linear"
    chosen = None if USUAL.get() else CHOSEN.get(key_of(rows, weight))
    if chosen == "compiled" and not compiled.runs():
        chosen = None
    return chosen or usual_call(rows, weight)


def usual_call(rows: int, weight: Tensor) -> str:
    """The fastest call by the table above, for few rows on a CPU."""
    outputs, inputs = weight.shape
    if weight.dtype == torch.bfloat16 and rows <= FOLDED_ROWS and inputs > WIDE and folds(weight):
        return "folded"
    if rows == 1:
        return "mv"
    if weight.dtype in (torch.bfloat16, torch.float16):
        return "mm"
    if weight.dtype == torch.float32 and 4 <= rows <= 12 and outputs % NARROW == 0:
        return "narrow"
    return "slices" if weight.dtype == torch.float32 and 12 < rows <= 64 and outputs % SLICES == 0 else "linear"


def possible_calls(rows: int, weight: Tensor) -> list[str]:
    """Those of CALLS that can take so many rows and this weight."""
    outputs = weight.shape[0]
    takes = {
        "mv": rows == 1,
        "folded": weight.dtype == torch.bfloat16 and folds(weight),
        "narrow": outputs % NARROW == 0 and weight.is_contiguous(),
        "slices": outputs % SLICES == 0 and weight.is_contiguous(),
        "parts": outputs >= PARTS and weight.is_contiguous(),
        "compiled": compiled.takes_weight(rows, weight),
    }
    return [name for name in CALLS if takes.get(name, True)]


def folds(weight: Tensor) -> bool:
    """Whether its rows can be seen as two of half the length."""
    return weight.shape[1] % 2 == 0 and weight.is_contiguous()


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [...,I] times weight [O,I] transposed, plus bias [O]: [...,O], by the call that `linear_call` names."""
    outputs, inputs = weight.shape
    count = x.numel() // inputs
    call = linear_call(count, weight)
    if WEIGHTS and count <= FEW_ROWS and weight.device.type == "cpu":
        WEIGHTS.tell(key_of(count, weight), weight)
    if call == "linear":
        return F.linear(x, weight, bias)
    rows = x.reshape(count, inputs)
    if call == "mv" and bias is not None:
        return torch.addmv(bias, weight, rows[0]).view(*x.shape[:-1], outputs)
    if call == "compiled":
        return compiled.product(rows, weight, bias).view(*x.shape[:-1], outputs)
    # rows together again: what follows, the bias first, would walk the columns of a transposed tensor
    out = CALLS[call](rows, weight).contiguous().view(*x.shape[:-1], outputs)
    return out if bias is None else out + bias


# --- the calls: rows [R,I] times a weight [O,I] transposed, [R,O] --------------------------------------------------------


def by_vector(rows: Tensor, weight: Tensor) -> Tensor:
    """One row: a matrix-vector product."""
    return torch.mv(weight, rows[0]).unsqueeze(0)


def weight_left(rows: Tensor, weight: Tensor) -> Tensor:
    """[O,I] @ [I,R], as the weight lies."""
    return torch.mm(weight, rows.t()).t()


def narrow(rows: Tensor, weight: Tensor) -> Tensor:
    """A small product for every 16 outputs: [n,R,I] @ [n,I,16] -> [n,R,16]."""
    slices = weight.view(-1, NARROW, weight.shape[1])
    return torch.bmm(rows.expand(len(slices), -1, -1), slices.transpose(1, 2)).transpose(0, 1).reshape(len(rows), -1)


def slices(rows: Tensor, weight: Tensor) -> Tensor:
    """Eight products with the weight on the left: [8,O/8,I] @ [8,I,R] -> [O,R]."""
    return torch.bmm(weight.view(SLICES, -1, weight.shape[1]), rows.t().expand(SLICES, -1, -1)).view(-1, len(rows)).t()


def parts(rows: Tensor, weight: Tensor) -> Tensor:
    """Sixteen products, [16,R,I] @ [16,I,O/16], and one of the outputs that are left over: the threads share them out."""
    outputs, inputs = weight.shape
    even = outputs // PARTS * PARTS
    pieces = weight[:even].view(PARTS, -1, inputs)
    out = torch.bmm(rows.expand(PARTS, -1, -1), pieces.transpose(1, 2)).transpose(0, 1).reshape(len(rows), even)
    return out if even == outputs else torch.cat((out, F.linear(rows, weight[even:])), dim=1)


def folded(rows: Tensor, weight: Tensor) -> Tensor:
    """Half rows of the weight times both halves of x, of which one belongs to them.

    The arithmetic doubles, which waits for memory anyway. Each half is rounded to bf16: 1.4 times the error of one rounding.
    """
    (R, inputs), outputs = rows.shape, weight.shape[0]
    halves = rows.reshape(R, 2, inputs // 2).permute(2, 1, 0).reshape(inputs // 2, 2 * R)
    # [2O,I/2] @ [I/2,2R] -> [O,2,2,R]
    both = torch.mm(weight.view(2 * outputs, inputs // 2), halves).view(outputs, 2, 2, R)
    return (both[:, 0, 0] + both[:, 1, 1]).t()


CALLS: dict[str, Call] = {
    "mv": by_vector,
    "linear": F.linear,
    "mm": weight_left,
    "folded": folded,
    "narrow": narrow,
    "slices": slices,
    "parts": parts,
    "compiled": compiled.product,
}
