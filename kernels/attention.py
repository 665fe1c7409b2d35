"""Attention in PyTorch, four ways that give the same numbers: eager, tiled, SDPA and grouped.

    q [B,N,T,Dk], k [B,K,S,Dk], v [B,K,S,Dv] -> [B,N,T,Dv]

Query heads n of a group share key/value head n // G, G = N / K. All four follow `masks.Rules` and are compared with
`reference.attend` (float64 numpy).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..presets.errors import UnknownNameError
from .grouped import grouped, grouped_route
from .masks import Rules, bias_block, check, reach, scale_of, shape_logits, visible

Kernel = Callable[[Tensor, Tensor, Tensor, Rules], Tensor]

QUERY_BLOCK, KEY_BLOCK = 128, 512  # a tile of fp32 keys is 256 KiB at Dk = 128: it stays in a core's L2 with its values


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    impl: str,
    causal: bool,
    window: int | None = None,
    chunk: int | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
    padding: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attention by the kernel `impl` (a key of IMPLEMENTATIONS); the rules are those of `masks.Rules`.

    Raises UnknownNameError for an unknown kernel, UsageError for shapes that do not fit together.
    """
    rules = Rules(causal=causal, window=window, chunk=chunk, sinks=sinks, softcap=softcap, padding=padding, bias=bias, scale=scale)
    check(q, k, v, rules)
    return kernel_named(impl)(q, k, v, rules)


def kernel_named(impl: str) -> Kernel:
    """The kernel called `impl`; raises UnknownNameError naming those that exist."""
    if impl not in IMPLEMENTATIONS:
        raise UnknownNameError("attention kernel", impl, IMPLEMENTATIONS, f"Allowed: {', '.join(IMPLEMENTATIONS)}.")
    return IMPLEMENTATIONS[impl]


