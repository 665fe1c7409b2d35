"""Losses: cross-entropy over the positions that count, and the masked-language-model task that encoders are trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from ...presets.errors import UsageError
from ...presets.spec import ModelSpec

IGNORED = -100  # a target that nothing is asked about: padding, a prompt, a token that was not masked


def cross_entropy(logits: Tensor, targets: Tensor, *, smoothing: float = 0.0) -> Tensor:
    """Mean of -sum_v q(v) ln p(v) over the valid positions; p is the softmax of the logits, computed in fp32 at least.

    q puts 1 - smoothing on the target and spreads `smoothing` evenly over all V tokens (Szegedy et al. 2016,
    arXiv:1512.00567, section 7; 0.1 in Vaswani et al. 2017, section 5.4). 0 where no position is valid.

    Args:
        logits: [...,V]. targets: [...], IGNORED where a position does not count.
    """
    if not 0 <= smoothing < 1:
        raise UsageError(f"label smoothing has to be at least 0 and below 1; got {smoothing}")
    valid = targets != IGNORED
    log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    # [...,V] -> [...]
    missed = -log_p.gather(-1, targets.masked_fill(~valid, 0).unsqueeze(-1)).squeeze(-1)
    if smoothing:
        missed = (1 - smoothing) * missed - smoothing * log_p.mean(dim=-1)
    return missed.masked_fill(~valid, 0).sum() / valid.sum().clamp(min=1)


def loss_of(spec: ModelSpec, outputs: dict[str, Tensor]) -> Tensor:
    """A loss for any model, to count or time a step with: cross-entropy at a language model's head, of token 0 everywhere; the sum
    of what comes out of other heads, or of the main stack where there is none.
    """
    parts = []
    for head in spec.heads:
        if head.name in outputs and head.name == "lm_head":
            logits = outputs[head.name]
            parts.append(cross_entropy(logits, torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)))
        elif head.name in outputs:
            parts.append(outputs[head.name].sum().float())
    return torch.stack(parts or [outputs[spec.main.name].sum().float()]).sum()


def mask_tokens(
    ids: Tensor, *, mask: int, vocabulary: int, keep: Tensor | None = None, rate: float = 0.15, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of BERT's masked language model (Devlin et al. 2018, arXiv:1810.04805, section 3.1).

    `rate` of the tokens are chosen; of them 80 % become `mask`, 10 % a random token, 10 % stay. Targets are the chosen tokens,
    IGNORED elsewhere.

    Args:
        ids: [B,T] of `vocabulary` tokens. keep: bool [B,T], True where a token must not be chosen (padding, separators).
    """
    chance = torch.rand(ids.shape, generator=generator)
    chosen = chance < rate
    if keep is not None:
        chosen &= ~keep
    # given that it is below `rate`, the same number says evenly what becomes of the token
    masked, changed = chosen & (chance < 0.8 * rate), chosen & (chance >= 0.8 * rate) & (chance < 0.9 * rate)
    others = torch.randint(vocabulary, ids.shape, generator=generator)
    inputs = torch.where(changed, others, ids.masked_fill(masked, mask))
    return inputs, ids.masked_fill(~chosen, IGNORED)
