"""How many layers are timed, and what they say of all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tfm.estimators.memory import memory
from tfm.kernels import compiling, linear, tuning
from tfm.kernels.benchmarks import whole
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.benchmarks.whole import Scale, depth, layers_for, needed_bytes, pass_of, scale_of, subject
from tfm.kernels.benchmarks.yardstick import measured_device
from tfm.kernels.model import build_model, cut
from tfm.kernels.orders import ORDERS, Order
from tfm.kernels.shrink import shrink
from tfm.kernels.stored import StoredLinear
from tfm.kernels.timing import Sample
from tfm.presets.device import Device
from tfm.presets.errors import UnreadableError, UsageError
from tfm.presets.loader import load_model

BF16, CPU = torch.bfloat16, torch.device("cpu")
GIB = 2**30


def device(bytes_per_s: float = 20e9) -> Device:
    return measured_device(CPU, bytes_per_s=bytes_per_s, peaks={"bf16": 1e12}, source="a test")


def works(phase: str = "decode", batch: int = 1, context: int = 512) -> list[Any]:
    return [pass_of(phase, BF16, batch=batch, context=context)]


@pytest.mark.parametrize(
    ("model", "wanted", "free_gib", "rate", "layers"),
    [
        pytest.param("llama-7b", "all", 14, 20e9, 32, id="all where it fits"),
        pytest.param("llama-7b", "5", 14, 20e9, 5, id="a number"),
        pytest.param("llama-7b", "auto", 1000, 1e15, 32, id="all where it is quick"),
        pytest.param("llama-7b", "auto", 1000, 20e9, 11, id="as many as last a quarter of a second"),
        pytest.param("llama-7b", "auto", 2, 1e15, 3, id="as many as fit"),
        pytest.param("llama-7b", "auto", 0.1, 1e15, 1, id="one at least"),
        pytest.param("gpt-2", "auto", 14, 20e9, 12, id="a small model"),
    ],
)
def test_layers(model: str, wanted: str, free_gib: float, rate: float, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "free_memory_bytes", lambda _: int(free_gib * GIB))
    monkeypatch.setattr("tfm.kernels.probes.free_memory_bytes", lambda _: int(free_gib * GIB))
    assert layers_for(wanted, load_model(model), works(), Setting(device=CPU), device(rate)) == layers


@pytest.mark.parametrize("wanted", ["0", "33", "-1", "some", "1.5", ""])
def test_no_number_of_layers(wanted: str) -> None:
    with pytest.raises(UsageError, match="from 1 to 32"):
        layers_for(wanted, load_model("llama-7b"), works(), Setting(device=CPU), device())


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm.kernels.probes.free_memory_bytes", lambda _: 8 * GIB)
    with pytest.raises(UnreadableError, match=r"needs 12\.80 GiB .* 8\.00 GiB .* free.*--layers 19 \(bf16\)"):
        layers_for("all", load_model("llama-7b"), works(), Setting(device=CPU), device())
    monkeypatch.setattr("tfm.kernels.probes.free_memory_bytes", lambda _: 10**6)
    with pytest.raises(UnreadableError, match="a smaller model"):
        layers_for("all", load_model("llama-7b"), works(), Setting(device=CPU), device())


@pytest.mark.parametrize("model", ["llama-7b", "mixtral-8x7b", "t5-small", "gemma-2-9b"])
def test_needed_bytes_cover_weights_and_cache(model: str) -> None:
    spec, work = load_model(model), works(batch=3, context=1000)[0]
    parts = memory(spec, work)
    assert needed_bytes(spec, work) >= parts.weight_bytes + parts.kv_bytes + parts.cross_kv_bytes


@pytest.mark.parametrize(
    ("model", "layers", "factor"),
    [
        pytest.param("llama-7b", 4, 8.0, id="equal layers are counted"),
        pytest.param("gpt-2", 12, 1.0, id="all of them"),
        pytest.param("gemma-2-9b", 2, 21.0, id="one of each kind"),
    ],
)
def test_scale(model: str, layers: int, factor: float) -> None:
    scale = scale_of(load_model(model), layers, works(context=700)[0], device())
    assert scale.factor == pytest.approx(factor)
    assert (scale.timed, scale.whole) == (layers, depth(load_model(model)))


def test_kinds_of_layers_count_by_their_floors() -> None:
    spec, work = load_model("gpt-oss-20b"), works(context=90_000)[0]
    assert scale_of(spec, 3, work, device()).factor != pytest.approx(depth(spec) / 3)  # two of one kind, one of the other
    assert scale_of(spec, 4, work, device()).factor == pytest.approx(depth(spec) / 4)


def test_the_time_outside_the_layers_is_not_scaled() -> None:
    scale = Scale(timed=2, whole=8, factor=4.0)
    sample, outside = (Sample(times=times, calls=1, stop="spread") for times in ((5.0, 6.0, 3.0), (1.0, 2.0, 4.0)))
    assert scale.apply(sample, outside).times == (17.0, 18.0, 4.0)
    assert scale.said == "2 of 8 layers timed, scaled"
    assert Scale(timed=8, whole=8, factor=1.0).apply(sample, None) is sample


@pytest.mark.parametrize("model", ["transformer-toy", "gpt-2", "t5-small", "vit-b-16"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_subject_runs_its_pass_again_and_again(model: str, phase: str) -> None:
    spec = cut(load_model(model), 1)
    if phase == "decode" and not spec.decodes:
        pytest.skip("does not decode")
    work = pass_of(phase, torch.float32, batch=2, context=9)
    ready = subject(build_model(spec), work, outside=True)
    first, second = ready.run(), ready.run()
    for name, value in first.items():
        assert torch.equal(value, second[name])
    assert [list(value.shape) for value in ready.outside()] == [list(first[head.name].shape) for head in spec.heads]


def test_a_model_is_made_ready_for_each_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a matrix was stored for one row for is not taken for three, and nothing is stored for many."""
    backwards = Order(
        takes=lambda _rows, _weight: True, loops=False, store=lambda weight, _rows: weight.flip(1), back=lambda stored: stored.flip(1),
        product=lambda x, stored, bias: torch.nn.functional.linear(x.flip(-1), stored, bias),
    )  # fmt: skip
    monkeypatch.setitem(ORDERS, "backwards", backwards)
    monkeypatch.setattr(tuning, "fastest", lambda *_, **__: ("linear", "backwards"))
    monkeypatch.setattr(linear, "CHOSEN", {})
    monkeypatch.setattr(tuning, "CHOSEN", linear.CHOSEN)
    monkeypatch.setattr(tuning, "ORDERED", {})
    monkeypatch.setattr(compiling, "_broken", [])
    model = build_model(shrink(load_model("llama-7b")), dtype=torch.float32)
    plain = {name: weight.clone() for name, weight in model.named_parameters()}
    for batch, stored in ((1, {1}), (3, {3}), (tuning.MOST_ROWS + 1, set())):
        subject(model, pass_of("decode", torch.float32, batch=batch, context=8))
        assert {module.stored.rows for module in model.modules() if isinstance(module, StoredLinear)} == stored
    after = dict(model.named_parameters())
    assert set(after) == set(plain) and all(torch.equal(after[name], weight) for name, weight in plain.items())
