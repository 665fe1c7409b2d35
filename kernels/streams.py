"""Decode attention that reads a cache in 48 streams at once, because a CPU's memory is faster that way.

A core fetches ahead within each page that is being read. A product that takes the keys from the first to the last has one such
page and waits for memory most of the time: here a matrix-vector product over rows of 512 bytes reaches two thirds of the same
product over rows of 16 KiB, which walks several pages together. Attention does not care in which order it sees the keys. So the
context is cut into STREAMS equal pieces, and one small product takes the next token of every piece: 48 pages are read together.

It is worth it for few rows a head over a long context in fp32, see `fits`. Measured by `benchmarks/decode_attention.py`: more
streams than the 64 pages of the first level of address translation lose all of the gain; the same in bf16 gains nothing, since
there the products repack every block for the matrix unit and are bound by that. Two dozen operators in place of one also mean
that all threads wait for the slowest two dozen times: where other programs take the cores, one fused operator is faster.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

STREAMS = 48
MOST_ROWS = 4  # a head: beyond it the products' arithmetic costs more than the waiting saved
FEWEST_TOKENS = 1 << 15  # below it the two dozen operators cost more than the waiting saved
HELD_LOGITS = 1 << 21  # 8 MiB; they are read and written four times and should stay near the cores


def fits(q: Tensor, k: Tensor) -> bool:
    """Whether streams are the faster way for q [B,h,R,D] over k [B,h,S,D]: few rows, many tokens, fp32, nothing to differentiate."""
    return (
        q.device.type == "cpu"
        and q.dtype == torch.float32
        and q.shape[2] <= MOST_ROWS
        and k.shape[2] >= FEWEST_TOKENS
        and k.stride(3) == 1
        and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad))
        and not crowded()
    )


def crowded() -> bool:
    """Whether clearly more programs want to run than there are cores, by the load of the last minute; False where nobody counts it."""
    try:
        return os.getloadavg()[0] > (os.cpu_count() or 1) + 1
    except (AttributeError, OSError):
        return False


def stream_length(tokens: int) -> int:
    """Tokens of one stream: an odd number, since multiples of 4 KiB would put all streams into the same places of the caches."""
    length = tokens // STREAMS
    return length - 1 + length % 2


def streamed(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, int]:
    """q [B,h,R,D] over the first tokens of k and v [B,h,S,D]: output [B,h,R,D], log-sum-exp [B,h,R], and how many tokens those are."""
    (B, h, R, D), n = q.shape, stream_length(k.shape[2])
    done = STREAMS * n
    keys, values = ([x[b, i, :done] for b in range(B) for i in range(h)] for x in (k, v))
    rows = (q * scale).view(B * h, R, D)
    out, log_sum = q.new_empty(B * h, R, D), q.new_empty(B * h, R)
    step = max(1, HELD_LOGITS // (R * done))
    for first in range(0, B * h, step):
        some = slice(first, first + step)
        out[some], log_sum[some] = _some_heads(rows[some], keys[some], values[some], n)
    return out.view(B, h, R, D), log_sum.view(B, h, R), done


def _some_heads(rows: Tensor, keys: list[Tensor], values: list[Tensor], n: int) -> tuple[Tensor, Tensor]:
    """Scaled queries [h,R,D] over h keys and values [P * n,D]: output [h,R,D], log-sum-exp [h,R]. Row p of product i is token p * n + i."""
    (h, R, D), P = rows.shape, STREAMS
    logits = torch.empty(h, n, R, P)
    for head, k in enumerate(keys):
        # [n,R,D] @ [n,D,P] -> [n,R,P]
        torch.bmm(rows[head].expand(n, R, D), k.as_strided((n, D, P), (k.stride(0), 1, n * k.stride(0))), out=logits[head])
    # Maximum and sum first over products, where neighbours in memory are independent, then over the streams.
    lanes = logits.view(h, n, R * P)
    top = lanes.amax(dim=1).view(h, R, P).amax(dim=2)
    logits.sub_(top[:, None, :, None]).exp_()
    total = lanes.sum(dim=1).view(h, R, P).sum(dim=2)
    sums, part = torch.empty(h, R * D), torch.empty(n, R, D)
    for head, v in enumerate(values):
        # [n,R,P] @ [n,P,D] -> [n,R,D], summed over n
        torch.bmm(logits[head], v.as_strided((n, P, D), (v.stride(0), n * v.stride(0), 1)), out=part)
        torch.sum(part.view(n, R * D), dim=0, out=sums[head])
    return sums.view(h, R, D) / total.unsqueeze(2), top + total.log()
