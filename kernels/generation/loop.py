"""Token after token: a prompt is read at once, then every step reads the token chosen last.

Prompts of different lengths run side by side without padding: all are read up to the end of the shortest, and while a longer
one lasts its own next token stands in place of a chosen one. So every sequence has its true positions, whatever keeps the past
(keys and values, windows, latents, recurrent states).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...presets.errors import UsageError
from ..cache import Cache
from ..model import Model
from .reader import Reader, Step, require_room, require_tokens
from .sampling import GREEDY, Dice, Sampler, drawn, log_probability, probabilities

Prompt = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What was generated, a prompt after another.

    Attributes:
        tokens: the new ones; where the end token was reached it is the last. log_probs: of all of them together, by the model itself
            (temperature 1, nothing left out).
        steps: the passes, of which the first read the prompt.
    """

    tokens: tuple[tuple[int, ...], ...]
    log_probs: tuple[float, ...]
    steps: tuple[Step, ...]


def generate(
    model: Model,
    prompts: Sequence[Prompt],
    *,
    new: int,
    sampler: Sampler = GREEDY,
    eos: int | None = None,
    seed: int = 0,
    source: Tensor | None = None,
    source_padding: Tensor | None = None,
    images: Tensor | None = None,
    prefix: Cache | None = None,
    cached: bool = True,
    told: Callable[[Step], None] | None = None,
) -> Generated:
    """At most `new` tokens after each prompt, of token ids; a sequence ends with `eos`.

    Args:
        source: ids [B,S] or frames of the encoder, for an encoder-decoder; source_padding: bool [B,S], True where an id is real.
        images: pixels of a vision tower.
        prefix: a cache with the first tokens of every prompt in it (`prefix.shared_prefix`).
        cached: False reads everything again for every token: the same tokens, at another price.
        told: is given every step when it is done.

    Raises UsageError for prompts that are empty, no ids of the model, or do not fit.
    """
    check(model, prompts, new)
    run = Batch(model, prompts, new, sampler, eos, seed, Reader(
        model, len(prompts), max(map(len, prompts), default=0) + new, cached=cached, cache=prefix, source=source,
        source_padding=source_padding, images=images,
    ))  # fmt: skip
    steps = []
    while not run.done:
        steps.append(run.step())
        if told is not None:
            told(steps[-1])
    return Generated(tokens=tuple(map(tuple, run.chosen)), log_probs=tuple(run.log_probs), steps=tuple(steps))


def check(model: Model, prompts: Sequence[Prompt], new: int) -> None:
    """Prompts that can be read and a number that can be generated. Raises UsageError."""
    if not prompts or not all(prompts):
        raise UsageError("a prompt has at least one token (a decoder is begun with its first one); got an empty one")
    if not hasattr(new, "__index__") or new < 1:  # from Python it may be any number
        raise UsageError(f"generate at least 1 token, got {new}")
    for prompt in prompts:
        require_tokens(model, prompt)
        require_room(model, len(prompt) + new)


class Batch:
    """Sequences on their way: `place` tokens of each are known and, but for the last of them, read."""

    def __init__(
        self, model: Model, prompts: Sequence[Prompt], new: int, sampler: Sampler, eos: int | None, seed: int, reader: Reader
    ) -> None:
        self.model, self.sampler, self.eos, self.new, self.reader = model, sampler, eos, new, reader
        self.prompts = [list(prompt) for prompt in prompts]
        self.place = min(map(len, prompts))
        if reader.length >= self.place:
            raise UsageError(f"a prefix of {reader.length} tokens leaves nothing of a prompt of {self.place}; make it shorter")
        self.dice = Dice(seed, len(prompts))
        self.chosen: list[list[int]] = [[] for _ in prompts]
        self.log_probs = [0.0] * len(prompts)

    def known(self, i: int) -> list[int]:
        """Prompt and chosen tokens of a sequence."""
        return self.prompts[i] + self.chosen[i]

    def ended(self, i: int) -> bool:
        """Whether nothing more comes."""
        return len(self.chosen[i]) == self.new or (self.eos is not None and self.chosen[i][-1:] == [self.eos])

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return all(map(self.ended, range(len(self.prompts))))

    def step(self) -> Step:
        """Read what is known and not read, choose where a prompt is used up."""
        start = time.perf_counter()
        begin = self.reader.length
        # what has ended is read on with its last token: its row is not looked at again
        rows = [(self.known(i) + [self.known(i)[-1]] * self.place)[begin : self.place] for i in range(len(self.prompts))]
        logits = self.reader.read(torch.tensor(rows, device=self.model.make.device))
        choosing = [i for i in range(len(self.prompts)) if len(self.known(i)) == self.place and not self.ended(i)]
        given = dict(zip(choosing, self.choose(logits, choosing), strict=True))
        self.place += 1
        return self.reader.step(tuple(given.get(i) for i in range(len(self.prompts))), self.place - 1 - begin, start)

    def choose(self, logits: Tensor, which: list[int]) -> list[int]:
        """The next token of the sequences `which`; logits [B,V]."""
        if not which:
            return []
        rows = logits[which]
        tokens = drawn(probabilities(rows, self.sampler), self.dice.roll(which))
        for i, token, log_prob in zip(which, tokens.tolist(), log_probability(rows, tokens).tolist(), strict=True):
            self.chosen[i].append(token)
            self.log_probs[i] += log_prob
        return tokens.tolist()
