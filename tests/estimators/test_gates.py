"""Exact gates: values that the commands print, terms that make them, and every change found and named."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import tfm
from tfm.estimators.gates import Compared, Moved, check_entries, compare, entries_of, exact, updated
from tfm.presets.baseline import QUANTITIES, Exact, Quantity, Setting
from tfm.presets.device import Device, load_device
from tfm.presets.dtypes import DTYPES
from tfm.presets.errors import UnreadableError, UsageError
from tfm.presets.loader import load_model, model_names
from tfm.presets.spec import ModelSpec

H100 = "h100-80gb-sxm"


def setting(**fields: Any) -> Setting:
    """Everything that a gate may depend on."""
    formats = dict.fromkeys(("weight_dtype", "kv_dtype", "activation_dtype"), "bf16")
    return Setting(**{"batch": 3, "context": 300, **formats, "hardware": H100, **fields})


def entries(model: str, **fields: Any) -> dict[Quantity, Exact]:
    """All gates of a model."""
    found = entries_of(load_model(model), model, setting(**fields), ("prefill", "decode", "train"), load_device(H100))
    return {entry.quantity: entry for entry in found}


LLAMA = entries("llama-7b")


@pytest.mark.parametrize("model", model_names())
def test_terms_make_the_value(model: str) -> None:
    for quantity, entry in entries(model, weight_dtype="int4").items():
        if quantity.endswith("_bound_s"):
            assert max(entry.terms.values()) == entry.value
        elif quantity.endswith("_s"):
            assert sum(entry.terms.values()) == pytest.approx(entry.value, rel=1e-14)
        else:
            assert isinstance(entry.value, int)
            assert sum(entry.terms.values()) == entry.value


@pytest.mark.parametrize("model", ["llama-7b", "t5-small", "deepseek-v3", "gemma-3-27b", "vit-b-16", "bert-base"])
def test_values_are_those_of_the_commands(model: str) -> None:
    found = {name: entry.value for name, entry in entries(model, weight_dtype="q4_k", kv_dtype="fp8").items()}
    work: dict[str, Any] = {"batch": 3, "context": 300, "weight_dtype": "q4_k", "kv_dtype": "fp8"}
    counted, kept, timed = tfm.params(model), tfm.kvcache(model, **work), tfm.latency(model, H100, **work)
    expected: dict[str, Any] = {"total_params": counted.total_params, "active_params": counted.active_params}
    expected |= {"weight_bytes": tfm.memory(model, **work).weight_bytes}
    phases = ("prefill", "train", *(("decode",) if timed.decode else ()))
    expected |= {f"{phase}_flops": tfm.flops(model, phase=phase, batch=3, context=300).total_flops for phase in phases}
    expected |= {name: value for name in ("kv_bytes", "cross_kv_bytes", "state_bytes") if (value := getattr(kept, name))}
    for phase, line in (("prefill", timed.prefill), ("decode", timed.decode)):
        expected |= {f"{phase}_{figure}": getattr(line, figure) for figure in ("floor_s", "bound_s") if line}
    assert found == expected


def test_what_does_not_apply_is_left_out() -> None:
    assert "decode_floor_s" not in entries("bert-base")
    assert "kv_bytes" not in entries("vit-b-16")
    spec = load_model("llama-7b")
    bare = {entry.quantity for entry in entries_of(spec, "llama-7b", setting(hardware=None), ("decode",))}
    assert bare == {"total_params", "active_params", "weight_bytes", "decode_flops", "kv_bytes"}
    no_fp8 = load_device("a100-80gb-sxm")  # has no rate in fp8: a decode step still has its bytes
    times = {e.quantity for e in entries_of(spec, "llama-7b", setting(activation_dtype="fp8"), ("prefill", "decode"), no_fp8)}
    assert {name for name in times if name.endswith("_s")} == {"decode_floor_s", "decode_bound_s"}


@pytest.mark.parametrize(
    ("model", "quantity", "device", "said"),
    [
        pytest.param("bert-base", "decode_flops", None, "no decoder", id="an encoder"),
        pytest.param("llama-7b", "decode_floor_s", None, "needs a device", id="no device"),
        pytest.param("llama-7b", "prefill_floor_s", "a100-80gb-sxm", "no published peak in fp8", id="no peak"),
    ],
)
def test_what_cannot_be_is_refused(model: str, quantity: Quantity, device: str | None, said: str) -> None:
    point = setting(activation_dtype="fp8")
    with pytest.raises(UsageError, match=said):
        exact(load_model(model), model, quantity, point, None if device is None else load_device(device))


# --- then and now -----------------------------------------------------------------------------------------------------


def known(model: str, kv_heads: int | None) -> ModelSpec:
    assert kv_heads is None
    return load_model(model)


def again(entry: Exact) -> Compared:
    """The entry beside what is computed now."""
    (found,) = check_entries([entry], known, load_device)
    return found


@pytest.mark.parametrize("quantity", LLAMA)
def test_nothing_changed(quantity: Quantity) -> None:
    assert again(LLAMA[quantity]) == compare(LLAMA[quantity], LLAMA[quantity])
    assert again(LLAMA[quantity]).verdict == "ok"


def other(value: float, step: float) -> float:
    """Another value of the same kind."""
    return value + math.ceil(abs(step) * 1000) * (1 if step > 0 or not value else -1) if isinstance(value, int) else value * (1 + step)


STEPS = st.floats(1e-9, 0.9) | st.floats(-0.9, -1e-9)


@given(quantity=st.sampled_from(sorted(LLAMA)), step=STEPS)
def test_an_edited_total_is_found(quantity: Quantity, step: float) -> None:
    entry = LLAMA[quantity]
    found = again(replace(entry, value=other(entry.value, step)))
    assert (found.verdict, found.moved, found.now) == ("changed", (), entry.value)
    assert "edited" in found.why


@given(data=st.data(), quantity=st.sampled_from(sorted(LLAMA)), step=STEPS)
def test_an_edited_term_is_found_and_named(data: st.DataObject, quantity: Quantity, step: float) -> None:
    entry = LLAMA[quantity]
    name = data.draw(st.sampled_from(sorted(entry.terms)))
    then = other(entry.terms[name], step)
    found = again(replace(entry, terms={**entry.terms, name: then}))
    assert found.verdict == "changed"
    assert found.moved == (Moved(term=name, baseline=then, now=entry.terms[name]),)
    assert found.why == "the total is the same"


def test_terms_come_and_go() -> None:
    entry = LLAMA["total_params"]
    terms = {"old": 5, **{name: count for name, count in entry.terms.items() if name != "lm_head/weight"}}
    moved = again(replace(entry, terms=terms)).moved
    assert [(term.term, term.baseline, term.now, term.by) for term in moved] == [
        ("lm_head/weight", None, 131072000, 131072000), ("old", 5, None, -5),
    ]  # fmt: skip


def test_a_changed_model_names_its_terms() -> None:
    """The largest first: what GQA does to the projections."""
    small = compare(LLAMA["total_params"], entries_with_heads(8)["total_params"])
    assert [(term.term, term.by) for term in small.moved] == [
        ("decoder/attention/k_proj", -402653184), ("decoder/attention/v_proj", -402653184),
    ]  # fmt: skip
    cache = compare(LLAMA["kv_bytes"], entries_with_heads(8)["kv_bytes"])
    assert cache.now == cache.baseline / 4
    assert len(cache.moved) == 1


def entries_with_heads(kv_heads: int) -> dict[Quantity, Exact]:
    from tfm.presets.variants import with_kv_heads

    spec = with_kv_heads(load_model("llama-7b"), kv_heads)
    return {entry.quantity: entry for entry in entries_of(spec, "llama-7b", setting(), ("decode",), load_device(H100))}


def test_the_last_bits_of_seconds_are_pythons_counts_are_not() -> None:
    floor, cache = LLAMA["decode_floor_s"], LLAMA["kv_bytes"]
    assert again(replace(floor, value=math.nextafter(floor.value, 1))).verdict == "ok"
    assert again(replace(cache, value=cache.value + 1e-4)).verdict == "changed"
    assert again(replace(cache, value=float(cache.value))).verdict == "ok"


def test_what_is_gone_and_what_cannot_be_read() -> None:
    def unreadable(_: str) -> Device:
        raise UnreadableError("no file")

    count, floor = LLAMA["total_params"], LLAMA["decode_floor_s"]
    lost = replace(count, model="lama-7b", id="lama-7b total_params")
    found = check_entries([lost, count, floor], known, unreadable)
    assert [row.verdict for row in found] == ["gone", "ok", "not run"]
    assert "Did you mean llama-7b" in found[0].why and found[2].why == "no file"
    with pytest.raises(UnreadableError, match=r"lama-7b total_params: unknown model.*remove its line"):
        updated([count, lost], known, load_device)


def test_updating_gives_what_is_computed() -> None:
    old = [replace(entry, value=1) for entry in LLAMA.values()]
    assert updated(old, known, load_device) == list(LLAMA.values())


@pytest.mark.parametrize(("quantity", "dtype"), list(product(("weight_bytes",), sorted(DTYPES))))
def test_blocks_are_shared_out_exactly(quantity: Quantity, dtype: str) -> None:
    entry = entries("transformer-toy", weight_dtype=dtype)[quantity]
    assert sum(entry.terms.values()) == entry.value
    assert set(LLAMA) <= set(QUANTITIES)
