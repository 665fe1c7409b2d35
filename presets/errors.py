"""The errors of tfm: the domain raises them, `cli/app.py` alone turns them into text and an exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TfmError(Exception):
    """Something a user can mend: what was wrong, what was got, what is allowed, what to do."""

    exit_code = 1


class UnreadableError(TfmError):
    """A file, a device or memory that could not be read, run or allocated (exit 1)."""


class MissingExtraError(TfmError):
    """A part of tfm whose optional dependency is not installed (exit 1)."""


class UsageError(TfmError):
    """A value or a combination of options that makes no sense (exit 2)."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that is not known; carries the names that look like it."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        close = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
        guess = f" Did you mean {' or '.join(close)}?" if close else ""
        tail = f" {hint}" if hint else ""
        super().__init__(f"unknown {kind} {name!r}.{guess}{tail}")
        self.close = close


class IncomparableError(TfmError):
    """Two results that cannot be compared (exit 4)."""

    exit_code = 4
