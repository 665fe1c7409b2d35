"""From logits to the next token: greedy, temperature, top-k, top-p; equal logits are told apart by their number, lowest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...presets.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """How the next token is drawn.

    Attributes:
        temperature: logits are divided by it; 0 takes the largest (greedy).
        top_k: only so many of the most likely tokens (Fan et al. 2018, arXiv:1805.04833).
        top_p: only the smallest set of the most likely tokens that has this mass (Holtzman et al. 2019, arXiv:1904.09751, section 3.1).
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature {self.temperature} makes no distribution; allowed: 0 (greedy) and above")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top-k of {self.top_k} leaves no token; allowed: at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"top-p of {self.top_p} is no mass; allowed: above 0, at most 1")


GREEDY = Sampler()


def probabilities(logits: Tensor, sampler: Sampler) -> Tensor:
    """logits [..., V] -> what the next token is drawn from, fp64 [..., V]: temperature, then top-k, then top-p."""
    if sampler.temperature == 0:
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    # the largest is taken off before the division: a temperature near 0 would else give infinities
    shifted = logits.double() - logits.double().amax(-1, keepdim=True)
    found = (shifted / sampler.temperature).softmax(-1)
    if sampler.top_k is not None:
        found = kept(found, top_k(found, sampler.top_k))
    if sampler.top_p is not None:
        found = kept(found, top_p(found, sampler.top_p))
    return found


def kept(probs: Tensor, keep: Tensor) -> Tensor:
    """The distribution [..., V] where `keep` is True, its mass 1 again."""
    left = probs.masked_fill(~keep, 0)
    return left / left.sum(-1, keepdim=True)


def top_k(probs: Tensor, count: int) -> Tensor:
    """Bool [..., V]: the `count` most likely, exactly so many."""
    return ranks(probs)[1] < count


def top_p(probs: Tensor, mass: float) -> Tensor:
    """Bool [..., V]: the smallest set of the most likely whose mass is at least `mass`."""
    if mass == 1:
        return torch.ones_like(probs, dtype=torch.bool)
    ordered, rank = ranks(probs)
    before = ordered.cumsum(-1) - ordered  # the mass of those that are more likely
    return (before < mass).gather(-1, rank)


def ranks(probs: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted from the largest, [..., V], and the place of each in that order, the lower number first among equals."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    return ordered, order.argsort(-1)


class Dice:
    """Uniform numbers, a stream for each sequence: member i of a batch with `seed` draws what it draws alone with `seed` + i."""

    def __init__(self, seed: int, count: int) -> None:
        self.streams = [torch.Generator().manual_seed(seed + i) for i in range(count)]

    def roll(self, which: Sequence[int] | None = None) -> Tensor:
        """One number in [0, 1) for each of the sequences `which` (all), fp64."""
        chosen = self.streams if which is None else [self.streams[i] for i in which]
        return torch.cat([torch.rand(1, generator=stream, dtype=torch.float64) for stream in chosen])


def drawn(probs: Tensor, uniforms: Tensor) -> Tensor:
    """probs [B,V], uniforms [B] in [0, 1) -> tokens [B]: where the cumulative distribution passes the number."""
    cumulative = probs.cumsum(-1)
    target = uniforms.to(probs.device, probs.dtype).unsqueeze(-1) * cumulative[..., -1:]
    found = (cumulative <= target).sum(-1)
    return found.clamp(max=probs.shape[-1] - 1)


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """logits [B,V], tokens [B] -> natural log of the model's own probability of each, fp64 [B]."""
    return logits.double().log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
