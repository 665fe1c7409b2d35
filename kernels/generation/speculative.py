"""Speculative decoding (Leviathan et al. 2023, arXiv:2211.17192, algorithm 1): a small model proposes, the large one checks all at once.

The tokens come out distributed as if the large model had drawn them one by one: a proposal x is kept with probability
min(1, p(x) / q(x)), and the first one refused is drawn anew from what p has more of than q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...presets.errors import UsageError
from ..model import Model
from .reader import Reader, require_room, require_tokens
from .sampling import GREEDY, Dice, Sampler, drawn, probabilities


@dataclass(frozen=True, kw_only=True)
class Speculated:
    """What was generated and what it took.

    Attributes:
        tokens: the new ones; where the end token was reached it is the last. rounds: passes of the target after the prompt's.
        proposed, accepted: tokens of the draft that the target looked at (up to the first refused), and those it kept.
    """

    tokens: tuple[int, ...]
    rounds: int
    proposed: int
    accepted: int

    @property
    def acceptance(self) -> float | None:
        """The share of the proposals looked at that were kept: an estimate of the paper's alpha."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def tokens_per_round(self) -> float:
        """Tokens a pass of the target gave."""
        return len(self.tokens) / self.rounds


def speculate(
    target: Model,
    draft: Model,
    prompt: Sequence[int],
    *,
    new: int,
    draft_tokens: int = 4,
    sampler: Sampler = GREEDY,
    eos: int | None = None,
    seed: int = 0,
    source: Tensor | None = None,
    cached: bool = True,
) -> Speculated:
    """At most `new` tokens after `prompt`, `draft_tokens` proposed a round by `draft` and checked by `target`.

    Both draw by the same `sampler`; greedy gives the target's own greedy tokens. `source` [1,S]: of both encoders. Raises UsageError.
    """
    if not prompt or new < 1 or draft_tokens < 1:
        raise UsageError(f"give a prompt and at least 1 new and 1 draft token; got {len(prompt)}, {new} and {draft_tokens}")
    for model in (target, draft):
        require_tokens(model, prompt)
        require_room(model, len(prompt) + new)
    room = len(prompt) + new + draft_tokens + 1
    large, small = (Reader(model, 1, room, cached=cached, source=source) for model in (target, draft))
    known, dice = list(prompt), Dice(seed, 1)
    if len(known) > 1:
        for reader in (large, small):
            reader.read(piece(reader, known[:-1]))
    rounds = proposed = accepted = 0
    while (done := len(known) - len(prompt)) < new and (done == 0 or known[-1] != eos):
        found = one_round(large, small, known, min(draft_tokens, new - done - 1), sampler, dice)
        rounds, accepted = rounds + 1, accepted + len(found.tokens) - 1
        proposed += found.looked_at
        tokens = found.tokens
        known += tokens[: tokens.index(eos) + 1] if eos in tokens else tokens
    return Speculated(tokens=tuple(known[len(prompt) :]), rounds=rounds, proposed=proposed, accepted=accepted)


@dataclass(frozen=True, kw_only=True)
class Round:
    """Tokens of one round, and how many proposals the target looked at for them."""

    tokens: list[int]
    looked_at: int


def one_round(large: Reader, small: Reader, known: list[int], count: int, sampler: Sampler, dice: Dice) -> Round:
    """`count` proposals checked: 1 to `count` + 1 tokens. Both readers are left with all that is known then, but for its last token."""
    marks = large.mark(), small.mark()
    proposals, q = propose(small, known, count, sampler, dice)
    logits = large.read(piece(large, known + proposals), last=False)[0, -count - 1 :]
    if q is not None and q.shape[-1] != logits.shape[-1]:
        raise UsageError(f"draft and target need one vocabulary; got {q.shape[-1]} and {logits.shape[-1]} tokens")
    tokens = verified(probabilities(logits, sampler), q, proposals, dice)
    for reader, mark in zip((large, small), marks, strict=True):
        reader.take_back(len(known) + len(tokens) - 1, mark)
    return Round(tokens=tokens, looked_at=min(len(tokens), count))


def propose(small: Reader, known: list[int], count: int, sampler: Sampler, dice: Dice) -> tuple[list[int], Tensor | None]:
    """`count` tokens of the draft after those known, and the distributions they were drawn from, [count,V]."""
    proposals, rows = list[int](), list[Tensor]()
    for _ in range(count):
        rows.append(probabilities(small.read(piece(small, known + proposals)), sampler))
        proposals += drawn(rows[-1], dice.roll()).tolist()
    return proposals, torch.cat(rows) if rows else None


def piece(reader: Reader, tokens: list[int]) -> Tensor:
    """What of `tokens` a reader has not read, [1,T]."""
    return torch.tensor([tokens[reader.length :]], device=reader.model.make.device)


def verified(p: Tensor, q: Tensor | None, proposals: Sequence[int], dice: Dice) -> list[int]:
    """The proposals kept and one token more: p [g+1,V] of the target, q [g,V] of the draft."""
    for i, token in enumerate(proposals):
        assert q is not None
        if float(dice.roll()) * float(q[i, token]) >= float(p[i, token]):
            return [*proposals[:i], *drawn(residual(p[i], q[i])[None], dice.roll()).tolist()]
    return [*proposals, *drawn(p[len(proposals)][None], dice.roll()).tolist()]


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p - q), normalised: what is drawn from after a refusal (section 2.3). Where p = q nothing is refused."""
    more = (p - q).clamp(min=0)
    total = more.sum()
    return more / total if total > 0 else p
