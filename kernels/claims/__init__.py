"""The claims of the articles, each a function that looks whether it is so; `CLAIMS` has them in reading order."""

from __future__ import annotations

from . import worked, softmax, positions, causality, caching, sharing, gradients, norms, memory, recurrence, measured  # noqa: F401, I001 - importing registers, in reading order
from .claim import CLAIMS, Claim, Finding, Verdict, claims_named, look

__all__ = ["CLAIMS", "Claim", "Finding", "Verdict", "claims_named", "look"]
