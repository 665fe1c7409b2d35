"""Teacher forcing: what is given, what is asked, and that nobody sees what is asked of him."""

from __future__ import annotations

import pytest
import torch

from tfm.kernels.model import build_model
from tfm.kernels.training.loss import IGNORED, cross_entropy
from tfm.kernels.training.tasks import BOS, COPY, EOS, PAD, REVERSE, SEPARATOR, Example
from tfm.kernels.training.teacher import decoder_only_batch, encoder_decoder_batch, shift_right
from tfm.kernels.training.tiny import MODELS, tiny_spec
from tfm.kernels.training.trainer import batch_of

EXAMPLES = [
    Example(order=COPY, letters=(7, 8, 9)),
    Example(order=REVERSE, letters=(7, 8)),
    Example(order=REVERSE, letters=(10, 6, 7, 7, 9)),
]


def test_shift_right() -> None:
    targets = torch.tensor([[7, 8, EOS, IGNORED], [9, EOS, IGNORED, IGNORED]])
    assert shift_right(targets).tolist() == [[BOS, 7, 8, EOS], [BOS, 9, EOS, PAD]]


def test_encoder_decoder() -> None:
    batch = encoder_decoder_batch(EXAMPLES[:2])
    assert batch.inputs["source"].tolist() == [[COPY, 7, 8, 9, EOS], [REVERSE, 7, 8, EOS, PAD]]
    assert batch.inputs["source_padding"].tolist() == [[True] * 5, [True] * 4 + [False]]
    assert batch.inputs["tokens"].tolist() == [[BOS, 7, 8, 9], [BOS, 8, 7, EOS]]
    assert batch.targets.tolist() == [[7, 8, 9, EOS], [8, 7, EOS, IGNORED]]


def test_decoder_only() -> None:
    batch = decoder_only_batch(EXAMPLES[:2])
    assert batch.inputs["tokens"].tolist() == [[BOS, COPY, 7, 8, 9, SEPARATOR, 7, 8, 9], [BOS, REVERSE, 7, 8, SEPARATOR, 8, 7, PAD, PAD]]
    assert batch.targets.tolist() == [[IGNORED] * 5 + [7, 8, 9, EOS], [IGNORED] * 4 + [8, 7, EOS, IGNORED, IGNORED]]


@pytest.mark.parametrize("model", MODELS)
def test_padding_changes_no_loss(model: str) -> None:
    """The loss of a batch of different lengths is that of its strings one by one, weighed by what each asks."""
    spec = tiny_spec(model, 20)
    made = build_model(spec, dtype=torch.float64)

    def loss(examples: list[Example]) -> torch.Tensor:
        batch = batch_of(spec, examples)
        return cross_entropy(made(**batch.inputs, kernel="sdpa")["lm_head"], batch.targets)

    asked = [len(one.letters) + 1 for one in EXAMPLES]
    alone = sum(loss([one]) * count for one, count in zip(EXAMPLES, asked, strict=True)) / sum(asked)
    torch.testing.assert_close(loss(EXAMPLES), alone)


@pytest.mark.parametrize("model", MODELS)
def test_a_position_does_not_see_its_target(model: str) -> None:
    spec = tiny_spec(model, 20)
    made = build_model(spec, dtype=torch.float64)
    batch = batch_of(spec, EXAMPLES)
    before = made(**batch.inputs)["lm_head"]
    tokens = batch.inputs["tokens"].clone()
    tokens[:, 3:] = 11
    after = made(**(batch.inputs | {"tokens": tokens}))["lm_head"]
    torch.testing.assert_close(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])
