"""A shared prefix: what PyTorch counts both ways is what the ledger says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tfm.estimators.prefix import saving
from tfm.estimators.work import Pass
from tfm.kernels.generation.prefix import measured_sharing, shared_prefix
from tfm.kernels.generation.reader import Reader
from tfm.kernels.model import Model, build_model
from tfm.kernels.shrink import shrink
from tfm.presets.dtypes import DTYPES
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model

from .conftest import KINDS

ModelOf = Callable[..., Model]


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_the_same(kind: str, model_of: ModelOf) -> None:
    found = measured_sharing(model_of(kind), [4, 1, 7, 7, 2, 5, 9], [[1, 2], [3, 4], [5, 6]], repeats=1)
    assert found.difference < 1e-9
    assert min(found.apart_s, found.shared_s) > 0


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "qwen3-30b-a3b", "gpt-2"])
def test_flops_are_what_pytorch_counts(name: str) -> None:
    spec = shrink(load_model(name))
    model = build_model(spec, device="meta")
    predicted = saving(spec, Pass(full_attention=True), prefix=7, rest=3, requests=4)
    with FlopCounterMode(display=False) as apart:
        Reader(model, 4, 10).read(torch.zeros(4, 10, dtype=torch.long, device="meta"), last=False)
    with FlopCounterMode(display=False) as shared:
        once = Reader(model, 1, 10)
        once.read(torch.zeros(1, 7, dtype=torch.long, device="meta"), last=False)
        assert once.cache is not None
        Reader(model, 4, 10, cache=once.cache.expanded(4)).read(torch.zeros(4, 3, dtype=torch.long, device="meta"), last=False)
    assert apart.get_total_flops() == predicted.apart_flops
    assert shared.get_total_flops() == predicted.shared_flops


def test_copied_bytes_are_those_of_the_tensors() -> None:
    spec = shrink(load_model("llama-3-8b"))
    model = build_model(spec)
    fp32 = DTYPES["fp32"]
    predicted = saving(spec, Pass(kv_dtype=fp32, weight_dtype=fp32), prefix=7, rest=3, requests=4)
    cache = shared_prefix(model, [1, 2, 3, 4, 5, 6, 7], 4, capacity=7)
    assert predicted.copied_bytes == cache.bytes + cache.bytes // 4


def test_what_is_saved_grows_with_the_requests_and_with_the_prefix() -> None:
    spec = load_model("llama-2-7b")
    shares = [
        saved.shared_flops / saved.apart_flops
        for saved in (saving(spec, Pass(), prefix=p, rest=16, requests=n) for p, n in ((1, 1), (512, 2), (512, 8), (4000, 8)))
    ]
    assert shares[0] == pytest.approx(1, abs=1e-6)
    assert shares == sorted(shares, reverse=True)
    # long prefix, short rest: about one n-th
    assert shares[-1] == pytest.approx(1 / 8, rel=0.05)


def test_one_length_of_what_follows(model_of: ModelOf) -> None:
    with pytest.raises(UsageError, match="one length"):
        measured_sharing(model_of("gpt-2"), [1], [[1], [1, 2]])
    with pytest.raises(UsageError, match="at least 1 token"):
        shared_prefix(model_of("gpt-2"), [], 1, capacity=3)
