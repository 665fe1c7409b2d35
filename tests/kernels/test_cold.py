"""What runs between products, with something else read before each."""

from __future__ import annotations

import time

import pytest
import torch

from tfm.kernels.cold import cold, cold_between, driving_out
from tfm.kernels.mixers import Scores
from tfm.kernels.model import build_model
from tfm.kernels.modules import Linear
from tfm.kernels.plan import TINIEST

CPU = torch.device("cpu")


def test_the_whole_pool_is_read_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(torch, "sum", lambda x: read.append(x.data_ptr()))
    drive = driving_out(CPU, 1 << 12, pool_bytes=3 << 12)
    assert drive is not None
    for _ in range(4):
        drive()
    assert [place - read[0] for place in read] == [0, 1 << 12, 2 << 12, 0]


def test_accelerators_do_not_wait_for_pythons_caches() -> None:
    assert driving_out(torch.device("meta"), 1 << 12, pool_bytes=1 << 20) is None


def test_only_the_call_itself_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def takes(seconds: float) -> None:
        now[0] += seconds

    run, pauses = cold(lambda: takes(0.5), lambda: takes(9.0))
    run()
    assert (now[0], pauses.seconds) == (9.5, 9.0)


def test_products_and_attention_are_left_out_of_a_model() -> None:
    drives: list[int] = []
    model = build_model(TINIEST["rms"], device=CPU, dtype=torch.float32)
    tokens = torch.tensor([[3, 5, 8]])
    with torch.inference_mode():
        before = model(tokens)
    plain = sum(1 for module in model.modules() if isinstance(module, Linear))
    pauses = cold_between(model, lambda: drives.append(1))
    with torch.inference_mode():
        start = time.perf_counter()
        after = model(tokens)
        took = time.perf_counter() - start
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert len(drives) == plain > 0 and any(isinstance(module, Scores) for module in model.modules())
    assert 0 < pauses.seconds < took
