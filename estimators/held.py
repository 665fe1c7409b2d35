"""What a checkpoint holds of each row of the ledger: bytes that are really there, in place of a format for all."""

from __future__ import annotations

import msgspec

from .counts import Number

# Formats of files that are formats of the command line too.
PLAIN = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes stored for so many values."""

    bytes: int
    elements: int

    def share(self, elements: Number) -> Number:
        """Bytes of `elements` of the values: whole ones rounded up, an expected (fractional) count stays a fraction."""
        if not self.elements:
            return 0
        if isinstance(elements, int):
            return -(-elements * self.bytes // self.elements)
        return elements * (self.bytes / self.elements)


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors of one kind that belong to no row of the model, or to one twice."""

    kind: str
    tensors: int
    elements: int
    bytes: int


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, row by row.

    Attributes:
        origin: what the checkpoint is called.
        total_bytes: all tensors.
        rows: by the path of the row; a row that another one lends its weight (a tied head) stands here as well.
        owned: paths of `rows` that the bytes are counted under. mean: of all, for rows that the file does not name.
        beside: what of the total no row uses.
        named_bytes: found by the tensors' names; the rest was shared out in proportion to the parameters.
        elements: stored values. by_dtype: bytes by format, largest first.
    """

    origin: str
    total_bytes: int
    rows: dict[str, Held]
    owned: frozenset[str]
    mean: Held
    beside: tuple[Beside, ...] = ()
    named_bytes: int = 0
    elements: int = 0
    by_dtype: tuple[tuple[str, int], ...] = ()

    @property
    def format(self) -> str | None:
        """The plain format that nearly all bytes are in (norms aside), None for a mixture or a packed one."""
        name, count = self.by_dtype[0] if self.by_dtype else ("", 0)
        return PLAIN.get(name) if count >= 0.99 * self.total_bytes else None

    def of(self, path: str) -> Held:
        """What is held of a row."""
        return self.rows.get(path, self.mean)

    def owned_bytes(self, path: str) -> int:
        """Bytes counted under a row; 0 where another row owns them or the file has none."""
        return self.rows[path].bytes if path in self.owned else 0
