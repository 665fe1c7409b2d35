"""torch's own layers: the parameters that are predicted, and a forward pass of each timed."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tfm.estimators.recurrent_layers import layer_costs
from tfm.kernels.layer_timing import Sizes, call, counted_params, layers, refuse_too_large, timed_layers
from tfm.kernels.timing import Stopping
from tfm.presets.errors import UnreadableError

CPU = torch.device("cpu")


@pytest.mark.parametrize("d", [8, 24])
def test_parameters_are_those_of_torch(d: int) -> None:
    assert {cost.layer: cost.params for cost in layer_costs(5, d)} == counted_params(Sizes(n=5, d=d))


def test_attention_has_the_flops_that_torch_counts() -> None:
    sizes = Sizes(n=6, d=16, batch=3, heads=2)
    module = layers(sizes, torch.device("meta"))["attention"]
    with FlopCounterMode(display=False) as counter:
        call(module, torch.randn(3, 6, 16, device="meta"), sizes)()
    assert counter.get_total_flops() == layer_costs(6, 16, batch=3)[-1].flops


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_recurrent_layers_have_the_flops_of_their_cells(kind: str) -> None:
    """The fused layers are not counted by torch; n steps of its cells are."""
    cells = {"rnn": torch.nn.RNNCell, "gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}
    d, n, batch = 8, 5, 3
    cell, x = cells[kind](d, d), torch.randn(n, batch, d)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        state = None
        for step in x:
            state = cell(step, state)
    found = {cost.layer: cost.flops for cost in layer_costs(n, d, batch=batch)}
    assert counter.get_total_flops() == found[kind]


@pytest.mark.parametrize("causal", [False, True])
def test_all_four_are_timed(causal: bool) -> None:
    quick = Stopping(min_samples=2, min_seconds=0.0, max_seconds=0.5)
    found = timed_layers(Sizes(n=12, d=16, batch=2, heads=4, causal=causal), stopping=quick)
    assert set(found) == {"rnn", "gru", "lstm", "attention"}
    assert all(sample.median_s > 0 for sample in found.values())


def test_causal_attention_does_not_look_ahead() -> None:
    sizes = Sizes(n=6, d=8, heads=2, causal=True)
    module, x = layers(sizes, CPU)["attention"], torch.randn(1, 6, 8)
    changed = x.clone()
    changed[:, -1] += 1
    before, after = (call(module, given, sizes)()[0] for given in (x, changed))  # type: ignore[index]
    assert torch.allclose(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UnreadableError, match="GiB"):
        refuse_too_large(Sizes(n=2**22, d=64, heads=8), CPU)
