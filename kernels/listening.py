"""Who wants to know what runs deep inside a model: `with ears.listening() as heard:` collects what is told meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Ears(Generic[K, V]):
    """Falsy while nobody listens, so that telling costs nothing."""

    def __init__(self) -> None:
        self._heard: list[dict[K, list[V]]] = []

    def __bool__(self) -> bool:
        return bool(self._heard)

    @contextmanager
    def listening(self) -> Iterator[dict[K, list[V]]]:
        """Collects what is told meanwhile, by key."""
        heard: dict[K, list[V]] = {}
        self._heard.append(heard)
        try:
            yield heard
        finally:
            self._heard = [other for other in self._heard if other is not heard]

    def tell(self, key: K, value: V) -> None:
        """Tell those who collect."""
        for heard in self._heard:
            heard.setdefault(key, []).append(value)
