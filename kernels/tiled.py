"""Exact attention in tiles: never more than TILE logits a head in memory, heads of a group sharing one read of their keys."""

from __future__ import annotations

import torch
from torch import Tensor

from .masks import Rules, bias_block, query_blocks, reach, scale_of, shape_logits, visible

TILE, QUERY_BLOCK = 1 << 16, 128  # 128 queries x 512 keys, or one query x 65,536 keys


def tiled(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """Attention with a running maximum and sum (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022, algorithm 1).

    q [B,N,T,Dk], k [B,K,S,Dk], v [B,K,S,Dv] -> [B,N,T,Dv]. Tiles that no query of the block can see are skipped.
    """
    T, S = q.shape[2], k.shape[2]
    outs = [_one_block(q[:, :, rows.start : rows.stop], k, v, rules, rows, S - T) for rows in query_blocks(T, QUERY_BLOCK)]
    return torch.cat(outs, dim=2)


def _one_block(q: Tensor, k: Tensor, v: Tensor, rules: Rules, rows: range, cached: int) -> Tensor:
    """The queries `rows`, of which the first of all stands at position `cached`, over all their keys: q [B,N,t,Dk] -> [B,N,t,Dv].

    Sums run in fp32, in fp64 for fp64. A sink is a logit already seen that has no value: the maximum and the sum start with it.
    """
    (B, N, t, _), positions = q.shape, range(cached + rows.start, cached + rows.stop)
    wide = torch.promote_types(q.dtype, torch.float32)
    top = q.new_full((B, N, t, 1), -torch.inf, dtype=wide)
    total, acc = torch.zeros_like(top), q.new_zeros((B, N, t, v.shape[-1]), dtype=wide)
    if rules.sinks is not None:
        top, total = rules.sinks.to(wide).view(1, N, 1, 1).expand_as(top), torch.ones_like(top)
    start, stop = reach(rules, positions.start, positions.stop - 1, k.shape[2])
    for first in range(start, stop, TILE // t):
        columns = range(first, min(first + TILE // t, stop))
        logits = _tile_logits(q, k, rules, rows, positions, columns).to(wide)
        higher = torch.maximum(top, logits.amax(dim=-1, keepdim=True))
        base = higher.masked_fill(higher == -torch.inf, 0)  # nothing seen yet: exp(-inf - 0) = 0
        weights, shrink = torch.exp(logits - base), torch.exp(top - base)
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        # [B,N,t,s] @ [B,K,s,Dv] -> [B,N,t,Dv]
        acc = acc * shrink + grouped_product(weights.to(v.dtype), v[:, :, columns.start : columns.stop])
        top = higher
    return (acc / total.masked_fill(total == 0, 1)).to(q.dtype)


def _tile_logits(q: Tensor, k: Tensor, rules: Rules, rows: range, positions: range, columns: range) -> Tensor:
    """Capped, biased and masked logits of one tile: [B,N,t,s]."""
    # [B,N,t,Dk] @ [B,K,Dk,s] -> [B,N,t,s]
    logits = grouped_product(scale_of(q, rules) * q, k[:, :, columns.start : columns.stop].transpose(-1, -2))
    bias = bias_block(rules, (q.shape[0], q.shape[1]), rows, columns)
    return shape_logits(logits, rules, bias, visible(rules, positions, columns, q.device))


def grouped_product(heads: Tensor, shared: Tensor) -> Tensor:
    """[B,N,t,x] @ [B,K,x,y] -> [B,N,t,y]: the N / K query heads of a group are rows of one product, nothing is repeated."""
    (B, N, t, x), (K, y) = heads.shape, (shared.shape[1], shared.shape[3])
    return (heads.reshape(B, K, N // K * t, x) @ shared).view(B, N, t, y)
