"""Which reader a configuration gets, what is refused by name, and what passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfm.estimators.params import params
from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import read_config, supported_types
from tfm.presets.huggingface.keys import is_harmless
from tfm.presets.spec import ModelSpec

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
HEAD = 211 * 48
TOTAL = 2 * HEAD + 3 * (2 * 48 * 48 + 2 * 16 * 48 + 3 * 48 * 100 + 2 * 48) + 48


def count(spec: ModelSpec) -> int:
    return params(spec).total_params


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param({}, "no model_type, so it is not a Hugging Face model", id="another program's JSON"),
        pytest.param({"base_model_name_or_path": "a/b"}, "only names another model .*'a/b'", id="an adapter"),
        pytest.param({"model_type": "lama"}, "'lama' is not known. Did you mean .*llama", id="misspelt"),
        pytest.param({"model_type": "zzzz"}, "'zzzz' is not known. Known are: .*llama", id="unknown"),
        pytest.param({"model_type": 7}, "model_type must be a text", id="no text"),
        pytest.param({"model_type": "\ud800\n"}, "is not known", id="what no terminal prints"),
        pytest.param({**SMALL, "architectures": ["LlamaForImageDreaming"]}, "architectures names 'LlamaForImageDreaming'", id="class"),
        pytest.param({**SMALL, "architectures": "Llama"}, "architectures must be a list", id="class that is no list"),
        pytest.param({**SMALL, "hidden_size": -48}, "hidden_size must be from 1", id="negative"),
        pytest.param({**SMALL, "hidden_size": 50}, "6 does not divide hidden_size 50", id="heads that do not divide"),
        pytest.param({**SMALL, "num_key_value_heads": 4}, "4 does not divide num_attention_heads 6", id="groups that do not divide"),
        pytest.param({**SMALL, "hidden_act": "wavy"}, "hidden_act is 'wavy'; known are", id="activation"),
        pytest.param({**SMALL, "num_hidden_layers": 10**6}, "num_hidden_layers must be from 1 to 4096", id="a million layers"),
    ],
)
def test_refused_in_one_line_that_names_it(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableError, match=message) as caught:
        read_config(data)
    assert "\n" not in str(caught.value)
    str(caught.value).encode("utf-8")


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"num_extra_layers": 2}, id="number"),
        pytest.param({"use_magic_gate": True}, id="true"),
        pytest.param({"layer_widths": [1, 2]}, id="list"),
        pytest.param({"second_tower": {"depth": 4}}, id="object"),
        pytest.param({"use_head_norm": False}, id="false where absent may be true"),
        pytest.param({"add_cross_attention": True}, id="a usual key at an unusual value"),
        pytest.param({"pruned_heads": {"0": [1, 2]}}, id="pruned heads"),
        pytest.param({"sliding_window": 1024}, id="a key of other families"),
    ],
)
def test_an_unknown_key_that_could_change_a_number(extra: dict[str, Any]) -> None:
    key = next(iter(extra))
    with pytest.raises(UnreadableError, match=f"{key} = .* is not understood for model_type llama.*--lenient"):
        read_config({**SMALL, **extra})
    spec = read_config({**SMALL, **extra}, lenient=True)
    assert count(spec) == TOTAL
    assert any(key in line and "left out of account" in line for line in spec.assumptions)


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"flavour": "vanilla"}, id="a text"),
        pytest.param({"mystery": None}, id="null"),
        pytest.param({"use_magic_gate": False}, id="a feature that is absent"),
        pytest.param({"num_extra_layers": 0, "extra": [], "more": {}}, id="none of it"),
        pytest.param({"bos_token_id": 1, "eos_token_id": [2, 3], "attention_dropout": 0.1, "use_cache": True}, id="bookkeeping"),
        pytest.param({"pruned_heads": {}, "is_decoder": False, "chunk_size_feed_forward": 0}, id="usual defaults"),
        pytest.param({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}}, id="rotation"),
        pytest.param({"auto_map": {"AutoModel": "evil.py--Evil"}}, id="code that is never run"),
        pytest.param({"task_specific_params": {"text-generation": {"max_length": 50}}}, id="generation"),
        pytest.param({"layer_types": ["full_attention"] * 3}, id="a list that says what is so anyway"),
        pytest.param({"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}, id="a window that is off"),
    ],
)
def test_a_harmless_key_passes(extra: dict[str, Any]) -> None:
    assert count(read_config({**SMALL, **extra})) == TOTAL


def test_true_is_not_one_and_zero_is_not_false() -> None:
    assert is_harmless("tie_encoder_decoder", False)
    assert not is_harmless("tie_encoder_decoder", True)
    assert not is_harmless("is_encoder_decoder", 1)
    assert not is_harmless("num_experts_per_token", 2)


@pytest.mark.parametrize(
    ("architectures", "extra", "head"),
    [
        pytest.param(None, {}, HEAD, id="no class: the usual one"),
        pytest.param([], {}, HEAD, id="an empty list: the usual one"),
        pytest.param(["LlamaForCausalLM"], {}, HEAD, id="causal"),
        pytest.param(["LlamaForCausalLM"], {"tie_word_embeddings": True}, 0, id="causal, tied"),
        pytest.param(["LlamaModel"], {}, 0, id="no head"),
        pytest.param(["LlamaForSequenceClassification"], {}, 2 * 48, id="two labels, no bias"),
        pytest.param(["LlamaForSequenceClassification"], {"num_labels": 5}, 5 * 48, id="five labels"),
        pytest.param(["LlamaForSequenceClassification"], {"id2label": {"0": "a", "1": "b", "2": "c"}}, 3 * 48, id="named labels"),
        pytest.param(["LlamaForTokenClassification"], {"num_labels": 5}, 5 * 49, id="tokens, with bias"),
        pytest.param(["LlamaForQuestionAnswering"], {"num_labels": 5}, 2 * 49, id="start and end, whatever the labels"),
    ],
)
def test_the_class_decides_the_head(architectures: list[str] | None, extra: dict[str, Any], head: int) -> None:
    assert count(read_config({**SMALL, "architectures": architectures, **extra})) == TOTAL - HEAD + head


def test_quantisation_is_an_assumption() -> None:
    spec = read_config({**SMALL, "quantization_config": {"quant_method": "awq", "bits": 4}})
    assert count(spec) == TOTAL
    assert any("awq" in line for line in spec.assumptions)


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        pytest.param({}, "llama", id="by type"),
        pytest.param({"_name_or_path": "maker/some-model/"}, "some-model", id="by path"),
        pytest.param({"_name_or_path": "."}, "llama", id="a path that names nothing"),
        pytest.param({"_name_or_path": "a\ud800\x1b[31m"}, "a??[31m", id="nothing a terminal chokes on"),
    ],
)
def test_the_name_of_an_object(extra: dict[str, Any], name: str) -> None:
    assert read_config({**SMALL, **extra}).name == name


def test_a_folder_a_file_and_an_object_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL))
    specs = [read_config(folder), read_config(str(folder / "config.json"))]
    assert {spec.name for spec in specs} == {"tiny-llama"}
    assert specs[0].source == ("config.json of tiny-llama",)
    assert {count(spec) for spec in [*specs, read_config(SMALL)]} == {TOTAL}


def test_every_type_is_listed_once_and_sorted() -> None:
    types = supported_types()
    assert list(types) == sorted(set(types))
    assert {"llama", "gpt2", "gemma3_text"} <= set(types)
