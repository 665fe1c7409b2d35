"""Grouped attention for decoding: the query heads of a group folded into rows, so that each key and value byte is read once.

Two routes, the choice measured by `benchmarks/decode_attention.py`:

- *folded*: SDPA over K heads with G * T query rows each. PyTorch's CPU flash kernel walks the context in blocks of 512 and
  uses keys and values of a block while they are in the cache.
- *split*: the context cut into blocks of SPLIT tokens that are one batch (flash-decoding, Dao et al. 2023); plain batched
  products. It takes soft caps and sinks, and keeps all threads busy with a single key/value head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .masks import Rules, bias_block, reach, visible

SPLIT = 512


def grouped(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """Attention of a few query tokens over a long cache: q [B,N,T,Dk], k [B,K,S,Dk], v [B,K,S,Dv] -> [B,N,T,Dv]."""
    (B, N, T, Dk), (K, S) = q.shape, k.shape[1:3]
    # Keys outside every window are not read at all.
    start, stop = reach(rules, S - T, S - 1, S)
    columns = slice(start, stop)
    mask = visible(rules, range(S - T, S), range(start, stop), q.device)
    bias = bias_block(rules, (B, N, T, S), slice(None), columns)
    run = folded if grouped_route(q, k, rules) == "folded" else split
    return run(q, k[:, :, columns], v[:, :, columns], rules, mask, bias)


def grouped_route(q: Tensor, k: Tensor, rules: Rules) -> str:
    """"folded" or "split"."""
    busy = q.device.type != "cpu" or k.shape[0] * k.shape[1] >= torch.get_num_threads()
    return "folded" if rules.softcap is None and rules.sinks is None and busy else "split"


def folded(q: Tensor, k: Tensor, v: Tensor, rules: Rules, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """SDPA with the G query heads of a group as rows: q [B,K,G*T,Dk], and a mask of as many rows if there is one."""
    (B, N, T, Dk), (K, S) = q.shape, k.shape[1:3]
    if bias is not None:
        mask = (bias if mask is None else bias.masked_fill(~mask, -torch.inf)).to(q.dtype)
    if mask is not None:
        mask = mask.expand(-1, N, T, S).reshape(-1, K, N // K * T, S)
    rows = q.reshape(B, K, N // K * T, Dk)
    return F.scaled_dot_product_attention(rows, k, v, attn_mask=mask, scale=rules.scale).view(B, N, T, v.shape[-1])


def split(q: Tensor, k: Tensor, v: Tensor, rules: Rules, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """Blocks of SPLIT context tokens as one batch, each row of scores then normalised over all of them."""
    (B, N, T, Dk), (K, S), Dv = q.shape, k.shape[1:3], v.shape[-1]
    wide = torch.promote_types(q.dtype, torch.float32)
    blocks = [slice(i, min(i + SPLIT, S)) for i in range(0, S, SPLIT)]
    raise NotImplementedError
