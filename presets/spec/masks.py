"""What attention sees."""

from __future__ import annotations

from .base import Data, Size


class Full(Data, frozen=True, tag="full"):
    """Every query sees every key."""


class Causal(Data, frozen=True, tag="causal"):
    """A query sees its own position and those before it, aligned bottom-right."""


class Sliding(Data, frozen=True, tag="sliding"):
    """Causal, and at most `window` keys including its own."""

    window: Size


class Chunked(Data, frozen=True, tag="chunked"):
    """Causal inside chunks: position p sees from floor(p / chunk) * chunk on (Llama 4)."""

    chunk: Size


class Local(Data, frozen=True, tag="local"):
    """Both ways, at most `reach` positions to either side (ModernBERT: a window of 128 is a reach of 64)."""

    reach: Size


class Blocked(Data, frozen=True, tag="blocked"):
    """Both ways inside blocks of `size` positions that are computed apart (Qwen2.5-VL: windows of 8 x 8 patches)."""

    size: Size


Mask = Full | Causal | Sliding | Chunked | Local | Blocked
