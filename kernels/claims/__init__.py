"""The claims of the articles, each a function that looks whether it is so; `CLAIMS` has them in reading order."""

from __future__ import annotations

from importlib import import_module

from .claim import CLAIMS, Claim, Finding, Verdict, claims_named, look

__all__ = ["CLAIMS", "Claim", "Finding", "Verdict", "claims_named", "look"]

# Importing a module registers its claims, in this order.
MODULES = (
    "worked", "softmax", "positions", "causality", "caching", "sharing", "gradients", "norms", "memory", "recurrence", "measured",
)  # fmt: skip
for module in MODULES:
    import_module(f".{module}", __name__)
