"""Floor and bound of a training step, by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tfm.estimators.flops import flops
from tfm.estimators.training_step import MOMENTS, training_step
from tfm.estimators.work import Pass
from tfm.presets.device import load_device
from tfm.presets.dtypes import DTYPES
from tfm.presets.loader import load_model

GPT2 = load_model("gpt-2")
DEVICE = load_device("h100-80gb-sxm")
WORK = Pass(phase="train", batch=3, context=70)
PARAMS, TABLES = 124_439_808, (50257 + 1024) * 768


@pytest.mark.parametrize("optimizer", MOMENTS)
def test_bytes(optimizer: str) -> None:
    """Read in two passes; the gradient written; gradient, weight and moments read, weight and moments written."""
    found = training_step(GPT2, WORK, DEVICE, optimizer=optimizer)
    products = PARAMS - TABLES + 50257 * 768  # the tied head reads the table that the embedding only gathers from
    assert found.read_bytes == 2 * 2 * products
    assert found.gradient_bytes == 2 * PARAMS
    assert found.update_bytes == 2 * PARAMS * (1 + 2 + 2 * MOMENTS[optimizer])
    assert found.bytes == found.read_bytes + found.gradient_bytes + found.update_bytes
    assert found.held_bytes == 2 * PARAMS * (2 + MOMENTS[optimizer])


def test_flops_are_those_of_the_pass() -> None:
    found = training_step(GPT2, WORK, DEVICE)
    assert found.flops == found.forward_flops + found.backward_flops == flops(GPT2, WORK).total_flops
    assert found.backward_flops == 2 * found.forward_flops


def test_few_tokens_wait_for_memory_many_for_arithmetic() -> None:
    peak, rate = DEVICE.peak_for("bf16"), DEVICE.memory_bytes_per_s
    assert peak is not None
    few, many = (training_step(GPT2, replace(WORK, batch=batch), DEVICE) for batch in (1, 4096))
    assert few.bound_s == few.bytes / rate
    assert many.bound_s == many.flops / peak
    for found in (few, many):
        assert found.floor_s is not None and found.bound_s is not None
        assert found.bound_s <= found.floor_s <= found.flops / peak + found.bytes / rate


def test_a_wider_format_moves_more() -> None:
    wide = training_step(GPT2, replace(WORK, weight_dtype=DTYPES["fp32"]), DEVICE)
    assert wide.bytes == 2 * training_step(GPT2, WORK, DEVICE).bytes


def test_without_a_peak_there_is_no_floor() -> None:
    found = training_step(GPT2, replace(WORK, activation_dtype=DTYPES["fp8"]), load_device("a100-80gb-sxm"))
    assert (found.floor_s, found.bound_s) == (None, None)
