"""Bytes at a place: what the readers of headers read from, whether that is a file here or one on a server."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from ..errors import UnreadableError


class Source(Protocol):
    """Something whose bytes can be read at any place."""

    @property
    def name(self) -> str:
        """What the source is called."""
        ...

    @property
    def size(self) -> int:
        """Bytes in all."""
        ...

    def read(self, start: int, count: int) -> bytes:
        """Exactly `count` bytes from `start` on, fewer only at the end. Raises UnreadableError."""
        ...


class FileSource:
    """A plain file, opened for each read: a header needs one or two."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        try:
            found = path.stat()
        except (OSError, ValueError) as error:
            raise UnreadableError(f"cannot read {self.name!a}: {reason(error)}") from None
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableError(f"{self.name}: not a plain file; give a file of weights")
        self.size = found.st_size

    def read(self, start: int, count: int) -> bytes:
        """Bytes of the file."""
        try:
            with self.path.open("rb") as file:
                file.seek(start, os.SEEK_SET)
                return file.read(count)
        except OSError as error:
            raise UnreadableError(f"cannot read {self.name}: {reason(error)}") from None


class MemorySource:
    """Bytes at hand (a fuzzed header); `size` may claim more than there is."""

    def __init__(self, data: bytes, *, name: str = "header", size: int | None = None) -> None:
        self.data, self.name = data, name
        self.size = len(data) if size is None else size

    def read(self, start: int, count: int) -> bytes:
        """A slice."""
        return self.data[start : start + count]


def reason(error: Exception) -> str:
    """What the system says, without the path."""
    return getattr(error, "strerror", None) or str(error)


def safe_text(text: str, most: int = 60) -> str:
    """A text from a stranger for an error line: printable ASCII, short.

    >>> safe_text("a\\x1b[31m")
    "'a\\\\x1b[31m'"
    """
    shown = ascii(text)
    return shown if len(shown) <= most else f"{shown[: most - 4]}...'"
