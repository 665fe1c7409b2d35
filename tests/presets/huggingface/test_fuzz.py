"""A short run of benchmarks/fuzz_configs.py: mutated configurations give a model or one clear line."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "fuzz_configs.py"


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_configs", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_nothing_but_models_and_refusals(fuzz: ModuleType) -> None:
    outcomes = fuzz.run(1500, seed=2)
    assert set(outcomes) == {"model", "refused"}
    assert sum(outcomes.values()) == 1500


def test_the_mutations_do_change_something(fuzz: ModuleType) -> None:
    rng = random.Random(3)
    base = {"model_type": "llama", "hidden_size": 48, "layer_types": ["full_attention"] * 3, "text_config": {"depth": 2}}
    made = [fuzz.mutate(base, ["vocab_size"], rng) for _ in range(200)]
    assert sum(one != base for one in made) > 190
    assert base == {"model_type": "llama", "hidden_size": 48, "layer_types": ["full_attention"] * 3, "text_config": {"depth": 2}}
    kinds = {type(one.get("hidden_size")) for one in made}
    assert {int, float, str, type(None)} <= kinds
    assert len({fuzz.break_text('{"a": 1, "b": [2, 3]}', rng) for _ in range(50)}) > 20
