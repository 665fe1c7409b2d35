"""A training step on the clock: what runs, what is counted, what is refused."""

from __future__ import annotations

import pytest
import torch

from tfm.estimators.training_step import MOMENTS, training_step
from tfm.kernels.benchmarks import training
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.benchmarks.training import Step, bench_train, hollow
from tfm.kernels.benchmarks.whole import needed_bytes, pass_of
from tfm.kernels.inputs import random_inputs
from tfm.kernels.model import build_model
from tfm.kernels.plan import llama_like
from tfm.kernels.timing import Sample, Stopping
from tfm.kernels.training.optimizers import make_optimizer
from tfm.presets.device import load_device
from tfm.presets.errors import UnreadableError, UsageError
from tfm.presets.loader import load_model

SMALL = llama_like("tiny", layers=3, width=64, heads=4, kv_heads=2, head_dim=16, d_ff=96, vocabulary=80)
BRIEF = Stopping(min_samples=2, min_seconds=0.0, max_seconds=0.05, target_spread=9.0)


@pytest.fixture(autouse=True)
def brief_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm.kernels.benchmarks.yardstick.PROBING", BRIEF)
    monkeypatch.setattr("tfm.kernels.benchmarks.yardstick.MULTIPLYING", BRIEF)
    monkeypatch.setattr("tfm.kernels.benchmarks.setting.MOST_COPIES", 2)


def brief() -> Setting:
    return Setting(device=torch.device("cpu"), stopping=BRIEF, probe_bytes=1 << 20)


@pytest.mark.parametrize("layers", ["2", "all"])
@pytest.mark.parametrize("optimizer", MOMENTS)
def test_a_line(optimizer: str, layers: str) -> None:
    (one,) = bench_train(SMALL, dtype=torch.float32, points=[(2, 13)], layers=layers, optimizer=optimizer, setting=brief())
    predicted = training_step(SMALL, pass_of("train", torch.float32, batch=2, context=13), load_device("rtx-4090"), optimizer=optimizer)
    assert (one.flops, one.bytes) == (predicted.flops, predicted.bytes)
    assert (one.facts["layers_timed"], one.facts["layers_total"]) == (2 if layers == "2" else 3, 3)
    assert one.sample.median_s > 0 and one.floor_s is None  # so small a model stays in the cache
    if layers == "all":
        assert one.facts["held_bytes"] == predicted.held_bytes


@pytest.mark.parametrize("name", ["transformer-toy", "bert-base", "vit-b-16"])
def test_other_kinds_of_models(name: str) -> None:
    spec = load_model(name)
    (one,) = bench_train(spec, dtype=torch.float32, points=[(1, 8)], layers="1", optimizer="sgd", setting=brief())
    assert one.sample.median_s > 0


def test_without_layers_the_layers_rest() -> None:
    model = build_model(SMALL, seed=1)
    rest = hollow(model)
    inputs = random_inputs(model, pass_of("train", torch.float32, batch=2, context=5))
    step = Step(model=model, rest=rest, optimizer=make_optimizer("sgd", model.parameters(), rate=1e-6), inputs=inputs)
    step.outside()
    with_gradient = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert not any(".layers." in name for name in with_gradient)
    assert with_gradient == {name for name, _ in model.named_parameters() if ".layers." not in name}
    step.run()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_step_moves_the_weights() -> None:
    model = build_model(SMALL, seed=1)
    before = [weight.detach().clone() for weight in model.parameters()]
    inputs = random_inputs(model, pass_of("train", torch.float32, batch=2, context=5))
    Step(model=model, rest=hollow(model), optimizer=make_optimizer("adam", model.parameters(), rate=1e-3), inputs=inputs).run()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_training_needs_more_than_a_forward_pass() -> None:
    train, prefill = (pass_of(phase, torch.float32, batch=1, context=9) for phase in ("train", "prefill"))
    assert needed_bytes(SMALL, train) > 3 * needed_bytes(SMALL, prefill) / 2


@pytest.mark.parametrize(
    ("model", "points", "error", "said"),
    [
        pytest.param("gpt-2", [(1, 9), (1, 1025)], UsageError, "for 1024 tokens", id="no such position"),
        pytest.param("llama-3.1-405b", [(1, 9)], UnreadableError, "What would fit", id="too large"),
    ],
)
def test_refused_before_anything_is_built(
    model: str, points: list[tuple[int, int]], error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "build_model", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(error, match=said):
        list(bench_train(load_model(model), points=points, layers="all", setting=brief()))


def test_an_interrupt_gives_what_there_is_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_short = Sample(times=(0.5,), calls=1, stop="interrupted")
    monkeypatch.setattr(training, "beside", lambda _setting, yard, calls, **_: (dict.fromkeys(calls, cut_short), yard))
    lines = bench_train(SMALL, points=[(1, 8), (1, 9)], setting=brief())
    assert next(lines).sample.interrupted
    with pytest.raises(KeyboardInterrupt):
        next(lines)
