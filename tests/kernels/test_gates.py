"""Measured gates: what is chosen, how pairs become efficiencies, and the gate itself with a clock that says what we like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from tfm.estimators.params import params
from tfm.kernels import gates
from tfm.kernels.beats import multiplying, streaming
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.benchmarks.whole import depth
from tfm.kernels.gates import (
    Plan,
    Ready,
    block,
    check_gates,
    default_gates,
    efficiencies,
    measure_gates,
    prepared,
    threads_set,
)
from tfm.kernels.linear import USUAL
from tfm.kernels.machine import machine
from tfm.kernels.model import cut
from tfm.kernels.timing import HarnessError
from tfm.presets.baseline import Gate, Measured, Measurements
from tfm.presets.errors import IncomparableError, UnknownNameError, UsageError
from tfm.presets.loader import load_model

SMALL = Plan(builds=2, blocks=5, pairs=2, seconds=0.0)
TOY = Gate(what="decode", model="gpt-2", layers=1, dtype="fp32", batch=1, context=24)


@pytest.fixture(autouse=True)
def one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more of a model than one, and a small pool."""
    monkeypatch.setattr("tfm.kernels.benchmarks.setting.MOST_COPIES", 1)
    monkeypatch.setattr("tfm.kernels.beats.POOL_BYTES", 1 << 22)
    monkeypatch.setattr("tfm.kernels.beats.SLICE_BYTES", 1 << 20)


def ready(probes: list[float], steps: list[float], ratio: float = 1.0) -> Ready:
    """Calls that take what is given, one after another."""
    times: dict[str, Iterator[float]] = {"probe": iter(probes), "step": iter(steps)}
    return Ready(step=lambda: "step", probe=lambda: "probe", ratio=ratio, watch=lambda call, _: next(times[str(call())]))


def test_a_pair_is_a_step_and_the_probes_around_it() -> None:
    found = block(ready([1.0, 3.0, 5.0, 5.0], [4.0, 4.0, 10.0], ratio=2.0), Plan(pairs=3, seconds=0.0))
    # floors 2 * 2, 2 * 4, 2 * 5 over 4, 4, 10
    assert found.efficiency == pytest.approx(1.0)
    assert found.seconds == 4.0


def test_a_slower_machine_changes_nothing() -> None:
    calm = block(ready([1.0, 1.0, 1.0], [2.0, 2.0]), Plan(pairs=2, seconds=0.0))
    busy = block(ready([3.0, 3.0, 3.0], [6.0, 6.0]), Plan(pairs=2, seconds=0.0))
    assert calm.efficiency == busy.efficiency == 0.5


@pytest.mark.parametrize("model", ["llama-7b", "gpt-2", "mistral-7b", "mixtral-8x7b", "t5-small"])
def test_default_gates_are_of_a_sensible_size(model: str) -> None:
    (gate,) = default_gates(["decode"], [model])
    assert (gate.model, gate.batch, gate.dtype) == (model, 1, "bf16")
    size = gates.weight_bytes(load_model(model), gate)
    assert gate.layers == 1 or size <= gates.STEP_BYTES
    assert 1 <= gate.layers <= depth(load_model(model))


def test_default_gates() -> None:
    found = default_gates(["decode", "attention", "decode"])
    assert [gate.id for gate in found] == ["decode llama-7b, 1 layer, bf16, 1 x 512", "attention llama-7b, bf16, 1 x 8192"]
    with pytest.raises(UnknownNameError, match="Did you mean decode"):
        default_gates(["decod"])
    with pytest.raises(UnknownNameError, match="unknown model"):
        default_gates(["decode"], ["lama-7b"])
    with pytest.raises(UsageError, match="no decoder"):
        default_gates(["decode"], ["bert-base"])
    with pytest.raises(UsageError, match="no plain attention"):
        default_gates(["attention"], ["deepseek-v3"])


