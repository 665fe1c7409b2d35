"""Speculative decoding says what the target would have said: greedily the same tokens, drawn the same distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from tfm.kernels.generation import speculative
from tfm.kernels.generation.loop import generate
from tfm.kernels.generation.sampling import Dice, Sampler, drawn, probabilities
from tfm.kernels.generation.speculative import residual, speculate, verified
from tfm.kernels.model import Model, build_model
from tfm.kernels.shrink import shrink
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model

from .conftest import KINDS

ModelOf = Callable[..., Model]
PROMPT = [1, 5, 3, 2, 2, 6]
DRAWN = 12_000
# Two tokens of a vocabulary of three: p after nothing, after each first token; q likewise, and elsewhere.
P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4], [0.8, 0.1, 0.1]], dtype=torch.float64)
Q = torch.tensor([[0.2, 0.2, 0.6], [0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draft", ["another", "itself"])
def test_greedy_is_the_targets_own(kind: str, draft: str, model_of: ModelOf) -> None:
    """Also where tokens cannot be taken back: recurrent states, closed windows, chunks."""
    target = model_of(kind)
    small = target if draft == "itself" else model_of(kind, 5)
    found = speculate(target, small, PROMPT, new=13, draft_tokens=3)
    assert found.tokens == generate(target, [PROMPT], new=13).tokens[0]
    if draft == "itself":  # all is kept: 4 + 4 + 4 + 1 tokens
        assert (found.rounds, found.acceptance) == (4, 1.0)
    assert found.rounds <= 13
    assert speculate(target, small, PROMPT, new=13, draft_tokens=3, cached=False) == found


def test_a_draft_of_another_kind(model_of: ModelOf) -> None:
    target = model_of("mamba")
    found = speculate(target, model_of("chunked"), [4], new=9, draft_tokens=4)
    assert found.tokens == generate(target, [[4]], new=9).tokens[0]


def test_an_end_token_ends_it(model_of: ModelOf) -> None:
    target = model_of("gpt-2")
    free = generate(target, [PROMPT], new=9, sampler=Sampler()).tokens[0]
    found = speculate(target, target, PROMPT, new=9, eos=free[2])
    assert found.tokens == free[: free.index(free[2]) + 1]


def test_an_encoder_decoder_speculates() -> None:
    models = [build_model(shrink(load_model("t5-small")), dtype=torch.float64, seed=seed) for seed in (0, 4)]
    source = torch.tensor([[3, 5, 2, 4]])
    found = speculate(models[0], models[1], [0], new=8, source=source)
    assert found.tokens == generate(models[0], [[0]], new=8, source=source).tokens[0]


# --- the distribution ---------------------------------------------------------------------------------------------------


def pair(dice: Dice) -> tuple[int, int]:
    """The first two tokens of one speculated round with two proposals, or of two rounds."""
    tokens: list[int] = []
    while len(tokens) < 2:
        before, proposals, rows = list(tokens), list[int](), list[Tensor]()
        for _ in range(2 - len(tokens)):
            rows.append(Q[row_of([*before, *proposals])])
            proposals += drawn(rows[-1][None], dice.roll()).tolist()
        p = torch.stack([P[row_of([*before, *proposals[:i]])] for i in range(len(proposals) + 1)])
        tokens += verified(p, torch.stack(rows), proposals, dice)
    return tokens[0], tokens[1]


def row_of(tokens: list[int]) -> int:
    """The row of P and Q that follows so many tokens."""
    return 1 + tokens[-1] if tokens else 0


def p_value(seen: Counter[tuple[int, int]]) -> float:
    """Of the hypothesis that the pairs seen are drawn from the target."""
    exact = {(a, b): float(P[0, a] * P[1 + a, b]) for a in range(3) for b in range(3)}
    total = sum(seen.values())
    return float(chisquare([seen[key] for key in exact], [share * total for share in exact.values()]).pvalue)


def test_the_targets_distribution_is_kept() -> None:
    dice = Dice(11, 1)
    assert p_value(Counter(pair(dice) for _ in range(DRAWN))) > 0.01


@pytest.mark.parametrize(
    "broken",
    [lambda p, q: p, lambda p, q: q, lambda p, q: (p - q).abs() / (p - q).abs().sum()],
    ids=["the-target-itself", "the-draft-again", "both-sides"],
)
def test_the_test_finds_a_wrong_residual(broken: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "residual", broken)
    dice = Dice(11, 1)
    assert p_value(Counter(pair(dice) for _ in range(DRAWN))) < 1e-6


def test_real_models_keep_it_too(model_of: ModelOf) -> None:
    """The second token after a prompt, with a draft that is often refused."""
    target, draft, warm, count = model_of("short-conv"), model_of("short-conv", 5), Sampler(temperature=4.0, top_k=8), 1500
    with torch.inference_mode():
        first = exact_next(target, PROMPT, warm)
        exact = sum(first[t] * exact_next(target, [*PROMPT, t], warm) for t in range(11) if first[t] > 0)
    assert isinstance(exact, Tensor)
    runs = [speculate(target, draft, PROMPT, new=2, draft_tokens=1, sampler=warm, seed=seed) for seed in range(count)]
    seen = torch.bincount(torch.tensor([run.tokens[1] for run in runs]), minlength=11).double()
    likely = exact * count >= 5
    rest = torch.tensor([float(seen[~likely].sum()), float(exact[~likely].sum() * count)])
    observed, expected = (torch.cat([x[likely], y[None].double()]) for x, y in ((seen, rest[0]), (exact * count, rest[1])))
    keep = expected > 0
    expected = expected[keep] * (observed[keep].sum() / expected[keep].sum())
    assert chisquare(observed[keep].numpy(), expected.numpy()).pvalue > 0.01
    assert 0.05 < sum(run.accepted for run in runs) / count < 0.95


def exact_next(model: Model, tokens: list[int], sampler: Sampler) -> Tensor:
    """What the next token is drawn from, [V]."""
    return probabilities(model(torch.tensor([tokens]))["lm_head"][:, -1], sampler)[0]


def test_acceptance_is_the_overlap() -> None:
    """alpha = sum of min(p, q) (section 3.2): 0.2 + 0.2 + 0.2 here."""
    dice = Dice(3, 1)
    kept = sum(len(verified(P[:2], Q[:1], drawn(Q[:1], dice.roll()).tolist(), dice)) == 2 for _ in range(DRAWN))
    assert kept / DRAWN == pytest.approx(0.6, abs=0.015)


def test_residual() -> None:
    assert residual(P[0], Q[0]).tolist() == pytest.approx([0.75, 0.25, 0.0])
    assert residual(P[0], P[0]).tolist() == P[0].tolist()


def test_one_vocabulary(model_of: ModelOf) -> None:
    with pytest.raises(UsageError, match="one vocabulary"):
        speculate(model_of("mamba"), build_model(shrink(load_model("gpt-2")), dtype=torch.float64), [1], new=4)


@pytest.mark.parametrize(("prompt", "new", "count"), [([], 1, 1), ([1], 0, 1), ([1], 1, 0)])
def test_what_cannot_be_speculated_is_refused(prompt: list[int], new: int, count: int, model_of: ModelOf) -> None:
    with pytest.raises(UsageError):
        speculate(model_of("gpt-2"), model_of("gpt-2"), prompt, new=new, draft_tokens=count)
