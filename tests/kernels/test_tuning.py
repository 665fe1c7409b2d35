"""Which call is the fastest is found by trying, holds for its shape, and changes no result."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tfm.kernels import compiled, compiling, grouped, linear, panels, tuning
from tfm.kernels.attention import attend
from tfm.kernels.linear import (
    CALLS,
    WEIGHTS,
    as_usual,
    fast_linear,
    key_of,
    possible_calls,
    usual_call,
)
from tfm.kernels.masks import Rules
from tfm.kernels.model import build_model
from tfm.kernels.modules import Linear
from tfm.kernels.orders import ORDERS, Order, by_onednn, in_onednn_order, onednn_takes
from tfm.kernels.packed import held_bytes
from tfm.kernels.plan import llama_like
from tfm.kernels.stored import StoredLinear, reorder
from tfm.kernels.timing import Call, Sample
from tfm.kernels.tuning import beyond_cache, choose, clear_winner, fastest, product, tune

SMALL = llama_like("small", layers=2, width=64, heads=4, kv_heads=2, head_dim=16, d_ff=96, vocabulary=80)
needs_bf16 = pytest.mark.skipif(not onednn_takes(1, torch.empty(2, 2, dtype=torch.bfloat16)), reason="oneDNN has no bf16 kernels here")


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test tries for itself."""
    for table in (linear, tuning):
        monkeypatch.setattr(table, "CHOSEN", {})
    monkeypatch.setattr(tuning, "CHOSEN", linear.CHOSEN)
    monkeypatch.setattr(tuning, "ORDERED", {})
    monkeypatch.setattr(tuning, "IMMOVABLE", set())
    monkeypatch.setattr(grouped, "CHOSEN", {})


def weights(outputs: int, inputs: int, dtype: torch.dtype = torch.float32, count: int = 2) -> list[Tensor]:
    return [torch.randn(outputs, inputs, dtype=dtype) * inputs**-0.5 for _ in range(count)]


# --- the calls --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 34), (50, 33), (7, 20)])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_every_call_is_a_linear_layer(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, (weight,) = torch.randn(rows, inputs, dtype=dtype), weights(outputs, inputs, dtype, 1)
    want = F.linear(x.double(), weight.double())
    names = possible_calls(rows, weight)
    assert {"linear", "mm"} <= set(names) and usual_call(rows, weight) in names
    for name in names:
        rtol, atol = (0.02, 0.03) if dtype == torch.bfloat16 else (1e-5, 1e-5)
        torch.testing.assert_close(CALLS[name](x, weight).double(), want, rtol=rtol, atol=atol, msg=name)


def test_a_weight_in_pieces_takes_fewer_calls() -> None:
    assert set(possible_calls(1, torch.empty(48, 64, dtype=torch.bfloat16)[:, ::2])) == {"mv", "linear", "mm"}
    assert "parts" in possible_calls(1, torch.empty(50, 32)) and "parts" not in possible_calls(1, torch.empty(15, 32))


@needs_bf16
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
def test_another_order_changes_no_result(shape: tuple[int, ...], biased: bool) -> None:
    torch.manual_seed(0)
    (weight,) = weights(50, 34, torch.bfloat16, 1)
    x, bias = torch.randn(*shape, 34, dtype=torch.bfloat16), torch.randn(50, dtype=torch.bfloat16) if biased else None
    want = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    got = by_onednn(x, in_onednn_order(weight, 1), bias)
    assert got.shape == want.shape and got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=0.01, atol=0.02)


# --- what is chosen ---------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds of each call by its name, in place of those it takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.seconds = seconds
        self.order: Iterator[str] = iter(())
        monkeypatch.setattr(tuning, "quickest", self.quickest)
        monkeypatch.setattr(tuning, "interleave", self.interleave)

    def expect(self, names: list[str]) -> None:
        """The calls that are tried first, in this order, and the other order of the weight after them."""
        self.order = iter([*names, "onednn"])

    def quickest(self, _watch: Any, call: Call) -> float:
        call()
        return self.seconds[next(self.order)]

    def interleave(self, calls: dict[str, Call], **_: Any) -> dict[str, Sample]:
        for call in calls.values():
            call()
        return {name: Sample(times=(self.seconds[name],) * 3, calls=1, stop="spread") for name in calls}


