"""Speculative decoding: the paper's figures, its limits, and what a pass of several tokens costs beyond one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.estimators.latency import roofline
from tfm.estimators.speculative import LONGEST_DRAFT, Speculation, equal_cost_speed_up, expected_tokens, speculation
from tfm.estimators.work import Pass
from tfm.presets.device import load_device
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model

LARGE, SMALL, H100 = load_model("llama-2-70b"), load_model("llama-7b"), load_device("h100-80gb-sxm")


# Leviathan et al. 2023, table 1: alpha, gamma -> factor on wall time where the draft is free (c = 0), rounded as printed.
@pytest.mark.parametrize(
    ("acceptance", "draft_tokens", "speed"),
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)],
)
def test_expected_tokens_are_the_papers(acceptance: float, draft_tokens: int, speed: float) -> None:
    assert round(expected_tokens(acceptance, draft_tokens), 2) == speed


@given(st.floats(0, 0.999), st.integers(1, 40))
def test_the_sum_is_the_closed_form(a: float, g: int) -> None:
    assert expected_tokens(a, g) == pytest.approx((1 - a ** (g + 1)) / (1 - a))
    assert 1 <= expected_tokens(a, g) <= g + 1


def test_the_limits() -> None:
    assert (expected_tokens(0.0, 7), expected_tokens(1.0, 7)) == (1, 8)
    assert equal_cost_speed_up(1.0, 3, 0.0) == 4
    assert equal_cost_speed_up(0.5, 4, 1.0) < 1


def ask(batch: int = 1, context: int = 2048, acceptance: float = 0.8, draft_tokens: int = 4) -> Speculation:
    return speculation(LARGE, SMALL, Pass(batch=batch, context=context), H100, acceptance=acceptance, draft_tokens=draft_tokens)


def test_a_round_is_the_rooflines_of_its_passes() -> None:
    found = ask(draft_tokens=3)
    step = Pass(phase="decode", context=2048)
    drafts = [float(roofline(SMALL, Pass(phase="decode", context=2048 + i), H100).floor_s or 0) for i in range(3)]
    assert found.draft_s == pytest.approx(sum(drafts))
    assert found.verify_s == pytest.approx(roofline(LARGE, Pass(phase="decode", context=2051, new=4), H100).floor_s)
    assert found.round_s == found.draft_s + found.verify_s
    assert found.speed_up == pytest.approx(roofline(LARGE, step, H100).floor_s * found.tokens_per_round / found.round_s)
    assert found.token_s == pytest.approx(found.round_s / found.tokens_per_round)


def test_one_sequence_costs_what_the_theorem_takes_it_to_cost() -> None:
    """A check reads the weights once, whatever the proposals: within a thousandth of the paper's equal cost."""
    found = ask()
    assert found.speed_up == pytest.approx(found.equal_cost_speed_up, rel=1e-3)


def test_a_large_batch_pays_for_its_proposals() -> None:
    few, many = ask(batch=1), ask(batch=256)
    assert many.speed_up < few.speed_up
    assert many.speed_up < many.equal_cost_speed_up
    assert many.best_draft_tokens < few.best_draft_tokens


@pytest.mark.parametrize("acceptance", [0.3, 0.7, 0.95])
def test_the_best_length_is_the_best(acceptance: float) -> None:
    best = ask(acceptance=acceptance)
    every = [ask(acceptance=acceptance, draft_tokens=g).speed_up for g in range(1, LONGEST_DRAFT + 1)]
    assert best.best_speed_up == pytest.approx(max(1.0, *every))
    assert best.best_draft_tokens == 0 or every[best.best_draft_tokens - 1] == pytest.approx(best.best_speed_up)


def test_a_draft_as_slow_as_its_target_is_best_left_out() -> None:
    found = speculation(LARGE, LARGE, Pass(context=512), H100, acceptance=0.8, draft_tokens=2)
    assert (found.best_draft_tokens, found.best_speed_up) == (0, pytest.approx(1.0))
    assert found.speed_up < 1


def test_arrays_are_their_points() -> None:
    work = Pass(batch=np.array([1, 64]), context=np.array([512, 2048]))
    found = speculation(LARGE, SMALL, work, H100, acceptance=0.7, draft_tokens=3)
    points = [ask(batch, context, 0.7, 3) for batch, context in ((1, 512), (64, 2048))]
    for name in Speculation.__struct_fields__:
        assert list(getattr(found, name)) == [getattr(point, name) for point in points]


@pytest.mark.parametrize(("acceptance", "draft_tokens"), [(-0.1, 4), (1.1, 4), (float("nan"), 4), (0.5, 0), (0.5, 99)])
def test_what_makes_no_sense_is_refused(acceptance: float, draft_tokens: int) -> None:
    with pytest.raises(UsageError):
        ask(acceptance=acceptance, draft_tokens=draft_tokens)


def test_an_encoder_is_no_draft() -> None:
    with pytest.raises(UsageError, match="no decoder"):
        speculation(LARGE, load_model("bert-base"), Pass(), H100, acceptance=0.5, draft_tokens=2)
