"""Grouped attention for decoding: the query heads of a group folded into rows, so that each key and value byte is read once.

With `enable_gqa` PyTorch's CPU kernel takes every query head for itself and reads the keys of a group G times. Folded, the G
heads (times T tokens) are rows of one small product: the kernel walks the context in blocks of 512 tokens, and uses a block
while it is in the cache. Where there are fewer key/value heads than threads, the context is cut as well and the parts are
joined by their log-sum-exp (flash-decoding, Dao et al. 2023). Few rows over a long context in fp32 go through `streams`, which
waits less for memory; and one token through loops of its own (`compiled`), where `tuning` found those faster here.
`benchmarks/decode_attention.py` compares this with what else was tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from . import compiled, streams
from .linear import USUAL
from .listening import Ears
from .masks import Rules, bias_block, query_blocks, reach, scale_of, visible
from .tiled import QUERY_BLOCK, tiled

SHORTEST_PART = 512  # tokens: the kernel's own block
UNEVEN = 0.2  # of the work: one thread may have so much more than its share before cutting and joining is the cheaper way

Read = tuple[Tensor, Tensor, Tensor, Rules]  # what `grouped` takes
Key = tuple[tuple[int, ...], int, int, torch.dtype, int]
CHOSEN: dict[Key, bool] = {}  # whether `tuning` found compiled loops faster here; empty until it was asked
READS: Ears[Key, Read] = Ears()  # told what attention of one token reads, where there are loops for it


def grouped(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """Attention of a few query tokens over a long cache: q [B,N,T,Dk], k [B,K,S,Dk], v [B,K,S,Dv] -> [B,N,T,Dv]."""
    seen = one_token(q, k, v, rules)
    if seen is not None and READS and compiled.takes_cache(*seen):
        READS.tell(key_of(*seen), (q, k, v, rules))
    if seen is not None and takes_loops(*seen):
        return by_loops(*seen, rules).view(*q.shape[:3], v.shape[3])
    if grouped_gap(q, v, rules):
        return tiled(q, k, v, rules)
    T, S = q.shape[2], k.shape[2]
    outs = [_one_block(q[:, :, rows.start : rows.stop], k, v, rules, rows, S - T) for rows in query_blocks(T, QUERY_BLOCK)]
    return torch.cat(outs, dim=2) if len(outs) > 1 else outs[0]


def _one_block(q: Tensor, k: Tensor, v: Tensor, rules: Rules, rows: range, cached: int) -> Tensor:
    """The queries `rows`, of which the first of all stands at position `cached`: q [B,N,t,D] -> [B,N,t,D]."""
    (B, N, t, D), K, positions = q.shape, k.shape[1], range(cached + rows.start, cached + rows.stop)
    # Keys that no query of the block can see are not read at all.
    columns = range(*reach(rules, positions.start, positions.stop - 1, k.shape[2]))
    k, v = (x[:, :, columns.start : columns.stop] for x in (k, v))
    mask, bias = visible(rules, positions, columns, q.device), bias_block(rules, (B, N), rows, columns)
    added = _folded(q, K, mask, bias)
    heads = q.reshape(B, K, N // K * t, D)
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(heads, k, v, attn_mask=added, scale=rules.scale).view(B, N, t, D)
    if added is None and streams.fits(heads, k):
        out, log_sum = _streamed(heads, k, v, rules)
    else:
        parts = _parts(k)
        out, log_sum = _flash(heads, k, v, added, rules.scale) if parts == 1 else _in_parts(heads, k, v, added, rules.scale, parts)
    if rules.sinks is not None:
        out = left_by_sinks(out, log_sum, rules.sinks)
    return out.view(B, N, t, D)


def left_by_sinks(out: Tensor, log_sum: Tensor, sinks: Tensor) -> Tensor:
    """What sinks [N] leave to the weighted values [B,K,R,D] of logits with this log-sum-exp [B,K,R]: exp(x) / (exp(x) + exp(sink))."""
    K, R = log_sum.shape[1:]
    rows = sinks.to(log_sum.dtype).view(K, -1, 1).expand(K, -1, R * K // len(sinks)).reshape(1, K, R)
    return (out * torch.sigmoid(log_sum - rows).unsqueeze(-1)).to(out.dtype)


# --- compiled loops ---------------------------------------------------------------------------------------------------------


def one_token(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> tuple[Tensor, Tensor, Tensor] | None:
    """Of a single token of each sequence on a processor: its queries [B,K,R,Dk], and the keys and values that it sees; else None."""
    (B, N, T, Dk), (K, S) = q.shape, k.shape[1:3]
    if T != 1 or q.device.type != "cpu" or rules.padding is not None or rules.bias is not None:
        return None
    start, stop = reach(rules, S - 1, S - 1, S)
    return q.reshape(B, K, N // K, Dk), k[:, :, start:stop], v[:, :, start:stop]


def key_of(q: Tensor, k: Tensor, v: Tensor) -> Key:
    """What the faster way depends on: heads and rows, the context's order of magnitude, the width, the format and the threads."""
    return key_for(tuple(q.shape[:3]), k.shape[2], v.shape[3], k.dtype)


def key_for(heads: tuple[int, ...], context: int, width: int, dtype: torch.dtype) -> Key:
    """The same by sizes: sequences, KV heads and rows; tokens that are seen; width of a value."""
    return heads, context.bit_length(), width, dtype, torch.get_num_threads()


