"""Headers of safetensors files: an 8-byte length, that many bytes of JSON, then the values, which are not read.

The format: https://github.com/huggingface/safetensors (format section of the README). Its own reader maps the whole
file and refuses formats that its release does not know; a header alone needs neither, and a server gives it by range.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from ..errors import UnreadableError
from .source import FileSource, Source, safe_text
from .stored import StoredTensor, StoredWeights

# The format allows headers of 100 MB. The largest published (a hundred thousand tensors in one file) are near 12 MB.
MOST_HEADER = 16 * 2**20
MOST_TENSORS = 200_000
MOST_SHARDS = 4096
MOST_DIMS = 16
MOST_NAME = 1024
LARGEST = 2**62
# Bits an element, by the format's own names.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64,
    "I64": 64, "U64": 64,
}  # fmt: skip
INDEX_ENDING = ".safetensors.index.json"


Whole = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


class Entry(msgspec.Struct):
    """One tensor of a header; `__metadata__` has none of these."""

    dtype: str | None = None
    shape: list[Whole] | str | None = None
    data_offsets: list[Whole] | str | None = None


class Head(msgspec.Struct):
    """What a header says beside its tensors."""

    metadata: dict[str, str] = msgspec.field(default_factory=dict, name="__metadata__")


class Index(msgspec.Struct):
    """Which file holds which tensor."""

    weight_map: dict[str, str]


# --- one file -------------------------------------------------------------------------------------------------------


def read_header(source: Source) -> tuple[tuple[StoredTensor, ...], dict[str, str]]:
    """Tensors and metadata of one file. Raises UnreadableError for what is no safetensors file, is cut off or lies."""
    length = header_length(source)
    text = source.read(8, length)
    if len(text) != length:
        raise refuse(source, f"ends inside its header ({len(text)} of {length} bytes are there)")
    if text.count(b"{") > MOST_TENSORS + 2:
        raise refuse(source, f"its header has more than {MOST_TENSORS:,} entries")
    entries, metadata = decode(source, text)
    entries.pop("__metadata__", None)
    room = source.size - 8 - length
    spans: list[tuple[int, int]] = []
    tensors = []
    for name, entry in entries.items():
        shape, begin, end = checked(source, name, entry, room)
        spans.append((begin, end))
        tensors.append(StoredTensor(name=name, dtype=str(entry.dtype), shape=shape, bytes=end - begin))
    check_spans(source, spans, room)
    return tuple(tensors), metadata


def header_length(source: Source) -> int:
    """The first 8 bytes, a little-endian length, held against what is there and what is sane."""
    first = source.read(0, 8)
    if len(first) < 8:
        raise refuse(source, f"is {source.size} bytes long, too short for a safetensors header")
    length = int.from_bytes(first, "little")
    if length > MOST_HEADER:
        raise refuse(source, f"claims a header of {length:,} bytes, more than {MOST_HEADER:,}: no safetensors file, or broken")
    if length > source.size - 8:
        raise refuse(source, f"claims a header of {length:,} bytes and has {max(source.size - 8, 0):,}: it was cut off")
    return length


def decode(source: Source, text: bytes) -> tuple[dict[str, Entry], dict[str, str]]:
    """The JSON of a header, typed."""
    try:
        entries = msgspec.json.decode(text, type=dict[str, Entry])
        metadata = msgspec.json.decode(text, type=Head).metadata
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(source, f"its header is no safetensors header: {safe_text(' '.join(str(error).split()), 120)}") from None
    return entries, metadata


def checked(source: Source, name: str, entry: Entry, room: int) -> tuple[tuple[int, ...], int, int]:
    """(shape, begin, end) of one tensor, if they agree with each other and with the file."""
    label = safe_text(name)
    shape, offsets = entry.shape, entry.data_offsets
    if entry.dtype is None or not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise refuse(source, f"tensor {label} lacks dtype, shape or two data_offsets")
    if len(name) > MOST_NAME or len(entry.dtype) > 32 or not entry.dtype.isprintable():
        raise refuse(source, f"tensor {label} has a name or dtype that is too long")
    begin, end = offsets
    if not 0 <= begin <= end:
        raise refuse(source, f"tensor {label} has data_offsets {begin}, {end}; they must not be negative or reversed")
    if end > room:
        raise refuse(source, f"tensor {label} ends at byte {end:,} of {room:,}: the file was cut off, or its header lies")
    if len(shape) > MOST_DIMS or any(size < 0 for size in shape):
        raise refuse(source, f"tensor {label} has no possible shape: {safe_text(str(shape[:20]))}")
    check_size(source, label, entry.dtype, shape, end - begin)
    return tuple(shape), begin, end


def check_size(source: Source, label: str, dtype: str, shape: list[int], stored: int) -> None:
    """Shape times format must be the bytes; of a format that is not known here, only that the shape is sane."""
    elements = 1
    for size in shape:
        elements *= size
        if elements > LARGEST:
            raise refuse(source, f"tensor {label} has a shape whose product overflows: {safe_text(str(shape[:20]))}")
    bits = BITS.get(dtype)
    if bits is not None and -(-elements * bits // 8) != stored:
        raise refuse(source, f"tensor {label} is {elements:,} x {dtype} and takes {stored:,} bytes; one of them is wrong")


def check_spans(source: Source, spans: list[tuple[int, int]], room: int) -> None:
    """Tensors lie one after another and fill the file, as the format demands."""
    last = 0
    for begin, end in sorted(spans):
        if begin < last:
            raise refuse(source, f"two tensors overlap at byte {begin:,}; the header is broken")
        if begin > last:
            raise refuse(source, f"bytes {last:,} to {begin:,} belong to no tensor; the header is broken")
        last = end
    if last != room:
        raise refuse(source, f"has {room - last:,} bytes more than its tensors; the header is broken")


def refuse(source: Source, why: str) -> UnreadableError:
    """The error to raise."""
    return UnreadableError(f"{source.name}: {why}")


# --- files, folders, indexes ----------------------------------------------------------------------------------------


def read_safetensors(path: Path) -> StoredWeights:
    """The weights of a file, of an index (`*.safetensors.index.json`) or of a folder with either. Headers only.

    Raises UnreadableError.
    """
    if path.is_dir():
        found = weights_in(path)
        if found is None:
            raise UnreadableError(f"{path}: the folder holds no *.safetensors file; give one that does, or a file")
        return found
    if path.name.endswith(INDEX_ENDING):
        return read_index(path)
    return gather({path.name: read_header(FileSource(path))}, origin=str(path))


def weights_in(folder: Path) -> StoredWeights | None:
    """The safetensors weights of a folder, None where it holds none: by its index, else every file (not both kinds of copies)."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith((".safetensors", INDEX_ENDING)))
    chosen = choose_files(names)
    if not chosen:
        return None
    if chosen[0].endswith(INDEX_ENDING):
        return read_index(folder / chosen[0])
    return gather({name: read_header(FileSource(folder / name)) for name in chosen}, origin=str(folder))


