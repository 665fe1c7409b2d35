"""Benchmarks from end to end at tiny sizes: one line a point, and what stops them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tfm.estimators.latency import roofline
from tfm.kernels.beats import Beat
from tfm.kernels.benchmarks import passes
from tfm.kernels.benchmarks.attention import Problem, bench_attention, implementations
from tfm.kernels.benchmarks.bandwidth import bench_bandwidth
from tfm.kernels.benchmarks.gemm import Shape, bench_gemm
from tfm.kernels.benchmarks.passes import bench_decode, bench_prefill
from tfm.kernels.benchmarks.setting import Setting, torch_dtype
from tfm.kernels.benchmarks.whole import pass_of
from tfm.kernels.benchmarks.yardstick import COMPUTE, MULTIPLY, PROBE, PRODUCT, STREAM, Yardstick, beside
from tfm.kernels.plan import llama_like
from tfm.kernels.timing import Sample, Stopping
from tfm.presets.calibration import Yard
from tfm.presets.device import load_device
from tfm.presets.errors import UnknownNameError, UnreadableError, UsageError
from tfm.presets.loader import load_model

BRIEF = Stopping(min_samples=2, min_seconds=0.0, max_seconds=0.05, target_spread=9.0)
CPU = torch.device("cpu")
SMALL = llama_like("small", layers=3, width=128, heads=4, kv_heads=2, head_dim=32, d_ff=192, vocabulary=256)


def brief(**fields: Any) -> Setting:
    return Setting(device=CPU, stopping=BRIEF, probe_bytes=1 << 20, **fields)


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The yardstick in no time, and few copies."""
    monkeypatch.setattr("tfm.kernels.benchmarks.yardstick.PROBING", BRIEF)
    monkeypatch.setattr("tfm.kernels.benchmarks.yardstick.MULTIPLYING", BRIEF)
    monkeypatch.setattr("tfm.kernels.benchmarks.setting.MOST_COPIES", 2)


def test_decode_lines() -> None:
    records = list(bench_decode(SMALL, points=[(1, 33), (3, 17)], layers="2", setting=brief()))
    assert [(one.labels["batch"], one.labels["ctx"]) for one in records] == [(1, 33), (3, 17)]
    for one, (batch, context) in zip(records, [(1, 33), (3, 17)], strict=True):
        work = pass_of("decode", torch.bfloat16, batch=batch, context=context)
        line = roofline(SMALL, work, load_device("a100-80gb-sxm"))
        assert one.flops == line.flops
        assert one.bytes == line.weight_read_bytes + line.kv_read_bytes
        assert (one.facts["layers_timed"], one.facts["layers_total"]) == (2, 3)
        assert "attention: flash" in one.backend
        assert one.bound_s is None  # it lies in the cache
        assert one.sample.samples >= 1


def test_prefill_lines() -> None:
    (one,) = bench_prefill(load_model("transformer-toy"), points=[(2, 13)], dtype=torch.float32, setting=brief())
    assert (one.facts["layers_timed"], one.facts["layers_total"]) == (1, 1)
    (one,) = bench_prefill(SMALL, points=[(2, 13)], last_logits=True, setting=brief())
    assert one.flops < next(iter(bench_prefill(SMALL, points=[(2, 13)], setting=brief()))).flops


@pytest.mark.parametrize(("kind", "backend"), [("int8", "_weight_int8pack_mm"), ("int4", "_weight_int4pack_mm_for_cpu")])
def test_weight_only(kind: str, backend: str) -> None:
    (narrow,), (wide,) = (list(bench_decode(SMALL, points=[(1, 9)], layers="all", weight_dtype=w, setting=brief())) for w in (kind, None))
    assert backend in narrow.backend
    assert narrow.bytes < wide.bytes
    assert int(str(narrow.facts["held_bytes"])) < int(str(wide.facts["held_bytes"]))
    assert (narrow.facts["weight_dtype"], narrow.dtype) == (kind, "bf16")


