"""Beam search: the best few beginnings are kept, not one.

An ended hypothesis keeps its place among them. Greedy's beginning keeps a place too: plain beam search may drop it and end
below it; so the score found is at least greedy's, at no further cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...presets.errors import UsageError
from ..model import Model
from .loop import Generated
from .reader import Reader, Step, require_room, require_tokens

MOST_PENALTY = 20  # beyond it the length alone decides, and powers of it soon are no floats any more


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """New tokens, the log of their probability, whether the end token is the last; `greedy`: each was the likeliest."""

    tokens: tuple[int, ...]
    log_prob: float
    ended: bool = False
    greedy: bool = True

    def score(self, alpha: float) -> float:
        """log P / lp, lp = ((5 + length) / 6)^alpha (Wu et al. 2016, arXiv:1609.08144, equation 14); alpha 0: log P itself."""
        return self.log_prob / float(((5 + len(self.tokens)) / 6) ** alpha)


def beam_search(
    model: Model,
    prompt: Sequence[int],
    *,
    new: int,
    beams: int = 4,
    eos: int | None = None,
    length_penalty: float = 0.0,
    source: Tensor | None = None,
    images: Tensor | None = None,
    cached: bool = True,
    told: Callable[[Step], None] | None = None,
) -> tuple[Hypothesis, ...]:
    """The best continuations of one prompt found, best first, at most `beams` and `new` tokens each.

    `length_penalty`: alpha of `Hypothesis.score`; above 0 favours longer ones. source [1,S], images [n,...]. `told` is given every
    step, with the last token of every hypothesis that goes on. Raises UsageError.
    """
    if beams < 1 or new < 1 or not prompt:
        raise UsageError(f"beam search needs a prompt, at least 1 beam and 1 new token; got {len(prompt)}, {beams} and {new}")
    if not abs(length_penalty) <= MOST_PENALTY:
        raise UsageError(f"length penalty {length_penalty}; allowed: {-MOST_PENALTY} to {MOST_PENALTY}, usual ones are 0 to 1")
    require_tokens(model, prompt)
    require_room(model, len(prompt) + new)
    reader = Reader(model, 1, len(prompt) + new, cached=cached, source=source, images=images)
    live, ended = [Hypothesis(tokens=(), log_prob=0.0)], list[Hypothesis]()
    piece = torch.tensor([list(prompt)], device=model.make.device)
    for _ in range(new):
        start, read = time.perf_counter(), piece.shape[1]
        found = extensions(live, reader.read(piece), beams, eos)
        parents = {id(one): parent for parent, one in found}
        best = chosen([one for _, one in found] + ended, beams, length_penalty)
        live, ended = [one for one in best if not one.ended], [one for one in best if one.ended]
        if live:
            reader.reorder([parents[id(one)] for one in live])
            piece = torch.tensor([[one.tokens[-1]] for one in live], device=model.make.device)
        if told is not None:
            told(reader.step(tuple(one.tokens[-1] for one in live), read, start))
        if not live:
            break
    return tuple(sorted(live + ended, key=lambda one: -one.score(length_penalty))[:beams])


def beam_generate(
    model: Model, prompts: Sequence[Sequence[int]], *, new: int, beams: int, source: Tensor | None = None, **options: Any
) -> Generated:
    """The best hypothesis of each prompt, one after another; source [B,S]; other options are those of `beam_search`."""
    steps: list[Step] = []
    best = [
        beam_search(
            model, prompt, new=new, beams=beams, told=steps.append, source=None if source is None else source[i : i + 1], **options
        )[0]
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    return Generated(tokens=tuple(one.tokens for one in best), log_probs=tuple(one.log_prob for one in best), steps=tuple(steps))


def extensions(live: Sequence[Hypothesis], logits: Tensor, beams: int, eos: int | None) -> list[tuple[int, Hypothesis]]:
    """(row, hypothesis) of the `beams` best next tokens of every row; logits [n,V]. Among equals the lower token first."""
    scores, tokens = logits.double().log_softmax(-1).sort(dim=-1, descending=True, stable=True)
    found = []
    for row, (one, gains, ids) in enumerate(zip(live, scores[:, :beams].tolist(), tokens[:, :beams].tolist(), strict=True)):
        for rank, (gain, token) in enumerate(zip(gains, ids, strict=True)):
            made = Hypothesis(
                tokens=(*one.tokens, token), log_prob=one.log_prob + gain, ended=token == eos, greedy=one.greedy and rank == 0
            )
            found.append((row, made))
    return found


def chosen(candidates: Sequence[Hypothesis], beams: int, alpha: float) -> list[Hypothesis]:
    """The `beams` best, greedy's always among them (the last of them goes where it would not be)."""
    ordered = sorted(candidates, key=lambda one: -one.score(alpha))  # stable: among equals the earlier
    kept = ordered[:beams]
    greedy = next((one for one in ordered if one.greedy), None)
    if greedy is not None and greedy not in kept:
        kept[-1] = greedy
    return kept
