"""Every row of a folder of published configurations with counts from the library, where there is one: no tolerance.

The folder is TFM_CORPUS, else `shared/corpus` beside the checkout. It holds configs/, oracle.csv, oracle_other_classes.csv,
flops.csv and flops/; without it these tests are skipped, and the project's own facts (test_facts.py) stand alone.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tfm.estimators.kvcache import growth, kvcache
from tfm.estimators.ledger import ledger, total
from tfm.estimators.params import params
from tfm.estimators.work import Pass
from tfm.presets.huggingface import read_config

CORPUS = Path(os.environ.get("TFM_CORPUS") or Path(__file__).resolve().parents[3].parent / "shared" / "corpus")
SHORT, LONG = 16, 2**22  # inside every window, beyond every window
Row = dict[str, str]


def rows(name: str) -> list[Row]:
    """The rows of a table; none where there is no folder."""
    path = CORPUS / name
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cases(name: str, *columns: str) -> list[Any]:
    """One test a row, or one that is skipped."""
    found = rows(name)
    if not found:
        return [pytest.param({}, id="no corpus", marks=pytest.mark.skip(reason=f"no {name} in {CORPUS.name}; set TFM_CORPUS"))]
    return [pytest.param(row, id="-".join(row[column] for column in columns)) for row in found]


@pytest.mark.parametrize("row", cases("oracle.csv", "name"))
def test_counts_equal_the_table(row: Row) -> None:
    spec = read_config(CORPUS / "configs" / row["file"])
    count = params(spec)
    found = {
        "total_params": count.total_params,
        "active_params": count.active_params,
        "embedding_params": count.embedding_params,
        "lm_head_params": count.lm_head_params,
        "minimal_bytes_per_token": growth(spec, Pass(context=SHORT)),
        "minimal_bytes_per_token_long_context": growth(spec, Pass(context=LONG)),
        "constant_state_bytes": kvcache(spec, Pass(context=SHORT)).state_bytes,
    }
    # A dense model has all its parameters active, a model without recurrence no state: the table leaves both empty.
    expected = {
        **row,
        "active_params": row["active_params"] or row["total_params"],
        "constant_state_bytes": row["constant_state_bytes"] or "0",
    }
    assert found == {key: int(float(expected[key])) if expected[key] else value for key, value in found.items()}


@pytest.mark.parametrize("row", cases("oracle_other_classes.csv", "name", "class"))
def test_the_same_file_as_another_class(row: Row) -> None:
    if row["kv_note"] == "alternative count":
        pytest.skip("another way of counting, not another class")
    (path,) = (CORPUS / "configs" / other["file"] for other in rows("oracle.csv") if other["name"] == row["name"])
    config = json.loads(path.read_text(encoding="utf-8"))
    assert params(read_config({**config, "architectures": [row["class"]]})).total_params == int(row["total_params"])


@pytest.mark.parametrize("row", cases("flops.csv", "name"))
def test_flops_equal_the_counter(row: Row) -> None:
    spec = read_config(CORPUS / row["config_file"])
    inputs: dict[str, list[int]] = json.loads(row["inputs"])
    source = None
    if "decoder_input_ids" in inputs:
        # Two strided convolutions halve Whisper's frames.
        source = inputs["input_ids"][1] if "input_ids" in inputs else inputs["input_features"][2] // 2
    work = Pass(
        batch=int(row["batch"]),
        context=inputs.get("decoder_input_ids", inputs.get("input_ids", [0, int(row["seq"])]))[1],
        source=source,
        images=int("pixel_values" in inputs) or None,
        full_attention=True,
    )
    found = ledger(spec, work)
    assert total(found, "params", per="copies") == int(row["params"])
    assert total(found, "flops") == int(row["total_flops"]) - int(row["implementation_flops"] or 0)