FP32 = {"mv": 1.0, "linear": 1.0, "mm": 1.0, "narrow": 1.0, "slices": 1.0, "parts": 1.0}


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        pytest.param({}, "mv", id="all alike: the usual one"),
        pytest.param({"parts": 0.98}, "mv", id="hardly faster: the usual one"),
        pytest.param({"parts": 0.6}, "parts", id="faster"),
        pytest.param({"parts": 0.6, "mm": 0.5}, "mm", id="the fastest"),
        pytest.param({"mv": 5.0, "parts": 0.6}, "parts", id="the usual one far behind"),
    ],
)
def test_the_fastest_call(seconds: dict[str, float], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = weights(48, 32)
    clock = Clock(monkeypatch, **{**FP32, **seconds})
    clock.expect(possible_calls(1, some[0]))
    assert choose(1, some) == chosen
    assert {key_of(1, some[0]): chosen} == linear.CHOSEN
    assert linear.linear_call(1, some[0]) == chosen
    assert linear.linear_call(1, weights(48, 33)[0]) == "mv"  # of its own shape alone
    assert choose(1, weights(48, 32)) == chosen  # and nothing is tried twice


@needs_bf16
@pytest.mark.parametrize(
    ("seconds", "chosen", "plain"),
    [
        pytest.param({"onednn": 0.5}, "onednn", "mv", id="faster"),
        pytest.param({"onednn": 0.5, "linear": 0.7}, "onednn", "linear", id="faster than the fastest call"),
        pytest.param({"onednn": 0.99}, "mv", "mv", id="hardly"),
        pytest.param({"onednn": 9.0}, "mv", "mv", id="slower"),
    ],
)
def test_another_order(seconds: dict[str, float], chosen: str, plain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    some = weights(48, 32, torch.bfloat16)
    clock = Clock(monkeypatch, **{**FP32, "folded": 1.0, **seconds})
    clock.expect(possible_calls(1, some[0]))
    assert choose(1, some) == chosen
    assert linear.linear_call(1, some[0]) == plain  # what lies as it did


def test_weights_that_have_to_lie_as_they_do_have_a_call_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expert may have the shape of a layer: whichever is tried first, it gets the best for weights as they lie."""
    some = weights(48, 32)
    tried: list[bool] = []

    def fastest(_rows: int, _weights: Sequence[Tensor], *, movable: bool) -> tuple[str, str | None]:
        tried.append(movable)
        return ("mv", "panels") if movable else ("parts", None)

    monkeypatch.setattr(tuning, "fastest", fastest)
    for order in ((True, False), (False, True)):
        for table in (linear.CHOSEN, tuning.ORDERED, tuning.IMMOVABLE):
            table.clear()
        assert [choose(1, some, movable=movable) for movable in (*order, *order)] == 2 * ["panels" if one else "parts" for one in order]
        assert linear.linear_call(1, some[0]) == "parts"
    assert tried == [True, False, False, True]


@pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")
def test_what_does_not_compile_after_all_is_laid_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop that was tried had no bias."""
    monkeypatch.setattr(panels, "WORTH", 1)
    monkeypatch.setattr(compiling, "_broken", [])
    monkeypatch.setattr(tuning, "fastest", lambda *_, **__: ("linear", "panels"))
    model, ids = build_model(SMALL), torch.arange(1).view(1, 1)
    want = model(ids)["lm_head"]

    def broken(*_: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(panels, "compiled_product", broken)
    tune(model, lambda: model(ids), 1)
    assert "no such instruction" in str(compiling.gap())
    assert not any(isinstance(module, StoredLinear) or getattr(module, "tuned", False) for module in model.modules())
    with torch.inference_mode():
        torch.testing.assert_close(model(ids)["lm_head"], want)


@pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")
def test_panels_are_found_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call on the weight as it lies is given up for them unless they were really run; in an order with loops others are not tried."""
    monkeypatch.setattr(panels, "WORTH", 1)
    monkeypatch.setattr(compiled, "WORTH", 1)
    monkeypatch.setattr(compiling, "_broken", [])
    clock = {**dict.fromkeys(("mv", "linear", "mm", "narrow", "slices", "parts", "compiled", "onednn"), 1.0), "panels": 1.07}
    monkeypatch.setattr(tuning, "quickest", lambda _watch, call: 1.0)
    seen: list[set[str]] = []

    def interleave(calls: dict[str, Call], **_: Any) -> dict[str, Sample]:
        seen.append(set(calls))
        return {name: Sample(times=(clock[name],) * 3, calls=1, stop="spread") for name in calls}

    monkeypatch.setattr(tuning, "interleave", interleave)
    assert fastest(1, weights(64, 32), movable=True) == ("mv", "panels")  # hardly slower: they stay
    clock["panels"] = 1.5
    assert fastest(1, weights(64, 32), movable=True) == ("mv", None)
    assert fastest(1, weights(64, 32), movable=False) == ("mv", None)
    assert ["panels" in names for names in seen] == [True, True, True, False]  # given up when it was slower twice
    assert seen[2] == {"mv", "panels"} and ["compiled" in names for names in seen] == [False, False, False, True]


def test_an_interrupt_ends_the_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_short = Sample(times=(1.0,), calls=1, stop="interrupted")
    monkeypatch.setattr(tuning, "interleave", lambda calls, **_: dict.fromkeys(calls, cut_short))
    with pytest.raises(KeyboardInterrupt):
        fastest(1, weights(48, 32), movable=True)
    assert not linear.CHOSEN


def test_as_usual_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "fastest", lambda *_, **__: pytest.fail("tried"))
    with as_usual():
        assert choose(1, weights(48, 32)) is None and not linear.CHOSEN
    monkeypatch.setattr(tuning, "fastest", lambda *_, **__: ("mm", None))
    assert choose(1, weights(48, 32)) == linear.linear_call(1, weights(48, 32)[0]) == "mm"
    with as_usual():  # nor is anything taken that was found before
        assert linear.linear_call(1, weights(48, 32)[0]) == "mv"


def test_nothing_to_choose() -> None:
    assert choose(tuning.MOST_ROWS + 1, weights(48, 32)) is None
    assert choose(1, [torch.empty(48, 32, device="meta")]) is None


def samples(**times: tuple[float, ...]) -> dict[str, Sample]:
    return {name: Sample(times=seconds, calls=1, stop="spread") for name, seconds in times.items()}


def test_a_disturbed_sample_decides_nothing() -> None:
    found = samples(a=(1.0, 9.0, 1.0, 1.0, 1.0), b=(1.5,) * 5, c=(2.0, 2.0, 2.0, 2.0, 0.1))
    assert clear_winner("a", found) == clear_winner("c", found) == "a"
    assert clear_winner("a", {"a": found["a"]}) == "a"


def test_a_machine_that_changes_from_round_to_round_decides_nothing() -> None:
    """Twice as fast at the end: `b`, always a tenth slower, has the luckier sample."""
    assert clear_winner("b", samples(a=(2.0, 2.0, 2.0), b=(2.2, 2.2, 1.1))) == "a"


def test_weights_to_try_on_are_more_than_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "last_level_cache_bytes", lambda: 10_000)
    first, second = weights(10, 100)  # 4,000 bytes each
    found = beyond_cache([first, second, first])
    assert len(found) == 10 and len({one.data_ptr() for one in found}) == 10
    assert torch.equal(found[2], first) and torch.equal(found[3], second)
    assert len(beyond_cache(weights(10, 100, count=30))) == 10


# --- a model ----------------------------------------------------------------------------------------------------------------


def test_only_few_rows_on_a_processor_are_listened_to() -> None:
    (weight,) = weights(8, 4, count=1)
    with WEIGHTS.listening() as heard, WEIGHTS.listening() as also:
        fast_linear(torch.randn(1, 2, 4), weight)
        fast_linear(torch.randn(200, 4), weight)
        fast_linear(torch.empty(1, 4, device="meta"), weight.to("meta"))
    fast_linear(torch.randn(4), weight)
    assert heard == also == {key_of(2, weight): [weight]}


@needs_bf16
def test_a_tuned_model_gives_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some layers are stored in another order, some take another call: nothing else changes."""
    plain = build_model(SMALL, dtype=torch.bfloat16)
    model, ids = build_model(SMALL, dtype=torch.bfloat16), torch.arange(3).view(1, 3)
    monkeypatch.setattr(
        tuning, "fastest", lambda _rows, some, **_: ("linear", "onednn" if some[0].shape[0] != 96 else None)
    )  # all but gate and up
    tune(model, lambda: model(ids), 3)
    kinds = [type(module) for module in model.modules() if isinstance(module, Linear)]
    assert kinds.count(StoredLinear) == 2 * 5 + 1 and kinds.count(Linear) == 2 * 2
    stores = {module.stored for module in model.modules() if isinstance(module, StoredLinear)}
    assert sorted(len(store.sizes) for store in stores) == [1, 1, 1, 1, 1, 3, 3]  # o and down of two layers, the head; q, k and v as one
    assert held_bytes(model) == held_bytes(plain)
    want, got = plain(ids)["lm_head"].float(), model(ids)["lm_head"].float()
    assert (got - want).norm() < 0.02 * want.norm()
    tune(model, lambda: model(ids), 3)  # and a second time finds nothing to do


@needs_bf16
def test_a_model_is_never_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """One matrix after another gives up its place: a model that fills the memory can be tuned."""
    model, ids = build_model(SMALL, dtype=torch.bfloat16), torch.arange(3).view(1, 3)
    monkeypatch.setattr(tuning, "fastest", lambda *_, **__: ("linear", "onednn"))

    def watched(layers: Sequence[Linear], order: Order, rows: int) -> None:
        before = [weakref.ref(layer.weight) for layer in layers]
        reorder(layers, order, rows)
        assert not any(weight() for weight in before)

    monkeypatch.setattr(tuning, "reorder", watched)
    tune(model, lambda: model(ids), 3)
    assert not any(type(module) is Linear for module in model.modules())


@needs_bf16
def test_a_table_that_is_shared_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are looked up as well."""
    from tfm.kernels.shrink import shrink
    from tfm.presets.loader import load_model

    model, ids = build_model(shrink(load_model("gpt-2")), dtype=torch.bfloat16), torch.arange(3).view(1, 3)
    want = model(ids)["lm_head"].float()
    monkeypatch.setattr(tuning, "fastest", lambda *_, **__: ("linear", "onednn"))
    tune(model, lambda: model(ids), 3)
    assert (model(ids)["lm_head"].float() - want).norm() < 0.02 * want.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("other", [None, *ORDERS])
def test_a_product_takes_the_next_weight_each_time(dtype: torch.dtype, other: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "WORTH", 1)
    if other and not ORDERS[other].takes(1, torch.empty(48, 32, dtype=dtype)):
        pytest.skip("no such order")
    monkeypatch.setattr(tuning, "fastest", lambda *_, **__: ("linear", other))
    monkeypatch.setattr(tuning, "last_level_cache_bytes", lambda: 1)
    x, some = torch.randn(1, 32, dtype=dtype), weights(48, 32, dtype, 3)
    monkeypatch.setattr(tuning, "beyond_cache", list)
    call = product(x, some)
    for weight in (*some, *some):
        torch.testing.assert_close(call(), F.linear(x, weight), rtol=0.02, atol=0.02)


# --- attention --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loops", "taken"), [(0.5, True), (0.98, False), (1.5, False)])
def test_attention_of_one_token_takes_loops_where_they_are_faster(monkeypatch: pytest.MonkeyPatch, loops: float, taken: bool) -> None:
    Clock(monkeypatch, products=1.0, loops=loops)
    monkeypatch.setattr(compiled, "CACHE_WORTH", 1)
    monkeypatch.setattr(compiling, "compiler", lambda: "a compiler")
    ran: list[Tensor] = []

    def attention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> tuple[Tensor, None]:
        ran.append(k)
        return v[:, :, : q.shape[2]], None

    monkeypatch.setattr(compiled, "attention", attention)
    q, cache = torch.randn(1, 2, 1, 32), torch.randn(3, 1, 2, 300, 32)
    turn = iter(range(3))
    tuning.tune_attention(lambda: attend(q, x := cache[next(turn)], x, impl="grouped", causal=True), 3)
    assert set(grouped.CHOSEN.values()) == {taken} and len(grouped.CHOSEN) == 1
    tried, before = len(ran), dict(grouped.CHOSEN)
    with torch.inference_mode():
        attend(q, cache[0], cache[0], impl="grouped", causal=True)
    assert (len(ran) > tried) is taken
    tuning.tune_attention(lambda: attend(q, cache[0], cache[0], impl="grouped", causal=True))
    assert before == grouped.CHOSEN  # tried once


def test_attention_that_has_no_loops_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "loops_are_faster", lambda _: pytest.fail("tried"))
    q, cache = torch.randn(1, 2, 1, 32), torch.randn(1, 2, 300, 32)  # small
    tuning.tune_attention(lambda: attend(q, cache, cache, impl="grouped", causal=True))
    monkeypatch.setattr(compiled, "CACHE_WORTH", 1)
    with as_usual():
        tuning.tune_attention(lambda: attend(q, cache, cache, impl="grouped", causal=True))
    assert not grouped.CHOSEN


def test_copies_of_a_cache_take_turns_beyond_the_processors() -> None:
    k = torch.randn(1, 2, 300, 32)
    reads = tuning.caches_beyond_cache([(torch.randn(1, 2, 1, 32), k, k.clone(), Rules(causal=True))])
    assert len(reads) > 1 and len({read[1].data_ptr() for read in reads}) == len(reads)
    assert all(torch.equal(read[1], k) for read in reads)
