"""Several new tokens against a cache (a draft's proposals, what follows a shared prefix): the ledger's FLOPs are PyTorch's."""

from __future__ import annotations

import pytest

from tfm.estimators.ledger import ledger
from tfm.estimators.work import Pass
from tfm.kernels.counting import counted_flops, meta_model
from tfm.kernels.shrink import shrink
from tfm.kernels.validation import of_rows
from tfm.presets import spec as s
from tfm.presets.loader import load_model

from .conftest import KINDS, MIXERS, hybrid


def spec_of(kind: str) -> s.ModelSpec:
    return hybrid(MIXERS[kind]) if kind in MIXERS else shrink(load_model(kind))


@pytest.mark.parametrize("new", [1, 4, 7])
@pytest.mark.parametrize("kind", [*KINDS, "qwen3-30b-a3b", "t5-small", "whisper-large-v3"])
def test_flops_of_a_pass_over_proposals(kind: str, new: int) -> None:
    spec = spec_of(kind)
    work = Pass(phase="decode", batch=2, context=12, new=new, full_attention=True)
    counted, predicted = counted_flops(meta_model(spec), work), of_rows(ledger(spec, work), "flops", "repeat")
    differ = {path: (predicted[path], counted[path]) for path in predicted | counted if predicted[path] != counted[path]}
    assert differ == {}
