"""A short run of benchmarks/fuzz_weights.py: a mutated header gives tensors or one line."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("gguf")
SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "fuzz_weights.py"


def test_six_hundred_mutations() -> None:
    outcomes, slowest = runpy.run_path(str(SCRIPT))["run"](600, 3)
    assert sum(outcomes.values()) == 600
    assert slowest < 2
    assert {outcome.split(":")[0] for outcome in outcomes} == {"safetensors", "gguf"}