def eager(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """The textbook: keys and values repeated for every query head, all T x S logits in memory."""
    (B, N, T, _), (K, S) = q.shape, k.shape[1:3]
    k, v = (x if N == K else x.repeat_interleave(N // K, dim=1) for x in (k, v))
    # logits: [B,N,T,Dk] @ [B,N,Dk,S] -> [B,N,T,S]
    logits = scale_of(q, rules) * (q @ k.transpose(-1, -2))
    mask = visible(rules, range(S - T, S), range(S), q.device)
    logits = shape_logits(logits, rules, bias_block(rules, (B, N, T, S), slice(None), slice(None)), mask)
    if rules.sinks is not None:
        logits = torch.cat([logits, rules.sinks.to(logits.dtype).view(1, N, 1, 1).expand(B, N, T, 1)], dim=-1)
    weights = logits.softmax(dim=-1)[..., :S]
    if mask is not None:
        weights = weights.masked_fill(~mask, 0)  # a query that sees no key: zeros, not NaN
    # [B,N,T,S] @ [B,N,S,Dv] -> [B,N,T,Dv]
    return weights.to(v.dtype) @ v


def tiled(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """Exact attention in tiles with a running maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1).

    Never holds more than QUERY_BLOCK x KEY_BLOCK logits a head, and skips tiles that no query of the block can see.
    """
    T, S = q.shape[2], k.shape[2]
    out = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
    for start in range(0, T, QUERY_BLOCK):
        rows = slice(start, min(start + QUERY_BLOCK, T))
        out[:, :, rows] = _one_query_block(q[:, :, rows], k, v, rules, rows, range(S - T + rows.start, S - T + rows.stop), T)
    return out


def _one_query_block(q: Tensor, k: Tensor, v: Tensor, rules: Rules, rows: slice, positions: range, T: int) -> Tensor:
    """One block of queries over all its keys: q [B,N,t,Dk] -> [B,N,t,Dv]. The sums run in fp32, or in fp64 for fp64."""
    (B, N, t, _), S = q.shape, k.shape[2]
    wide = torch.promote_types(q.dtype, torch.float32)
    # A sink is a logit already seen, without a value: it starts the running maximum and sum.
    top = q.new_full((B, N, t, 1), -torch.inf, dtype=wide)
    total, acc = torch.zeros_like(top), q.new_zeros((B, N, t, v.shape[-1]), dtype=wide)
    if rules.sinks is not None:
        top, total = rules.sinks.to(wide).view(1, N, 1, 1).expand_as(top), torch.ones_like(top)
    start, stop = reach(rules, positions.start, positions.stop - 1, S)
    for first in range(start, stop, KEY_BLOCK):
        columns = slice(first, min(first + KEY_BLOCK, stop))
        logits = scale_of(q, rules) * grouped_product(q, k[:, :, columns].transpose(-1, -2)).to(wide)
        mask = visible(rules, positions, range(columns.start, columns.stop), q.device)
        logits = shape_logits(logits, rules, bias_block(rules, (B, N, T, S), rows, columns), mask)
        higher = torch.maximum(top, logits.amax(dim=-1, keepdim=True))
        base = higher.masked_fill(higher == -torch.inf, 0)  # nothing seen yet: exp(-inf - 0) = 0
        weights, shrink = torch.exp(logits - base), torch.exp(top - base)
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        acc = acc * shrink + grouped_product(weights.to(v.dtype), v[:, :, columns])
        top = higher
    return (acc / total.masked_fill(total == 0, 1)).to(q.dtype)


def grouped_product(heads: Tensor, shared: Tensor) -> Tensor:
    """[B,N,t,x] @ [B,K,x,y] -> [B,N,t,y]: the G query heads of a group become rows of one product, nothing is repeated."""
    (B, N, t, x), (K, y) = heads.shape, (shared.shape[1], shared.shape[3])
    return (heads.reshape(B, K, N // K * t, x) @ shared).view(B, N, t, y)


def sdpa(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """PyTorch's scaled_dot_product_attention, `enable_gqa` where heads are grouped; tiled where SDPA cannot (`sdpa_gap`)."""
    if sdpa_gap(rules):
        return tiled(q, k, v, rules)
    (B, N, T, _), S = q.shape, k.shape[2]
    square = rules.causal and T == S and rules.window is rules.chunk is rules.padding is rules.bias is None
    mask = None if square else visible(rules, range(S - T, S), range(S), q.device)
    bias = bias_block(rules, (B, N, T, S), slice(None), slice(None))
    if bias is not None:
        mask = (bias if mask is None else bias.masked_fill(~mask, -torch.inf)).to(q.dtype)
    # SDPA's own is_causal is aligned top-left: right only for T = S.
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=square, scale=rules.scale, enable_gqa=k.shape[1] != N)


def sdpa_gap(rules: Rules) -> str | None:
    """Why SDPA cannot compute these rules; None where it can."""
    if rules.softcap is not None:
        return "SDPA has no soft cap"
    return None if rules.sinks is None else "SDPA has no sinks"


IMPLEMENTATIONS: dict[str, Kernel] = {"eager": eager, "tiled": tiled, "sdpa": sdpa, "grouped": grouped}


def backend_that_ran(q: Tensor, k: Tensor, v: Tensor, *, impl: str, rules: Rules) -> str:
    """What `impl` really runs for these tensors: runs it once under PyTorch's profiler and reads the operator names.

    "sdpa: flash (cpu)", "tiled (SDPA has no soft cap)", "grouped: folded, flash (cpu)" ...
    """
    gap = sdpa_gap(rules)
    if impl == "sdpa" and gap:
        return f"tiled ({gap})"
    route = f"grouped: {grouped_route(q, k, rules)}" if impl == "grouped" else impl
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        kernel_named(impl)(q, k, v, rules)
    names = [event.key for event in seen.key_averages()]
    ran = [label for operator, label in SDPA_OPERATORS.items() if any(operator in name for name in names)]
    return f"{route}, {ran[0]}" if ran else route


SDPA_OPERATORS = {
    "_scaled_dot_product_flash_attention_for_cpu": "SDPA flash (cpu)",
    "_scaled_dot_product_flash_attention": "SDPA flash",
    "_scaled_dot_product_efficient_attention": "SDPA memory-efficient",
    "_scaled_dot_product_cudnn_attention": "SDPA cuDNN",
    "_scaled_dot_product_fused_attention_overrideable": "SDPA fused",
    "_scaled_dot_product_attention_math_for_mps": "SDPA math (mps)",
    "_scaled_dot_product_attention_math": "SDPA math",
}
