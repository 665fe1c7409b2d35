"""Predicted beside observed: presets agree, and a wrong ledger is caught with the row that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tfm.estimators.expected import Expected
from tfm.estimators.ledger import ledger
from tfm.kernels import validation
from tfm.kernels.benchmarks.record import Record
from tfm.kernels.timing import Sample
from tfm.kernels.validation import Finding, time_findings, validate_counts, validate_times
from tfm.presets.loader import load_model


@pytest.mark.parametrize("model", ["transformer-toy", "t5-small", "gpt-2", "vit-b-16"])
def test_presets_agree(model: str) -> None:
    spec = load_model(model)
    found = list(validate_counts(spec, phases=("prefill", "decode", "train"), batch=3, context=23))
    assert all(row.ok for row in found), [row for row in found if not row.ok]
    assert {"params", "flops"} <= {row.quantity for row in found}
    assert ("kv_bytes" in {row.quantity for row in found}) is spec.decodes


@pytest.mark.parametrize(
    ("field", "quantity", "per"), [("params", "params", "model"), ("flops", "flops", "prefill")], ids=["a parameter", "a product"]
)
def test_a_wrong_row_is_named(field: str, quantity: str, per: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ledger

    def wrong(*args: Any) -> Any:
        return tuple(
            replace(row, **{field: getattr(row, field) + 1}) if row.path == "decoder/attention/k_proj" else row for row in right(*args)
        )

    monkeypatch.setattr(validation, "ledger", wrong)
    bad = [row for row in validate_counts(load_model("gpt-2"), phases=("prefill",), batch=1, context=8) if not row.ok]
    assert [row.quantity for row in bad] == [quantity] * 2
    assert bad[0].name.startswith(per)
    assert bad[1].name.endswith("decoder/attention/k_proj")
    assert bad[0].error is not None
    assert 0 < bad[0].error < 1e-3


@pytest.mark.parametrize(
    ("predicted", "observed", "error"),
    [(3, 2, 0.5), (0, 0, 0.0), (1, 0, None), (None, 2, None)],
    ids=["off", "both nothing", "nothing seen", "not known"],
)
def test_error(predicted: float | None, observed: float, error: float | None) -> None:
    assert Finding(name="n", quantity="q", predicted=predicted, observed=observed, ok=None).error == error


def timed(median: float, *, expected: Expected | None = None, floor: float | None = 1.0) -> list[Finding]:
    record = Record(
        labels={"model": "m"}, device="d", dtype="bf16", sample=Sample(times=(median,), calls=1, stop="spread"), flops=1.0, bytes=1.0,
        bandwidth_bytes_per_s=1.0, probe="mv", peak_flops_per_s=None, floor_s=floor, bound_s=None, backend="mv", expected=expected,
    )  # fmt: skip
    return list(time_findings("decode", record))


def test_times() -> None:
    about = Expected(seconds=2.0, low_s=1.8, high_s=2.2, products_s=1.0, attention_s=1.0, other_s=0.0, factor=1.0, basis="")
    assert [(row.quantity, row.ok) for row in timed(2.1, expected=about)] == [("expected_s", True), ("floor_s", True)]
    assert [(row.quantity, row.ok) for row in timed(3.0, expected=about)] == [("expected_s", False), ("floor_s", True)]
    assert [(row.quantity, row.ok) for row in timed(0.5)] == [("floor_s", False)]
    assert [(row.quantity, row.ok) for row in timed(0.5, floor=None)] == [("floor_s", None)]


def test_times_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def stand_in(name: str, points: Any) -> Iterator[Record]:
        asked.append((name, points))
        return iter(())

    for name in ("bench_decode", "bench_prefill"):
        monkeypatch.setattr(validation, name, lambda spec, points, name=name, **_: stand_in(name, points))
    assert list(validate_times(load_model("gpt-2"), phases=("prefill", "decode", "train"), dtype=torch.float32)) == []
    assert asked == [("bench_prefill", [(1, 256)]), ("bench_decode", [(1, 1024)])]
    assert list(validate_times(load_model("bert-base"), context=7)) == []
    assert asked[2:] == [("bench_prefill", [(1, 7)])]
