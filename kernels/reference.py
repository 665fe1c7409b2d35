"""Attention as the papers write it, in float64 numpy: slow, plain, and what every kernel is compared with.

Loops over sequences, heads and query tokens one by one, so that no batching, broadcasting or masking trick
of the kernels is repeated here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]


def sees(query: int, key: int, *, causal: bool, window: int | None = None, chunk: int | None = None) -> bool:
    """Whether the query at position `query` may attend the key at position `key` (both counted from the first key).

    Causal: no later key. Window W: causal, the last W keys with its own; else keys at most W // 2 away on either side.
    Chunk C: only keys of its own chunk of C positions.
    """
    if causal and key > query:
        return False
    if window is not None and (query - key >= window if causal else abs(query - key) > window // 2):
        return False
    return chunk is None or query // chunk == key // chunk


def attend(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    causal: bool,
    window: int | None = None,
    chunk: int | None = None,
    sinks: NDArray[Any] | None = None,
    softcap: float | None = None,
    padding: NDArray[np.bool_] | None = None,
    bias: NDArray[Any] | None = None,
    scale: float | None = None,
) -> Float:
    """softmax(cap(scale q k^T) + bias) v over the keys each query sees (Vaswani et al. 2017, eq. 1).

    q [B,N,T,Dk], k [B,K,S,Dk], v [B,K,S,Dv] -> [B,N,T,Dv]. Query head n reads key/value head n // (N / K).
    Query t stands at position S - T + t (aligned bottom-right). `sinks` [N] are logits that take part in the
    denominator and carry no value; `softcap` c replaces a logit x by c tanh(x / c); `padding` [B,S] is True where a
    key is real; `bias` is broadcast to [B,N,T,S] and added after the cap. A query that sees no key gives zeros.
    """
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    (B, N, T, Dk), (K, S) = q.shape, k.shape[1:3]
    factor = 1 / math.sqrt(Dk) if scale is None else scale
    extra = np.broadcast_to(0.0 if bias is None else np.asarray(bias, dtype=np.float64), (B, N, T, S))
    out = np.zeros((B, N, T, v.shape[-1]))
    for b, n, t in np.ndindex(B, N, T):
        head, position = n // (N // K), S - T + t
        real = [padding is None or bool(padding[b, s]) for s in range(S)]
        keys = [s for s in range(S) if real[s] and sees(position, s, causal=causal, window=window, chunk=chunk)]
        logits = factor * (k[b, head, keys] @ q[b, n, t])
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        out[b, n, t] = weigh(logits + extra[b, n, t, keys], v[b, head, keys], None if sinks is None else float(sinks[n]))
    return out


def weigh(logits: Float, values: Float, sink: float | None) -> Float:
    """sum_s softmax(logits)_s values_s: logits [S], values [S,Dv] -> [Dv]; a sink joins the denominator alone."""
    top = max([*logits.tolist(), -math.inf if sink is None else sink])
    if top == -math.inf:
        return np.zeros(values.shape[-1])
    weights = np.exp(logits - top)
    total = weights.sum() + (0.0 if sink is None else math.exp(sink - top))
    result: Float = weights @ values / total
    return result
