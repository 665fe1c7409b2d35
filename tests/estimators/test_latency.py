"""The roofline against worked answers."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace as changed

from tfm.estimators.latency import critical_batch, generation, latency, roofline, row_seconds, wall
from tfm.estimators.work import Pass
from tfm.presets.device import Device, load_device
from tfm.presets.dtypes import DTYPES
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model, model_names

A100 = load_device("a100-80gb-sxm")
LLAMA = load_model("llama-7b")


def by_hand(bandwidth: float, peak: float | None) -> Device:
    """A device that is two numbers."""
    peaks: dict[str, float | None] = {"bf16": peak, "int8": peak}
    return changed(A100, name="by-hand", memory_bytes_per_s=bandwidth, peak_flops_per_s=peaks)


def test_llama_7b_on_an_a100() -> None:
    found = latency(LLAMA, Pass(context=1), A100).decode
    assert found is not None
    # The input table is gathered, not read: 6,738,415,616 - 131,072,000 weights of two bytes, and one token of cache.
    assert found.weight_read_bytes == 13_214_687_232
    assert found.kv_read_bytes == 524_288
    assert found.floor_s == pytest.approx((13_214_687_232 + 524_288) / 2.039e12, rel=1e-12)
    assert round(13_214_687_232 / 2.039e12 * 1e3, 2) == 6.48
    assert found.compute_s is not None and found.compute_s < 1e-4
    assert wall(found) == "bandwidth"


def test_the_batch_that_hits_the_other_wall() -> None:
    bytes_a_step, flops_a_sequence = 13_214_687_232, 2 * 6_607_077_376 + 32 * 32 * 4 * 128
    batch = critical_batch(LLAMA, Pass(context=1), A100)
    assert batch is not None
    for n, expected in ((batch - 1, False), (batch, True)):
        assert (n * flops_a_sequence / 312e12 > (bytes_a_step + n * 524_288) / 2.039e12) is expected
    # With 4096 tokens each, a sequence's own cache takes longer to read than its arithmetic, at any batch.
    assert critical_batch(LLAMA, Pass(context=4096), A100) is None
    assert critical_batch(LLAMA, Pass(context=4096), A100, cached=False) == 154


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_relations(name: str, phase: str) -> None:
    spec = load_model(name)
    if phase == "decode" and not spec.decodes:
        return
    work = Pass(phase=phase, context=300, batch=2)  # type: ignore[arg-type]
    found = roofline(spec, work, A100)
    assert found.floor_s is not None and found.bound_s is not None and found.compute_part_s is not None
    assert 0 < found.bound_s <= found.floor_s * (1 + 1e-12)
    assert found.floor_s == pytest.approx(found.compute_part_s + found.memory_part_s)
    assert found.floor_s == pytest.approx(sum((row_seconds(row, work, A100) or 0) * row.repeat for row in found.rows))


@pytest.mark.parametrize(
    ("weights", "cache", "share_of_weights", "share_of_cache"),
    [("int8", "bf16", 1 / 2, 1), ("int4", "q8_0", 66 / 256, 34 / 64), ("fp32", "fp32", 2, 2), ("mxfp4", "fp8", 17 / 64, 1 / 2)],
)
def test_formats_change_bytes_and_not_flops(weights: str, cache: str, share_of_weights: float, share_of_cache: float) -> None:
    plain = roofline(LLAMA, Pass(phase="decode", context=512), A100)
    packed = roofline(LLAMA, Pass(phase="decode", context=512, weight_dtype=DTYPES[weights], kv_dtype=DTYPES[cache]), A100)
    assert packed.flops == plain.flops
    assert packed.weight_read_bytes == plain.weight_read_bytes * share_of_weights
    assert packed.kv_read_bytes == plain.kv_read_bytes * share_of_cache


def test_a_mixture_reads_the_expected_distinct_experts() -> None:
    spec = load_model("mixtral-8x7b")
    one, three = (roofline(spec, Pass(phase="decode", context=1, batch=n), A100) for n in (1, 3))
    expert = 3 * 4096 * 14336 * 2
    always = one.weight_read_bytes - 32 * 2 * expert
    assert three.weight_read_bytes == always + 32 * 4.625 * expert
    assert three.distinct_experts == 4.625
    # On two GPUs of 2 TB/s, weights and cache split evenly, the floor is 6.4 ms (and not 47).
    both = roofline(spec, Pass(phase="decode", context=1), by_hand(4e12, 624e12)).floor_s
    assert both is not None and round(both * 1e3, 1) == 6.4


def test_a_70b_model_at_4_5_bits_on_273_gb_per_s() -> None:
    found = roofline(load_model("llama-2-70b"), Pass(phase="decode", context=1, weight_dtype=DTYPES["q4_0"]), by_hand(273e9, None))
    assert found.floor_s is not None
    assert 6.9 < 1 / found.floor_s < 7.1  # 69.0e9 parameters, of which the input table is not read
    assert round(1 / (70e9 * 4.5 / 8 / 273e9), 1) == 6.9


def test_an_unknown_peak_leaves_what_needs_it_unknown() -> None:
    found = latency(LLAMA, Pass(context=64), load_device("m2-ultra"))
    assert (found.prefill.floor_s, found.prefill.bound_s, found.prefill.compute_s, found.critical_batch) == (None, None, None, None)
    assert found.decode is not None
    assert found.decode.floor_s == found.decode.memory_s
    assert wall(found.decode) is None


def test_an_encoder_has_a_prefill_alone() -> None:
    found = latency(load_model("bert-base"), Pass(context=512), A100)
    assert found.decode is None and found.critical_batch is None
    assert found.prefill.floor_s is not None


def test_shared_weights_are_read_once() -> None:
    tied = load_model("gpt-2")
    found = roofline(tied, Pass(phase="decode", context=1), A100)
    assert found.weight_read_bytes == 2 * (124_439_808 - 1024 * 768)  # the tied table is read as the head


def test_a_generation_sums_its_steps() -> None:
    found = generation(LLAMA, Pass(context=100), A100, 4)
    assert found is not None
    steps = [roofline(LLAMA, Pass(phase="decode", context=n), A100).floor_s or 0 for n in (101, 102, 103)]
    prompt = roofline(LLAMA, Pass(context=100), A100).floor_s or 0
    assert found.first_step_s == pytest.approx(steps[0])
    assert found.last_step_s == pytest.approx(steps[-1])
    assert found.mean_step_s == pytest.approx(sum(steps) / 3)
    assert found.total_s == pytest.approx(prompt + sum(steps))


def test_a_generation_at_every_point_of_a_sweep() -> None:
    spec, batches, contexts, sources = load_model("t5-small"), [1, 5, 2], [10, 300, 4], [9, 1, 64]
    work = Pass(batch=np.array(batches), context=np.array(contexts), source=np.array(sources))
    swept, whole = generation(spec, work, A100, 3), latency(spec, work, A100)
    assert swept is not None and whole.critical_batch is not None
    for index, (batch, context, source) in enumerate(zip(batches, contexts, sources, strict=True)):
        point = Pass(batch=batch, context=context, source=source)
        one = generation(spec, point, A100, 3)
        assert one is not None
        assert (swept.total_s[index], swept.mean_step_s[index]) == (one.total_s, one.mean_step_s)
        assert whole.critical_batch[index] == latency(spec, point, A100).critical_batch


def test_a_long_generation_is_summed_in_parts_and_never_overflows() -> None:
    work = Pass(batch=2**32, context=2**30)
    found = generation(LLAMA, work, A100, 70_000)
    last = roofline(LLAMA, changed(work, phase="decode", context=2**30 + 69_999), A100).floor_s
    assert found is not None and found.first_step_s < found.mean_step_s < found.last_step_s == last
    with pytest.raises(UsageError, match="at most 16777216 tokens"):
        generation(LLAMA, work, A100, 2**24 + 1)


def test_arrays_give_what_single_points_give() -> None:
    batches, contexts = np.array([1, 7, 64]), np.array([10, 500, 9000])
    swept = latency(load_model("mixtral-8x7b"), Pass(batch=batches, context=contexts), A100)
    assert swept.decode is not None and swept.decode.floor_s is not None and swept.prefill.floor_s is not None
    assert swept.critical_batch is not None
    for index, (batch, context) in enumerate(zip(batches.tolist(), contexts.tolist(), strict=True)):
        one = latency(load_model("mixtral-8x7b"), Pass(batch=batch, context=context), A100)
        assert one.decode is not None
        assert swept.decode.floor_s[index] == pytest.approx(one.decode.floor_s, rel=1e-12)
        assert swept.prefill.floor_s[index] == pytest.approx(one.prefill.floor_s, rel=1e-12)
        assert swept.critical_batch[index] == one.critical_batch
