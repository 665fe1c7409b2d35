"""Weights as they are stored: safetensors, GGUF, and files on the Hub, by their headers alone."""

from __future__ import annotations

from .stored import DtypeShare, StoredTensor, StoredWeights

__all__ = ["DtypeShare", "StoredTensor", "StoredWeights"]
