"""Hub (being written)."""

from __future__ import annotations

from .local import Found


def read_hub(name: str, *, lenient: bool = False, weights: bool = True) -> Found:
    """Stub."""
    from ..errors import UnreadableError

    raise UnreadableError(f"{name}: the Hub is not read yet")
