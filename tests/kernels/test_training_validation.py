"""`tfm validate --phase train`, row by row, and that it can fail."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tfm.estimators.ledger import ledger
from tfm.kernels import training_validation
from tfm.kernels.validation import validate_counts
from tfm.presets.loader import load_model

MEASURED = {"flops", "activation_bytes", "gradient_bytes", "optimizer_bytes"}


@pytest.mark.parametrize("model", ["gpt-2", "t5-small", "vit-b-16", "bert-base", "qwen3-8b"])
def test_all_rows(model: str) -> None:
    found = list(validate_counts(load_model(model), phases=("train",), batch=2, context=64))
    assert [row for row in found if row.ok is False] == []
    assert {row.quantity for row in found} >= MEASURED
    kept = [row for row in found if row.quantity == "activation_bytes" and row.ok is not None]
    assert [row.name.rpartition(" ")[2] for row in kept] == ["none", "selective", "full"]
    assert kept[0].observed > kept[1].observed


def test_a_tower_trains_with_an_image() -> None:
    found = list(validate_counts(load_model("gemma-3-27b"), phases=("train",), batch=1, context=300))
    gradients = next(row for row in found if row.quantity == "gradient_bytes")
    assert gradients.ok and gradients.predicted == 2 * 27_432_406_640


def test_a_row_that_keeps_too_much_is_noticed_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ledger

    def wrong(*args: Any) -> Any:
        return tuple(replace(row, saved=2 * row.saved) if row.path.endswith("down_proj") else row for row in right(*args))

    monkeypatch.setattr("tfm.estimators.memory.ledger", wrong)
    monkeypatch.setattr(training_validation, "ledger", wrong)
    found = list(validate_counts(load_model("gpt-2"), phases=("train",), batch=2, context=64))
    bad = [row for row in found if row.ok is False]
    assert [row.quantity for row in bad] == ["activation_bytes"] * len(bad) and bad
    assert any(row.name.endswith("decoder/feed_forward/down_proj") for row in found)
