"""Which tokens may come, and with which chance."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tfm.kernels.generation.sampling import GREEDY, Dice, Sampler, drawn, log_probability, probabilities, top_k, top_p
from tfm.presets.errors import UsageError

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12).map(lambda row: torch.tensor([row], dtype=torch.float64))


@given(LOGITS)
def test_temperature_0_is_the_largest_the_first_among_equals(logits: Tensor) -> None:
    found = probabilities(logits, GREEDY)
    first = int((logits[0] == logits.max()).nonzero()[0])
    assert found.tolist() == [[float(i == first) for i in range(logits.shape[1])]]


@given(LOGITS)
def test_temperature_to_0_is_greedy(logits: Tensor) -> None:
    """A clear winner takes all; equals share."""
    cold = probabilities(logits, Sampler(temperature=1e-9))
    assert torch.isfinite(cold).all()
    ordered = logits[0].sort(descending=True).values
    if ordered[0] - ordered[1] > 1e-6:
        torch.testing.assert_close(cold, probabilities(logits, GREEDY))


def test_a_higher_temperature_is_more_even() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
    shares = [float(probabilities(logits, Sampler(temperature=t))[0, 0]) for t in (0.5, 1.0, 2.0, 1000.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(1 / 3, abs=1e-3)
    torch.testing.assert_close(probabilities(logits, Sampler(temperature=1.0)), logits.softmax(-1))


@given(LOGITS, st.floats(0.01, 1.0))
def test_top_p_keeps_the_smallest_set_with_the_mass(logits: Tensor, mass: float) -> None:
    probs = logits.softmax(-1)
    keep = top_p(probs, mass)[0]
    kept, ordered = probs[0][keep], probs[0].sort(descending=True).values
    assert float(kept.sum()) >= mass - 1e-12
    torch.testing.assert_close(kept.sort(descending=True).values, ordered[: len(kept)])  # the most likely
    if mass < 1 and len(kept) > 1:  # one fewer would not do
        assert float(ordered[: len(kept) - 1].sum()) < mass


@given(LOGITS, st.integers(1, 15))
def test_top_k_keeps_so_many(logits: Tensor, count: int) -> None:
    probs = logits.softmax(-1)
    keep = top_k(probs, count)[0]
    assert int(keep.sum()) == min(count, logits.shape[1])
    assert probs[0][keep].min() >= (probs[0][~keep].max() if (~keep).any() else 0)


def test_among_equals_the_lower_numbers_stay() -> None:
    even = torch.zeros(1, 5, dtype=torch.float64)
    assert top_k(even.softmax(-1), 2).tolist() == [[True, True, False, False, False]]
    assert top_p(even.softmax(-1), 0.5).tolist() == [[True, True, True, False, False]]


def test_both_cuts_together_and_the_rest_is_one_again() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    found = probabilities(logits, Sampler(temperature=1.0, top_k=3, top_p=0.7))
    # of three, 0.665 + 0.245 + 0.09: two have 0.7
    assert found[0, 2:].tolist() == [0, 0]
    assert float(found.sum()) == pytest.approx(1)
    assert float(found[0, 0] / found[0, 1]) == pytest.approx(torch.e)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8).filter(lambda row: sum(row) > 0.1), st.floats(0, 1, exclude_max=True))
def test_what_is_drawn_can_be_drawn(row: list[float], uniform: float) -> None:
    probs = torch.tensor([row], dtype=torch.float64)
    token = int(drawn(probs / probs.sum(), torch.tensor([uniform], dtype=torch.float64)))
    assert row[token] > 0


def test_draws_follow_the_distribution() -> None:
    probs = torch.tensor([[0.1, 0.0, 0.6, 0.3]], dtype=torch.float64).expand(1000, -1)
    even = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    assert torch.bincount(drawn(probs, even), minlength=4).tolist() == [100, 0, 600, 300]


def test_a_stream_a_sequence() -> None:
    many, alone = Dice(5, 3), Dice(7, 1)
    assert [many.roll([2]).tolist(), many.roll().tolist()[2:]] == [alone.roll().tolist(), alone.roll().tolist()]


def test_log_probability_is_the_models_own() -> None:
    logits = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert log_probability(logits, torch.tensor([0, 1])).tolist() == pytest.approx([-0.693147, -1.313262], abs=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}],
    ids=str,
)
def test_what_makes_no_distribution_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Sampler(**wrong)  # type: ignore[arg-type]
