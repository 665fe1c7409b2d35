"""Bytes of the cache, under each policy that engines follow.

A token costs 2·K·H elements a layer (keys and values; Shazeer 2019, arXiv:1911.02150, with K = N in plain multi-head
attention; Ainslie et al. 2023, arXiv:2305.13245, for grouped heads), less where a window closes, a latent is kept, or
layers share.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from ..presets.spec import ModelSpec
from .counts import Number
from .ledger import ledger
from .rows import Row
from .sizes import stored_bytes
from .work import Pass

POLICIES = {
    "minimal": "what the mathematics needs: windows capped, MLA's latent, cross-attention once",
    "full": "every attention layer at full length (engines without a cache manager for hybrid layers)",
    "decompressed": "MLA kept as full heads (implementations that cache after the up-projection)",
    "paged": "minimal, every layer's tokens rounded up to blocks of 16 (paged engines, vLLM's default block)",
}


class KvCache(msgspec.Struct, frozen=True, kw_only=True):
    """Cache of all sequences, self-attention only unless said; `policies` {name: bytes}."""

    kv_bytes: Number
    kv_bytes_per_token: Number
    cross_kv_bytes: Number
    state_bytes: Number
    policies: dict[str, Number]
    rows: tuple[Row, ...]


def sum_stored(rows: Iterable[Row], work: Pass, kinds: tuple[str, ...], policy: str = "minimal") -> Number:
    """Bytes kept by the rows whose store is of one of `kinds`."""
    return sum(stored_bytes(row, work, policy=policy) for row in rows if row.store is not None and row.store.of in kinds)


def kvcache(spec: ModelSpec, work: Pass) -> KvCache:
    """Bytes of the cache after `work.context` tokens; a model without a decoder keeps none."""
    work = replace(work, phase="decode", new=None)
    rows = ledger(spec, work)
    policies = {name: sum_stored(rows, work, ("self",), name) for name in POLICIES}
    return KvCache(
        kv_bytes=policies["minimal"],
        kv_bytes_per_token=growth(spec, work),
        cross_kv_bytes=sum_stored(rows, work, ("cross",)),
        state_bytes=sum_stored(rows, work, ("state", "tail")),
        policies=policies,
        rows=rows,
    )


def growth(spec: ModelSpec, work: Pass) -> Number:
    """What one sequence's cache grew by with its last token."""
    one = replace(work, batch=1)
    before = replace(one, context=one.context - 1)
    return sum_stored(ledger(spec, one), one, ("self",)) - sum_stored(ledger(spec, before), before, ("self",))