@pytest.mark.parametrize("kind", ["decode", "attention"])
def test_the_bytes_of_a_step(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio to the probe is the ledger's."""
    gate = msgspec.structs.replace(TOY, what=kind)
    step, moved_bytes, flops = gates.stepped(gate, Setting(device=torch.device("cpu")), 0)
    step()
    spec = cut(load_model("gpt-2"), 1)
    cache = 2 * 24 * 768 * 4
    read = params(spec).total_params - 1024 * 768 if kind == "decode" else 0  # positions are gathered, the tied table is the head
    assert moved_bytes == 4 * read + cache
    assert flops > 0


@pytest.mark.parametrize("gate", [TOY, msgspec.structs.replace(TOY, what="attention", context=40), msgspec.structs.replace(TOY, batch=40)])
def test_a_real_measurement(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "refuse_impossible", lambda value, *_, **__: value)  # so small a model stays in the cache
    threads = torch.get_num_threads()
    found = measure_gates([gate], threads=1, plan=SMALL)
    assert torch.get_num_threads() == threads
    assert found.machine.threads == 1
    (entry,) = found.entries
    assert entry.gate == gate
    assert len(entry.efficiencies) == SMALL.builds * SMALL.blocks
    assert all(value > 0 for value in entry.efficiencies)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Measurements) == found


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_tuned(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may find other calls than a quiet one, and a gate would compare those."""
    monkeypatch.setattr("tfm.kernels.tuning.CHOSEN", {})
    monkeypatch.setattr("tfm.kernels.tuning.fastest", lambda *_: pytest.fail("tried"))
    with threads_set(threads):
        prepared(TOY).step()


def test_nor_does_a_gate_take_what_was_tuned_before() -> None:
    seen: list[bool] = []
    block(Ready(step=lambda: seen.append(USUAL.get()), probe=lambda: None, ratio=1.0, watch=lambda call, _: (call(), 1.0)[1]), SMALL)
    assert seen and all(seen) and not USUAL.get()


def test_more_layers_than_there_are() -> None:
    with pytest.raises(UsageError, match="gpt-2 has 12 layers"):
        prepared(msgspec.structs.replace(TOY, layers=13))


def test_a_batch_is_held_against_the_matrix_product() -> None:
    """One token a sequence reads each weight once: with many sequences the arithmetic is the wall."""
    few, many = TOY, msgspec.structs.replace(TOY, batch=256, context=2)
    amounts = {gate: gates.stepped(gate, Setting(device=torch.device("cpu")), 0)[1:] for gate in (few, many)}
    for gate, place, beat in ((few, 0, streaming), (many, 1, multiplying)):
        amount, unit = amounts[gate][place], beat(torch.float32, torch.device("cpu")).amount
        with threads_set(1):
            assert prepared(gate).ratio == pytest.approx(amount / (max(1, round(amount / unit)) * unit))


def test_an_efficiency_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "prepared", lambda gate, seed: ready([2.0] * 99, [1.0] * 98))
    with pytest.raises(HarnessError, match=r"gpt-2.*2 is 1\.60 of the bound"):
        efficiencies(TOY, SMALL, lambda _: None)


def test_a_little_more_than_the_probe_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is a product as well, and has no faster kernel than the step has."""
    monkeypatch.setattr(gates, "prepared", lambda gate, seed: ready([1.1] * 99, [1.0] * 98))
    assert efficiencies(TOY, SMALL, lambda _: None) == pytest.approx([1.1] * (SMALL.builds * SMALL.blocks))


# --- the gate -------------------------------------------------------------------------------------------------------


class Runs:
    """`efficiencies` of one run after another, as given."""

    def __init__(self, *runs: list[float]) -> None:
        self.runs = iter(runs)

    def __call__(self, *_: Any) -> tuple[float, ...]:
        return tuple(next(self.runs))


def a_run(level: float, offset: float = 0.0) -> list[float]:
    return [level * (1 + offset + 0.002 * k) for k in range(-5, 6)]


def spread_run(level: float) -> list[float]:
    return [level * (1 + 0.06 * k) for k in range(-5, 6)]


def baseline(**fields: Any) -> Measurements:
    """One gate, on this machine as it is."""
    with threads_set(1):
        here = machine(torch.device("cpu"))
    return Measurements(machine=msgspec.structs.replace(here, **fields), entries=(Measured(gate=TOY, efficiencies=tuple(a_run(0.8))),))


@pytest.mark.parametrize(
    ("runs", "verdict", "blocks"),
    [
        pytest.param([a_run(0.8, 0.001)], "ok", 11, id="the same"),
        pytest.param([a_run(0.7), a_run(0.7)], "slower", 22, id="slower, and again"),
        pytest.param([a_run(0.7), a_run(0.81), a_run(0.81)], "ok", 33, id="slower once is no finding"),
        pytest.param([a_run(0.7), a_run(0.77), a_run(0.72)], "slower", 33, id="slower, hardly, and again"),
        pytest.param([a_run(0.7), [0.765] * 5, [0.765] * 5], "noisy", 21, id="slower together, by one run alone"),
        pytest.param([spread_run(0.8), a_run(0.8)], "ok", 22, id="noisy, then clear"),
        pytest.param([spread_run(0.8)] * 3, "noisy", 33, id="noisy for ever"),
        pytest.param([a_run(0.9)], "faster", 11, id="faster"),
    ],
)
def test_the_gate(runs: list[list[float]], verdict: str, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "efficiencies", Runs(*runs))
    said: list[str] = []
    ((measured, judgement),) = check_gates(baseline(), threshold=0.05, tell=said.append)
    assert judgement.verdict == verdict
    assert len(measured.efficiencies) == blocks
    assert any("again" in line for line in said) is (blocks > 11)


@pytest.mark.parametrize(
    ("runs", "threshold", "blocks"),
    [
        pytest.param([a_run(0.8)], 0.05, 11, id="sure at once"),
        pytest.param([spread_run(0.8)], None, 11, id="for no threshold"),
        pytest.param([spread_run(0.8), a_run(0.8)], 0.05, 22, id="sure by a second run"),
        pytest.param([spread_run(0.8)] * 3, 0.05, 33, id="never sure"),
        pytest.param([spread_run(0.8)], 0.4, 11, id="sure enough for a wide threshold"),
    ],
)
def test_a_baseline_is_measured_until_it_is_sure(
    runs: list[list[float]], threshold: float | None, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every later check is held against it."""
    monkeypatch.setattr(gates, "efficiencies", Runs(*runs))
    (entry,) = measure_gates([TOY], threshold=threshold, threads=1).entries
    assert len(entry.efficiencies) == blocks


@pytest.mark.parametrize(
    "field", [{"torch": "1.0"}, {"device": "an abacus"}, {"driver": "12.4"}, {"backend": "cuda"}], ids=lambda field: next(iter(field))
)
def test_another_machine_is_not_compared(field: dict[str, str]) -> None:
    then = baseline(**field)
    with pytest.raises(IncomparableError, match=f"{next(iter(field))} was {next(iter(field.values()))}, is"):
        check_gates(then, threshold=0.05)


def test_other_threads_are_not_compared() -> None:
    with pytest.raises(IncomparableError, match="threads was 1, is 2"):
        check_gates(baseline(), threshold=0.05, threads=2)


def test_threads() -> None:
    before = torch.get_num_threads()
    with pytest.raises(UsageError, match="at least 1"), threads_set(0):
        pass
    with threads_set(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    assert gates.quiet_threads() >= 1