def takes_loops(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether compiled loops were found the faster way for q [B,K,R,Dk] of one token over k and v [B,K,S,Dk or Dv]."""
    return bool(CHOSEN) and not USUAL.get() and CHOSEN.get(key_of(q, k, v), False) and compiled.takes_cache(q, k, v)


def by_loops(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """q [B,K,R,Dk] of one token over all of k and v [B,K,S,Dk or Dv]: [B,K,R,Dv]."""
    out, logits = compiled.attention(q, k, v, scale=scale_of(q, rules), softcap=rules.softcap)
    return out if rules.sinks is None else left_by_sinks(out, logits.logsumexp(dim=-1), rules.sinks)


def grouped_gap(q: Tensor, v: Tensor, rules: Rules) -> str | None:
    """Why the folded kernel cannot compute this (tiled then does, folded as well but slower); None where it can."""
    if rules.softcap is not None:
        return "SDPA has no soft cap"
    if rules.sinks is not None and q.device.type != "cpu":
        return "SDPA gives no log-sum-exp, which sinks need"
    return "keys and values differ in width" if q.shape[-1] != v.shape[-1] else None


def own_way(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> str | None:
    """How `grouped` reads a cache for one token, where no kernel of PyTorch's does."""
    seen = one_token(q, k, v, rules)
    if seen is None:
        return None
    if takes_loops(*seen):
        return "compiled loops"
    return f"{streams.STREAMS} streams" if not grouped_gap(q, v, rules) and streams.fits(seen[0], seen[1]) else None


def _folded(q: Tensor, K: int, mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Mask and bias as one addend to the folded logits, [B or 1, K or 1, G * t, columns] in q's dtype; None if there is neither."""
    if mask is not None:
        bias = (q.new_zeros(()) if bias is None else bias).masked_fill(~mask, -torch.inf)
    if bias is None:
        return None
    N, t = q.shape[1:3]
    heads = N if bias.shape[1] > 1 else N // K
    return bias.to(q.dtype).expand(-1, heads, t, -1).reshape(bias.shape[0], -1, N // K * t, bias.shape[-1])


def _flash(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float | None) -> tuple[Tensor, Tensor]:
    """PyTorch's CPU flash kernel: [b,h,R,D] over [b,h,S,D] -> the output and the log-sum-exp [b,h,R] of each row's logits.

    It is the kernel that scaled_dot_product_attention takes here; called by its own name because only so it gives the log-sum-exp.
    """
    # Called so, it takes channels to lie side by side without asking: what a transposed product gives does not.
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=added, scale=scale)
    if added is not None:  # a row that sees nothing comes back as zeros with a log-sum-exp of 0
        log_sum = log_sum.masked_fill((added == -torch.inf).all(dim=-1), -torch.inf)
    return out, log_sum


def _parts(k: Tensor) -> int:
    """Into how many parts to cut the context so that all threads have the same number of (head, part) pairs; 1 where they nearly do."""
    B, K, S, _ = k.shape
    threads, heads = torch.get_num_threads(), B * K
    if math.ceil(heads / threads) * threads <= (1 + UNEVEN) * heads:
        return 1
    if B > 1 and k.stride(0) != K * k.stride(1):
        return 1  # heads and sequences are no one dimension in memory: cutting would copy the cache
    return max(1, min(threads // math.gcd(heads, threads), S // SHORTEST_PART))


def _in_parts(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float | None, parts: int) -> tuple[Tensor, Tensor]:
    """`_flash` over `parts` equal pieces of the context and the rest, joined: each weighs what its log-sum-exp says."""
    (B, K, R, D), S = q.shape, k.shape[2]
    pieces = []
    for part, (first, count) in ((parts, (0, S // parts)), (1, (S // parts * parts, S % parts))):
        if count:
            cut = slice(first, first + part * count)
            # [B,K,part * count,D] -> [B * K,part,count,D], a view
            keys, values = (x[:, :, cut].view(B, K, part, count, D).flatten(0, 1) for x in (k, v))
            extra = None if added is None else added.expand(B, K, R, S)[..., cut].reshape(B * K, R, part, count).transpose(1, 2)
            pieces.append(_flash(q.flatten(0, 1).unsqueeze(1).expand(-1, part, R, D), keys, values, extra, scale))
    out, log_sum = _joined(pieces)
    return out.view(B, K, R, D), log_sum.view(B, K, R)


def _streamed(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """`streams` over most of the context, `_flash` over the few tokens they leave."""
    out, log_sum, done = streams.streamed(q, k, v, scale_of(q, rules))
    if done == k.shape[2]:
        return out, log_sum
    rest = _flash(q, k[:, :, done:], v[:, :, done:], None, rules.scale)
    out, log_sum = _joined([(x.flatten(0, 1).unsqueeze(1), y.flatten(0, 1).unsqueeze(1)) for x, y in ((out, log_sum), rest)])
    return out.view(q.shape), log_sum.view(q.shape[:3])


def _joined(pieces: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Outputs [h,parts,R,D] over parts of a context and log-sum-exps [h,parts,R] -> [h,R,D] and [h,R] over all of it."""
    outs, logs = (torch.cat(x, dim=1) for x in zip(*pieces, strict=True))
    log_sum = logs.logsumexp(dim=1)
    weights = torch.exp(logs - log_sum.masked_fill(log_sum == -torch.inf, 0).unsqueeze(1))
    return (weights.unsqueeze(-1) * outs).sum(dim=1).to(outs.dtype), log_sum
