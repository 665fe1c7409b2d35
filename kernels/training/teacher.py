"""Teacher forcing: at every position the model is given the true tokens before it, and has to say the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .loss import IGNORED
from .tasks import BOS, EOS, PAD, SEPARATOR, Example, String


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What `Model.forward` takes, and what has to come out: targets [B,T], IGNORED where nothing is asked."""

    inputs: dict[str, Any]
    targets: Tensor


def shift_right(targets: Tensor, begin: int = BOS, pad: int = PAD) -> Tensor:
    """Targets [B,T] -> what the decoder is given: `begin`, then all of them but the last (Vaswani et al. 2017, section 3.1).

    IGNORED becomes `pad`: there is no such token.

    >>> shift_right(torch.tensor([[7, 8, EOS], [9, EOS, IGNORED]]))
    tensor([[1, 7, 8],
            [1, 9, 2]])
    """
    shifted = torch.cat([torch.full_like(targets[:, :1], begin), targets[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORED, pad)


def padded(rows: Sequence[String], fill: int) -> Tensor:
    """Rows of different lengths as one tensor [B, longest], filled up on the right."""
    width = max(map(len, rows))
    return torch.tensor([(*row, *[fill] * (width - len(row))) for row in rows])


def source_of(example: Example) -> String:
    """What an encoder reads: the order, the letters, the end."""
    return (example.order, *example.letters, EOS)


def prompt_of(example: Example) -> String:
    """What a decoder alone is given: the order, the letters, a separator, after the beginning."""
    return (BOS, example.order, *example.letters, SEPARATOR)


def encoder_decoder_batch(examples: Sequence[Example]) -> Batch:
    """Source [B,S] with its padding marked, targets y ... EOS, decoder inputs BOS y ...

    The padding of the decoder is on the right, after all that is asked, so a causal mask hides it.
    """
    source = padded([source_of(one) for one in examples], PAD)
    targets = padded([(*one.answer, EOS) for one in examples], IGNORED)
    return Batch(inputs={"tokens": shift_right(targets), "source": source, "source_padding": source != PAD}, targets=targets)


def decoder_only_batch(examples: Sequence[Example]) -> Batch:
    """One sequence BOS order x ... SEP y ... EOS; only y ... EOS is asked, the prompt is IGNORED."""
    rows = [(*prompt_of(one), *one.answer, EOS) for one in examples]
    asked = [(*[IGNORED] * (len(prompt_of(one)) - 1), *one.answer, EOS) for one in examples]
    return Batch(inputs={"tokens": padded([row[:-1] for row in rows], PAD)}, targets=padded(asked, IGNORED))
