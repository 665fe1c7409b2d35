"""`tfm layers` from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfm.cli.app import run

Capture = pytest.CaptureFixture[str]


def rows(capsys: Capture, *words: str) -> list[dict[str, Any]]:
    assert run(["layers", *words, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["result"]["rows"]
    return found


def test_four_layers_a_point(capsys: Capture) -> None:
    found = rows(capsys, "--n", "64,4k", "--d", "32,64")
    assert [(row["n"], row["d"]) for row in found[::4]] == [(64, 32), (64, 64), (4096, 32), (4096, 64)]
    assert [row["layer"] for row in found[:4]] == ["rnn", "gru", "lstm", "attention"]
    gru, attention = found[5], found[7]
    assert gru["flops"] == attention["flops"] and gru["equal_at_n"] == 64
    assert (gru["sequential_steps"], attention["sequential_steps"], attention["equal_at_n"]) == (64, 1, None)
    assert "median_s" not in gru


def test_measured_times_stand_beside(capsys: Capture) -> None:
    found = rows(capsys, "--n", "16", "--d", "32", "--measure", "--heads", "4", "--seconds", "300ms")
    assert all(row["median_s"] > 0 and row["samples"] >= 1 for row in found)
    assert found[0]["flops_per_s"] == pytest.approx(found[0]["flops"] / found[0]["median_s"])


def test_the_table_and_its_formulas(capsys: Capture) -> None:
    assert run(["layers", "--n", "512", "--d", "512", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "attention  1,050,624" in out and "B·4·3·n·d²" in out and "table 1" in out


def test_heads_that_do_not_divide_are_refused(capsys: Capture) -> None:
    assert run(["layers", "--n", "4", "--d", "30", "--measure", "--heads", "8"]) == 2
    assert "--heads 8 does not divide --d 30" in capsys.readouterr().err
