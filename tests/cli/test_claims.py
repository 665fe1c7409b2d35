"""`tfm validate claims`: rows, exit codes, the list."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tfm.cli.app import run
from tfm.kernels.claims import CLAIMS
from tfm.kernels.claims import claim as mechanism


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["validate", "claims", *arguments])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def parsed(text: str) -> Any:
    return json.loads(text)["result"]


def test_rows_have_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = asked(capsys, "--only", "sgd-step,query-times-keys", "--json")
    result = parsed(out)
    assert (code, result["ok"]) == (0, True)
    assert [row["name"] for row in result["rows"]] == ["sgd-step", "query-times-keys"]
    assert {"name", "quantity", "predicted", "observed", "error", "ok"} <= set(result["rows"][0])
    assert result["rows"][1]["observed"] == [[1.0, 1.0, 2.0]]


def test_one_that_fails_exits_3(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLAIMS, "sgd-step", replace(CLAIMS["sgd-step"], test=lambda: mechanism.equal(0.48, 0.52)))
    code, out, err = asked(capsys, "--only", "sgd-step,query-times-keys")
    assert code == 3
    assert "1 hold, 1 fail" in out
    assert "FAILS" in out
    assert "sgd-step" in err


def test_what_does_not_apply_is_no_failure_and_no_success(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLAIMS, "sgd-step", replace(CLAIMS["sgd-step"], test=lambda: mechanism.not_applicable("no GPU")))
    code, out, err = asked(capsys, "--only", "sgd-step")
    assert code == 0
    assert "0 hold, 0 fail, 1 not applicable here" in out
    assert "no GPU" in err


def test_the_list_looks_at_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm.kernels.claims.look", None)
    code, out, _ = asked(capsys, "--list", "--json")
    rows = parsed(out)["rows"]
    assert code == 0
    assert [row["name"] for row in rows] == list(CLAIMS)
    assert all(row["words"] and row["formula"] and row["source"] for row in rows)


def test_explained(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = asked(capsys, "--only", "sgd-step", "--explain")
    for text in ("A step of gradient descent", "w - η g", "Robbins and Monro", "predicted [0.48]"):
        assert text in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["validate", "claims", "--only", "sgd-stop"], "Did you mean sgd-step", id="unknown claim"),
        pytest.param(["validate", "gpt-2", "--list"], "belong to `tfm validate claims`", id="a model has no list"),
    ],
)
def test_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
