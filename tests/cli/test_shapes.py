"""`tfm shapes` and its drawing, from the command line."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tfm.cli.app import run

Capture = pytest.CaptureFixture[str]
TOY = ["shapes", "transformer-toy", "--batch", "2", "--src", "3", "--tgt", "4", "--phase", "train"]


def ask(capsys: Capture, *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_json_contract(capsys: Capture) -> None:
    answer = ask(capsys, *TOY)
    terms = {term["path"]: term for term in answer["terms"]}
    assert terms["loss"] == {
        "path": "loss", "op": "cross_entropy", "inputs": [[2, 4, 100], [2, 4]], "output": [], "repeat": 1, "row": "lm_head/cross_entropy",
    }  # fmt: skip
    assert terms["decoder/cross_attention/k_proj"]["inputs"] == [[2, 3, 8], [8, 8]]
    assert answer["result"] == {"tensors": len(terms), "compared": None, "ok": None}


def test_letters_stand_beside_numbers(capsys: Capture) -> None:
    terms = {term["path"]: term for term in ask(capsys, *TOY, "--symbols")["terms"]}
    scores = terms["decoder/cross_attention/scores"]
    assert (scores["output"], scores["symbolic_output"]) == ([2, 2, 4, 3], ["B", "N", "T", "S"])
    assert run([*TOY, "--symbols"]) == 0
    assert "[B,N,T,S]" in capsys.readouterr().out


def test_only_what_stands_under_a_path(capsys: Capture) -> None:
    paths = [term["path"] for term in ask(capsys, *TOY, "--only", "decoder/attention")["terms"]]
    assert paths and all(path.startswith("decoder/attention/") for path in paths)
    assert run([*TOY, "--only", "decoder/atention"]) == 2
    assert "Did you mean decoder/attention" in capsys.readouterr().err


def test_verify_compares_with_real_modules(capsys: Capture) -> None:
    result = ask(capsys, *TOY, "--verify")["result"]
    assert result["ok"] is True and result["compared"] > 50 and result["differences"] == []


def test_a_difference_is_exit_3(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfm.kernels import shape_hooks

    wrong = shape_hooks.Seen(path="decoder/attention/scores", what="weights", predicted=((2, 2, 4, 4),), observed=(2, 2, 4, 5))
    monkeypatch.setattr(shape_hooks, "compare", lambda *_: (wrong,))
    assert run([*TOY, "--verify"]) == 3
    assert "[2,2,4,5]" in capsys.readouterr().out
    assert run([*TOY, "--verify", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["result"]["differences"] == [
        {"path": "decoder/attention/scores", "what": "weights", "predicted": [[2, 2, 4, 4]], "observed": [2, 2, 4, 5]}
    ]


def test_a_comma_lists_every_point(capsys: Capture) -> None:
    rows = ask(capsys, "shapes", "gpt-2,llama-3-8b", "--ctx", "8,16", "--only", "logits")["result"]["rows"]
    assert [(row["model"], row["ctx"], row["output"]) for row in rows] == [
        ("gpt-2", 8, [1, 8, 50257]), ("gpt-2", 16, [1, 16, 50257]), ("llama-3-8b", 8, [1, 8, 128256]), ("llama-3-8b", 16, [1, 16, 128256]),
    ]  # fmt: skip
    for option in ("--verify", "--diagram"):
        assert run(["shapes", "gpt-2", "--ctx", "8,16", option]) == 2


def test_csv(capsys: Capture) -> None:
    assert run([*TOY, "--csv"]) == 0
    rows = {row["path"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows["decoder/attention/scores"]["output"] == "[2, 2, 4, 4]"


def test_the_drawing(capsys: Capture) -> None:
    assert run([*TOY, "--diagram"]) == 0
    drawn = capsys.readouterr().out
    assert "| feed_forward                     |   | cross_attention                  |" in drawn
    assert "K [2,2,3,4] of encoder" in drawn and "masked scores [2,2,4,4]" in drawn
    assert all(len(line) <= 80 for line in drawn.splitlines())
    assert drawn.rstrip().endswith("loss []")


@pytest.mark.parametrize("model", ["deepseek-v3", "mixtral-8x7b", "gemma-3-27b", "whisper-large-v3", "vit-b-16", "bert-base"])
def test_other_models_are_drawn(model: str, capsys: Capture) -> None:
    assert run(["shapes", model, "--ctx", "300", "--symbols", "--diagram"]) == 0
    drawn = capsys.readouterr().out
    assert "weights x V [B,N,T," in drawn.replace("B·M", "B")
    assert all(line == line.rstrip() for line in drawn.splitlines())


def test_shapes_load_nothing_heavy(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_python("-X", "importtime", "-m", "tfm", *TOY)
    assert done.returncode == 0
    assert not {"torch", "numpy"} & {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
