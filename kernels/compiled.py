"""The product and the attention of one token as plain loops that `torch.compile` makes: where PyTorch's libraries wait, these stream.

One token uses each number of a weight or a cache once, so memory's rate is the limit. The libraries behind PyTorch's calls reach it for
some formats, shapes and makers of processors; elsewhere they repack, run on one thread, or walk one row at a time. Written as sums
and compiled, the loops widen a number in a register and add up in fp32, and read several rows at once:

- a product reads the weight's quarters side by side, four rows for each piece of x that is loaded;
- scores add up a key for all query heads of a group at once; values are added up token by token in blocks of BLOCK, a whole row a step.

Nothing here is taken unless `tuning` found it faster on the machine at hand; it needs a C++ compiler, and a few seconds for each kind
of loop the first time, which PyTorch keeps on disk. `benchmarks/linear_calls.py` and
`benchmarks/decode_attention.py` have the figures.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.dlpack import from_dlpack

from .listening import Ears

WEIGHT_ROWS = 4  # read side by side
BLOCK = 128  # tokens whose values are added up in registers
CACHE_LINE = 64  # bytes: so much of a token's values is one sum
VECTOR = 16  # fp32 numbers of the widest register
REGISTERS = 32  # for sums side by side; what falls out of them is slow, and takes long to compile
WORTH = 1 << 20  # bytes: smaller weights and caches stay in the processor's cache, and compiling for them is not worth the wait
FORMATS = (torch.float32, torch.bfloat16, torch.float16)
OPTIONS: dict[str, Any] = {
    "cpp.enable_floating_point_contract_flag": "fast",  # multiply and add in one instruction
    "cpp.max_horizontal_fusion_size": REGISTERS,
    "cpp.vec_isa_ok": True,  # a compiler that knows the processor is believed, not tried out for seconds
    "compile_threads": 1,  # no pool of processes beside a measurement
}

Loop = Callable[[Tensor, Tensor], Tensor]
_broken: list[str] = []  # why compiling failed, once it did
LOOPS: Ears[str, tuple[int, ...]] = Ears()  # told "product" or "attention", with the shape of what is read: no operator of PyTorch's runs


def gap() -> str | None:
    """Why nothing can be compiled here; None where, as far as one can see, it can."""
    return _broken[0] if _broken else None if compiler() else "no C++ compiler"


@cache
def compiler() -> str | None:
    """Path of the C++ compiler that `torch.compile` takes on a processor."""
    return shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))


def works(call: Callable[[], object]) -> bool:
    """Compile by calling; False, and for the rest of the process, where that fails."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever a compiler, its absence or a version of PyTorch may raise
        first, *_ = [*str(error).strip().splitlines(), type(error).__name__]
        _broken.append(f"torch.compile failed: {first}")
    return not _broken


@cache
def made(loop: Loop, *kind: object) -> Loop:  # noqa: ARG001 - kinds are told apart by it
    """A loop compiled, when it is first called, for tensors of one kind: what `of_any_size` does not leave open, and the threads.

    With code of its own: PyTorch counts recompilations, and gives up, by code object.
    """
    with warnings.catch_warnings():  # of PyTorch about itself, as it loads the compiler
        warnings.simplefilter("ignore")
        importlib.import_module("torch._inductor.compile_fx")
    own = FunctionType(loop.__code__.replace(), loop.__globals__, loop.__name__)
    known = set(torch._inductor.list_options())
    return torch.compile(own, dynamic=False, options={name: value for name, value in OPTIONS.items() if name in known})


def of_any_size(x: Tensor, *dims: int) -> Tensor:
    """A tensor for a compiled loop that is to hold for other sizes of some dimensions too; of the rest it knows the size.

    Made anew over the same memory, which begins where the tensor does, and in inference mode: PyTorch would compile once for tensors
    that were made there and once for others, for parameters, for tensors within a buffer, and give up after eight.
    """
    seen = from_dlpack(x.detach())
    for dim in dims:
        torch._dynamo.maybe_mark_dynamic(seen, dim)
    return seen


def runs() -> bool:
    """Whether loops are taken now: in inference mode, and where somebody asks what would be (who then gets stand-ins)."""
    return torch.is_inference_mode_enabled() or bool(LOOPS)


# --- products ---------------------------------------------------------------------------------------------------------------


def takes_weight(rows: int, weight: Tensor) -> bool:
    """Whether there is a loop for so many rows and this weight [O,I], and it is worth compiling."""
    return rows == 1 and serves(weight) and weight.is_contiguous() and weight.shape[0] >= WEIGHT_ROWS and gap() is None


