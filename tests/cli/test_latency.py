"""What `tfm latency` says beyond the two passes: a draft that speculates, a robot's policy."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfm.cli.app import run

Capture = pytest.CaptureFixture[str]
PAIR = ("latency", "llama-2-70b", "--hardware", "h100-80gb-sxm", "--ctx", "1k")
LOOK = ("latency", "openvla-7b", "--hardware", "a100-80gb-sxm")


def ask(capsys: Capture, *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def test_nobody_asked(capsys: Capture) -> None:
    """The keys are there, and null."""
    result = ask(capsys, *PAIR)["result"]
    found = {key: value for key, value in result.items() if key.startswith(("speculative", "look", "control", "action"))}
    assert len(found) == 17
    assert set(found.values()) == {None}


def test_a_draft(capsys: Capture) -> None:
    answer = ask(capsys, *PAIR, "--draft", "llama-7b", "--acceptance", "0.8", "--draft-tokens", "4")
    result = answer["result"]
    assert result["speculative_tokens_per_round"] == pytest.approx(3.3616)
    assert result["speculative_round_s"] == pytest.approx(result["speculative_draft_s"] + result["speculative_verify_s"])
    gained = result["decode_floor_s"] / result["speculative_token_s"]
    assert result["speculative_speed_up"] == pytest.approx(gained)
    assert any("acceptance 0.8 (a property" in line for line in answer["assumptions"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("bert-base", "--new", "10"), "generates nothing", id="tokens of an encoder"),
        pytest.param(("bert-base", "--cached", "10"), "in place of --cached", id="cache of an encoder"),
        pytest.param(("gpt-2,bert-base", "--new", "10"), "bert-base has no decoder", id="one of several"),
    ],
)
def test_what_an_encoder_does_not_do(words: tuple[str, ...], said: str, capsys: Capture) -> None:
    assert run(["latency", *words, "--hardware", "l4"]) == 2
    assert said in capsys.readouterr().err


def test_without_a_peak_it_is_said_what_has_no_time(capsys: Capture) -> None:
    for words in (("gpt-2", "--new", "4"), ("openvla-7b", "--chunk", "2", "--parallel")):
        lines = ask(capsys, "latency", *words, "--bandwidth", "1TB/s")["assumptions"]
        assert any("no time of either without a peak" in line for line in lines)
        assert not any("empty places" in line for line in lines)


def test_a_proposal_that_is_always_kept(capsys: Capture) -> None:
    """The formula is 0 / 0 there."""
    assert run([*PAIR, "--draft", "llama-7b", "--acceptance", "100%", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "4 + 1: none is refused" in out and "(1 - 1)" not in out


def test_every_place_of_an_action_gives_a_token(capsys: Capture) -> None:
    """So --last-logits, which is of a plain prompt, changes no look in parallel."""
    looks = [ask(capsys, *LOOK, "--chunk", "8", "--parallel", *more)["result"]["look_s"] for more in ((), ("--last-logits",))]
    assert looks[0] == looks[1]


def test_what_is_not_said_of_a_draft_is_assumed_aloud(capsys: Capture) -> None:
    answer = ask(capsys, *PAIR, "--draft", "llama-3-8b")
    assert any("acceptance 0.8 (not given" in line for line in answer["assumptions"])
    assert any("vocabularies of 32000 and 128256" in line for line in answer["assumptions"])


def test_a_draft_in_a_table(capsys: Capture) -> None:
    rows = ask(capsys, *PAIR, "--draft", "llama-7b", "--batch", "1,256")["result"]["rows"]
    one = ask(capsys, *PAIR, "--draft", "llama-7b", "--batch", "256")["result"]
    assert rows[1]["speculative_speed_up"] == pytest.approx(one["speculative_speed_up"])
    assert rows[1]["speculative_speed_up"] < rows[0]["speculative_speed_up"]


def test_a_look(capsys: Capture) -> None:
    answer = ask(capsys, *LOOK, "--images", "1", "--new", "7")
    result = answer["result"]
    assert result["look_s"] == pytest.approx(result["generation_total_s"])
    assert result["look_s"] == pytest.approx(sum(result[f"look_{part}_s"] for part in ("vision", "prompt", "decode")))
    assert (result["control_hz"], result["actions_per_s"]) == (pytest.approx(19.0, abs=0.05),) * 2
    assert (result["actions_per_look"], result["action_tokens"], answer["inputs"]["ctx"]) == (1, 7, 280)
    assert any("context of 280 tokens: 256 of 1 image and 24 of a usual instruction" in line for line in answer["assumptions"])
    assert ask(capsys, *LOOK)["result"] == result  # an image and one action are what a policy is used with


def test_chunks(capsys: Capture) -> None:
    chunk = ask(capsys, *LOOK, "--chunk", "8")["result"]
    assert chunk == ask(capsys, *LOOK, "--new", "56")["result"]
    at_once = ask(capsys, *LOOK, "--chunk", "8", "--parallel")["result"]
    assert (at_once["look_decode_s"], at_once.get("generation_total_s")) == (0, None)
    assert at_once["actions_per_s"] == pytest.approx(8 * at_once["control_hz"])
    assert at_once["actions_per_s"] > 10 * chunk["actions_per_s"]


def test_tokens_that_are_no_actions(capsys: Capture) -> None:
    answer = ask(capsys, *LOOK, "--new", "10")
    assert answer["result"]["control_hz"] is None
    assert answer["result"]["generation_total_s"] > 0
    assert any("no whole number of actions" in line for line in answer["assumptions"])


@pytest.mark.parametrize("words", [["--chunk", "8", "--parallel"], ["--new", "7"]], ids=["parallel", "steps"])
def test_a_look_is_explained(words: list[str], capsys: Capture) -> None:
    parts = {part["title"]: part for part in ask(capsys, *LOOK, *words, "--explain")["explanations"]}
    assert "2502.19645" in parts["Actions a second"]["source"]
    assert parts["Control rate"]["substituted"].startswith("1 / (0.0013")
    titles = {part["title"] for part in ask(capsys, *PAIR, "--draft", "llama-7b", "--explain")["explanations"]}
    assert {"Tokens of a round", "Speed-up", "Speed-up where a check costs a step"} <= titles


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*PAIR, "--acceptance", "0.5"], "--draft MODEL"),
        ([*PAIR, "--draft", "llama-7b", "--acceptance", "1.5"], "no probability"),
        ([*PAIR, "--draft", "llama-7b", "--acceptance", "many"], "--acceptance"),
        ([*PAIR, "--draft", "llama-7b", "--draft-tokens", "99"], "allowed: 1 to 32"),
        ([*PAIR, "--draft", "lama-7b"], "Did you mean"),
        ([*PAIR, "--draft", "bert-base"], "no decoder"),
        ([*PAIR, "--chunk", "2"], "says no actions"),
        ([*PAIR, "--parallel"], "says no actions"),
        ([*LOOK, "--chunk", "2", "--new", "14"], "give one"),
        ([*LOOK, "--new", "10", "--parallel"], "no whole number"),
        ([*LOOK, "--ctx", "100"], "256 tokens of the context"),
    ],
    ids=lambda value: " ".join(value[-3:]) if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_refused(words: list[str], said: str, capsys: Capture) -> None:
    assert run(words) == 2
    assert said in capsys.readouterr().err
