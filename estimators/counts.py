"""The two counts everything rests on: the multiply-adds of a matrix product and the pairs that attention compares.

The factor 2 of a multiply-add stands in `matmul_flops` and nowhere else; which query sees which key stands in
`attended_pairs` and, for compressed keys, in `entry_pairs`, and nowhere else. All take ints and, unchanged, numpy arrays of ints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..presets.spec import Blocked, Causal, Chunked, Full, Local, Mask, Sliding

# An int, a float, or a numpy array of either: the arithmetic does not care.
Number = Any


def smaller(a: Number, b: Number) -> Number:
    """Elementwise minimum."""
    if hasattr(a, "shape") or hasattr(b, "shape"):
        import numpy as np

        return np.minimum(a, b)
    return min(a, b)


def larger(a: Number, b: Number) -> Number:
    """Elementwise maximum."""
    if hasattr(a, "shape") or hasattr(b, "shape"):
        import numpy as np

        return np.maximum(a, b)
    return max(a, b)


def choose(condition: Number, yes: Number, no: Number) -> Number:
    """Elementwise `yes` where the condition holds, else `no`."""
    if hasattr(condition, "shape"):
        import numpy as np

        return np.where(condition, yes, no)
    return yes if condition else no


def same(a: Number, b: Number) -> bool:
    """Whether two numbers, or arrays at every point, are equal."""
    equal = a == b
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def each(function: Callable[..., object], *values: Number) -> Number:
    """A function of ints at every point of arrays of them (each different point once), or at the one point there is."""
    if not any(hasattr(value, "shape") for value in values):
        return function(*values)
    import numpy as np

    points = list(zip(*(column.ravel().tolist() for column in np.broadcast_arrays(*values)), strict=True))
    found = {point: function(*point) for point in dict.fromkeys(points)}
    out = np.empty(len(points), dtype=object)
    out[:] = [found[point] for point in points]
    return out


def matmul_flops(m: Number, k: Number, n: Number) -> Number:
    """FLOPs of [m, k] @ [k, n]: 2·m·k·n, one multiply-add being 2.

    >>> matmul_flops(1, 4096, 4096)
    33554432
    """
    return 2 * m * k * n


def triangle(n: Number) -> Number:
    """1 + 2 + ... + n, 0 below 1."""
    n = larger(n, 0)
    return n * (n + 1) // 2


def pairs_before(mask: Mask, n: Number) -> Number:
    """(query, key) pairs of the first n positions of a causal sequence."""
    match mask:
        case Sliding(window=window):
            return triangle(n) - triangle(n - window)
        case Chunked(chunk=chunk):
            return n // chunk * triangle(chunk) + triangle(n % chunk)
        case _:
            return triangle(n)


def attended_pairs(mask: Mask, new: Number, span: Number, *, square: bool = False) -> Number:
    """(query, key) pairs of `new` queries, the last of `span` positions (aligned bottom-right).

    Causal: T·S - T(T-1)/2. `square` counts T·S whatever the mask, as PyTorch's counter does. Blocks are no mask: they are
    cut, and a stack that has them runs whole (T = S).

    >>> attended_pairs(Causal(), 4, 10)
    34
    >>> attended_pairs(Sliding(window=3), 4, 10), attended_pairs(Causal(), 4, 10, square=True)
    (12, 40)
    """
    match mask:
        case Blocked(size=size):
            return span // size * size * size + (span % size) ** 2
        case Local(reach=reach) if not square:
            beyond = larger(span - reach - 1, 0)
            return new * span - beyond * (beyond + 1)
        case Causal() | Sliding() | Chunked() if not square:
            return pairs_before(mask, span) - pairs_before(mask, span - new)
        case _:
            return new * span


def entry_pairs(ratio: int, new: Number, span: Number, *, limit: int | None = None, square: bool = False) -> Number:
    """(query, entry) pairs of `new` queries, the last of `span`, where every `ratio` keys become one entry.

    The query at position p sees the floor((p + 1) / ratio) entries that are finished, at most `limit` of them. `square`
    counts T·floor(S / ratio).

    >>> entry_pairs(4, 5, 9), entry_pairs(4, 5, 9, limit=1), entry_pairs(4, 5, 9, square=True)
    (7, 5, 10)
    """
    if square:
        return new * (span // ratio)
    seen = entries_before(ratio, span) - entries_before(ratio, span - new)
    if limit is None:
        return seen
    # min(floor(n / r), k) = floor(n / r) - max(floor((n - k·r) / r), 0)
    hidden = limit * ratio
    return seen - entries_before(ratio, span - hidden) + entries_before(ratio, span - new - hidden)


def entries_before(ratio: int, n: Number) -> Number:
    """Sum of floor(i / ratio) for i = 1 ... n: whole groups of `ratio` equal terms, then the rest; 0 below 1."""
    n = larger(n, 0)
    groups, rest = n // ratio, n % ratio
    return ratio * triangle(groups - 1) + groups * (rest + 1)


def kept_tokens(mask: Mask, span: Number) -> Number:
    """Tokens whose keys and values a later step can still need: all, or at most a window or a chunk."""
    match mask:
        case Sliding(window=limit) | Chunked(chunk=limit):
            return smaller(span, limit)
        case Full() | Causal() | Local() | Blocked():
            return span


def expected_distinct(experts: int, top_k: int, tokens: Number) -> Number:
    """Experts that `tokens` tokens touch when each picks top_k of them evenly: E·(1 - (1 - k/E)^tokens).

    >>> expected_distinct(8, 2, 3)
    4.625
    """
    return experts * (1 - (1 - top_k / experts) ** tokens)
