"""Many batches and contexts in one vectorised call: the same arithmetic on arrays.

numpy's int64 overflows silently (6·405e9·1024·131072 does), so the largest corner is worked out in Python's own
integers first; where it is too large the arrays hold Python integers, slower and still exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from msgspec.structs import replace

from ..presets.spec import ModelSpec
from .counts import Number
from .flops import row_flops
from .ledger import ledger
from .sizes import moved_bytes, stored_bytes, weight_read_bytes
from .work import Pass

# Room for what is built on a row's figures: sums over rows, 6·P·T beside them, activations in bytes.
SAFE = 2**63 // 64


def largest_figure(spec: ModelSpec, work: Pass) -> Number:
    """An upper bound of what any row adds up to, on Python integers."""
    total: Number = 0
    for row in ledger(spec, work):
        figures = (
            row_flops(row, work) * row.repeat,
            stored_bytes(row, work, policy="full"),
            stored_bytes(row, work, policy="decompressed"),
            moved_bytes(row, work),
            weight_read_bytes(row, work),
            (row.saved + row.saved_square + row.reads + row.writes) * 4 * max(row.repeat, 1),
        )
        total += sum(figures)
    return total


def fits_int64(spec: ModelSpec, work: Pass) -> bool:
    """Whether every figure of a pass, and what is built on them, stays below 2^63."""
    wide = replace(work, kv_dtype=work.kv_dtype, full_attention=True)
    return bool(largest_figure(spec, wide) < SAFE)


def sweep(spec: ModelSpec, work: Pass, axes: Mapping[str, Sequence[int]]) -> tuple[Pass, list[dict[str, int]]]:
    """A pass over every combination of the axes (`batch`, `context`, `source`), and the combinations in order.

    Axes of one value stay plain integers; the others become arrays over all combinations.
    """
    import numpy as np

    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    largest: dict[str, Any] = {name: max(values) for name, values in axes.items()}
    corner = replace(work, **largest)
    kind: Any = np.int64 if fits_int64(spec, corner) else object
    fields: dict[str, Any] = {}
    for name, values in axes.items():
        fields[name] = values[0] if len(values) == 1 else np.array([point[name] for point in points], dtype=kind)
    return replace(work, **fields), points


def at_point(figure: Number, index: int) -> Number:
    """One point of a swept figure, as Python's own number; a figure that does not vary is the same everywhere."""
    if not hasattr(figure, "shape") or figure.shape == ():
        return figure
    value = figure[index]
    return value.item() if hasattr(value, "item") else value
