"""torch's own RNN, GRU, LSTM and MultiheadAttention timed side by side on the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .probes import require_memory
from .timing import Sample, Stopping, interleave, watch_for

RECURRENT: dict[str, Callable[..., nn.Module]] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
BYTES = 4  # fp32, which every one of them has a fast kernel for


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What is timed: `batch` sequences of n tokens, d wide; attention with `heads` heads, causal or not."""

    n: int
    d: int
    batch: int = 1
    heads: int = 1
    causal: bool = False


def timed_layers(sizes: Sizes, *, device: str = "cpu", stopping: Stopping | None = None) -> dict[str, Sample]:
    """Forward passes of the four layers, one of each a round; raises UnreadableError where memory does not allow it."""
    where = torch.device(device)
    refuse_too_large(sizes, where)
    x = torch.randn(sizes.batch, sizes.n, sizes.d, device=where)
    calls = {name: call(module, x, sizes) for name, module in layers(sizes, where).items()}
    with torch.inference_mode():
        return interleave(calls, watch=watch_for(where), stopping=stopping or Stopping(max_seconds=20.0))


def layers(sizes: Sizes, device: torch.device) -> dict[str, nn.Module]:
    """One layer of each kind, d wide inside and out."""
    found: dict[str, nn.Module] = {name: made(sizes.d, sizes.d, batch_first=True, device=device) for name, made in RECURRENT.items()}
    found["attention"] = nn.MultiheadAttention(sizes.d, sizes.heads, batch_first=True, device=device)
    return {name: module.eval() for name, module in found.items()}


def call(module: nn.Module, x: Tensor, sizes: Sizes) -> Callable[[], object]:
    """One forward pass over x [B, n, d]."""
    if not isinstance(module, nn.MultiheadAttention):
        return lambda: module(x)
    mask = nn.Transformer.generate_square_subsequent_mask(sizes.n, device=x.device) if sizes.causal else None
    return lambda: module(x, x, x, need_weights=False, attn_mask=mask, is_causal=sizes.causal)


def counted_params(sizes: Sizes) -> dict[str, int]:
    """Parameters of torch's own modules."""
    made = layers(sizes, torch.device("meta"))
    return {name: sum(weight.numel() for weight in module.parameters()) for name, module in made.items()}


def refuse_too_large(sizes: Sizes, device: torch.device) -> None:
    """Weights of all four and their tensors (the widest is the LSTM's gates, or the square of the scores) against what is free."""
    weights = 20 * sizes.d * sizes.d
    widest = max(8 * sizes.n * sizes.d, sizes.heads * sizes.n * sizes.n) * sizes.batch
    require_memory(BYTES * (weights + 2 * widest), device, what=f"layers over {sizes.n} tokens, {sizes.d} wide")
