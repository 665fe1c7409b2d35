"""Bisection over whole numbers, for inverses that have no formula (windows make them piecewise)."""

from __future__ import annotations

from collections.abc import Callable


def smallest(holds: Callable[[int], bool], limit: int) -> int | None:
    """Smallest n in 1..limit for which a condition that stays true once it is holds; None if none does.

    >>> smallest(lambda n: n * n >= 50, 100), smallest(lambda n: n > 100, 100)
    (8, None)
    """
    if not holds(limit):
        return None
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """Largest n in 1..limit that fits where smaller ones fit too; 0 if none does, `limit` if all do.

    >>> largest(lambda n: n * n <= 50, 100), largest(lambda n: False, 100)
    (7, 0)
    """
    first_too_large = smallest(lambda n: not fits(n), limit)
    return limit if first_too_large is None else first_too_large - 1
