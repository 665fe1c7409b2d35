"""A prefix that several requests share (a system prompt): read once, its cache copied to each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...presets.errors import UsageError
from ..cache import Cache
from ..model import Model
from .reader import Reader


def shared_prefix(model: Model, prefix: Sequence[int], requests: int, *, capacity: int, source: Tensor | None = None) -> Cache:
    """A cache of `requests` sequences, room for `capacity` tokens each, with `prefix` in all of them, read once.

    `source` [1,S]: what an encoder reads, the same for all. `generate(..., prefix=...)` goes on from it.
    """
    if not prefix or requests < 1:
        raise UsageError(f"a shared prefix has at least 1 token and 1 request; got {len(prefix)} and {requests}")
    reader = Reader(model, 1, capacity, source=source)
    reader.read(torch.tensor([list(prefix)], device=model.make.device))
    assert reader.cache is not None
    with torch.inference_mode():
        return reader.cache.expanded(requests)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Seconds until every request's prompt is read, each whole or after a shared prefix, and how far the logits lie apart."""

    apart_s: float
    shared_s: float
    difference: float


def measured_sharing(model: Model, prefix: Sequence[int], suffixes: Sequence[Sequence[int]], *, repeats: int = 5) -> Shared:
    """Read `prefix` + suffix of every request both ways, the fastest of `repeats`; suffixes are of one length."""
    if not suffixes or len({*map(len, suffixes)}) != 1 or not suffixes[0]:
        raise UsageError("requests are compared side by side: give suffixes of one length, at least one token each")
    device, n = model.make.device, len(suffixes)
    capacity = len(prefix) + len(suffixes[0])
    ends = torch.tensor([list(suffix) for suffix in suffixes], device=device)
    whole = torch.cat([torch.tensor([list(prefix)], device=device).expand(n, -1), ends], dim=1)

    def apart() -> Tensor:
        return Reader(model, n, capacity).read(whole)

    def shared() -> Tensor:
        return Reader(model, n, capacity, cache=shared_prefix(model, prefix, n, capacity=capacity)).read(ends)

    difference = float((apart() - shared()).abs().max())
    times = [(clocked(apart), clocked(shared)) for _ in range(repeats)]
    return Shared(apart_s=min(a for a, _ in times), shared_s=min(b for _, b in times), difference=difference)


def clocked(call: Callable[[], Tensor]) -> float:
    """Seconds until the result is there."""
    start = time.perf_counter()
    call()[0, 0].item()  # waits for an accelerator
    return time.perf_counter() - start
