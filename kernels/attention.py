"""Attention in PyTorch, four ways that give the same numbers: eager, tiled, SDPA and grouped.

    q [B,N,T,Dk], k [B,K,S,Dk], v [B,K,S,Dv] -> [B,N,T,Dv]

Query head n reads key/value head n // G, G = N / K. All four follow `masks.Rules` and are compared with
`reference.attend` (float64 numpy).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ..presets.errors import UnknownNameError
from .grouped import grouped, grouped_gap, own_way
from .masks import Rules, bias_block, check, scale_of, shape_logits, visible
from .tiled import tiled

Kernel = Callable[[Tensor, Tensor, Tensor, Rules], Tensor]


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
    """Attention by the kernel `impl` (a key of IMPLEMENTATIONS); what the options mean stands at `masks.Rules`.

    A query that sees no key gives zeros. Raises UnknownNameError for an unknown kernel, UsageError for shapes that do not fit.
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
    N, K = q.shape[1], k.shape[1]
    k, v = (x if N == K else x.repeat_interleave(N // K, dim=1) for x in (k, v))
    # [B,N,T,Dk] @ [B,N,Dk,S] -> [B,N,T,S]
    # [B,N,T,S] @ [B,N,S,Dv] -> [B,N,T,Dv]
    return softmax(scale_of(q, rules) * (q @ k.transpose(-1, -2)), rules).to(v.dtype) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """PyTorch's scaled_dot_product_attention, with `enable_gqa` where heads are grouped; tiled where it cannot (`sdpa_gap`)."""
    if sdpa_gap(rules):
        return tiled(q, k, v, rules)
    (B, N, T, _), (K, S) = q.shape, k.shape[1:3]
    # SDPA's own is_causal is aligned top-left: right only for T = S.
    plain = all(rule is None for rule in (rules.window, rules.chunk, rules.padding, rules.bias))
    square = rules.causal and plain and T == S > 1
    mask = None if square else visible(rules, range(S - T, S), range(S), q.device)
    bias = bias_block(rules, (B, N), range(T), range(S))
    if bias is not None:
        mask = (bias if mask is None else bias.masked_fill(~mask, -torch.inf)).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=square, scale=rules.scale, enable_gqa=N != K)


def sdpa_gap(rules: Rules) -> str | None:
    """Why SDPA cannot compute these rules; None where it can."""
    if rules.softcap is not None:
        return "SDPA has no soft cap"
    return None if rules.sinks is None else "SDPA has no sinks"


def folded(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """Eager without copies of keys and values: the query heads of a group are rows of one product."""
    (B, N, T, Dk), (K, S), Dv = q.shape, k.shape[1:3], v.shape[-1]
    # [B,K,G*T,Dk] @ [B,K,Dk,S] -> [B,N,T,S]
    logits = scale_of(q, rules) * (q.reshape(B, K, N // K * T, Dk) @ k.transpose(-1, -2)).view(B, N, T, S)
    # [B,K,G*T,S] @ [B,K,S,Dv] -> [B,N,T,Dv]
    return (softmax(logits, rules).to(v.dtype).view(B, K, N // K * T, S) @ v).view(B, N, T, Dv)


def softmax(logits: Tensor, rules: Rules) -> Tensor:
    """Logits [B,N,T,S], capped, biased and masked, to weights."""
    B, N, T, S = logits.shape
    mask = visible(rules, range(S - T, S), range(S), logits.device)
    logits = shape_logits(logits, rules, bias_block(rules, (B, N), range(T), range(S)), mask)
    if rules.sinks is not None:
        logits = torch.cat([logits, rules.sinks.to(logits.dtype).view(1, N, 1, 1).expand(B, N, T, 1)], dim=-1)
    weights = logits.softmax(dim=-1)[..., :S]  # PyTorch adds up in fp32 whatever the format
    if mask is not None and rules.padding is not None:
        weights = weights.masked_fill(~mask, 0)  # a query that sees no key, which padding alone can do: zeros, not NaN
    return weights


def recomputed(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> Tensor:
    """`folded`, run again in the backward pass: q, k and v are kept, nothing of size T x S (Korthikanti et al. 2022, section 5).

    They are copied where they are views, which would hold what they were cut from (MLA's values).
    """
    out: Tensor = checkpoint(folded, q.contiguous(), k.contiguous(), v.contiguous(), rules, use_reentrant=False)
    return out


IMPLEMENTATIONS: dict[str, Kernel] = {"eager": eager, "tiled": tiled, "sdpa": sdpa, "grouped": grouped}
# What a model can be told to run: the same, and those that only a training has a use for.
KERNELS: dict[str, Kernel] = {**IMPLEMENTATIONS, "folded": folded, "recomputed": recomputed}


def backend_that_ran(q: Tensor, k: Tensor, v: Tensor, *, impl: str, rules: Rules) -> str:
    """What `impl` really runs for these tensors in inference mode, found by running it once and watching the operators it dispatches.

    "eager", "sdpa: flash (cpu)", "sdpa: math", "sdpa: tiled (SDPA has no soft cap)", "grouped: 48 streams (cpu)" ...
    """
    gap = {"sdpa": sdpa_gap(rules), "grouped": grouped_gap(q, v, rules)}.get(impl)
    with torch.inference_mode():
        way = own_way(q, k, v, rules) if impl == "grouped" else None
    if way:
        return f"grouped: {way} (cpu)"
    with _Operators() as seen:
        kernel_named(impl)(q, k, v, rules)
    if impl not in ("sdpa", "grouped"):
        return impl
    return f"{impl}: tiled ({gap})" if gap else f"{impl}: {next((FUSED[name] for name in seen.names if name in FUSED), 'math')}"


FUSED = {
    "_scaled_dot_product_flash_attention_for_cpu": "flash (cpu)",
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "memory-efficient",
    "_scaled_dot_product_cudnn_attention": "cuDNN",
    "_scaled_dot_product_fused_attention_overrideable": "fused",
    "_scaled_dot_product_attention_math_for_mps": "math (mps)",
}


class _Operators(TorchDispatchMode):
    """Notes the name of every operator that reaches PyTorch's dispatcher. SDPA's math path has no name there: it is its parts."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note, then run as usual."""
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
