"""Parameters, the gap to the rule of thumb, and the rule backwards."""

from __future__ import annotations

import pytest

from tfm.estimators.params import params
from tfm.estimators.rule_of_thumb import rule_of_thumb
from tfm.estimators.solve import solve
from tfm.presets.loader import load_model, model_names


@pytest.mark.parametrize("name", model_names())
def test_parts_sum_to_the_whole(name: str) -> None:
    found = params(load_model(name))
    assert sum(part.params for part in found.components) == found.total_params
    assert found.embedding_params + found.lm_head_params + found.non_embedding_params == found.total_params
    assert sum(term.params for term in found.gap) == found.total_params - found.rule_of_thumb_params
    assert found.active_params <= found.total_params


def test_the_gap_of_llama_7b_is_mostly_the_output_matrix() -> None:
    found = params(load_model("llama-7b"))
    assert found.rule_of_thumb_params == 6_573_522_944
    assert found.total_params == 6_738_415_616
    gap = {term.name: term.params for term in found.gap}
    assert gap == {"output matrix": 131_072_000, "feed-forward matrices": 33_554_432, "norms": 266_240}


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        pytest.param("gpt-2", {"biases", "further embeddings", "norms"}, id="tied head, 4·D wide: only the small things"),
        pytest.param(
            "llama-2-70b", {"output matrix", "attention matrices", "feed-forward matrices", "norms"}, id="grouped heads take away"
        ),
        pytest.param("vit-b-16", {"other heads", "biases", "further embeddings", "norms"}, id="no vocabulary"),
    ],
)
def test_which_terms_explain_the_gap(name: str, terms: set[str]) -> None:
    assert {term.name for term in params(load_model(name)).gap} == terms


def test_a_tower_beside_the_text_model_is_a_term_of_its_own() -> None:
    spec = load_model("gemma-3-27b")
    gap = {term.name: term.params for term in params(spec).gap}
    assert gap["other towers"] > 400_000_000
    assert rule_of_thumb(spec) == 12 * 5376**2 * 62 + 262_208 * 5376


def test_solve_finds_the_published_shape() -> None:
    shapes = solve(7_000_000_000)
    assert (4096, 32) in {(shape.d_model, shape.layers) for shape in shapes}
    for shape in shapes:
        assert shape.params == 12 * shape.d_model**2 * shape.layers + 32_000 * shape.d_model
        assert abs(shape.error) < 0.1
        assert shape.heads * 128 == shape.d_model


@pytest.mark.parametrize("target", [10**6, 10**8, 10**9, 70 * 10**9, 10**12])
def test_solve_is_near_where_there_is_a_shape(target: int) -> None:
    for shape in solve(target):
        assert 64 <= shape.d_model / shape.layers <= 256
    assert solve(10**3) == ()
