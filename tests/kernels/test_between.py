"""Loops for what lies between products give what the operators give, and are taken by tuned modules alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tfm.kernels import between, compiling
from tfm.kernels.mixers import Run
from tfm.kernels.model import build_model
from tfm.kernels.modules import Make, Norm
from tfm.kernels.plan import llama_like
from tfm.kernels.tuning import set_tuned
from tfm.presets import spec as s

pytestmark = pytest.mark.skipif(compiling.compiler() is None, reason="no C++ compiler")
CPU = torch.device("cpu")
NEAR = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True)
def nothing_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_broken", [])


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which loops run meanwhile."""
    names: list[str] = []
    for name in ("rms_norm", "turned"):
        plain = getattr(between, name)

        def noted(*args: Tensor, _plain: object = plain, _name: str = name, **how: float) -> Tensor:
            names.append(_name)
            return _plain(*args, **how)  # type: ignore[operator, no-any-return]

        monkeypatch.setattr(between, name, noted)
    return names


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("offset", [False, True], ids=["", "offset"])
@torch.inference_mode()
def test_a_norm(dtype: torch.dtype, offset: bool, taken: list[str]) -> None:
    for shape in ((1, 1, 70), (3, 1, 4100), (1, 5, 2, 64)):
        norm = Norm(s.Norm(type="rms", unit_offset=offset), shape[-1], Make(device=CPU, dtype=dtype))
        norm.weight.copy_(torch.randn(shape[-1]))
        x = torch.randn(shape).to(dtype)
        want = norm(x)
        norm.tuned = True
        got = norm(x)
        assert got.dtype == dtype and got.shape == shape
        torch.testing.assert_close(got.double(), want.double(), rtol=NEAR[dtype], atol=NEAR[dtype])
    assert taken == 3 * ["rms_norm"]


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@torch.inference_mode()
def test_turned(dtype: torch.dtype, taken: list[str]) -> None:
    run, rope = Run(start=9, tokens=1, device=CPU, dtype=dtype), s.Rope(theta=1e4)
    for shape in ((1, 4, 1, 24), (3, 1, 1, 24), (1, 1, 1, 24)):
        x = torch.randn(shape[0], shape[2], shape[1], shape[3]).to(dtype).transpose(1, 2)
        got, want = run.turn(x, rope, tuned=True), run.turn(x, rope)
        assert got.dtype == dtype and got.shape == shape
        torch.testing.assert_close(got.double(), want.double(), rtol=NEAR[dtype], atol=NEAR[dtype])
    assert taken == 3 * ["turned"]


def test_who_has_no_loops() -> None:
    with torch.inference_mode():
        x = torch.randn(2, 8)
        assert between.takes(x, torch.randn(8))
        assert not between.takes(x, torch.randn(8).bfloat16()) and not between.takes(x.double()) and not between.takes(x.to("meta"))
        assert not between.takes(torch.empty(between.MOST_NUMBERS + 1)) and not between.takes(x[:0])
    assert not between.takes(torch.randn(2, 8))  # what comes out could not be changed in place


@torch.inference_mode()
def test_a_tuned_model_gives_the_same_and_asks_no_hooks(taken: list[str]) -> None:
    model = build_model(llama_like("small", layers=2, width=64, heads=4, kv_heads=2, head_dim=16, d_ff=96, vocabulary=80))
    heard: list[object] = []
    model.stacks[0].register_forward_hook(lambda *_: heard.append(1))
    ids, cache = torch.arange(5).view(1, 5), model.cache(1, 8)
    want = model(torch.cat([ids, ids[:, :1]], dim=1))["lm_head"][:, -1]
    assert len(heard) == 1 and not taken
    model(ids, cache=cache)
    set_tuned(model, tuned=True)
    torch.testing.assert_close(model(ids[:, :1], cache=cache)["lm_head"][:, -1], want, rtol=1e-4, atol=1e-5)
    assert len(heard) == 2 and {"rms_norm", "turned"} == set(taken)
    set_tuned(model, tuned=False)
    model(ids)
    assert len(heard) == 3
