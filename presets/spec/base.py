"""What every type of a description shares: how it loads, and how large a number may be."""

from __future__ import annotations

from typing import Annotated

import msgspec

# Wide enough for any published model, small enough that products of four sizes stay exact in Python and readable.
Size = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.\-]+$", max_length=64)]


class Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    """Base of every type here: frozen, keyword only, an unknown or mistyped field does not load."""
