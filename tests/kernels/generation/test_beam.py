"""Beam search against greedy, against every sequence there is, and against itself without a cache."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch

from tfm.kernels.generation.beam import Hypothesis, beam_search, chosen
from tfm.kernels.generation.loop import generate
from tfm.kernels.model import Model, build_model
from tfm.kernels.shrink import shrink
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model

from .conftest import KINDS

ModelOf = Callable[..., Model]
PROMPT = [1, 5, 3, 2, 2, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_a_beam_of_1_is_greedy(kind: str, model_of: ModelOf) -> None:
    model = model_of(kind)
    greedy = generate(model, [PROMPT], new=8, eos=4)
    (found,) = beam_search(model, PROMPT, new=8, beams=1, eos=4)
    assert found.tokens == greedy.tokens[0]
    assert found.log_prob == pytest.approx(greedy.log_probs[0])


@pytest.mark.parametrize("kind", KINDS)
def test_its_score_is_at_least_greedys_and_the_cache_changes_nothing(kind: str, model_of: ModelOf) -> None:
    for seed in range(3):
        model = model_of(kind, seed)
        greedy = generate(model, [PROMPT], new=7)
        found = beam_search(model, PROMPT, new=7, beams=3)
        assert found[0].log_prob >= greedy.log_probs[0] - 1e-9
        plain = beam_search(model, PROMPT, new=7, beams=3, cached=False)
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        assert [one.log_prob for one in found] == sorted((one.log_prob for one in found), reverse=True)


def test_a_hypothesis_has_its_models_own_probability(model_of: ModelOf) -> None:
    model = model_of("mamba")
    for one in beam_search(model, PROMPT, new=6, beams=4):
        whole = torch.tensor([[*PROMPT, *one.tokens]])
        with torch.inference_mode():
            logs = model(whole)["lm_head"][0].log_softmax(-1)
        seen = sum(float(logs[len(PROMPT) - 1 + i, token]) for i, token in enumerate(one.tokens))
        assert one.log_prob == pytest.approx(seen)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_wide_enough_it_finds_the_best_there_is(alpha: float, model_of: ModelOf) -> None:
    """As many beams as there are sequences: nothing is dropped."""
    model, eos, V, new = model_of("mamba2"), 0, 11, 3
    every = []
    for tokens in product(range(V), repeat=new):
        end = tokens.index(eos) + 1 if eos in tokens else new
        with torch.inference_mode():
            logs = model(torch.tensor([[*PROMPT, *tokens]]))["lm_head"][0].log_softmax(-1)
        log_prob = sum(float(logs[len(PROMPT) - 1 + i, tokens[i]]) for i in range(end))
        every.append(Hypothesis(tokens=tokens[:end], log_prob=log_prob))
    best = max(every, key=lambda one: one.score(alpha))
    found = beam_search(model, PROMPT, new=new, beams=V**2, eos=eos, length_penalty=alpha)[0]
    assert found.tokens == best.tokens
    assert found.score(alpha) == pytest.approx(best.score(alpha))


def test_length_penalty_is_the_papers() -> None:
    one = Hypothesis(tokens=(1, 2, 3), log_prob=-2.0)
    assert one.score(0.0) == -2.0
    assert one.score(0.6) == pytest.approx(-2.0 / (8**0.6 / 6**0.6))


def test_ended_ones_go_no_further(model_of: ModelOf) -> None:
    found = beam_search(model_of("gpt-2"), PROMPT, new=6, beams=5, eos=2)
    assert len(found) == 5
    for one in found:
        assert one.ended == (one.tokens[-1] == 2)
        assert 2 not in one.tokens[:-1]
        assert one.ended or len(one.tokens) == 6


def test_greedys_beginning_is_never_dropped() -> None:
    good = [Hypothesis(tokens=(i,), log_prob=-1.0 * i, greedy=False) for i in (1, 2, 3)]
    greedy = Hypothesis(tokens=(9,), log_prob=-8.0)
    assert chosen([*good, greedy], 2, 0.0) == [good[0], greedy]


def test_an_encoder_decoder_translates() -> None:
    model = build_model(shrink(load_model("t5-small")), dtype=torch.float64)
    source = torch.tensor([[3, 5, 2, 4]])
    found = beam_search(model, [0], new=6, beams=3, source=source)
    plain = beam_search(model, [0], new=6, beams=3, source=source, cached=False)
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert found[0].log_prob >= generate(model, [[0]], new=6, source=source).log_probs[0] - 1e-9


@pytest.mark.parametrize(("prompt", "new", "beams"), [([], 1, 1), ([1], 0, 1), ([1], 1, 0)])
def test_what_cannot_be_searched_is_refused(prompt: list[int], new: int, beams: int, model_of: ModelOf) -> None:
    with pytest.raises(UsageError):
        beam_search(model_of("gpt-2"), prompt, new=new, beams=beams)


@pytest.mark.parametrize("penalty", [float("nan"), float("inf"), 1e300, -21.0])
def test_a_length_penalty_that_no_float_holds(penalty: float, model_of: ModelOf) -> None:
    with pytest.raises(UsageError, match="length penalty"):
        beam_search(model_of("gpt-2"), [1], new=2, length_penalty=penalty)
