"""How many unseen strings a model gets right to the last letter, decoding greedily with its cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model import Model
from .tasks import BOS, EOS, Example, String
from .teacher import prompt_of, source_of
from .trainer import has_encoder


@dataclass(frozen=True, kw_only=True)
class Score:
    """Answers that were right in full, of how many, and the first that was not."""

    right: int
    tried: int
    wrong: tuple[Example, String] | None = None

    @property
    def share(self) -> float:
        """right / tried; 0 where nothing was tried."""
        return self.right / self.tried if self.tried else 0.0


def exact_match(model: Model, examples: Iterable[Example]) -> Score:
    """Examples answered and compared; those of one length run together, so that nothing is padded."""
    groups: dict[int, list[Example]] = defaultdict(list)
    for one in examples:
        groups[len(one.letters)].append(one)
    pairs = [pair for group in groups.values() for pair in zip(group, answers(model, group), strict=True)]
    wrong = [(one, said) for one, said in pairs if said != one.answer]
    return Score(right=len(pairs) - len(wrong), tried=len(pairs), wrong=wrong[0] if wrong else None)


@torch.inference_mode()
def answers(model: Model, examples: Sequence[Example]) -> list[String]:
    """What the model says to examples of one length: at every step the likeliest token, until its end or one token too many."""
    longest = len(examples[0].letters) + 2
    if has_encoder(model.spec):
        source = torch.tensor([source_of(one) for one in examples])
        tokens, first = torch.full((len(examples), 1), BOS), {"source": source}
    else:
        source, first = torch.empty(0, 0), {}
        tokens = torch.tensor([prompt_of(one) for one in examples])
    cache = model.cache(len(examples), tokens.shape[1] + longest, source=source.shape[1])
    said: list[Tensor] = []
    for _ in range(longest):
        tokens = model(tokens, cache=cache, last=True, **first)["lm_head"][:, -1].argmax(dim=-1, keepdim=True)
        first = {}
        said.append(tokens)
        if bool((torch.cat(said, dim=1) == EOS).any(dim=1).all()):
            break
    return [until_end(row) for row in torch.cat(said, dim=1).tolist()]


def until_end(ids: Sequence[int]) -> String:
    """The tokens before the first EOS; all of them where there is none, which is never an answer."""
    return tuple(ids[: ids.index(EOS)]) if EOS in ids else (*ids, EOS)
