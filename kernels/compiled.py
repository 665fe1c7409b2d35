"""The product of few rows and the attention of one token as plain loops, compiled: where PyTorch's libraries wait, these stream.

One token uses each number of a weight or a cache once, so memory's rate is the limit. The libraries behind PyTorch's calls reach it for
some formats, shapes and makers of processors; elsewhere they repack, run on one thread, or walk one row at a time. Written as sums
and compiled (`compiling`), the loops widen a number in a register and add up in fp32, and read several rows at once:

- a product reads the weight's quarters side by side, and uses what it loads for every row of x: for weights that have to lie as they do,
  in tables and experts (`panels` has the faster loop for others);
- scores add up a key for all query heads of a group at once; values are added up token by token, a whole row a step, in blocks of BLOCK
  tokens where there are too few heads for the threads.

Nothing here is taken unless `tuning` found it faster on the machine at hand; it needs a C++ compiler, and a second or two for each kind
of loop the first time, which PyTorch keeps on disk. `benchmarks/linear_calls.py` and `benchmarks/decode_attention.py` have the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from .compiling import REGISTERS, Compiled, Example, compile_loop, gap
from .listening import Ears

WEIGHT_ROWS = 4  # read side by side
BLOCK = 256  # tokens whose values are added up in registers, where threads share out a head
CACHE_LINE = 64  # bytes: so much of a token's values is one sum
VECTOR = 16  # fp32 numbers of the widest register
WORTH, CACHE_WORTH = 1 << 20, 1 << 17  # bytes: compiling for smaller weights, or keys of one layer, is not worth the wait
SHORTEST = 64  # tokens
READINGS = 2  # of a cache at most: as many query heads a group at once as there are registers for, then the others
FORMATS = (torch.float32, torch.bfloat16, torch.float16)
USUAL_WEIGHT = (4084, 2040)  # what loops are traced with: from 4096 on Inductor adds up more carefully than fp32 needs here, and slowly
USUAL_CONTEXT = 1211
LOOPS: Ears[str, tuple[int, ...]] = Ears()  # told "product" or "attention", with the shape of what is read: no operator of PyTorch's runs


def runs() -> bool:
    """Whether loops are taken now: where they compile, in inference mode, or when somebody asks what would be (who gets stand-ins)."""
    return (torch.is_inference_mode_enabled() or bool(LOOPS)) and gap() is None


def serves(held: Tensor, worth: int) -> bool:
    """Whether a weight or a cache is on a processor, in a format that has loops, and so large."""
    return held.device.type == "cpu" and held.dtype in FORMATS and held.numel() * held.itemsize >= worth


# --- products ---------------------------------------------------------------------------------------------------------------


def takes_weight(rows: int, weight: Tensor) -> bool:
    """Whether there is a loop for so many rows and this weight [O,I], and it is worth compiling."""
    sums = rows * WEIGHT_ROWS * (4 // weight.itemsize or 1)  # registers: what is loaded as one of 2-byte numbers is added up in two
    return sums <= REGISTERS and serves(weight, WORTH) and weight.is_contiguous() and weight.shape[0] >= 2 * WEIGHT_ROWS and gap() is None


def product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rows [R,I] times a weight [O,I] transposed, plus bias [O], in inference mode: [R,O]."""
    if LOOPS:
        LOOPS.tell("product", tuple(weight.shape))
    if not torch.is_inference_mode_enabled():
        with _disable_current_modes():  # who asks counts operators: not those of a stand-in
            return F.linear(rows, weight, bias)
    left = weight.shape[0] % WEIGHT_ROWS
    if not left:
        return by_quarters(rows, weight, bias)
    even, odd = ((weight[part], None if bias is None else bias[part]) for part in (slice(-left), slice(-left, None)))
    return torch.cat((by_quarters(rows, *even), F.linear(rows, *odd)), dim=1)


