"""What a file of weights holds, as its header says it: names, formats, shapes and bytes. No value is ever read."""

from __future__ import annotations

from math import prod

import msgspec

# Formats that hold several values in one stored element, or belong to such: what a tensor of them counts is not a parameter.
PACKED = frozenset({"U8", "I8", "I16", "I32", "I64", "U16", "U32", "U64"})


class StoredTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor as it is stored.

    Attributes:
        dtype: as the file calls it (`BF16`, `F8_E4M3`, `Q4_K`).
        shape: outermost first, as PyTorch has it.
        bytes: what it takes in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        """Stored elements; of a packed format fewer than the values it stands for."""
        return prod(self.shape)


class DtypeShare(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of one format."""

    dtype: str
    tensors: int
    elements: int
    bytes: int


class StoredWeights(msgspec.Struct, frozen=True, kw_only=True):
    """All tensors of a checkpoint.

    Attributes:
        metadata: what the file says beside its tensors, as text or numbers.
        files: names of the files read. notes: what a reader of the figures must know.
        origin: how the checkpoint was named by whoever asked.
    """

    tensors: tuple[StoredTensor, ...]
    metadata: dict[str, object] = msgspec.field(default_factory=dict)
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    origin: str = ""

    @property
    def elements(self) -> int:
        """Stored elements of all tensors."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, headers not counted."""
        return sum(tensor.bytes for tensor in self.tensors)

    def by_dtype(self) -> tuple[DtypeShare, ...]:
        """The formats, the one with most bytes first."""
        groups: dict[str, list[StoredTensor]] = {}
        for tensor in self.tensors:
            groups.setdefault(tensor.dtype, []).append(tensor)
        shares = (
            DtypeShare(
                dtype=dtype,
                tensors=len(group),
                elements=sum(tensor.elements for tensor in group),
                bytes=sum(tensor.bytes for tensor in group),
            )
            for dtype, group in groups.items()
        )
        return tuple(sorted(shares, key=lambda share: (-share.bytes, share.dtype)))
