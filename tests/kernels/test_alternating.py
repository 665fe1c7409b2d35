"""Two installations in turn: real workers of this one, and workers that misbehave."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tfm.kernels import alternating, gates
from tfm.kernels.alternating import Worker, check_against, command_of, command_of_python, own_command, steadied, work
from tfm.kernels.gates import Blocked, Plan
from tfm.presets.baseline import Gate
from tfm.presets.errors import UnreadableError, UsageError

TOY = Gate(what="decode", model="gpt-2", layers=1, dtype="fp32", batch=1, context=24)
SMALL = Plan(builds=2, blocks=4, pairs=2, seconds=0.0)


def script(folder: Path, text: str) -> tuple[str, ...]:
    """A worker made of a few lines of Python."""
    path = folder / "worker.py"
    path.write_text(text)
    return sys.executable, str(path)


def pretending(seconds: str) -> str:
    """A worker whose block n takes so many seconds on a machine that gets slower and slower, as its probes tell."""
    return f"""
import json, sys
print(json.dumps({{"machine": "made up"}}), flush=True)
n = 0
for line in sys.stdin:
    asked = json.loads(line)
    n += "block" in asked
    took = {seconds}
    print(json.dumps({{"seconds": took * (1 + n), "efficiency": 0.5 / took}} if "block" in asked else {{"built": True}}), flush=True)
"""


def test_a_worker_answers_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm.kernels.benchmarks.setting.MOST_COPIES", 1)
    asked = [
        {"block": {"pairs": 2, "seconds": 0.0}}, {"build": msgspec.to_builtins(TOY), "seed": 3}, {"block": {"pairs": 2, "seconds": 0.0}},
        {"build": msgspec.to_builtins(TOY) | {"model": "no-such"}, "seed": 3}, {"build": {"what": "tea"}, "seed": 3},
    ]  # fmt: skip
    answers = io.StringIO()
    work(io.StringIO("".join(json.dumps(line) + "\n" for line in asked)), answers, threads=1)
    first, nothing, built, seconds, unknown, wrong = map(json.loads, answers.getvalue().splitlines())
    assert "1 thread" in first["machine"]
    assert "nothing was built" in nothing["error"]
    assert built == {"built": True}
    assert seconds["seconds"] > 0
    assert "no-such" in unknown["error"]
    assert "tea" in wrong["error"]


@pytest.mark.slow
def test_this_installation_against_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ((gate, judgement),) = check_against(own_command(), [TOY], threshold=0.9, threads=1, plan=SMALL)
    assert gate == TOY
    assert judgement.verdict in ("ok", "noisy")


@pytest.mark.parametrize(
    ("there", "verdict"),
    [("1.0 + 0.001 * (n % 3)", "ok"), ("1.2 + 0.001 * (n % 3)", "slower"), ("0.8 + 0.001 * (n % 3)", "faster")],
    ids=["alike", "slower", "faster"],
)
def test_verdicts(there: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(alternating, "own_command", lambda: script(tmp_path / "here", pretending("1.0 + 0.001 * (n % 2)")))
    said: list[str] = []
    ((_, judgement),) = check_against(script(tmp_path, pretending(there)), [TOY], threshold=0.05, plan=SMALL, tell=said.append)
    assert judgement.verdict == verdict
    assert said[0] == "here: made up; there: made up"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "ended in place of a measurement"),
        ("print('hello')", "said 'hello'"),
        ("print('[1]')", "in place of a measurement"),
        ('print(\'{"error": "no torch there"}\')', "no torch there"),
        ("import time; time.sleep(9)", "no answer within 0"),
        ('print(\'{"machine": "m"}\')', "ended"),
    ],
)
def test_workers_that_do_not_work(text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alternating, "PATIENCE_S", 0.3 if "sleep" in text else 20.0)
    with pytest.raises(UnreadableError, match=named), Worker(script(tmp_path, text), threads=1) as worker:
        worker.ask({"build": {}})


def test_probes_that_differ_are_no_difference() -> None:
    """Half as fast a probe halves the efficiency; the seconds of the step are what they are."""
    plain = [Blocked(efficiency=0.8, seconds=0.1), Blocked(efficiency=0.4, seconds=0.2), Blocked(efficiency=0.8, seconds=0.1)]
    slow_probe = [replace(one, efficiency=2 * one.efficiency) for one in plain]
    assert steadied(plain) == pytest.approx([0.1, 0.2, 0.1])
    assert steadied(slow_probe) == pytest.approx(steadied(plain))


def test_a_worker_of_another_kind(tmp_path: Path) -> None:
    odd = 'import sys\nprint(\'{"machine": "m"}\', flush=True)\nfor line in sys.stdin: print(\'{"seconds": "long"}\', flush=True)'
    with pytest.raises(UnreadableError, match="is no measurement"), Worker(script(tmp_path, odd), threads=1) as worker:
        worker.block(SMALL)


def test_a_command_that_is_none() -> None:
    with pytest.raises(UnreadableError, match="cannot be run"), Worker(("/no/such/tfm",), threads=1):
        pass


def test_commands(tmp_path: Path) -> None:
    assert command_of("/opt/new/bin/python -m 'tfm'") == ("/opt/new/bin/python", "-m", "tfm")
    for wrong in ("", "  ", "'"):
        with pytest.raises(UsageError, match="--against"):
            command_of(wrong)
    (tmp_path / "bin").mkdir()
    with pytest.raises(UsageError, match="no python there"):
        command_of_python(str(tmp_path))
    (tmp_path / "bin" / "python").touch()
    expected = (str(tmp_path / "bin" / "python"), "-m", "tfm")
    assert command_of_python(str(tmp_path)) == command_of_python(str(tmp_path / "bin" / "python")) == expected


def test_the_plan_is_that_of_the_gate() -> None:
    assert (check_against.__kwdefaults__ or {})["plan"] == gates.PLAN
