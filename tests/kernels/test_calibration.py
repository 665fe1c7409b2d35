"""A calibration from end to end at tiny sizes, and what it can then expect."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tfm.estimators.expected import expected
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.benchmarks.whole import pass_of
from tfm.kernels.calibration import calibrate, in_time, middle
from tfm.kernels.machine import machine
from tfm.kernels.plan import Plan, llama_like, standard_plan
from tfm.kernels.timing import Stopping
from tfm.presets.calibration import Product, load_calibration, save_calibration

CPU = torch.device("cpu")
SMALL = llama_like("small", layers=2, width=64, heads=4, kv_heads=2, head_dim=16, d_ff=96, vocabulary=80)


BRIEF = Stopping(min_samples=1, min_seconds=0.0, max_seconds=0.01)
PLAN = Plan(
    dtypes=(torch.float32, torch.bfloat16), sizes=(1 << 20, 1 << 16), pool_bytes=1 << 18,
    products=((1, 64, 32), (4, 32, 48), (1, 9999, 9999)),
    steps=((4, 2, 16, 40), (4, 4, 16, 8)), flash=((4, 2, 16, 24),), rows=3, width=32, inner=40,
    checks=((SMALL, "decode", 1, 12), (SMALL, "prefill", 2, 7)),
    between=(1 << 12, 1 << 14), beat_bytes=1 << 18, stopping=BRIEF, whole=BRIEF, careful=BRIEF,
)  # fmt: skip


def test_a_small_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm.kernels.calibration.LONGEST_CHECK_S", 1e9)  # points so small say little of larger ones
    said: list[str] = []
    setting = Setting(device=CPU, probe_bytes=1 << 20, tell=said.append)
    found = calibrate(setting, PLAN, version="7")
    assert found.machine == machine(CPU)
    assert (found.version, found.device.name, found.device.kind) == ("7", "local", "cpu")
    assert [(line.dtype, line.m, line.k, line.n) for line in found.products] == [
        (dtype, *shape) for dtype in ("fp32", "bf16") for shape in ((1, 64, 32), (4, 32, 48))
    ]  # a matrix larger than the pool is left out
    assert [(line.new, line.context) for line in found.attended if line.dtype == "fp32"] == [(1, 40), (1, 8), (24, 24)]
    assert {(check.phase, check.dtype) for check in found.checks} == {
        (phase, dtype) for phase in ("decode", "prefill") for dtype in ("fp32", "bf16")
    }
    assert found.device.memory_bytes_per_s == max(line.bytes_per_s for line in found.streams if line.size_bytes == 1 << 20)
    assert set(found.device.peak_flops_per_s) == {"fp32", "bf16"}
    assert any("whole models" in line for line in said)
    assert {(line.dtype, line.norm, line.between_bytes) for line in found.overheads} == {
        (dtype, norm, size) for dtype in ("fp32", "bf16") for norm in ("rms", "layer") for size in PLAN.between
    }
    path = save_calibration(found)
    assert load_calibration() == found
    got = expected(SMALL, pass_of("decode", torch.bfloat16, batch=1, context=9), found)
    assert got is not None
    assert got.seconds > 0
    path.unlink()


def test_a_calibration_keeps_to_its_time() -> None:
    said: list[str] = []
    plan = replace(PLAN, dtypes=(torch.float32,), visits_s=0.0, checks_s=0.0)
    found = calibrate(Setting(device=CPU, probe_bytes=1 << 20, tell=said.append), plan)
    assert len(found.products) == 2 and len(found.attended) == 3  # every point was visited once
    assert not found.checks and any("no time was left for whole models" in line for line in said)
    assert expected(SMALL, pass_of("decode", torch.float32, batch=1, context=9), found) is not None


def test_what_is_found_in_time() -> None:
    assert list(in_time(iter("abc"), float("inf"))) == ["a", "b", "c"]
    assert list(in_time(iter("abc"), 0.0)) == []


def test_the_standard_plan_measures_both_sides_of_what_it_will_be_asked() -> None:
    plan = standard_plan(Setting(device=CPU))
    assert {1, 8, 64, 512} <= {m for m, _, _ in plan.products}
    assert plan.pool_bytes >= 2**30
    assert {heads // kv for heads, kv, _, _ in plan.steps} == {1, 4, 8}
    assert max(plan.sizes) == plan.sizes[0] >= 2**30
    assert {phase for _, phase, _, _ in plan.checks} == {"decode", "prefill"}


@pytest.mark.parametrize(
    ("visits", "taken"),
    [
        pytest.param([(2.0, 0.01), (1.0, 0.02)], 1.0, id="of two the faster"),
        pytest.param([(2.0, 0.01), (1.0, 0.49)], 2.0, id="the calm one"),
        pytest.param([(2.0, 0.6), (1.0, 0.49)], 1.0, id="none was calm"),
        pytest.param([(2.0, 0.01), (1.0, 0.01), (3.0, 0.01)], 2.0, id="the middle one"),
    ],
)
def test_of_several_visits_one_counts(visits: list[tuple[float, float]], taken: float) -> None:
    lines = [Product(dtype="fp32", m=1, k=2, n=3, seconds=seconds, spread=spread) for seconds, spread in visits]
    assert [line.seconds for line in middle(lines, Product)] == [taken]
