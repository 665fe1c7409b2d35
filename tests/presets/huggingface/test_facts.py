"""What the library builds from configurations of our own (tests/data/oracle, written by benchmarks/oracle_facts.py)."""

from __future__ import annotations

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
SHORT, LONG = 8, 72  # contexts at which the facts' cache growth was read
COUNTS = ("total_params", "embedding_params", "lm_head_params", "active_params")
Case = dict[str, Any]

# What the library counts and we do not answer, each with the reason: refused by name, or another convention.
REFUSED = {
    ("gpt2", "cross-attention"): "the stack that the states come from is not described",
    ("gpt_bigcode", "cross-attention"): "likewise",
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
    """The pass whose FLOPs the facts hold."""
    source = None
    if "decoder_input_ids" in given:
        source = given["input_ids"][1] if "input_ids" in given else given["input_features"][2] // 2
    shape = next(given[key] for key in ("decoder_input_ids", "input_ids", "pixel_values") if key in given)
    images = int("pixel_values" in given) or None
    return Pass(batch=shape[0], context=shape[1], source=source, images=images, full_attention=True)


@pytest.mark.parametrize("case", facts())
def test_the_facts_are_met(case: Case) -> None:
    if (case["type"], case["id"]) in REFUSED:
        with pytest.raises(UnreadableError, match="not understood"):
            read_config(configuration(case))
        return
    spec = read_config(configuration(case))
    count = params(spec)
    assert {key: getattr(count, key) for key in COUNTS if key in case} == {key: case[key] for key in COUNTS if key in case}
    if "flops" in case:
        assert total(ledger(spec, pass_of(case["flops"])), "flops") == case["flops"]["total"] - case["flops"]["implementation"]
    if "cache" in case:
        assert grown(spec) == (case["cache"]["per_token"], case["cache"]["per_token_long"])


def grown(spec: ModelSpec) -> tuple[int, int]:
    """Elements that a token adds, inside and beyond every window (bf16: two bytes each)."""
    return growth(spec, Pass(context=SHORT)) // 2, growth(spec, Pass(context=LONG)) // 2
