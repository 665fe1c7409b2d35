"""Weight-only models: close to the model they come from, narrower, and refused where there is no kernel."""

from __future__ import annotations

import pytest
import torch

from tfm.kernels.model import build_model
from tfm.kernels.modules import Linear
from tfm.kernels.packed import PackedLinear, held_bytes, quantize
from tfm.kernels.plan import llama_like
from tfm.kernels.quantized import int4_weight, int8_weight, weight_only_linear
from tfm.kernels.shrink import shrink
from tfm.presets.errors import UnknownNameError, UsageError
from tfm.presets.loader import load_model

SMALL = llama_like("small", layers=2, width=128, heads=4, kv_heads=2, head_dim=32, d_ff=256, vocabulary=96)


@pytest.mark.parametrize(("kind", "error"), [("int8", 0.02), ("int4", 0.15)])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_product(kind: str, error: float, rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 256, generator=generator).bfloat16()
    weight = torch.randn(48, 256, generator=generator).bfloat16()
    narrow = int8_weight(weight) if kind == "int8" else int4_weight(weight)
    exact = x.float() @ weight.float().T
    assert (weight_only_linear(x, narrow).float() - exact).norm() < error * exact.norm()
    assert narrow.stored_bytes < weight.nbytes * (0.55 if kind == "int8" else 0.3)


@pytest.mark.parametrize(("kind", "error", "bytes_share"), [("int8", 0.05, 0.6), ("int4", 0.5, 0.4)])
def test_a_model(kind: str, error: float, bytes_share: float) -> None:
    model, ids = build_model(SMALL, dtype=torch.bfloat16), torch.arange(7).view(1, 7)
    before, wide = model(ids)["lm_head"].float(), held_bytes(model)
    assert quantize(model, kind) < bytes_share * wide + SMALL.stacks[0].d_model * 96 * 2  # the table stays
    after = model(ids)["lm_head"].float()
    assert 0 < (after - before).norm() < error * before.norm()
    assert all(isinstance(module, PackedLinear) for module in model.modules() if isinstance(module, Linear))


def test_a_tied_head_leaves_the_table_alone() -> None:
    model = build_model(load_model("gpt-2"), layers=1, dtype=torch.bfloat16)
    quantize(model, "int8")
    assert model(torch.arange(3).view(1, 3))["lm_head"].shape == (1, 3, 50257)


def test_refused() -> None:
    with pytest.raises(UnknownNameError, match="Allowed: int8, int4"):
        quantize(build_model(SMALL, dtype=torch.bfloat16), "int3")
    with pytest.raises(UsageError, match=r"got cpu in torch\.float32"):
        quantize(build_model(SMALL), "int8")
    with pytest.raises(UsageError, match="no plain matrix"):
        quantize(build_model(shrink(load_model("mixtral-8x7b")), dtype=torch.bfloat16), "int8")
