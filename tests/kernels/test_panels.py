"""Weights in panels: the same numbers, the same product, for every number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tfm.kernels import compiled, compiling, panels
from tfm.kernels.panels import as_it_lay, by_panels, in_panels, panel_width, takes

pytestmark = pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")
FORMATS = [torch.float32, torch.bfloat16, torch.float16]
EXACT = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def small_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of a test; nothing broken before."""
    monkeypatch.setattr(panels, "WORTH", 1)
    monkeypatch.setattr(compiling, "_broken", [])


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("outputs", "inputs", "rows", "width"), [(96, 33, 1, 32), (48, 70, 1, 16), (64, 20, 16, 16), (32, 7, 14, 32)])
def test_an_order_of_the_same_numbers(outputs: int, inputs: int, rows: int, width: int, dtype: torch.dtype) -> None:
    """What one input is multiplied by lies together."""
    weight = torch.randn(outputs, inputs).to(dtype)
    stored = in_panels(weight, rows)
    assert stored.shape == (outputs // width, inputs, width) and stored.is_contiguous() and stored.dtype == dtype
    assert torch.equal(stored[1 % len(stored), 3], weight[width * (1 % len(stored)) :][:width, 3])
    assert torch.equal(as_it_lay(stored), weight)


@pytest.mark.parametrize(("rows", "dtype"), [*((1, dtype) for dtype in FORMATS), (3, torch.bfloat16), (16, torch.float32)], ids=str)
@torch.inference_mode()
def test_a_product(rows: int, dtype: torch.dtype) -> None:
    """Rows of x that lie apart, more than one dimension of them, one bias or none."""
    torch.manual_seed(0)
    for outputs, inputs in ((96, 72), (48, 5), (32, 5000)):
        x, weight = torch.randn(rows, 1, 2 * inputs).to(dtype)[..., :inputs], (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
        assert takes(rows, weight)
        stored = in_panels(weight, rows)
        for bias in (None, torch.randn(outputs).to(dtype)):
            got, want = by_panels(x, stored, bias), F.linear(x.double(), weight.double(), None if bias is None else bias.double())
            assert got.dtype == dtype and got.shape == (rows, 1, outputs)
            torch.testing.assert_close(got.double(), want, rtol=EXACT[dtype], atol=EXACT[dtype])


@pytest.mark.parametrize("rows", [1, 40])
def test_without_a_loop_the_result_is_the_same(rows: int) -> None:
    """More rows than registers hold, or somebody who wants gradients."""
    x, weight = torch.randn(rows, 64), torch.randn(64, 64)
    stored = in_panels(weight, 1)
    torch.testing.assert_close(by_panels(x, stored), F.linear(x, weight))
    with torch.inference_mode():
        torch.testing.assert_close(by_panels(x, stored), F.linear(x, weight), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_who_listens_hears_of_a_loop() -> None:
    stored = in_panels(torch.randn(64, 20), 1)
    with compiled.LOOPS.listening() as heard:
        by_panels(torch.randn(1, 20), stored)
    assert heard == {"product": [(64, 20)]}


@pytest.mark.parametrize(
    ("rows", "weight"),
    [
        pytest.param(29, torch.empty(64, 64), id="more sums than registers"),
        pytest.param(1, torch.empty(50, 64), id="no whole panels"),
        pytest.param(1, torch.empty(2, 64, 64), id="several"),
        pytest.param(1, torch.empty(64, 64, dtype=torch.float64), id="double"),
        pytest.param(1, torch.empty(64, 64, device="meta"), id="meta"),
        pytest.param(1, torch.empty(64, 1), id="one input"),
    ],
)
def test_weights_that_have_no_panels(rows: int, weight: Tensor) -> None:
    assert not takes(rows, weight)


def test_small_weights_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "WORTH", 64 * 64 * 4)
    assert takes(1, torch.empty(64, 64)) and not takes(1, torch.empty(64, 63))


def test_a_panel_is_two_registers_wide_where_rows_leave_room() -> None:
    assert panel_width(1, 64) == panel_width(14, 64) == 32
    assert panel_width(15, 64) == panel_width(1, 48) == 16
