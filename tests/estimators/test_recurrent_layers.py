"""Recurrent layers and attention: formulas by hand, and where they cross."""

from __future__ import annotations

import pytest

from tfm.estimators.recurrent_layers import LayerCost, layer_costs


def cost(layer: str, n: int, d: int, *, causal: bool = False, batch: int = 1) -> LayerCost:
    return next(cost for cost in layer_costs(n, d, causal=causal, batch=batch) if cost.layer == layer)


@pytest.mark.parametrize(
    ("layer", "params", "flops", "steps"),
    [
        ("rnn", 2 * 9 + 2 * 3, 2 * 5 * 2 * 9, 5),
        ("gru", 3 * (2 * 9 + 2 * 3), 3 * 2 * 5 * 2 * 9, 5),
        ("lstm", 4 * (2 * 9 + 2 * 3), 4 * 2 * 5 * 2 * 9, 5),
        ("attention", 4 * (9 + 3), 2 * (4 * 5 * 9 + 2 * 25 * 3), 1),
    ],
)
def test_by_hand(layer: str, params: int, flops: int, steps: int) -> None:
    found = cost(layer, 5, 3)
    assert (found.params, found.flops, found.sequential_steps, found.path_length) == (params, flops, steps, steps)


def test_table_1_crosses_where_n_is_d() -> None:
    assert cost("rnn", 7, 7).core_flops == cost("attention", 7, 7).core_flops
    assert cost("rnn", 6, 7).core_flops > cost("attention", 6, 7).core_flops
    assert cost("rnn", 8, 7).core_flops < cost("attention", 8, 7).core_flops
    assert cost("rnn", 1, 7).core_equal_at_n == 7


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layer", ["rnn", "gru", "lstm"])
def test_the_crossings_are_where_the_flops_are_equal(layer: str, causal: bool) -> None:
    d = 12
    for field, figure in (("equal_at_n", "flops"), ("core_equal_at_n", "core_flops")):
        n = getattr(cost(layer, 1, d, causal=causal), field)
        gaps = [getattr(cost("attention", at, d, causal=causal), figure) - getattr(cost(layer, at, d), figure) for at in range(1, 200)]
        assert (n is None) == all(gap > 0 for gap in gaps)
        if n is not None:
            assert gaps[n - 1] == 0


def test_a_batch_multiplies_work_and_nothing_else() -> None:
    for one, three in zip(layer_costs(5, 4), layer_costs(5, 4, batch=3), strict=True):
        assert (three.flops, three.core_flops) == (3 * one.flops, 3 * one.core_flops)
        assert (three.params, three.sequential_steps, three.equal_at_n) == (one.params, one.sequential_steps, one.equal_at_n)
