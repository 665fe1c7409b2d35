"""The JSON contract: its keys, the sums its terms must give, tables from commas, and golden answers."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from tfm.cli.app import run
from tfm.presets.loader import model_names

Capture = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[1] / "data" / "golden"
KEYS = {
    "params": "total_params active_params embedding_params lm_head_params non_embedding_params rule_of_thumb_params",
    "flops": "total_flops linear_flops attention_flops head_flops flops_per_token",
    "kvcache": "kv_bytes kv_bytes_per_token cross_kv_bytes state_bytes policies",
    "memory": "weight_bytes kv_bytes activation_bytes gradient_bytes optimizer_bytes total_bytes capacity_bytes fits",
    "latency": "decode_floor_s decode_bound_s decode_expected_s prefill_floor_s prefill_bound_s prefill_expected_s decode_bound "
    "prefill_bound weight_read_bytes kv_read_bytes critical_batch",
}
DEVICE = {"latency": ["--hardware", "a100-80gb-sxm"], "memory": ["--hardware", "a100-80gb-sxm"]}
SIZED = {name: [] if name == "params" else ["--ctx", "512", "--batch", "2"] for name in KEYS}


def ask(capsys: Capture, *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("command", KEYS)
@pytest.mark.parametrize("model", ["llama-7b", "t5-small", "bert-base", "deepseek-v3", "gemma-3-27b", "vit-b-16"])
def test_the_envelope_and_its_keys(command: str, model: str, capsys: Capture) -> None:
    answer = ask(capsys, command, model, *SIZED[command], *DEVICE.get(command, []))
    assert list(answer) == ["schema", "version", "command", "inputs", "assumptions", "result", "terms"]
    assert (answer["schema"], answer["command"], answer["inputs"]["model"]) == ("tfm/1", command, model)
    assert set(KEYS[command].split()) <= set(answer["result"])
    assert answer["terms"] or model in ("bert-base", "vit-b-16")


@pytest.mark.parametrize("model", model_names())
def test_terms_sum_to_the_result(model: str, capsys: Capture) -> None:
    counted = ask(capsys, "params", model)
    assert sum(term["params"] * term["copies"] for term in counted["terms"]) == counted["result"]["total_params"]
    work = ask(capsys, "flops", model, "--ctx", "300")
    assert sum(term["flops"] * term["repeat"] for term in work["terms"]) == work["result"]["total_flops"]
    parts = ("linear_flops", "attention_flops", "head_flops")
    assert sum(work["result"][part] for part in parts) == work["result"]["total_flops"]
    kept = ask(capsys, "kvcache", model, "--ctx", "300")
    for of, key in ((("self",), "kv_bytes"), (("cross",), "cross_kv_bytes"), (("state", "tail"), "state_bytes")):
        assert sum(term["bytes"] * term["repeat"] for term in kept["terms"] if term["of"] in of) == kept["result"][key]
    timed = ask(capsys, "latency", model, "--ctx", "300", "--hardware", "a100-80gb-sxm")
    read = sum(term["weight_read_bytes"] * term["repeat"] for term in timed["terms"])
    assert read == pytest.approx(timed["result"]["weight_read_bytes"])
    floor = timed["result"]["decode_floor_s"] or timed["result"]["prefill_floor_s"]
    assert sum(term["seconds"] * term["repeat"] for term in timed["terms"]) == pytest.approx(floor)


@pytest.mark.parametrize("command", ["flops", "kvcache", "memory", "latency"])
def test_a_comma_makes_a_table_of_flat_results(command: str, capsys: Capture) -> None:
    words = [command, "llama-7b", *DEVICE.get(command, [])]
    rows = ask(capsys, *words, "--batch", "1,3", "--ctx", "1k,4k,32k")["result"]["rows"]
    assert [(row["batch"], row["ctx"]) for row in rows] == [(b, c) for b in (1, 3) for c in (1024, 4096, 32768)]
    one = ask(capsys, *words, "--batch", "3", "--ctx", "4k")["result"]
    for name, value in one.items():
        assert rows[4][name] == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize("command", ["flops", "kvcache", "memory", "latency"])
@pytest.mark.parametrize("model", ["t5-small", "mixtral-8x7b", "deepseek-v3", "gemma-3-27b", "vit-b-16"])
def test_a_row_of_a_table_is_the_single_answer(command: str, model: str, capsys: Capture) -> None:
    """Whatever is swept at once, lengths of the source and whole generations too."""
    words = [command, model, *DEVICE.get(command, []), *(["--new", "3"] if command == "latency" and model != "vit-b-16" else [])]
    rows = ask(capsys, *words, "--batch", "1,3", "--ctx", "5,700", "--src", "1,37")["result"]["rows"]
    one = ask(capsys, *words, "--batch", "3", "--ctx", "700", "--src", "37")["result"]
    for name, value in one.items():
        assert rows[-1][name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value)
        assert type(rows[-1][name]) is type(value)


def test_a_number_of_heads_is_a_number(capsys: Capture) -> None:
    kept = [ask(capsys, "kvcache", "--gqa", text)["result"]["kv_bytes"] for text in ("8", "8.0", "0.8e1")]
    assert kept == [kept[0]] * 3


def test_what_changes_nothing_is_said(capsys: Capture) -> None:
    said = ask(capsys, "flops", "llama-7b", "--src", "9", "--images", "2")["assumptions"]
    assert any("--src changes nothing" in line for line in said)
    assert any("--images changes nothing" in line for line in said)


def test_other_commas_make_tables_too(capsys: Capture) -> None:
    rows = ask(capsys, "kvcache", "llama-7b,gpt-2", "--kv-dtype", "bf16,q8_0", "--ctx", "64")["result"]["rows"]
    assert [(row["model"], row["kv_dtype"]) for row in rows] == [(m, d) for m in ("llama-7b", "gpt-2") for d in ("bf16", "q8_0")]
    rows = ask(capsys, "params", "llama-7b,gpt-2")["result"]["rows"]
    assert [row["total_params"] for row in rows] == [6_738_415_616, 124_439_808]


def test_csv_and_markdown(capsys: Capture) -> None:
    assert run(["flops", "gpt-2", "--batch", "1,2", "--ctx", "64", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [int(row["batch"]) for row in rows] == [1, 2]
    assert int(rows[1]["total_flops"]) == 2 * int(rows[0]["total_flops"])
    assert run(["params", "llama-7b", "--markdown"]) == 0
    assert "| output matrix | 131,072,000 |" in capsys.readouterr().out


def test_what_is_assumed_is_said(capsys: Capture) -> None:
    assert "no model given: llama-7b" in ask(capsys, "kvcache", "--ctx", "32k")["assumptions"]
    assert any("512" in line and "--src" in line for line in ask(capsys, "flops", "t5-small", "--ctx", "9")["assumptions"])
    assert any("1500" in line for line in ask(capsys, "kvcache", "whisper-large-v3", "--ctx", "9")["assumptions"])
    assert any("keeps no cache" in line for line in ask(capsys, "kvcache", "bert-base")["assumptions"])
    assert any("correction" in line for line in ask(capsys, "params", "deepseek-v3")["assumptions"])


def test_cached_is_decode_at_one_more(capsys: Capture) -> None:
    cached = ask(capsys, "flops", "llama-7b", "--cached", "99")["result"]
    assert cached == ask(capsys, "flops", "llama-7b", "--phase", "decode", "--ctx", "100")["result"]


@pytest.mark.parametrize("command", KEYS)
def test_explain_gives_formula_numbers_and_source(command: str, capsys: Capture) -> None:
    for model in ("mixtral-8x7b", "t5-small"):
        assert run([command, model, "--explain", *SIZED[command], *DEVICE.get(command, [])]) == 0
        out = capsys.readouterr().out
        assert "formula" in out and "numbers" in out and "source" in out
    assert run(["memory", "gpt-2", "--phase", "train", "--explain", "--recompute", "full"]) == 0
    assert "Korthikanti" in capsys.readouterr().out


@pytest.mark.parametrize("phase", ["prefill", "decode", "train"])
def test_the_numbers_of_an_explanation_give_its_value(phase: str, capsys: Capture) -> None:
    """`path flops·repeat + ...` and, in training, `forward n + backward n`."""
    for model in ("gpt-2", "t5-small"):
        for part in ask(capsys, "flops", model, "--ctx", "50", "--phase", phase, "--explain")["explanations"]:
            if "further rows" not in part["substituted"]:
                terms = [term.replace(",", "").split()[-1].split("·") for term in part["substituted"].split(" + ")]
                assert sum(math.prod(map(int, factors)) for factors in terms) == part["value"]


def test_a_table_explains_nothing_and_says_so(capsys: Capture) -> None:
    for words in (["flops", "gpt-2", "--batch", "1,2"], ["params", "gpt-2,llama-7b"]):
        assert run([*words, "--explain"]) == 0
        assert "explains one point" in capsys.readouterr().err


GOLDENS = {
    "params": "params mixtral-8x7b",
    "flops": "flops llama-2-7b --ctx 4k",
    "flops-train": "flops t5-small --phase train --batch 2 --ctx 48 --src 64",
    "kvcache": "kvcache --ctx 32k --gqa 8",
    "memory": "memory llama-3-70b --ctx 32k --weight-dtype int4 --hardware h100-80gb-sxm",
    "latency": "latency llama-7b --hardware a100-80gb-sxm --weight-dtype fp16 --ctx 1",
    "table": "kvcache gemma-2-27b --ctx 4k,8k --batch 1,2",
}


@pytest.mark.parametrize("name", GOLDENS)
def test_golden(name: str, capsys: Capture) -> None:
    """The whole answer, as kept in tests/data/golden; `TFM_GOLDEN=write` writes what is printed now."""
    answer = ask(capsys, *GOLDENS[name].split())
    answer["version"] = "x"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("TFM_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    kept = json.loads(path.read_text(encoding="utf-8"))
    now, then = flat(answer), flat(kept)
    assert list(now) == list(then)
    assert [
        path for path, value in now.items() if value != (pytest.approx(then[path], rel=1e-12) if isinstance(value, float) else then[path])
    ] == []


def flat(value: object, path: str = "") -> dict[str, Any]:
    """Nested JSON as {path: leaf}: numbers compare within rounding, all else exactly."""
    if isinstance(value, dict):
        return {key: leaf for name, member in value.items() for key, leaf in flat(member, f"{path}.{name}").items()}
    if isinstance(value, list):
        return {key: leaf for index, member in enumerate(value) for key, leaf in flat(member, f"{path}[{index}]").items()}
    return {path: value}
