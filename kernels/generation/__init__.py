"""Generation from any model that has a decoder: sampling, beam search, shared prefixes, speculative decoding."""

from __future__ import annotations

from .beam import Hypothesis, beam_generate, beam_search
from .loop import Generated, generate
from .prefix import shared_prefix
from .reader import Step
from .sampling import GREEDY, Sampler
from .speculative import Speculated, speculate

__all__ = [
    "GREEDY", "Generated", "Hypothesis", "Sampler", "Speculated", "Step", "beam_generate", "beam_search", "generate", "shared_prefix",
    "speculate",
]  # fmt: skip
