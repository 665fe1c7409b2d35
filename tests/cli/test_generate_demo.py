"""`tfm generate-demo`: each way to find a token, what is saved and read again, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfm.cli.app import run
from tfm.kernels.generation import demo
from tfm.kernels.timing import Stopping
from tfm.kernels.training.tasks import Task
from tfm.kernels.training.trainer import Plan, begin, save

Capture = pytest.CaptureFixture[str]
LETTERS = "abcd"


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bandwidth of a few megabytes, in a moment."""
    monkeypatch.setattr(demo, "PROBE_BYTES", 2**20)
    monkeypatch.setattr(demo, "BRIEF", Stopping(min_samples=2, min_seconds=0.01, max_seconds=0.1))


@pytest.fixture(scope="module", params=["encoder-decoder", "decoder-only"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few steps, saved as `tfm train-demo --save` does."""
    trainer = begin(request.param, Task(letters=LETTERS, longest=4), Plan(batch=8))
    for _ in trainer.run(3):
        pass
    return save(trainer, tmp_path_factory.mktemp("saved") / "tiny.safetensors")


def ask(capsys: Capture, *words: str) -> dict[str, Any]:
    assert run(["generate-demo", *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(
    "words",
    [[], ["--strategy", "sample", "--top-k", "3", "--top-p", "0.9"], ["--strategy", "beam", "--beams", "3", "--length-penalty", "0.6"]],
    ids=["greedy", "sample", "beam"],
)
def test_every_way_shows_every_token(saved: Path, words: list[str], capsys: Capture) -> None:
    answer = ask(capsys, "--from", str(saved), "--prompt", "reverse abc", *words)
    result = answer["result"]
    rows = result["rows"]
    assert (result["prompt"], result["expected"], result["new_tokens"]) == ("reverse abc", "cba", len(rows))
    assert result["correct"] is (result["output"] == "cba" and rows[-1]["token"] == "<eos>")
    lengths = [row["cache_length"] for row in rows]
    assert lengths == list(range(lengths[0], lengths[0] + len(rows)))
    assert [row["read"] for row in rows[1:]] == [1] * (len(rows) - 1)
    assert all(row["seconds"] > 0 and row["floor_s"] > 0 and row["cache_bytes"] > 0 for row in rows)
    assert result["operators_per_step"] > 20 and result["launch_s"] > 0
    assert any("operators of" in line for line in answer["assumptions"])


def test_a_temperature_of_0_and_a_beam_of_1_are_greedy(saved: Path, capsys: Capture) -> None:
    words = ["--from", str(saved), "--prompt", "copy dcba"]
    ways: tuple[list[str], ...] = ([], ["--strategy", "sample", "--temperature", "0"], ["--strategy", "beam", "--beams", "1"])
    said = [[row["token_id"] for row in ask(capsys, *words, *way)["result"]["rows"]] for way in ways]
    assert said[0] == said[1] == said[2]


def test_seeded(saved: Path, capsys: Capture) -> None:
    words = ["--from", str(saved), "--prompt", "copy dcba", "--strategy", "sample", "--temperature", "3"]
    said = [[row["token_id"] for row in ask(capsys, *words, "--seed", seed)["result"]["rows"]] for seed in ("1", "1", "2")]
    assert said[0] == said[1] != said[2]


def test_without_a_file_it_is_trained_first(capsys: Capture) -> None:
    answer = ask(capsys, "--steps", "2")
    assert any("trained just now for 2 steps; it may err" in line for line in answer["assumptions"])
    assert answer["result"]["prompt"].split()[0] in ("copy", "reverse")
    assert run(["generate-demo", "--steps", "2"]) == 0
    assert "in the" in capsys.readouterr().out


def test_longer_than_it_was_trained_on(saved: Path, capsys: Capture) -> None:
    said = ask(capsys, "--from", str(saved), "--prompt", "abcdabcdabcd")["assumptions"]
    assert "longer than any string it was trained on" in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--prompt", "reverse xyz"], 2, f"letters of {LETTERS}"),
        (["--prompt", "reverse"], 2, f"letters of {LETTERS}"),
        (["--temperature", "1"], 2, "belongs to --strategy sample"),
        (["--from", "none.safetensors", "--steps", "7"], 2, "--steps trains a model where --from gives none"),
        (["--threads", "999999999"], 2, "less than or equal to 1024"),
        (["--strategy", "sample", "--beams", "2"], 2, "belongs to --strategy beam"),
        (["--strategy", "sample", "--top-p", "0"], 2, "top-p"),
        (["--strategy", "guess"], 2, "guess"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused(saved: Path, words: list[str], code: int, said: str, capsys: Capture) -> None:
    assert run(["generate-demo", "--from", str(saved), *words]) == code
    assert said in capsys.readouterr().err


def test_a_file_that_is_no_saved_model(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(b"nothing")
    assert run(["generate-demo", "--from", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
