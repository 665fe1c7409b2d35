"""The original schedule by its numbers; optimizers by the bytes that they keep."""

from __future__ import annotations

import pytest
import torch

from tfm.estimators.memory import OPTIMIZERS as BYTES
from tfm.kernels.training.optimizers import OPTIMIZERS, make_optimizer, schedule, state_bytes, warmup_rate
from tfm.presets.errors import UnknownNameError


@pytest.mark.parametrize(
    ("step", "rate"),
    [(1, 512**-0.5 * 4000**-1.5), (4000, (512 * 4000) ** -0.5), (16000, (512 * 16000) ** -0.5)],
    ids=["the first step", "the peak", "after it"],
)
def test_warmup(step: int, rate: float) -> None:
    """Vaswani et al. 2017, section 5.3, with its own d and warm-up: the peak is 7.0e-4."""
    assert warmup_rate(step, width=512, warmup=4000) == pytest.approx(rate, rel=1e-12)


def test_the_schedule_follows_the_formula_and_goes_on() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = make_optimizer("adam", [weight], rate=0.5)
    rates = schedule(optimizer, width=64, warmup=5)
    seen = []
    for _ in range(9):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rates.step()
    assert seen == pytest.approx([0.5 * warmup_rate(step, width=64, warmup=5) for step in range(1, 10)])
    later = make_optimizer("adam", [weight], rate=0.5)
    schedule(later, width=64, warmup=5, done=7)
    assert later.param_groups[0]["lr"] == pytest.approx(seen[7])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bytes_of_the_state_are_the_ledgers(name: str, fused: bool) -> None:
    weights = [torch.nn.Parameter(torch.randn(3, 5)), torch.nn.Parameter(torch.randn(7))]
    optimizer = make_optimizer(name, weights, fused=fused)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    assert state_bytes(optimizer) == BYTES[name] * 22


def test_adam_takes_the_papers_step() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = make_optimizer("adam", [weight], rate=0.01)
    weight.grad = torch.tensor([3.0, -0.2])
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([0.99, -1.99]))


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(UnknownNameError, match="sgd"):
        make_optimizer("sdg", [])
