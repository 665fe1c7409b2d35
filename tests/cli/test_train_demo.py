"""`tfm train-demo` from the command line: a few steps in most tests, the whole of it in one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tfm.cli.app import run
from tfm.kernels.saved import load_saved
from tfm.kernels.training.trainer import Trainer

Capture = pytest.CaptureFixture[str]
BRIEF = ("--steps", "3", "--unseen", "20", "--threads", "1")


def rows(capsys: Capture, *words: str, code: int = 0) -> list[dict[str, Any]]:
    assert run(["train-demo", *words, "--json"]) == code
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["result"]["rows"]
    return found


def test_both_models(capsys: Capture) -> None:
    found = rows(capsys, *BRIEF)
    assert [row["model"] for row in found] == ["tiny-encoder-decoder", "tiny-decoder-only"]
    for row in found:
        assert row["steps"] == len(row["losses"]) == 3
        assert (row["first_loss"], row["last_loss"]) == (row["losses"][0], row["losses"][-1])
        assert row["tried"] == 20 and row["exact_match"] == row["right"] / 20


def test_the_seed_decides(capsys: Capture) -> None:
    first, again, other = (rows(capsys, *BRIEF, "--model", "decoder-only", "--seed", seed)[0]["losses"] for seed in ("3", "3", "4"))
    assert first == again != other


def test_saved_and_resumed(capsys: Capture, tmp_path: Path) -> None:
    file = str(tmp_path / "demo.safetensors")
    short = ("--model", "encoder-decoder", "--task", "reverse", "--threads", "1", "--unseen", "5")
    whole = rows(capsys, *short, "--steps", "6")[0]
    assert rows(capsys, *short, "--steps", "2", "--save", file)[0]["saved"] == file
    later = rows(capsys, "--resume", file, "--steps", "6", "--threads", "1", "--unseen", "5", "--save", file)[0]
    assert later["losses"] == whole["losses"] and later["task"] == "reverse"
    assert load_saved(file)[2]["step"] == 6


def test_a_table_and_a_picture(capsys: Capture) -> None:
    assert run(["train-demo", *BRIEF, "--model", "decoder-only"]) == 0
    shown = capsys.readouterr()
    assert "tiny-decoder-only" in shown.out and "exact match" in shown.out
    assert shown.out.rstrip().endswith("step") and "loss" in shown.out
    assert "was answered" in shown.err  # after three steps it is wrong, and says how


def test_ctrl_c_reports_what_was_trained(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = Trainer.once

    def interrupted(trainer: Trainer) -> float:
        if trainer.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return once(trainer)

    monkeypatch.setattr(Trainer, "once", interrupted)
    before = signal.getsignal(signal.SIGINT)
    file = tmp_path / "half.safetensors"
    found = rows(capsys, "--steps", "50", "--unseen", "5", "--threads", "1", "--model", "decoder-only", "--save", str(file), code=130)
    assert found[0]["steps"] == 3 and len(found[0]["losses"]) == 3
    assert load_saved(file)[2]["step"] == 3
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--model", "encoder"), 2, "Did you mean"),
        (("--task", "sort"), 2, "Allowed: copy, reverse, both"),
        (("--save", "x.safetensors"), 2, "--save writes one model"),
        (("--resume", "none.safetensors"), 1, "cannot read"),
        (("--seed", "99999999999"), 2, "a seed is from 0"),
    ],
    ids=["model", "task", "two models in one file", "no file", "seed"],
)
def test_refusals(capsys: Capture, words: tuple[str, ...], code: int, said: str) -> None:
    assert run(["train-demo", *BRIEF, *words]) == code
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_it_answers_every_unseen_string(capsys: Capture) -> None:
    """The whole demonstration as a user runs it."""
    found = rows(capsys)
    assert [(row["model"], row["exact_match"]) for row in found] == [("tiny-encoder-decoder", 1.0), ("tiny-decoder-only", 1.0)]
