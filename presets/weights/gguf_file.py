"""Headers of GGUF files: metadata and the list of tensors, read with bounds; values are not read.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Sizes of blocks come from the package `gguf`; its
reader maps the file and trusts every count in it, so the header is walked here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from math import prod
from pathlib import Path

from ..errors import MissingExtraError, UnreadableError
from .source import FileSource, Source, safe_text
from .stored import StoredTensor, StoredWeights

MOST_HEADER = 64 * 2**20  # vocabularies of 300,000 tokens with merges are near 15 MiB
MOST_ITEMS = 4_000_000  # strings and nested arrays walked in one header
MOST_TENSORS = 200_000
MOST_KEYS = 10_000
MOST_NAME = 1024
KEPT_TEXT = 1024  # longer texts (chat templates) are passed over
KEPT_ITEMS = 4096  # longer lists (vocabularies) too; one number a layer fits
MOST_DIMS = 8
MOST_DEPTH = 4
FIRST_WINDOW, LARGEST_WINDOW = 2**18, 2**22
LARGEST = 2**62
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
# Scalars by their number in the format.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
Blocks = dict[int, tuple[str, int, int]]


def block_sizes() -> Blocks:
    """Number of a format to (name, elements a block, bytes a block), by the package gguf. Raises MissingExtraError."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        raise MissingExtraError("reading GGUF files needs the package gguf: pip install 'tfm-toolkit[files]'") from error
    return {int(kind): (kind.name, *size) for kind, size in GGML_QUANT_SIZES.items()}


