"""What runs between products, with something else read before each."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from tfm.kernels import beats
from tfm.kernels.beats import Beat
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.cold import cold, cold_between, driving_out
from tfm.kernels.meter import Meter, Tempo
from tfm.kernels.mixers import Scores
from tfm.kernels.model import build_model
from tfm.kernels.modules import Linear
from tfm.kernels.plan import TINIEST, standard_plan
from tfm.kernels.timing import Stopping

CPU = torch.device("cpu")
TEMPO = Tempo(beat=Beat(call=lambda: None, amount=1.0), seconds=1.0)


METER = Meter(device=CPU, dtype=torch.bfloat16, stopping=Stopping(), memory=TEMPO, vector=TEMPO, matrix=TEMPO)


def test_other_weights_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(standard_plan(Setting(device=CPU)), beat_bytes=3 << 13)
    monkeypatch.setattr(beats, "product", lambda x, weights: weights)
    weights: Any = driving_out(plan, METER, 1 << 13)
    assert [weight.nbytes for weight in weights] == [1 << 13] * 3 and len({weight.data_ptr() for weight in weights}) == 3
    assert driving_out(plan, replace(METER, device=torch.device("meta")), 1 << 13) is None  # accelerators do not wait for Python's caches


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
