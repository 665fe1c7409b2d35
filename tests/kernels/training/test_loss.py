"""Losses against a float64 reference and against PyTorch's own; BERT's masking by its shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tfm.kernels.model import build_model
from tfm.kernels.training.loss import IGNORED, cross_entropy, loss_of, mask_tokens
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model


def reference(logits: np.ndarray, targets: np.ndarray, smoothing: float) -> float:
    """-sum_v q(v) ln p(v), position by position, in float64."""
    total, count = 0.0, 0
    for row, target in zip(logits.reshape(-1, logits.shape[-1]).astype(np.float64), targets.reshape(-1), strict=True):
        if target == IGNORED:
            continue
        log_p = row - row.max() - math.log(np.exp(row - row.max()).sum())
        q = np.full(len(row), smoothing / len(row))
        q[target] += 1 - smoothing
        total, count = total - float((q * log_p).sum()), count + 1
    return total / count


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.35])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_cross_entropy(smoothing: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = (4 * torch.randn(3, 5, 11, generator=generator)).to(dtype)
    targets = torch.randint(11, (3, 5), generator=generator)
    targets[0, 2:] = targets[2, 4] = IGNORED
    found = float(cross_entropy(logits, targets, smoothing=smoothing))
    assert found == pytest.approx(reference(logits.double().numpy(), targets.numpy(), smoothing), rel=1e-6)
    wide = logits.to(torch.promote_types(dtype, torch.float32)).flatten(0, 1)
    theirs = F.cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, label_smoothing=smoothing)
    assert found == pytest.approx(float(theirs), rel=1e-6)


def test_gradients_are_those_of_pytorch() -> None:
    logits = torch.randn(2, 4, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1, 2, IGNORED, 0], [6, IGNORED, IGNORED, 3]])
    (ours,) = torch.autograd.grad(cross_entropy(logits, targets, smoothing=0.1), logits)
    (theirs,) = torch.autograd.grad(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1), logits)
    torch.testing.assert_close(ours, theirs)
    assert not ours[0, 2].any()


def test_what_stands_at_ignored_positions_changes_nothing() -> None:
    logits, targets = torch.randn(2, 5, 7), torch.tensor([[1, 2, 3, IGNORED, IGNORED], [4, IGNORED, IGNORED, IGNORED, IGNORED]])
    other = logits.clone()
    other[targets == IGNORED] = 1e4
    assert cross_entropy(logits, targets) == cross_entropy(other, targets)
    alone = torch.cat([logits[0, :3], logits[1, :1]]), torch.cat([targets[0, :3], targets[1, :1]])
    torch.testing.assert_close(cross_entropy(logits, targets), cross_entropy(*alone))


def test_nothing_valid_is_zero() -> None:
    assert cross_entropy(torch.randn(2, 3, 4), torch.full((2, 3), IGNORED)) == 0


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_is_a_share(smoothing: float) -> None:
    with pytest.raises(UsageError, match="smoothing"):
        cross_entropy(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), smoothing=smoothing)


def test_masked_language_model() -> None:
    """15 % are asked; of those 80 % masked, 10 % another token, 10 % as they were (Devlin et al. 2018, section 3.1)."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(10, 1000, (400, 251), generator=generator)
    keep = torch.zeros_like(ids, dtype=torch.bool)
    keep[:, 0] = keep[:, -1] = True
    inputs, targets = mask_tokens(ids, mask=3, vocabulary=1000, keep=keep, generator=generator)
    asked = targets != IGNORED
    assert not asked[keep].any()
    assert (targets[asked] == ids[asked]).all()
    assert (inputs[~asked] == ids[~asked]).all()
    share = asked.sum() / (~keep).sum()
    masked, same = (inputs == 3)[asked].float().mean(), (inputs == ids)[asked].float().mean()
    assert float(share) == pytest.approx(0.15, abs=0.005)
    assert float(masked) == pytest.approx(0.8, abs=0.01)
    assert float(same) == pytest.approx(0.1, abs=0.01)


def test_masking_is_repeatable_and_can_take_all() -> None:
    ids = torch.randint(9, (4, 6))
    first, second = (mask_tokens(ids, mask=8, vocabulary=9, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first[0], second[0])
    _, targets = mask_tokens(ids, mask=8, vocabulary=9, rate=1.0)
    assert torch.equal(targets, ids)


def test_an_encoder_learns_to_fill_in() -> None:
    """The whole of it: a bidirectional stack, masked ids, a loss over the masked positions only."""
    spec = load_model("transformer-toy")
    encoder = build_model(spec)
    logits = encoder(torch.zeros(2, 1, dtype=torch.long), source=torch.randint(100, (2, 7)))["encoder"]
    table = next(weight for name, weight in encoder.named_parameters() if name.endswith("token.weight"))
    _, targets = mask_tokens(torch.randint(100, (2, 7)), mask=0, vocabulary=100, rate=0.5, generator=torch.Generator().manual_seed(0))
    cross_entropy(logits @ table.t(), targets).backward()
    assert table.grad is not None
    assert table.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["gpt-2", "vit-b-16", "bert-base"])
def test_a_loss_for_any_model(name: str) -> None:
    spec = load_model(name)
    outputs = {head.name: torch.randn(2, 3, 5) for head in spec.heads} | {spec.main.name: torch.randn(2, 3, 4)}
    assert loss_of(spec, outputs).ndim == 0