@pytest.mark.parametrize(
    ("model", "points", "error", "said"),
    [
        pytest.param("bert-base", [(1, 9)], UsageError, "no decode step", id="an encoder"),
        pytest.param("gpt-2", [(1, 9), (1, 1025)], UsageError, "for 1024 tokens; got a context of 1025", id="no such position"),
        pytest.param("llama-3.1-405b", [(1, 9)], UnreadableError, "What would fit", id="too large"),
    ],
)
def test_refused_before_anything_is_built(
    model: str, points: list[tuple[int, int]], error: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "build_model", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(error, match=said):
        list(bench_decode(load_model(model), points=points, layers="all", setting=brief()))


def test_an_interrupt_gives_what_there_is_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_short = Sample(times=(0.5,), calls=1, stop="interrupted")
    monkeypatch.setattr(passes, "beside", lambda _setting, yard, calls, **_: (dict.fromkeys(calls, cut_short), yard))
    lines = bench_decode(SMALL, points=[(1, 8), (1, 9)], setting=brief())
    assert next(lines).sample.interrupted
    with pytest.raises(KeyboardInterrupt):
        next(lines)


def test_attention_lines() -> None:
    problem = Problem(batch=2, context=24, tokens=3, heads=4, kv_heads=2, head_dim=16)
    records = list(bench_attention([problem], dtype=torch.float32, setting=brief()))
    assert [one.labels["impl"] for one in records] == ["eager", "tiled", "sdpa", "grouped"]
    assert {one.flops for one in records} == {4 * 2 * 4 * (22 + 23 + 24) * 16}
    assert {one.bytes for one in records} == {2 * 2 * 2 * 24 * 16 * 4}
    assert implementations(["sdpa", "all"])[0] == "sdpa"
    with pytest.raises(UnknownNameError, match="eagre"):
        implementations(["eagre"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        pytest.param({"heads": 6, "kv_heads": 4}, "--kv-heads 4", id="heads"),
        pytest.param({"context": 4, "tokens": 5}, "--tokens 5", id="tokens"),
    ],
)
def test_no_such_problem(fields: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Problem(**fields)


def test_gemm_and_bandwidth_lines() -> None:
    records = list(bench_gemm([Shape(m=3, k=32, n=48), Shape(m=1, k=48, n=32)], setting=brief()))
    assert [one.flops for one in records] == [2 * 3 * 32 * 48, 2 * 48 * 32]
    assert {one.backend for one in records} < {"mm", "mv", "bmm", "linear", "addmm", "_linear_pointwise"}  # the fastest here
    found = list(bench_bandwidth(sizes=(1 << 16, 1 << 20), setting=brief()))
    large = [one for one in found if one.labels["size_bytes"] == 1 << 20]
    assert [one.labels["probe"] for one in large[:3]] == ["sum", "mv", "copy"] and len(found) - len(
        large
    ) == 2 * 3  # small ones have no loop
    assert max(one.bytes / one.sample.median_s for one in large) == pytest.approx(found[0].bandwidth_bytes_per_s)


def a_yardstick(ran: list[str]) -> Yardstick:
    """10 bytes or 5 FLOPs a second."""
    beats = {name: Beat(call=partial(ran.append, f"{name} beat"), amount=20.0) for name in ("memory", "vector", "matrix")}
    return Yardstick(
        bytes_per_s=10.0, probe="mv", call=lambda: ran.append("probe"), moved_bytes=100, flops_per_s=5.0,
        product=lambda: ran.append("product"), product_flops=40, memory=beats["memory"], vector=beats["vector"], matrix=beats["matrix"],
        pace=Yard(dtype="fp32", stream_bytes_per_s=3.0, vector_elements_per_s=4.0),
    )  # fmt: skip


def after(seconds: float) -> Sample:
    return Sample(times=(seconds,), calls=1, stop="spread")


def test_the_yardstick_keeps_its_best() -> None:
    ran: list[str] = []
    yard = a_yardstick(ran)
    assert yard.seen({}) == yard
    assert yard.seen({PRODUCT: after(4.0)}).flops_per_s == 10.0
    assert yard.seen({PROBE: after(20.0)}).bytes_per_s == 10.0
    assert yard.seen({PROBE: after(4.0)}).bytes_per_s == 25.0
    pace = yard.seen({STREAM: after(10.0), COMPUTE: after(4.0), MULTIPLY: after(2.0)}).pace
    assert (pace.stream_bytes_per_s, pace.vector_elements_per_s, pace.matrix_flops_per_s) == (2.0, 5.0, 10.0)  # that of now
    streamed = yard.seen({PROBE: after(5.0), STREAM: after(0.5)})  # the beat streams as models do: the faster of both counts
    assert (streamed.bytes_per_s, streamed.probe, streamed.in_turn_bytes_per_s) == (40.0, STREAM, 40.0)
    assert yard.seen({PROBE: after(2.0), STREAM: after(0.5)}).probe == "mv"
    paced = yard.seen({STREAM: after(10.0), MULTIPLY: after(2.0)})
    assert (paced.bytes_per_s, paced.flops_per_s) == (10.0, 5.0)  # and the best stays


def test_the_pace_is_that_of_the_same_round() -> None:
    """Every step took ten beats, however fast the machine was: at the pace that the step saw, a beat takes a tenth of it."""
    beats, steps = ((Sample(times=tuple(times), calls=1, stop="spread")) for times in ([1.0, 2.0, 9.0, 3.0], [10.0, 20.0, 90.0, 30.0]))
    yard = a_yardstick([]).seen({STREAM: beats}, steps)
    assert yard.pace.stream_bytes_per_s == pytest.approx(20.0 / (steps.median_s / 10))
    late = Sample(times=(10.0, 20.0, 20.0, 20.0), calls=1, stop="spread")  # half of the rounds seen at another pace
    assert a_yardstick([]).seen({STREAM: beats}, late).pace.stream_bytes_per_s != pytest.approx(20.0 / beats.median_s)


def test_the_share_in_turn_is_of_what_the_probe_reached_in_the_same_round() -> None:
    """The step took four probes in every round; the machine was three times as fast in one where the probe's median is not."""
    probes, steps = (Sample(times=times, calls=1, stop="spread") for times in ((9.0, 3.0, 9.0, 3.0, 9.0), (36.0, 12.0, 36.0, 12.0, 36.0)))
    assert a_yardstick([]).seen({PROBE: probes}, steps).in_turn_bytes_per_s == pytest.approx(100 / 9)
    lucky = Sample(times=(36.0, 12.0, 12.0, 12.0, 12.0), calls=1, stop="spread")  # a median of the fast state against one of the slow
    found = a_yardstick([]).seen({PROBE: probes}, lucky)
    assert found.in_turn_bytes_per_s == pytest.approx(4 * 100 / lucky.median_s)  # a quarter, not three quarters
    assert found.bytes_per_s == pytest.approx(100 / 9)  # and the best stays what it was
    assert a_yardstick([]).in_turn_bytes_per_s is None


@pytest.mark.parametrize("arithmetic", [False, True])
def test_what_runs_beside_a_measurement(arithmetic: bool) -> None:
    ran: list[str] = []
    samples, _ = beside(brief(), a_yardstick(ran), {"a": lambda: ran.append("a")}, arithmetic=arithmetic)
    assert set(samples) == {"a"}
    assert set(ran) == {"a", "probe", "memory beat", "vector beat", *(["product", "matrix beat"] if arithmetic else [])}


@pytest.mark.parametrize(("flops", "moved", "counts"), [(5.0, 10.0, True), (1.0, 10.0, False), (2.0, 10.0, True)])
def test_when_arithmetic_counts(flops: float, moved: float, counts: bool) -> None:
    assert a_yardstick([]).arithmetic_counts(flops, moved) is counts


def test_formats() -> None:
    assert torch_dtype("fp16") is torch.float16
    with pytest.raises(UnknownNameError, match="Allowed: fp32, bf16, fp16"):
        torch_dtype("fp8")
