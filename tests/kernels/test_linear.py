"""The fast call for few rows gives what F.linear gives."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from tfm.kernels.linear import WIDE, fast_linear, linear_call


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("outputs", [48, 50], ids=["slices", "no slices"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2,), (2, 4), (3, 1, 5), (5, 13), (129,)], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
def test_every_call_is_a_linear_layer(dtype: torch.dtype, outputs: int, shape: tuple[int, ...], biased: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(*shape, 33, dtype=dtype), torch.randn(outputs, 33, dtype=dtype)
    bias = torch.randn(outputs, dtype=dtype) if biased else None
    want = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    got = fast_linear(x, weight, bias)
    assert (got.dtype, got.shape) == (dtype, want.shape)
    rtol, atol = (0.02, 0.1) if dtype == torch.bfloat16 else (1e-5, 1e-5)
    torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", [(), (1, 1), (3, 2), (8,)], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
def test_long_rows_are_folded(shape: tuple[int, ...], biased: bool) -> None:
    torch.manual_seed(0)
    inputs = WIDE + 66
    x, weight = torch.randn(*shape, inputs, dtype=torch.bfloat16), torch.randn(50, inputs, dtype=torch.bfloat16) * inputs**-0.5
    bias = torch.randn(50, dtype=torch.bfloat16) if biased else None
    assert linear_call(max(1, math.prod(shape)), weight) == "folded"
    assert linear_call(1, weight[:, 2:]) == "mv"  # cannot be seen as rows of half the length
    got = fast_linear(x, weight, bias)
    assert got.shape == (*shape, 50)
    want = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(got.double(), want, rtol=0.01, atol=0.02)


@pytest.mark.parametrize(
    ("rows", "outputs", "dtype", "expected"),
    [
        (1, 50, torch.float32, "mv"),
        (1, 50, torch.bfloat16, "mv"),
        (2, 48, torch.bfloat16, "mm"),
        (128, 48, torch.float16, "mm"),
        (3, 48, torch.float32, "linear"),
        (4, 48, torch.float32, "narrow"),
        (12, 48, torch.float32, "narrow"),
        (8, 40, torch.float32, "linear"),
        (13, 40, torch.float32, "slices"),
        (64, 48, torch.float32, "slices"),
        (32, 50, torch.float32, "linear"),
        (65, 48, torch.float32, "linear"),
        (8, 48, torch.float64, "linear"),
        (129, 48, torch.bfloat16, "linear"),
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_the_call_follows_rows_and_dtype(rows: int, outputs: int, dtype: torch.dtype, expected: str) -> None:
    assert linear_call(rows, torch.empty(outputs, 4, dtype=dtype)) == expected


def test_devices_other_than_the_cpu_take_the_standard_call() -> None:
    assert linear_call(1, torch.empty(8, 8, device="meta")) == "linear"
