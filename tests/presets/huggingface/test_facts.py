"""What the library builds from configurations of our own (tests/data/oracle, written by benchmarks/oracle_facts.py)."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from tfm.estimators.kvcache import growth
from tfm.estimators.ledger import ledger, total
from tfm.estimators.params import params
from tfm.estimators.work import Pass
from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import read_config
from tfm.presets.spec import ModelSpec

FOLDER = Path(__file__).resolve().parents[2] / "data" / "oracle"
SHORT, LONG = 8, 2**20  # inside and beyond every window (the facts were read with windows cut short)
COUNTS = ("total_params", "embedding_params", "lm_head_params", "active_params")
Case = dict[str, Any]

# Where we do not follow the library, each with the reason. An entry that is met after all fails: it is to be taken out.
ELSEWHERE = {
    ("gpt2", "cross-attention"): "refused: the stack that the states come from is not described",
    ("gpt_bigcode", "cross-attention"): "refused, likewise",
    ("deberta", "types-and-talking-heads"): "refused: heads that are mixed are not described, and no published model has them",
    ("deberta", "not-legacy"): "the library names the layer before the output matrix the output; the matrix is the token table",
    ("deberta-v2", "not-legacy"): "likewise",
    ("kimi_k25", "published-vision-names"): "the library passes over the names that published files use; the model's own code reads them",
}


def facts() -> list[Any]:
    """One test a case."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    files = [yaml.load(path.read_text(encoding="utf-8"), Loader=loader) for path in sorted(FOLDER.glob("*.yaml"))]
    return [
        pytest.param({**case, "type": data["model_type"]}, id=f"{data['model_type']}-{case['id']}")
        for data in files
        for case in data["cases"]
        if "refused" not in case
    ]


def configuration(case: Case) -> dict[str, Any]:
    """The case as a config.json."""
    return {"model_type": case["type"], "architectures": [case["class"]], **case["config"]}


def pass_of(given: dict[str, Any]) -> Pass:
    """The pass whose FLOPs the facts hold: several choices are as many sequences, two strided convolutions halve frames."""
    *batch, length = given.get("input_ids") or given.get("decoder_input_ids") or given["pixel_values"][:2]
    source = given["input_features"][2] // 2 if "input_features" in given else length
    if "decoder_input_ids" in given:
        length = given["decoder_input_ids"][1]
    images = int("pixel_values" in given) or None
    return Pass(batch=prod(batch), context=length, source=source, images=images, full_attention=True)


def differences(case: Case) -> dict[str, Any]:
    """What we find and the library does not, {fact: (ours, the library's)}; a refusal is one."""
    try:
        spec = read_config(configuration(case))
    except UnreadableError as error:
        return {"refused": str(error)}
    count = params(spec)
    pairs = {key: (getattr(count, key), case[key]) for key in COUNTS if key in case}
    if "flops" in case:
        # Where the library computes a recurrence in chunks, its products say nothing of the algebra: neither side counts it.
        rows = [row for row in ledger(spec, pass_of(case["flops"])) if not (row.op == "scan" and "chunked_scan" in case["flops"])]
        pairs["flops"] = (total(rows, "flops"), case["flops"]["total"] - case["flops"]["implementation"])
    if "cache" in case:
        pairs["cache"] = (grown(spec), (case["cache"]["per_token"], case["cache"]["per_token_long"]))
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def grown(spec: ModelSpec) -> tuple[int, int]:
    """Elements that a token adds, inside and beyond every window (bf16: two bytes each)."""
    return growth(spec, Pass(context=SHORT)) // 2, growth(spec, Pass(context=LONG)) // 2


@pytest.mark.parametrize("case", facts())
def test_the_facts_are_met(case: Case) -> None:
    if (case["type"], case["id"]) in ELSEWHERE:
        assert differences(case)
    else:
        assert differences(case) == {}