def serves(held: Tensor) -> bool:
    """Whether a weight or a cache is on a processor, in a format that has loops, and beyond what a core keeps."""
    return held.device.type == "cpu" and held.dtype in FORMATS and held.numel() * held.itemsize >= WORTH


def product(rows: Tensor, weight: Tensor) -> Tensor:
    """rows [1,I] times a weight [O,I] transposed, in inference mode: [1,O]."""
    LOOPS.tell("product", tuple(weight.shape))
    if not torch.is_inference_mode_enabled():
        with _disable_current_modes():  # who asks counts operators: not those of a stand-in
            return rows @ weight.t()
    outputs, inputs = weight.shape
    even = outputs // WEIGHT_ROWS * WEIGHT_ROWS
    loop = made(product_loop, inputs, weight.dtype, torch.get_num_threads())
    out = loop(rows[0].clone(), of_any_size(weight[:even].view(WEIGHT_ROWS, -1, inputs), 1)).view(1, even)
    return out if even == outputs else torch.cat((out, rows @ weight[even:].t()), dim=1)


def product_loop(x: Tensor, weight: Tensor) -> Tensor:
    """x [I], weight [P,n,I] -> [P,n]. x is widened in the loop: narrow it leaves more of the first-level cache to the weight."""
    wide = x.float()
    return torch.stack([(piece.float() * wide).sum(dim=-1) for piece in weight.unbind()]).to(weight.dtype)


# --- attention --------------------------------------------------------------------------------------------------------------


def takes_cache(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether there are loops for queries [B,K,R,Dk] of one token over k [B,K,S,Dk] and v [B,K,S,Dv], and they are worth compiling."""
    sums = q.shape[2] * v.shape[3] // VECTOR  # in fp32, each a register of the widest kind
    return (
        serves(k)
        and q.dtype == k.dtype == v.dtype
        and is_one_buffer(k)
        and is_one_buffer(v)
        and v.shape[3] % (CACHE_LINE // v.itemsize) == 0
        and sums <= REGISTERS
        and k.shape[2] >= 2 * BLOCK
        and runs()
        and gap() is None
    )


def is_one_buffer(x: Tensor) -> bool:
    """Whether x [B,K,S,D] can be seen as [B * K,S,D], rows whole."""
    return x.stride(3) == 1 and (x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1))


def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, softcap: float | None = None) -> tuple[Tensor, Tensor]:
    """Queries [B,K,R,Dk] of one token over k [B,K,S,Dk] and v [B,K,S,Dv], in inference mode: weighted values [B,K,R,Dv], and the logits
    [B,K,R,S] in fp32.
    """
    LOOPS.tell("attention", tuple(k.shape))
    if not torch.is_inference_mode_enabled():
        with _disable_current_modes(), torch.inference_mode():
            out, logits = attention(q, k, v, scale=scale, softcap=softcap)
        return out.clone(), logits.clone()  # tensors like others, which may be changed in place
    (B, K, R, _), tokens = q.shape, k.shape[2]
    kind = R, k.shape[3], v.shape[3], k.dtype, torch.get_num_threads()
    rows, keys, values = q.flatten(0, 1).float() * scale, k.flatten(0, 1), v.flatten(0, 1)
    logits = made(score_loop, *kind)(of_any_size(rows, 0), of_any_size(keys, 0, 1))
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    weights = logits.softmax(dim=-1)
    # Sizes of 0 and 1 would each be compiled for themselves: the last block leaves none or several.
    blocks = tokens // BLOCK - (tokens % BLOCK == 1)
    done = blocks * BLOCK
    out = made(value_loop, *kind)(
        of_any_size(weights[..., :done].contiguous().unflatten(2, (blocks, BLOCK)), 0, 2),
        of_any_size(values[:, :done].unflatten(1, (blocks, BLOCK)), 0, 1),
    )
    if done < tokens:
        out = out + weights[..., done:] @ values[:, done:].float()
    return out.to(q.dtype).view(B, K, R, -1), logits.view(B, K, R, tokens)


def score_loop(q: Tensor, k: Tensor) -> Tensor:
    """q [h,R,Dk] in fp32, k [h,S,Dk] -> [h,R,S] in fp32."""
    return torch.stack([(k.float() * row[:, None]).sum(dim=-1) for row in q.unbind(1)], dim=1)


def value_loop(weights: Tensor, v: Tensor) -> Tensor:
    """Weights [h,R,n,BLOCK] in fp32, v [h,n,BLOCK,Dv] -> [h,R,Dv] in fp32."""
    pieces = v.split(CACHE_LINE // v.itemsize, dim=3)
    rows = [torch.cat([(row.unsqueeze(-1) * piece.float()).sum(dim=2) for piece in pieces], dim=-1) for row in weights.unbind(1)]
    return torch.stack(rows, dim=1).sum(dim=2)
