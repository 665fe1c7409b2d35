"""Which query sees which key, and what is added to a logit: the rules every attention kernel shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..presets.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rules:
    """What an attention does beside softmax(q k^T) v. Query t of T stands at position S - T + t of S keys.

    Attributes:
        causal: a query sees no key after its own position (aligned bottom-right).
        window: keys a query sees at most, its own included; without `causal`, keys at most window // 2 away on either side.
        chunk: a query sees only keys of its own chunk of this many positions (Llama 4).
        sinks: [N] logits in the denominator that carry no value (gpt-oss).
        softcap: a logit x becomes softcap * tanh(x / softcap) (Gemma 2).
        padding: bool [B,S], True where a key is real.
        bias: added to the logits after the cap, broadcast to [B,N,T,S] (ALiBi, T5).
        scale: factor on q k^T; 1 / sqrt(Dk) where None.
    """

    causal: bool
    window: int | None = None
    chunk: int | None = None
    sinks: Tensor | None = None
    softcap: float | None = None
    padding: Tensor | None = None
    bias: Tensor | None = None
    scale: float | None = None


def check(q: Tensor, k: Tensor, v: Tensor, rules: Rules) -> None:
    """Refuse shapes and rules that make no sense; raises UsageError with what was got."""
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise UsageError(f"attention takes q [B,N,T,Dk], k [B,K,S,Dk], v [B,K,S,Dv]; got {shapes}.")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or k.shape[:3] != v.shape[:3]:
        raise UsageError(f"q, k and v do not fit together: {shapes}. q and k share B and Dk; k and v share B, K and S.")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise UsageError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key/value heads evenly.")
    placed = rules.causal or rules.window is not None or rules.chunk is not None
    if placed and q.shape[2] > k.shape[2]:
        raise UsageError(f"causal, windowed or chunked attention of {q.shape[2]} tokens needs at least as many keys; got {k.shape[2]}.")
    for name, value in (("window", rules.window), ("chunk", rules.chunk)):
        if value is not None and value < 1:
            raise UsageError(f"{name} has to be at least 1 token; got {value}.")


def scale_of(q: Tensor, rules: Rules) -> float:
    """The factor on q k^T."""
    return float(q.shape[-1] ** -0.5) if rules.scale is None else rules.scale


def reach(rules: Rules, first: int, last: int, keys: int) -> tuple[int, int]:
    """[start, stop) of the keys that any query at positions first..last can see, padding aside."""
    start, stop = 0, keys
    if rules.window is not None:
        start = max(start, first - rules.window + 1 if rules.causal else first - rules.window // 2)
        stop = stop if rules.causal else min(stop, last + rules.window // 2 + 1)
    if rules.chunk is not None:
        start = max(start, first // rules.chunk * rules.chunk)
        stop = min(stop, (last // rules.chunk + 1) * rules.chunk)
    return start, min(stop, last + 1) if rules.causal else stop


def visible(rules: Rules, rows: range, columns: range, device: torch.device) -> Tensor | None:
    """Bool [B or 1, 1, rows, columns], True where a query at a position in `rows` may attend a key in `columns`; None if all may."""
    # A rule that hides nothing of this block makes no mask: kernels are faster without one, and so is asking.
    sees: list[Callable[[Tensor, Tensor], Tensor]] = []
    if rules.causal and columns.stop - 1 > rows.start:
        sees.append(lambda query, key: query >= key)
    if rules.window is not None and rules.causal and rows.stop - 1 - columns.start >= (window := rules.window):
        sees.append(lambda query, key: query - key < window)
    furthest = max(rows.stop - 1 - columns.start, columns.stop - 1 - rows.start)
    if rules.window is not None and not rules.causal and furthest > (reached := rules.window // 2):
        sees.append(lambda query, key: (query - key).abs() <= reached)
    if (chunk := rules.chunk) is not None and len({place // chunk for r in (rows, columns) for place in (r.start, r.stop - 1)}) > 1:
        sees.append(lambda query, key: query // chunk == key // chunk)
    parts = []
    if sees:
        query, key = (torch.arange(r.start, r.stop, device=device) for r in (rows, columns))
        parts = [rule(query[:, None], key) for rule in sees]
    if rules.padding is not None:
        parts.append(rules.padding[:, None, None, columns.start : columns.stop])
    if not parts:
        return None
    mask = parts[0]
    for part in parts[1:]:
        mask = mask & part
    return mask if mask.ndim == 4 else mask[None, None]


def query_blocks(tokens: int, size: int) -> list[range]:
    """Rows 0..tokens - 1 in blocks of at most `size`."""
    return [range(first, min(first + size, tokens)) for first in range(0, tokens, size)]


def bias_block(rules: Rules, heads: tuple[int, int], rows: range, columns: range) -> Tensor | None:
    """The bias of some query rows and key columns, [B,N,rows,columns] with heads = (B, N); None without a bias."""
    if rules.bias is None:
        return None
    bias = rules.bias if rules.bias.ndim > 1 else rules.bias.unsqueeze(0)
    cuts = (r if size > 1 else range(1) for size, r in zip(bias.shape[-2:], (rows, columns), strict=True))
    row, column = (slice(cut.start, cut.stop) for cut in cuts)
    return bias[..., row, column].expand(*heads, len(rows), len(columns))


def shape_logits(logits: Tensor, rules: Rules, bias: Tensor | None, mask: Tensor | None) -> Tensor:
    """Cap, bias and mask on raw logits [B,N,t,s]; an unseen key becomes -inf."""
    if rules.softcap is not None:
        logits = rules.softcap * torch.tanh(logits / rules.softcap)
    if bias is not None:
        logits = logits + bias
    return logits if mask is None else logits.masked_fill(~mask, -torch.inf)
