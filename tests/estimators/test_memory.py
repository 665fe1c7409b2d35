"""What has to fit."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from tfm.estimators.kvcache import kvcache
from tfm.estimators.memory import Recipe, fit, memory
from tfm.estimators.search import largest, smallest
from tfm.estimators.work import Pass
from tfm.presets.dtypes import DTYPES
from tfm.presets.loader import load_model

GPT3 = load_model("gpt-3-175b")
TRAIN = Pass(phase="train", batch=3, context=2048)


def layer_activations(work: Pass, recipe: Recipe) -> float:
    """Kept bytes a layer: the difference that one layer makes is what the rows of all of them share out."""
    rows = memory(GPT3, work, recipe).rows
    layer = [row for row in rows if row.path.startswith(("decoder/attention", "decoder/feed_forward"))]
    total = sum((row.saved * 2 + row.saved_bytes) * row.repeat for row in layer)
    if recipe.recompute == "none":
        total += sum((row.saved_square * 2 + row.square_bytes) * row.repeat for row in layer)
    return float(total) / 96


@pytest.mark.parametrize(
    ("recompute", "formula"),
    [
        pytest.param("none", lambda s, b, h, a: s * b * h * (34 + 5 * a * s / h), id="everything kept"),
        pytest.param("selective", lambda s, b, h, a: s * b * h * 34, id="no tensor of size T x S"),
    ],
)
def test_a_gpt_block_keeps_what_korthikanti_count(recompute: str, formula: object) -> None:
    assert callable(formula)
    s, b, h, a = 2048, 3, 12288, 96
    assert layer_activations(replace(TRAIN, dropout=True), Recipe(recompute=recompute)) == formula(s, b, h, a)  # type: ignore[arg-type]


def test_without_dropout_its_masks_are_gone() -> None:
    s, b, h, a = 2048, 3, 12288, 96
    assert layer_activations(TRAIN, Recipe()) == s * b * h * (32 + 2 * a * s / h)


def test_recomputation_keeps_less() -> None:
    kept = [memory(GPT3, TRAIN, Recipe(recompute=kind)).activation_bytes for kind in ("none", "selective", "full")]
    assert kept[0] > kept[1] > kept[2] > 0


@pytest.mark.parametrize(
    ("recipe", "per_parameter"),
    [
        pytest.param(Recipe(), 16, id="bf16 weights and gradients, fp32 master and moments"),
        pytest.param(Recipe(gradient_dtype=DTYPES["fp32"]), 18, id="fp32 gradients"),
        pytest.param(Recipe(optimizer="sgd", master_weights=False), 4, id="plain SGD"),
        pytest.param(Recipe(optimizer="sgd-momentum"), 12, id="SGD with momentum and a master copy"),
        pytest.param(Recipe(optimizer="adam-8bit", master_weights=False), 6, id="8-bit moments"),
    ],
)
def test_bytes_a_parameter_in_training(recipe: Recipe, per_parameter: int) -> None:
    found = memory(load_model("gpt-2"), replace(TRAIN, context=8), recipe)
    assert found.weight_bytes + found.gradient_bytes + found.optimizer_bytes == per_parameter * 124_439_808
    assert found.kv_bytes == 0


def test_weights_of_70b_are_140_gb_and_130_gib() -> None:
    found = memory(load_model("llama-2-70b"), Pass(context=1)).weight_bytes
    assert found == 2 * 68_976_648_192
    assert round(70e9 * 2 / 2**30, 1) == 130.4


@pytest.mark.parametrize("name", ["llama-7b", "gemma-2-27b", "whisper-large-v3", "deepseek-v3"])
def test_parts_sum_and_the_cache_is_the_caches(name: str) -> None:
    spec, work = load_model(name), Pass(context=700, batch=3)
    found = memory(spec, work)
    parts = ("weight", "kv", "cross_kv", "state", "activation", "gradient", "optimizer")
    assert found.total_bytes == sum(getattr(found, f"{part}_bytes") for part in parts)
    assert (found.kv_bytes, found.cross_kv_bytes) == (kvcache(spec, work).kv_bytes, kvcache(spec, work).cross_kv_bytes)


@pytest.mark.parametrize("name", ["mistral-7b", "gemma-3-27b", "llama-2-7b", "bert-base"])
def test_the_largest_batch_and_context_fit_and_one_more_does_not(name: str) -> None:
    spec, work, capacity = load_model(name), Pass(context=2000, batch=2), 80 * 2**30
    found = fit(spec, work, capacity)
    assert found.fits and found.left_bytes == capacity - memory(spec, work).total_bytes
    for field, limit in (("batch", found.largest_batch), ("context", found.largest_context)):
        needed = [memory(spec, replace(work, **{field: n})).total_bytes for n in (limit, limit + 1)]
        assert needed[0] <= capacity < needed[1]


def test_what_fits_at_every_length_of_the_source() -> None:
    spec, capacity, sources = load_model("t5-small"), 2**30, [1, 700]
    swept = fit(spec, Pass(source=np.array(sources), context=20), capacity)
    for index, source in enumerate(sources):
        one = fit(spec, Pass(source=source, context=20), capacity)
        assert (swept.largest_batch[index], swept.largest_context[index]) == (one.largest_batch, one.largest_context)


def test_what_does_not_fit_at_all() -> None:
    found = fit(load_model("llama-3.1-405b"), Pass(), 24 * 2**30)
    assert (found.fits, found.largest_batch, found.largest_context) == (False, 0, 0)
    assert found.left_bytes < 0


def test_searches_over_whole_numbers() -> None:
    assert smallest(lambda n: n >= 17, 1000) == 17
    assert smallest(lambda n: n >= 1, 1000) == 1
    assert smallest(lambda _n: False, 1000) is None
    assert [largest(lambda n, top=top: n <= top, 1000) for top in (0, 1, 999, 5000)] == [0, 1, 999, 1000]  # type: ignore[misc]