class Cursor:
    """A place in a header that only moves forward, over a window of it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.at = 0
        self.items = 0
        self._window, self._begin, self._size = b"", 0, FIRST_WINDOW

    def refuse(self, why: str) -> UnreadableError:
        """The error to raise."""
        return UnreadableError(f"{self.source.name}: {why}")

    def ahead(self, count: int) -> int:
        """Make `count` bytes from here on readable; where they begin in the window."""
        start = self.at - self._begin
        if start < 0 or start + count > len(self._window):
            if self.at + count > self.source.size:
                raise self.refuse(f"ends inside its header, at byte {self.source.size:,}: it was cut off, or a count in it is wrong")
            if self.at + count > MOST_HEADER:
                raise self.refuse(f"has a header of more than {MOST_HEADER:,} bytes; a count in it is wrong")
            self._window = self.source.read(self.at, max(count, self._size))
            self._begin, self._size = self.at, min(2 * self._size, LARGEST_WINDOW)
            start = 0
            if len(self._window) < count:
                raise self.refuse("ends inside its header: it was cut off")
        return start

    def number(self, form: str) -> int | float | bool:
        """One little-endian scalar of a `struct` form."""
        start = self.ahead(struct.calcsize(form))
        (value,) = struct.unpack_from("<" + form, self._window, start)
        self.at += struct.calcsize(form)
        found: int | float | bool = value
        return found

    def count(self, what: str, most: int, form: str = "Q") -> int:
        """A count that must not exceed `most`."""
        value = int(self.number(form))
        if value > most:
            raise self.refuse(f"claims {value:,} {what}; at most {most:,} are read, so the file is broken")
        return value

    def skip(self, count: int) -> None:
        """Move on; what is passed over must be in the file."""
        self.at += count
        if self.at > min(self.source.size, MOST_HEADER):
            raise self.refuse("ends inside its header: it was cut off, or a count in it is wrong")

    def text(self, what: str, most: int) -> str:
        """A string of at most `most` bytes."""
        length = self.count(f"bytes of {what}", most)
        start = self.ahead(length)
        self.at += length
        return self._window[start : start + length].decode("utf-8", errors="replace")

    def step(self, count: int = 1) -> None:
        """Count items walked, so that a hostile file cannot keep us busy."""
        self.items += count
        if self.items > MOST_ITEMS:
            raise self.refuse(f"has more than {MOST_ITEMS:,} items in its header; a count in it is wrong")

    def skip_texts(self, count: int) -> None:
        """Move over `count` strings."""
        self.step(count)
        size = self.source.size
        for _ in range(count):
            start = self.ahead(8)
            (length,) = struct.unpack_from("<Q", self._window, start)
            self.at += 8 + length
            if self.at > size:
                raise self.refuse("ends inside a list of texts: it was cut off, or a count in it is wrong")


# --- metadata -------------------------------------------------------------------------------------------------------


def read_value(cursor: Cursor, kind: int, *, depth: int = 0) -> object:
    """One value of the metadata; None for what is too long to be kept."""
    if kind in SCALARS:
        return cursor.number(SCALARS[kind])
    if kind == STRING:
        length = cursor.count("bytes of text", MOST_HEADER)
        if length > KEPT_TEXT:
            cursor.skip(length)
            return None
        start = cursor.ahead(length)
        cursor.at += length
        return cursor._window[start : start + length].decode("utf-8", errors="replace")
    if kind == ARRAY:
        return read_array(cursor, depth)
    raise cursor.refuse(f"has a value of the unknown kind {kind} at byte {cursor.at:,}")


def read_array(cursor: Cursor, depth: int) -> list[object] | None:
    """A list of one kind of value; None where it is long or of texts."""
    kind = int(cursor.number("I"))
    count = cursor.count("items of a list", MOST_HEADER)
    if kind in SCALARS:
        form = SCALARS[kind]
        if count > KEPT_ITEMS:
            cursor.skip(count * struct.calcsize(form))
            return None
        return [cursor.number(form) for _ in range(count)]
    if kind == STRING:
        cursor.skip_texts(count)
        return None
    if kind != ARRAY or depth >= MOST_DEPTH:
        raise cursor.refuse(f"has a list of the unknown kind {kind} at byte {cursor.at:,}")
    for _ in range(count):
        cursor.step(40)  # dearer than a text, and rare
        read_array(cursor, depth + 1)
    return None


def read_metadata(cursor: Cursor, count: int) -> dict[str, object]:
    """Keys and values; a key that stands twice is refused."""
    found: dict[str, object] = {}
    for _ in range(count):
        key = cursor.text("a key", MOST_NAME)
        value = read_value(cursor, int(cursor.number("I")))
        if key in found:
            raise cursor.refuse(f"has the key {safe_text(key)} twice")
        found[key] = value
    return found


# --- tensors --------------------------------------------------------------------------------------------------------


def read_tensor(cursor: Cursor, blocks: Blocks) -> tuple[StoredTensor, int]:
    """One entry of the list of tensors, and where its values begin."""
    name = cursor.text("a tensor's name", MOST_NAME)
    dims = [int(cursor.number("Q")) for _ in range(cursor.count(f"dimensions of {safe_text(name)}", MOST_DIMS, "I"))]
    kind, offset = int(cursor.number("I")), int(cursor.number("Q"))
    label = safe_text(name)
    elements = 1
    for size in dims:
        elements *= size
        if elements > LARGEST:
            raise cursor.refuse(f"tensor {label} has a shape whose product overflows: {safe_text(str(dims))}")
    if kind not in blocks:
        raise cursor.refuse(f"tensor {label} is in the format {kind}, which this release of gguf does not know: pip install -U gguf")
    dtype, per_block, block_bytes = blocks[kind]
    if (dims[0] if dims else 1) % per_block:
        raise cursor.refuse(f"tensor {label} has rows of {dims[0] if dims else 1} in {dtype}, whose blocks hold {per_block}")
    stored = prod(dims) // per_block * block_bytes
    return StoredTensor(name=name, dtype=dtype, shape=tuple(reversed(dims)), bytes=stored), offset


def check_places(cursor: Cursor, placed: list[tuple[StoredTensor, int]], alignment: int) -> None:
    """Tensors begin at multiples of the alignment, do not overlap and are in the file."""
    begin = -(-cursor.at // alignment) * alignment
    last = 0
    for tensor, offset in sorted(placed, key=lambda pair: (pair[1], pair[1] + pair[0].bytes)):
        label = safe_text(tensor.name)
        if offset % alignment:
            raise cursor.refuse(f"tensor {label} begins at {offset:,}, no multiple of the alignment {alignment}")
        if offset < last:
            raise cursor.refuse(f"tensor {label} overlaps the one before it, at byte {offset:,}")
        last = offset + tensor.bytes
        if begin + last > cursor.source.size:
            raise cursor.refuse(f"tensor {label} ends at byte {begin + last:,} of {cursor.source.size:,}: the file was cut off")


def read_alignment(cursor: Cursor, metadata: dict[str, object]) -> int:
    """The alignment of the values, 32 where the file says none."""
    value = metadata.get("general.alignment", 32)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**20 or value & (value - 1):
        raise cursor.refuse(f"general.alignment is {safe_text(str(value))}, no power of two up to {2**20}")
    return value


def read_header(source: Source) -> tuple[tuple[StoredTensor, ...], dict[str, object]]:
    """Tensors and metadata of one file. Raises UnreadableError and MissingExtraError."""
    blocks = block_sizes()
    cursor = Cursor(source)
    if source.size < 24 or source.read(0, 4) != b"GGUF":
        raise cursor.refuse("is no GGUF file: it does not begin with GGUF")
    cursor.at = 4
    version = int(cursor.number("I"))
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        what = "a GGUF file for big-endian machines" if swapped else f"GGUF version {version}"
        raise cursor.refuse(f"is {what}; versions 2 and 3 in little-endian order are read")
    tensor_count, key_count = cursor.count("tensors", MOST_TENSORS), cursor.count("keys", MOST_KEYS)
    metadata = read_metadata(cursor, key_count)
    alignment = read_alignment(cursor, metadata)
    placed = [read_tensor(cursor, blocks) for _ in range(tensor_count)]
    names = {tensor.name for tensor, _ in placed}
    if len(names) != len(placed):
        raise cursor.refuse("has two tensors of the same name")
    check_places(cursor, placed, alignment)
    return tuple(tensor for tensor, _ in placed), metadata


# --- files ----------------------------------------------------------------------------------------------------------


def read_gguf(path: Path) -> StoredWeights:
    """The weights of a GGUF file, and of the parts that belong to it (`...-00001-of-00003.gguf`). Headers only.

    Raises UnreadableError and MissingExtraError.
    """
    return read_parts(path.name, lambda name: FileSource(path.parent / name), origin=str(path))


def read_parts(first: str, open_part: Callable[[str], Source], *, origin: str) -> StoredWeights:
    """One file or all parts of one; the first part carries the metadata of the model."""
    names = part_names(first)
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, object] = {}
    for name in names:
        held, said = read_header(open_part(name))
        for tensor in held:
            if tensor.name in tensors:
                raise UnreadableError(f"{origin}: tensor {safe_text(tensor.name)} is in two parts, {name} among them")
            tensors[tensor.name] = tensor
        metadata = said | metadata
    return StoredWeights(tensors=tuple(tensors.values()), metadata=metadata, files=tuple(names), origin=origin)


def part_names(name: str) -> list[str]:
    """Every part of a split file, in order; the file alone where it is not split."""
    found = SHARD.fullmatch(name)
    if not found or not 1 <= int(found["count"]) <= 999:
        return [name]
    count = int(found["count"])
    return [f"{found['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
