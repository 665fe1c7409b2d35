"""Decode attention that reads a cache in 40 streams at once, for the memory of a CPU.

A core prefetches one page ahead per page that is being read, so a program that reads keys from the first to the last waits for
memory most of the time: here a matrix-vector product over rows of 512 bytes reaches two thirds of the same product over rows
of 16 KiB, which walks several pages together. Attention does not care in which order it sees the keys. So the context is cut
into STREAMS equal pieces, and one small product takes the next token of every piece: 40 pages are read together, at any length.
STREAMS stays below the 64 pages that the first level of address translation holds.

Worth it for few rows a head and long contexts, see `fits`; measured by `benchmarks/decode_attention.py`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch
from torch import Tensor

STREAMS = 40
MOST_ROWS = 4  # a head: beyond it the products' arithmetic costs more than the waiting saved
FEWEST_TOKENS = 1 << 15  # below it the calls of a part cost more than the waiting saved
PART_TOKENS = (1 << 13, 1 << 16)  # a part has at least so many, or calls cost too much, and at most, so that its sums stay near the cache


def fits(q: Tensor, k: Tensor) -> bool:
    """Whether the streams are the faster way for q [B,h,R,D] over k [B,h,S,D]: few rows, many tokens, fp32, nothing to differentiate."""
    return (
        q.device.type == "cpu"
        and q.dtype == torch.float32
        and q.shape[2] <= MOST_ROWS
        and k.shape[2] >= FEWEST_TOKENS
        and k.stride(3) == 1
        and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad))
    )


def covered(tokens: int, heads: int, threads: int) -> tuple[int, int]:
    """(parts, tokens of a part that its streams cover): as many parts as give every thread the same number of (head, part) pairs.

    A stream is an odd number of tokens long: multiples of 4 KiB would put all streams into the same places of the cache.
    """
    fewest, most = PART_TOKENS
    even = max(1, min(threads // math.gcd(heads, threads), tokens // fewest))
    parts = even * math.ceil(tokens / (even * most))
    length = tokens // parts // STREAMS
    return parts, STREAMS * (length - 1 + length % 2)


def streamed(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, int]:
    """q [B,h,R,D] over the first tokens of k and v [B,h,S,D]: outputs [B * h,parts,R,D], log-sum-exps [B * h,parts,R], tokens done.

    Each (head, part) pair is a job of its own with one thread: no operator waits for the other threads.
    """
    (B, h, _, _), threads = q.shape, torch.get_num_threads()
    parts, size = covered(k.shape[2], B * h, threads)
    rows = q * scale
    jobs = [
        (rows[b, head], *(x[b, head, part * size : (part + 1) * size] for x in (k, v)))
        for b in range(B) for head in range(h) for part in range(parts)
    ]  # fmt: skip
    try:
        found = list(_workers(threads).map(_alone, jobs))
    finally:
        torch.set_num_threads(threads)  # for threads started from now on; this one kept its own
    outs, logs = (torch.stack(x) for x in zip(*found, strict=True))
    return outs.view(B * h, parts, *outs.shape[1:]), logs.view(B * h, parts, -1), parts * size


@lru_cache(maxsize=4)
def _workers(threads: int) -> ThreadPoolExecutor:
    """Threads that stay; PyTorch lets go of the interpreter's lock while an operator runs."""
    return ThreadPoolExecutor(threads, thread_name_prefix="tfm-streams")


def _alone(job: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """One job on one thread."""
    torch.set_num_threads(1)
    with torch.no_grad():
        return _part(*job)


def _part(rows: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scaled queries rows [R,D] over k [S,D] and v [S,Dv], S a multiple of STREAMS: output [R,Dv] and log-sum-exp [R]."""
    (R, D), (S, Dv), P = rows.shape, v.shape, STREAMS
    n = S // P
    # Token p * n + i is row p of product i. [n,R,D] @ [n,D,P] -> [n,R,P]
    scores = _scratch("scores", n, R, P)
    torch.bmm(rows.expand(n, R, D), k.as_strided((n, D, P), (k.stride(0), 1, n * k.stride(0))), out=scores)
    flat = scores.view(n, R * P)
    top = flat.amax(dim=0).view(R, P).amax(dim=1)
    scores.sub_(top.unsqueeze(1)).exp_()
    total = flat.sum(dim=0).view(R, P).sum(dim=1)
    # [n,R,P] @ [n,P,Dv] -> [n,R,Dv], summed over n
    sums = _scratch("sums", n, R, Dv)
    torch.bmm(scores, v.as_strided((n, P, Dv), (v.stride(0), n * v.stride(0), 1)), out=sums)
    return sums.view(n, R * Dv).sum(dim=0).view(R, Dv).div_(total.unsqueeze(1)), top + total.log()


_local = threading.local()


def _scratch(name: str, *shape: int) -> Tensor:
    """fp32 memory of this thread that is used again by the next job: fresh pages cost more than the arithmetic done in them."""
    kept: dict[str, Tensor] = _local.__dict__
    count = math.prod(shape)
    if name not in kept or kept[name].numel() < count:
        kept[name] = torch.empty(count, dtype=torch.float32)
    return kept[name][:count].view(shape)
