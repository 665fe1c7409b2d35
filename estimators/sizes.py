"""Elements to bytes: the one place where a number format's block becomes a size."""

from __future__ import annotations

from collections.abc import Iterable

from ..presets.dtypes import DTYPES, Dtype
from .counts import Number
from .rows import Row, Store
from .work import Pass

FP32 = DTYPES["fp32"]


def bytes_of(elements: Number, dtype: Dtype) -> Number:
    """Bytes of so many elements: whole blocks, the last one in full; an expected (fractional) count stays a fraction.

    >>> bytes_of(64, DTYPES["q8_0"]), bytes_of(33, DTYPES["q4_0"])
    (68, 36)
    """
    if dtype.block_elements == 1:
        return elements * dtype.block_bytes
    if isinstance(elements, float) or getattr(getattr(elements, "dtype", None), "kind", "") == "f":
        return elements * dtype.block_bytes / dtype.block_elements
    return (elements + dtype.block_elements - 1) // dtype.block_elements * dtype.block_bytes


def store_dtype(store: Store, work: Pass) -> Dtype:
    """Recurrent state is kept in fp32 whatever the cache is; everything else in the cache's format."""
    return FP32 if store.of == "state" else work.kv_dtype


def run_bytes(row: Row, work: Pass, *, policy: str = "minimal") -> Number:
    """What one run of a row keeps between steps under a cache policy."""
    if row.store is None:
        return 0
    return bytes_of(getattr(row.store, policy), store_dtype(row.store, work))


def stored_bytes(row: Row, work: Pass, *, policy: str = "minimal") -> Number:
    """What all runs of a row keep between steps."""
    return row.repeat * run_bytes(row, work, policy=policy)


def moved_bytes(row: Row, work: Pass) -> Number:
    """What all runs of a row read from the cache or write to it, each byte once."""
    if row.store is None:
        return 0
    return row.repeat * bytes_of(row.store.moved, store_dtype(row.store, work))


def weight_read_bytes(row: Row, work: Pass) -> Number:
    """What the row's weights cost in memory traffic in a pass: each distinct weight once."""
    if work.stored is not None:
        return work.stored.of(row.path).share(row.fetches * row.weight_reads)
    return row.fetches * bytes_of(row.weight_reads, work.weight_dtype)


def weight_bytes(rows: Iterable[Row], work: Pass) -> Number:
    """What the weights of a model take: a format for all parameters, or all that a checkpoint holds."""
    if work.stored is not None:
        return work.stored.total_bytes
    return bytes_of(sum(row.params * row.copies for row in rows), work.weight_dtype)
