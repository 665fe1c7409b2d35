"""What a prefix that requests share saves: it is read once, and its cache copied to each of them."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..presets.spec import ModelSpec
from .flops import row_flops
from .ledger import ledger
from .sizes import moved_bytes, stored_bytes, weight_read_bytes
from .work import Pass


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """Every prompt read whole in one batch, beside the prefix once and then the rest of every prompt.

    `*_bytes` are compulsory: weights and cache, and for `shared_bytes` also the copies of the prefix (`copied_bytes`: read once,
    written for each request).
    """

    apart_flops: int
    shared_flops: int
    apart_bytes: int
    shared_bytes: int
    copied_bytes: int


def saving(spec: ModelSpec, work: Pass, *, prefix: int, rest: int, requests: int) -> Saving:
    """`requests` prompts of `prefix` + `rest` tokens; `work` gives formats and conventions."""
    whole = replace(work, phase="prefill", batch=requests, context=prefix + rest, new=None)
    once = replace(work, phase="prefill", batch=1, context=prefix, new=None)
    # what follows a cache is a decode pass of several tokens
    ends = replace(work, phase="decode", batch=requests, context=prefix + rest, new=rest)
    held = sum(int(stored_bytes(row, once)) for row in ledger(spec, once))
    copied = held * (1 + requests)
    return Saving(
        apart_flops=flops_of(spec, whole),
        shared_flops=flops_of(spec, once) + flops_of(spec, ends),
        apart_bytes=bytes_of(spec, whole),
        shared_bytes=bytes_of(spec, once) + bytes_of(spec, ends) + copied,
        copied_bytes=copied,
    )


def flops_of(spec: ModelSpec, work: Pass) -> int:
    """FLOPs of a pass."""
    return int(sum(row_flops(row, work) * row.repeat for row in ledger(spec, work)))


def bytes_of(spec: ModelSpec, work: Pass) -> int:
    """Compulsory bytes of a pass."""
    return int(sum(weight_read_bytes(row, work) + moved_bytes(row, work) for row in ledger(spec, work)))