def choose_files(names: list[str]) -> list[str]:
    """Of the files beside each other the ones that make up one checkpoint: the index, the one file, else all."""
    for usual in ("model" + INDEX_ENDING, "model.safetensors"):
        if usual in names:
            return [usual]
    indexes = [name for name in names if name.endswith(INDEX_ENDING)]
    if indexes:
        return indexes[:1]
    return [name for name in names if not name.endswith(INDEX_ENDING)][:MOST_SHARDS]


def read_index(path: Path) -> StoredWeights:
    """All shards of an index, which must be beside it."""
    source = FileSource(path)
    shards = shards_of(source)
    headers = {}
    for shard in shards:
        if not (path.parent / shard).exists():
            raise UnreadableError(f"{path}: shard {safe_text(shard)} is missing ({len(shards)} are named); get it, or give one file")
        headers[shard] = read_header(FileSource(path.parent / shard))
    return check_index(gather(headers, origin=str(path)), source)


def index_map(source: Source) -> dict[str, str]:
    """Tensor to file, of an index whose size is sane."""
    if source.size > MOST_HEADER:
        raise refuse(source, f"is {source.size:,} bytes, more than an index can be ({MOST_HEADER:,})")
    text = source.read(0, source.size)
    try:
        return msgspec.json.decode(text, type=Index).weight_map
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(source, f"is no index of shards: {safe_text(' '.join(str(error).split()), 120)}") from None


def shards_of(source: Source) -> tuple[str, ...]:
    """The files of an index, in order; each must be a plain name in the same folder."""
    shards = tuple(dict.fromkeys(index_map(source).values()))
    if not shards or len(shards) > MOST_SHARDS:
        raise refuse(source, f"names {len(shards)} files; from 1 to {MOST_SHARDS} make sense")
    for shard in shards:
        parts = PurePosixPath(shard).parts
        if "\\" in shard or "\0" in shard or len(parts) != 1 or parts[0] in ("..", "/") or not shard.endswith(".safetensors"):
            raise refuse(source, f"names the file {safe_text(shard)}; a shard must be a *.safetensors file in the folder of the index")
    return shards


def check_index(weights: StoredWeights, source: Source) -> StoredWeights:
    """Every tensor of the index must be there; more than it names is said, not refused."""
    named = index_map(source)
    there = {tensor.name for tensor in weights.tensors}
    missing = [name for name in named if name not in there]
    if missing:
        raise refuse(source, f"names {len(missing)} tensors that are in none of its files, as {safe_text(missing[0])}")
    extra = len(there) - len(named)
    note = (f"{extra} tensors are in the files and not in the index",) if extra else ()
    return msgspec.structs.replace(weights, notes=(*weights.notes, *note))


def gather(headers: dict[str, tuple[tuple[StoredTensor, ...], dict[str, str]]], *, origin: str) -> StoredWeights:
    """The tensors of several files as one checkpoint; a name that stands twice is refused."""
    tensors: dict[str, StoredTensor] = {}
    metadata: dict[str, object] = {}
    for file, (held, said) in headers.items():
        for tensor in held:
            if tensor.name in tensors:
                raise UnreadableError(f"{origin}: tensor {safe_text(tensor.name)} is in two files, {file} among them; give one checkpoint")
            tensors[tensor.name] = tensor
        metadata |= said
    return StoredWeights(tensors=tuple(tensors.values()), metadata=metadata, files=tuple(headers), origin=origin)
