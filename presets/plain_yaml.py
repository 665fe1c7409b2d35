"""YAML text to plain data (None, bool, int, float, str, list, dict with text keys), in bounded time and memory.

Built from the parser's events rather than by a loader, so that all of this is refused with one line that names the
place: a key written twice, an anchor or alias (they can expand without bound), a tag, NaN and infinity, a second
document, nesting deeper than 64, more than 100,000 values, a file over 4 MiB. Plain scalars follow the core schema of
YAML 1.2: `no`, `on`, `1:30` and `2025-01-31` are text, `1e12` is a number; digits may be grouped as in 6_738_415_616.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import UnreadableError

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 64
MAX_VALUES = 100_000
MAX_NUMBER_LENGTH = 100  # what is longer is text: such a pattern match would take hundreds of MB

_CONSTANTS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INT = re.compile(r"[-+]?(0|[1-9](_?[0-9])*)")  # 010 is text: YAML 1.1 reads it as 8, YAML 1.2 as 10
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def read_yaml(path: str | os.PathLike[str]) -> object:
    """The data of the YAML file at `path`; raises UnreadableError naming the file."""
    origin = os.fspath(path)
    try:
        raw = _read_bytes(origin)
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise UnreadableError(f"{origin}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{origin}: is not UTF-8 text (byte {error.start})") from error
    except ValueError as error:  # a NUL in the path
        raise UnreadableError(f"{origin!r}: cannot be read ({error})") from error
    return parse_yaml(text, origin)


def _read_bytes(origin: str) -> bytes:
    mode = Path(origin).stat().st_mode
    if stat.S_ISDIR(mode):
        raise UnreadableError(f"{origin}: is a folder, expected a YAML file")
    if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
        raise UnreadableError(f"{origin}: is not a regular file, expected a YAML file")
    with Path(origin).open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise _too_large(origin)
    return raw


def _too_large(origin: str) -> UnreadableError:
    return UnreadableError(f"{origin}: is larger than {MAX_BYTES // 2**20} MiB, too large for a preset")


def parse_yaml(text: str, origin: str) -> object:
    r"""The data of the YAML `text`, which came from `origin` (for messages); raises UnreadableError.

    >>> parse_yaml("layers: 32\nnorm: {eps: 1e-5, where: pre}\nretrieved: 2025-01-31", "example")
    {'layers': 32, 'norm': {'eps': 1e-05, 'where': 'pre'}, 'retrieved': '2025-01-31'}
    """
    if len(text) > MAX_BYTES:
        raise _too_large(origin)
    import yaml  # here and not above: it costs start-up, and not every command reads a preset

    # The type stubs know only the pure-Python loader, while the C one is the same to its users.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(yaml.parse(text, Loader=loader), origin).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{origin}:{mark.line + 1}" if mark else origin
        raise UnreadableError(f"{where}: invalid YAML ({error.problem or error.context or 'no reason given'})") from error
    except yaml.YAMLError as error:
        reason = getattr(error, "reason", None) or "it cannot be parsed"
        raise UnreadableError(f"{origin}: invalid YAML ({reason})") from error
    except UnicodeEncodeError as error:  # a lone surrogate
        raise UnreadableError(f"{origin}: is not valid text (character {error.start})") from error


class _Builder:
    """Plain data from one stream of parser events, depth first."""

    def __init__(self, events: Iterator[Any], origin: str) -> None:
        self.events = events
        self.origin = origin
        self.values = 0

    def document(self) -> object:
        next(self.events)  # the start of the stream
        start = next(self.events)
        if _kind(start) == "StreamEnd":
            return None
        data = self.value(next(self.events), MAX_DEPTH)
        next(self.events)  # the end of the document
        after = next(self.events)
        if _kind(after) != "StreamEnd":
            raise self.error(after, "a second document begins here, expected one")
        return data

    def value(self, event: Any, depth: int) -> object:
        if _kind(event) == "Alias" or event.anchor is not None:
            raise self.error(event, "anchors and aliases (&name, *name) are not accepted, write the value out")
        if event.tag is not None:
            raise self.error(event, f"the tag {_brief(event.tag)} is not accepted, only plain values are")
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.error(event, f"more than {MAX_VALUES} values")
        if depth == 0:
            raise self.error(event, f"nested deeper than {MAX_DEPTH} levels")
        if _kind(event) == "MappingStart":
            return self.mapping(depth)
        if _kind(event) == "SequenceStart":
            return self.sequence(depth)
        return self.scalar(event)

    def sequence(self, depth: int) -> list[object]:
        items = []
        while _kind(event := next(self.events)) != "SequenceEnd":
            items.append(self.value(event, depth - 1))
        return items

    def mapping(self, depth: int) -> dict[str, object]:
        items: dict[str, object] = {}
        while _kind(event := next(self.events)) != "MappingEnd":
            key = self.value(event, depth - 1)
            if not isinstance(key, str):
                raise self.error(event, f"keys must be text, got {_brief(key)}")
            if key in items:
                raise self.error(event, f"the key {_brief(key)} is written twice")
            items[key] = self.value(next(self.events), depth - 1)
        return items

    def scalar(self, event: Any) -> object:
        text: str = event.value
        if not event.implicit[0]:  # quoted or a block: always text
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if len(text) > MAX_NUMBER_LENGTH:
            return text
        if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        is_float = _FLOAT.fullmatch(text) is not None
        if _NOT_FINITE.fullmatch(text) or (is_float and not math.isfinite(float(text))):
            raise self.error(event, f"{_brief(text)} is not a finite number")
        return float(text) if is_float else text

    def error(self, event: Any, problem: str) -> UnreadableError:
        return UnreadableError(f"{self.origin}:{event.start_mark.line + 1}: {problem}")


def _kind(event: Any) -> str:
    return type(event).__name__.removesuffix("Event")


def _brief(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