def by_quarters(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same for a multiple of WEIGHT_ROWS outputs."""
    loop = compiled_product(rows.shape[0], weight.dtype, int(bias is not None), torch.get_num_threads())
    inputs = [rows.contiguous(), weight]
    return loop(inputs if bias is None else [*inputs, bias])[0]


@cache
def compiled_product(rows: int, dtype: torch.dtype, bias: int, threads: int) -> Compiled:  # noqa: ARG001 - Inductor asks for them itself
    """The loop for so many rows and no or one bias, and weights of any size."""

    def inputs(draw: Callable[..., Tensor], outputs: int, width: int) -> list[Tensor]:
        sizes = ((rows, width), (outputs, width), (outputs,))
        return [(draw(size) / size[-1] ** 0.5).to(dtype) for size in sizes[: 2 + bias]]

    examples: list[Example] = list(zip(inputs(torch.empty, *USUAL_WEIGHT), ((1,), (0, 1), (0,)), strict=False))
    trials = [inputs(torch.randn, *size) for size in ((8, 19), (36, 64), (64, 2048))]
    return compile_loop(biased_product_loop if bias else product_loop, examples, trials)


def product_loop(rows: Tensor, weight: Tensor) -> tuple[Tensor]:
    """rows [R,I], weight [O,I] -> [R,O]."""
    return (row_sums(rows, weight).to(weight.dtype),)


def biased_product_loop(rows: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    """rows [R,I], weight [O,I], bias [O] -> [R,O]."""
    return ((row_sums(rows, weight) + bias.float()).to(weight.dtype),)


def row_sums(rows: Tensor, weight: Tensor) -> Tensor:
    """rows [R,I], weight [O,I] -> [R,O] in fp32. x is widened in the loop: narrow it leaves more of the first-level cache to the weight."""
    outputs, inputs = weight.shape
    pieces = [piece.float() for piece in weight.view(WEIGHT_ROWS, outputs // WEIGHT_ROWS, inputs).unbind()]
    return torch.stack([torch.cat([(piece * row).sum(dim=-1) for piece in pieces]) for row in rows.float().unbind()])


# --- attention --------------------------------------------------------------------------------------------------------------


def takes_cache(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether there are loops for queries [B,K,R,Dk] of one token over k [B,K,S,Dk] and v [B,K,S,Dv], and they are worth compiling."""
    return (
        serves(k, CACHE_WORTH)
        and q.dtype == k.dtype == v.dtype
        and is_one_buffer(k)
        and is_one_buffer(v)
        and v.shape[3] % (CACHE_LINE // v.itemsize) == 0
        and readings(q, v) <= READINGS
        and k.shape[2] >= (2 * BLOCK + 2 if shares_heads(k.shape[0] * k.shape[1]) else SHORTEST)
        and runs()
    )


def shares_heads(heads: int) -> bool:
    """Whether threads have to share out so many heads of a cache, as whole ones are too few for them or leave some idle for long."""
    threads = torch.get_num_threads()
    return heads < 2 * threads and heads % threads != 0


def readings(q: Tensor, v: Tensor) -> int:
    """How often queries [B,K,R,Dk] have to read a cache [B,K,S,Dv]: a row's sums, in fp32, are registers of the widest kind."""
    return -(-q.shape[2] * v.shape[3] // (VECTOR * REGISTERS))


def is_one_buffer(x: Tensor) -> bool:
    """Whether x [B,K,S,D] can be seen as [B * K,S,D], rows whole."""
    return x.stride(3) == 1 and x.stride(2) == x.shape[3] and (x.shape[0] == 1 or x.stride(0) == x.shape[1] * x.stride(1))


def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, softcap: float | None = None) -> tuple[Tensor, Tensor]:
    """Queries [B,K,R,Dk] of one token over k [B,K,S,Dk] and v [B,K,S,Dv], in inference mode: weighted values [B,K,R,Dv], and the logits
    [B,K,R,S] in fp32.
    """
    if LOOPS:
        LOOPS.tell("attention", tuple(k.shape))
    if not torch.is_inference_mode_enabled():
        with _disable_current_modes(), torch.inference_mode():
            out, logits = attention(q, k, v, scale=scale, softcap=softcap)
        return out.clone(), logits.clone()  # tensors like others, which may be changed in place
    R = q.shape[2]
    rows = -(-R // readings(q, v))
    if rows == R:
        return in_one_reading(q, k, v, scale, softcap)
    parts = [in_one_reading(part, k, v, scale, softcap) for part in q.split(rows, dim=2)]
    out, logits = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    return out, logits


def in_one_reading(q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None) -> tuple[Tensor, Tensor]:
    """`attention` of no more rows than there are registers for."""
    (B, K, R, _), threads = q.shape, torch.get_num_threads()
    heads = usual_heads(B * K, threads)
    loop = compiled_attention(heads, R, k.shape[3], v.shape[3], k.dtype, softcap, BLOCK if shares_heads(B * K) else None, threads)
    out, logits = loop([(q.flatten(0, 1).float() * scale).contiguous(), k.flatten(0, 1), v.flatten(0, 1)])
    return out.view(B, K, R, -1), logits.view(B, K, R, -1)


def usual_heads(heads: int, threads: int) -> int:
    """A number of heads that stands for these: one, fewer than suffice the threads, or enough."""
    return 1 if heads == 1 else 3 if heads < 2 * threads else 4 * threads + 1


@cache
def compiled_attention(
    heads: int,
    rows: int,
    key_width: int,
    value_width: int,
    dtype: torch.dtype,
    softcap: float | None,
    block: int | None,
    threads: int,  # noqa: ARG001
) -> Compiled:
    """`attention_loop` for so many rows of one head, a usual number of heads, and contexts of any length that it takes."""

    def cache_of(heads: int, context: int, width: int, more: int) -> Tensor:
        return torch.randn(heads, context + more, width).to(dtype)[:, :context]  # in a larger one, as while a cache is filled

    examples: list[Example] = [(torch.empty(heads, rows, key_width), (0,))]
    examples += [(cache_of(heads, USUAL_CONTEXT, width, 90), (0, 1)) for width in (key_width, value_width)]
    others = heads if heads == 1 else 2
    trials = [
        (torch.randn(others, rows, key_width), *(cache_of(others, context, width, more) for width in (key_width, value_width)))
        for context, more in (
            (2 * BLOCK + 2, 0),
            (3 * BLOCK, 0),
            (3 * BLOCK + 1, 5),
            (5 * BLOCK - 1, 1),
            *(() if block else ((SHORTEST, 3),)),
        )
    ]
    loop = partial(attention_loop, softcap=softcap, block=block)
    loop.__name__ = attention_loop.__name__  # type: ignore[attr-defined]
    return compile_loop(loop, examples, trials)


def attention_loop(q: Tensor, k: Tensor, v: Tensor, *, softcap: float | None, block: int | None) -> tuple[Tensor, Tensor]:
    """q [h,R,Dk] in fp32, scaled, k [h,S,Dk], v [h,S,Dv] -> weighted values [h,R,Dv] in the format of v, logits [h,R,S] in fp32.

    `block`: values are added up in blocks of so many tokens and a rest of two or more, S >= 2 block + 2; else all in one.
    """
    logits = torch.stack([(k.float() * row[:, None]).sum(dim=-1) for row in q.unbind(1)], dim=1)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    blocks = (k.shape[1] - 2) // block if block else 0  # a rest of 0 or 1 would be a kind of its own
    done = blocks * block if block else 0
    out = values(weights[..., done:].unsqueeze(2), v[:, done:].unsqueeze(1)).squeeze(2)
    if block:
        out = out + values(weights[..., :done].unflatten(2, (blocks, block)), v[:, :done].unflatten(1, (blocks, block))).sum(dim=2)
    return (out / weights.sum(dim=-1, keepdim=True)).to(v.dtype), logits


def values(weights: Tensor, v: Tensor) -> Tensor:
    """Weights [h,R,n,t] in fp32, v [h,n,t,Dv] of n blocks of t tokens -> the sums of each block, [h,R,n,Dv] in fp32."""
    pieces = v.split(CACHE_LINE // v.itemsize, dim=3)
    rows = [torch.cat([(row.unsqueeze(-1) * piece.float()).sum(dim=2) for piece in pieces], dim=-1) for row in weights.unbind(1)]
    return torch.stack(rows, dim=1)
