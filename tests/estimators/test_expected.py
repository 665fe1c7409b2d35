"""The expected time: on an ideal machine it is the floor, and it follows what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from tfm.estimators.expected import (
    along,
    around_rows,
    averaged,
    between_runs,
    correction,
    expected,
    expected_figures,
    is_fused,
    joining,
    running_as_one,
)
from tfm.estimators.latency import roofline
from tfm.estimators.ledger import ledger
from tfm.estimators.pace import ATTENTION_OVERLAP, Pace, paced
from tfm.estimators.work import Pass
from tfm.presets.calibration import SCHEMA, Attended, Calibration, Check, Elementwise, Machine, Overhead, Phase, Product
from tfm.presets.device import Device
from tfm.presets.dtypes import DTYPES
from tfm.presets.loader import load_model

BANDWIDTH, PEAK = 20e9, 500e9
replace = msgspec.structs.replace


def product_seconds(m: int, k: int, n: int) -> float:
    """An ideal machine: whichever wall is hit first."""
    return max(4 * k * n / BANDWIDTH, 2 * m * k * n / PEAK)


def attended(new: int, context: int, kv_heads: int) -> Attended:
    pairs = new * context - new * (new - 1) // 2
    seconds = max(4 * 2 * kv_heads * context * 128 / BANDWIDTH if new == 1 else 0.0, 4 * 32 * pairs * 128 / PEAK)
    return Attended(dtype="fp32", batch=1, heads=32, kv_heads=kv_heads, head_dim=128, new=new, context=context, seconds=seconds, spread=0.0)


def elements(seconds: float) -> Iterator[Elementwise]:
    for name in ("norm", "add", "mul", "silu", "gelu_tanh"):
        yield Elementwise(name=name, dtype="fp32", seconds_per_element=seconds)


def ideal(**fields: object) -> Calibration:
    """What calibrating the ideal machine gives: operators cost nothing beside their bytes and FLOPs."""
    device = Device(
        name="local", title="ideal", vendor="this machine", kind="cpu", form=None, capacity_bytes=2**36, memory_bytes_per_s=BANDWIDTH,
        peak_flops_per_s={"fp32": PEAK}, link_bytes_per_s=None, cache_bytes=None, tdp_w=None, source=("a test",), retrieved="2026-11-30",
    )  # fmt: skip
    shapes = [(1024, 1024), (4096, 4096), (4096, 11008)]
    bare = Calibration(
        schema=SCHEMA, made="2026-11-30T12:00:00+00:00", version="0", device=device, launch_s=1e-12, streams=(),
        machine=Machine(device="ideal", backend="cpu", threads=2, torch="2", driver=None),
        products=tuple(
            Product(dtype="fp32", m=m, k=k, n=n, seconds=product_seconds(m, k, n), spread=0.0)
            for m in (1, 25, 50, 100, 400)
            for k, n in shapes
        ),
        attended=tuple(attended(1, context, kv) for context in (512, 16384) for kv in (32, 8))
        + tuple(attended(new, new, 8) for new in (128, 2048)),
        elementwise=tuple(elements(1e-18)),
        overheads=(Overhead(dtype="fp32", seconds_per_row=1e-12, between_bytes=1),),
        checks=(),
    )  # fmt: skip
    return replace(bare, **fields)


def fp32(**fields: object) -> Pass:
    kind = DTYPES["fp32"]
    return Pass(weight_dtype=kind, kv_dtype=kind, activation_dtype=kind, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["llama-7b", "llama-3-8b", "mistral-7b", "gpt-2"])
@pytest.mark.parametrize(("phase", "batch", "context"), [("decode", 1, 700), ("decode", 3, 5000), ("prefill", 1, 300), ("prefill", 2, 900)])
def test_the_ideal_machine_takes_the_floor(model: str, phase: Phase, batch: int, context: int) -> None:
    spec, measured = load_model(model), ideal()
    work = fp32(phase=phase, batch=batch, context=context)
    got = expected(spec, work, measured)
    assert got is not None
    assert got.seconds == pytest.approx(roofline(spec, work, measured.device).floor_s, rel=0.03)
    assert got.seconds == pytest.approx(got.products_s + got.attention_s + got.other_s)
    assert got.low_s < got.seconds < got.high_s


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v3", "whisper-large-v3", "bert-base", "vit-b-16", "gemma-2-9b"])
def test_every_kind_of_model_has_a_time(model: str) -> None:
    spec = load_model(model)
    for phase in ("prefill", "decode") if spec.decodes else ("prefill",):
        got = expected(spec, fp32(phase=phase, batch=1, context=400), ideal())
        assert got is not None
        assert math.isfinite(got.seconds)
        assert got.seconds > 0


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        pytest.param("slower products", {"products": tuple(replace(p, seconds=2 * p.seconds) for p in ideal().products)}, id="products"),
        pytest.param("slower attention", {"attended": tuple(replace(a, seconds=9 * a.seconds) for a in ideal().attended)}, id="attention"),
        pytest.param("slower operators", {"overheads": (Overhead(dtype="fp32", seconds_per_row=1e-3, between_bytes=1),)}, id="overhead"),
        pytest.param("slower elements", {"elementwise": tuple(elements(1e-6))}, id="elements"),
    ],
)
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_what_is_slower_is_expected_to_be(change: str, fields: dict[str, object], phase: Phase) -> None:
    spec, work = load_model("llama-7b"), fp32(phase=phase, context=2048)
    fast, slow = expected(spec, work, ideal()), expected(spec, work, ideal(**fields))
    assert fast is not None
    assert slow is not None
    assert slow.seconds > 1.005 * fast.seconds, change


def test_more_work_takes_longer() -> None:
    spec = load_model("llama-7b")
    times = [expected(spec, fp32(phase="decode", batch=b, context=s), ideal()) for b, s in ((1, 1000), (1, 9000), (8, 9000), (64, 9000))]
    seconds = [time.seconds for time in times if time is not None]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) == 4


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(Pass(phase="decode"), id="bf16 was not measured"),
        pytest.param(replace(fp32(phase="decode"), weight_dtype=DTYPES["int8"]), id="narrow weights were not"),
        pytest.param(replace(fp32(phase="decode"), kv_dtype=DTYPES["fp8"]), id="a narrow cache was not"),
        pytest.param(fp32(phase="train"), id="training was not"),
    ],
)
def test_what_was_not_measured_has_no_time(work: Pass) -> None:
    assert expected(load_model("gpt-2"), work, ideal()) is None


def check(phase: Phase, ratio: float, dtype: str = "fp32") -> Check:
    return Check(phase=phase, dtype=dtype, model="m", batch=1, context=8, predicted_s=2.0, measured_s=2.0 * ratio)


@pytest.mark.parametrize(
    ("checks", "factor", "margin"),
    [
        pytest.param((), 1.0, 0.1, id="none: nothing is corrected, and not much promised"),
        pytest.param((check("decode", 1.2),), 1.0, 0.2, id="one, which agrees with nobody"),
        pytest.param((check("decode", 1.2), check("decode", 1.2)), 1.2, 0.03, id="two that agree"),
        pytest.param((check("decode", 1.2), check("decode", 1.1), check("decode", 1.5)), 1.1, 1.5 / 1.1 - 1, id="all slower: as all agree"),
        pytest.param((check("decode", 0.8), check("decode", 0.9)), 0.9, 0.9 / 0.8 - 1, id="all faster"),
        pytest.param((check("decode", 0.9), check("decode", 1.3)), 1.0, 0.3, id="they disagree"),
        pytest.param((check("decode", 40.0),), 1.0, 39.0, id="far off: still no time below 0"),
        pytest.param((check("prefill", 3.0), check("decode", 3.0, "bf16")), 1.0, 0.1, id="another phase or format"),
    ],
)
def test_whole_models_correct(checks: tuple[Check, ...], factor: float, margin: float) -> None:
    assert correction(checks, phase="decode", dtype="fp32") == pytest.approx((factor, margin))
    bare, corrected = (expected(load_model("gpt-2"), fp32(phase="decode", context=99), ideal(checks=c)) for c in ((), checks))
    assert bare is not None
    assert corrected is not None
    assert corrected.seconds == pytest.approx(factor * bare.seconds)
    assert corrected.high_s / corrected.seconds == pytest.approx(1 + margin) == corrected.seconds / corrected.low_s


def test_a_sweep_is_its_points() -> None:
    spec, measured = load_model("llama-7b"), ideal()
    batches, contexts = np.array([1, 1, 4]), np.array([100, 3000, 3000])
    swept = expected_figures(spec, fp32(batch=batches, context=contexts), measured)
    for index, (batch, context) in enumerate(zip(batches.tolist(), contexts.tolist(), strict=True)):
        point = expected_figures(spec, fp32(batch=batch, context=context), measured)
        assert {name: values[index] for name, values in swept.items()} == point
    assert set(expected_figures(load_model("bert-base"), fp32(context=64), measured)) == set(swept)
    assert expected_figures(load_model("bert-base"), fp32(context=64), measured)["decode_expected_s"] is None


@pytest.mark.parametrize(
    ("x", "flat", "y"),
    [
        pytest.param(2, False, 10, id="at a point"),
        pytest.param(4, False, 20, id="between two, on logarithmic axes"),
        pytest.param(16, False, 80, id="beyond: in proportion"),
        pytest.param(1, False, 5, id="before: in proportion"),
        pytest.param(16, True, 40, id="beyond: a rate stays"),
        pytest.param(1, True, 10, id="before: a rate stays"),
    ],
)
def test_along(x: float, flat: bool, y: float) -> None:
    assert along([(2, 10.0), (8, 40.0)], x, flat=flat) == pytest.approx(y)


@pytest.mark.parametrize("function", [lambda x: 3 * x, lambda x: x**0.5, lambda x: 7.0], ids=["line", "root", "constant"])
def test_powers_are_met_exactly(function: Callable[[float], float]) -> None:
    points = [(x, function(x)) for x in (1.0, 10.0, 300.0)]
    assert all(along(points, x) == pytest.approx(function(x)) for x in (1.5, 10.0, 77.0, 300.0))


def test_averages() -> None:
    points = averaged([(4, 2.0), (1, 5.0), (4, 8.0)])
    assert [x for x, _ in points] == [1, 4]
    assert [y for _, y in points] == pytest.approx([5.0, 4.0])


def test_an_odd_width_has_a_curve_of_its_own() -> None:
    odd = Product(dtype="fp32", m=4, k=2048, n=25001, seconds=10 * product_seconds(4, 2048, 25001), spread=0.0)
    slower = ideal(products=(*ideal().products, odd))
    for model, more in (("gpt-2", True), ("llama-7b", False)):  # 50257 tokens, 32000 tokens
        plain, other = (expected(load_model(model), fp32(phase="decode", batch=4, context=99), one) for one in (ideal(), slower))
        assert plain is not None
        assert other is not None
        assert (other.seconds > 2 * plain.seconds) is more


@pytest.mark.parametrize(
    ("model", "name", "more"),
    [
        pytest.param("gpt-2", "gelu_tanh", True, id="the function that runs"),
        pytest.param("gpt-2", "silu", False, id="another one"),
        pytest.param("gpt-2", "mul", False, id="no gate"),
        pytest.param("llama-7b", "mul", True, id="a gate"),
        pytest.param("llama-7b", "silu", True, id="its function"),
    ],
)
def test_activations_by_name(model: str, name: str, more: bool) -> None:
    slow = tuple(replace(line, seconds_per_element=1e-6) if line.name == name else line for line in ideal().elementwise)
    plain, other = (expected(load_model(model), fp32(context=500), one) for one in (ideal(), ideal(elementwise=slow)))
    assert plain is not None
    assert other is not None
    assert (other.seconds > 1.5 * plain.seconds) is more


def test_what_bytes_do_not_explain_follows_arithmetic() -> None:
    """Attention at a third of the stream is mostly arithmetic: memory half as fast is an eighth more, not twice as much."""
    slow = tuple(replace(point, seconds=3 * point.seconds) if point.new == 1 else point for point in ideal().attended)
    spec, work, measured = load_model("llama-7b"), fp32(phase="decode", context=8000), ideal(attended=slow)
    plain, memory, vector = (expected(spec, work, measured, pace) for pace in (None, Pace(memory=2.0), Pace(vector=2.0)))
    assert plain and memory and vector
    for slower, pace in ((memory, Pace(memory=2.0)), (vector, Pace(vector=2.0))):
        times = paced(3.0, 1.0, pace, ATTENTION_OVERLAP) / 3
        assert slower.attention_s == pytest.approx(times * plain.attention_s, rel=0.02)


def test_attention_follows_the_points_of_heads_as_wide() -> None:
    wide = [point for point in ideal().attended if point.new == 1]
    narrow = tuple(replace(point, head_dim=64, context=2 * point.context, seconds=5 * point.seconds) for point in wide)
    for model, slower in (("llama-7b", False), ("gpt-2", True)):
        spec, work = load_model(model), fp32(phase="decode", context=900)
        plain, other = (expected(spec, work, ideal(attended=ideal().attended + more)) for more in ((), narrow))
        assert plain and other
        assert other.attention_s == pytest.approx((5 if slower else 1) * plain.attention_s, rel=0.02)


def test_rows_cost_what_they_do_in_models_of_that_kind() -> None:
    costs: tuple[tuple[Literal["rms", "layer"], float], ...] = (("rms", 1e-3), ("layer", 1e-12))
    lines = tuple(Overhead(dtype="fp32", seconds_per_row=cost, between_bytes=1, norm=norm) for norm, cost in costs)
    for model, slower in (("llama-7b", True), ("gpt-2", False)):
        plain, other = (expected(load_model(model), fp32(phase="decode", context=99), one) for one in (ideal(), ideal(overheads=lines)))
        assert plain and other
        assert (other.other_s > 10 * plain.other_s) is slower


def test_rows_cost_more_between_products_that_read_more() -> None:
    lines = tuple(Overhead(dtype="fp32", seconds_per_row=cost, between_bytes=size) for size, cost in ((1 << 20, 1e-5), (1 << 26, 4e-5)))
    spec, work, measured = load_model("llama-7b"), fp32(phase="decode", context=99), ideal(overheads=lines)
    rows = [row for row in ledger(spec, work) if row.repeat]
    between = between_runs([(row,) for row in rows], work)
    assert 6.4e9 * 4 < between * sum(row.repeat for row in rows if row.op in ("linear", "attention")) < 7e9 * 4  # weights, and little cache
    assert around_rows(measured, "fp32", "rms", between) == pytest.approx(4e-5)  # more than was measured is as the most
    assert around_rows(measured, "fp32", "rms", 8 << 20) == pytest.approx(2e-5)
    assert around_rows(measured, "fp32", "layer", 1.0) == pytest.approx(1e-5)
    assert around_rows(measured, "bf16", "rms", between) == measured.launch_s


def test_sublayers_that_are_one_call() -> None:
    slow = (Overhead(dtype="fp32", seconds_per_row=1e-3, between_bytes=1),)
    for joins in (True, False):
        products = tuple(msgspec.structs.replace(product, joins=joins) for product in ideal().products)
        plain, other = (ideal(products=products, overheads=lines) for lines in (ideal().overheads, slow))
        times = [expected(load_model("llama-7b"), fp32(phase="decode", context=99), one) for one in (plain, other)]
        assert times[0] is not None and times[1] is not None
        assert (times[1].seconds == pytest.approx(times[0].seconds, rel=1e-3)) is joins

    def one_call(model: str, *, joins: bool = True, **more: Any) -> bool:
        return is_fused(load_model(model), fp32(**{"phase": "decode", "context": 99, **more}), {1.0: joins, 64.0: False})

    assert one_call("llama-7b") and one_call("gpt-2-xl") and one_call("gemma-2-9b", batch=4)
    assert not one_call("llama-7b", joins=False) and not one_call("llama-7b", batch=64)
    assert not one_call("llama-7b", phase="prefill") and not one_call("mixtral-8x7b") and not one_call("deepseek-v3")


def joined(rows: tuple[int, ...]) -> dict[str, object]:
    """Products of so many rows lay in an order in which several are one; each costs a millisecond besides."""
    lines = (replace(line, seconds=line.seconds + 1e-3, joins=line.m in rows) for line in ideal().products)
    return {"products": tuple(lines)}


def test_what_takes_the_same_input_is_one_product_where_it_is_joined() -> None:
    """Queries, keys and values; gate and up. Nothing else, however alike."""
    spec, work = load_model("llama-7b"), fp32(phase="decode", context=99)
    rows, together = [row for row in ledger(spec, work) if row.repeat], joining(ideal(**joined((1,))), "fp32")
    assert together == {1: True, 25: False, 50: False, 100: False, 400: False}
    names = [[row.path.rpartition("/")[2] for row in run] for run in running_as_one(rows, together) if run[0].op == "linear"]
    assert names == [["q_proj", "k_proj", "v_proj"], ["o_proj"], ["gate_proj", "up_proj"], ["down_proj"], ["weight"]]
    assert all(len(run) == 1 for run in running_as_one(rows, {}))


@pytest.mark.parametrize(("batch", "saved"), [(1, 32 * 3e-3), (30, 0.0)])
def test_joined_products_cost_one_call(batch: int, saved: float) -> None:
    spec, work = load_model("llama-7b"), fp32(phase="decode", batch=batch, context=99)
    apart, one = (expected(spec, work, ideal(**joined(rows))) for rows in ((), (1,)))
    assert apart is not None and one is not None
    assert saved / 2 <= apart.products_s - one.products_s <= saved  # beyond the largest product measured a call costs as its bytes do


def test_the_pace_of_a_run() -> None:
    """Decoding follows memory, prefill arithmetic."""
    spec = load_model("llama-7b")
    for phase, pace in (("decode", Pace(memory=1.5)), ("prefill", Pace(matrix=1.5))):
        work = fp32(phase=phase, context=1500)
        plain, slower = (expected(spec, work, ideal(), now) for now in (None, pace))
        assert plain is not None
        assert slower is not None
        assert slower.seconds == pytest.approx(1.5 * plain.seconds, rel=0.02)
