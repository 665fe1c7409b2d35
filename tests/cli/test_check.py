"""`tfm check` from the command line: what it writes, finds and reports, and with which exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import tfm
from tfm.cli.app import run
from tfm.cli.checking import Checked, Line, check_baseline, counted, told
from tfm.cli.reports import escaped, github_lines, junit, summary
from tfm.estimators.gates import Moved
from tfm.estimators.significance import Judgement
from tfm.presets.baseline import Gate, Measured, Measurements, load_baseline
from tfm.presets.calibration import Machine
from tfm.presets.errors import UnreadableError, UsageError
from tfm.presets.loader import model_names

Capture = pytest.CaptureFixture[str]
OWN = Path(__file__).parents[1] / "data" / "gate.json"
MACHINE = Machine(device="a processor", backend="cpu", threads=1, torch="2.13.0", driver=None)
WRITE = ["--model", "llama-7b,t5-small", "--ctx", "512", "--hardware", "l4"]


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a laptop, wherever the tests run."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path, capsys: Capture) -> Path:
    """A baseline of two models."""
    assert run(["check", "--update", str(tmp_path / "tfm.json"), *WRITE]) == 0
    capsys.readouterr()
    return tmp_path / "tfm.json"


def answer(capsys: Capture, *words: str, code: int = 0) -> dict[str, Any]:
    """The result of a run."""
    assert run(["check", *words, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["command"]) == ("tfm/1", "check")
    result: dict[str, Any] = found["result"]
    return result


def edit(path: Path, old: str, new: str) -> None:
    """Change a file by hand."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# --- exact ----------------------------------------------------------------------------------------------------------


def test_nothing_changed(path: Path, capsys: Capture) -> None:
    result = answer(capsys, str(path))
    assert result["verdict"] == "ok"
    assert {row["verdict"] for row in result["rows"]} == {"ok"}
    assert {"id", "kind", "baseline", "now", "verdict"} <= set(result["rows"][0])
    assert run(["check", str(path)]) == 0
    assert f"tfm.json: {len(result['rows'])} ok" in capsys.readouterr().out


def test_an_edited_number_is_a_finding(path: Path, capsys: Capture) -> None:
    edit(path, '"value": 6738415616, "terms": {"decoder/embedding/token"', '"value": 6738415617, "terms": {"decoder/embedding/token"')
    rows = [row for row in answer(capsys, str(path), code=3)["rows"] if row["verdict"] == "changed"]
    assert [row["id"] for row in rows] == ["llama-7b active_params", "llama-7b total_params"]
    assert rows[0]["moved"] == [] and "edited" in rows[0]["why"]
    assert run(["check", str(path)]) == 3
    assert "no term moved" in " ".join(capsys.readouterr().out.split())


def test_a_moved_term_is_named(path: Path, capsys: Capture) -> None:
    edit(path, '"decoder/attention/k_proj": 536870912', '"decoder/attention/k_proj": 134217728')
    found = [row for row in answer(capsys, str(path), code=3)["rows"] if row["verdict"] != "ok"]
    assert found[0]["moved"] == [{"term": "decoder/attention/k_proj", "baseline": 134217728, "now": 536870912, "by": 402653184}]
    assert run(["check", str(path), "--markdown"]) == 3
    assert "decoder/attention/k_proj +402,653,184" in capsys.readouterr().out


def test_what_is_no_longer_known_is_a_finding_and_hides_nothing(path: Path, capsys: Capture) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("t5-small", "t5-tiny"), encoding="utf-8")
    result = answer(capsys, str(path), code=3)
    assert {row["verdict"] for row in result["rows"]} == {"ok", "gone"}
    path.write_text(text.replace("t5-small", "./t5-small.json"), encoding="utf-8")
    result = answer(capsys, str(path), code=1)
    assert result["verdict"] == "not run" and "cannot" in result["rows"][-1]["why"]


def test_csv_has_a_row_a_gate(path: Path, capsys: Capture) -> None:
    assert run(["check", str(path), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == len(load_baseline(path).exact)
    assert {row["verdict"] for row in rows} == {"ok"}


def test_many_gates_show_what_is_not_ok(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "f"
    assert run(["check", "--update", str(path), "--model", "llama-7b", "--ctx", ",".join(map(str, range(1, 20)))]) == 0
    capsys.readouterr()
    assert run(["check", str(path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 10
    edit(path, '"value": 13476831232', '"value": 1')
    assert run(["check", str(path)]) == 3
    out = capsys.readouterr().out
    assert "weight_bytes" in out and "kv_bytes" not in out


# --- update ---------------------------------------------------------------------------------------------------------


def test_update_alone_computes_the_same_entries_anew(path: Path, capsys: Capture) -> None:
    before = path.read_text(encoding="utf-8")
    edit(path, '"value": 6738415616', '"value": 1')
    result = answer(capsys, "--update", str(path))
    assert result["verdict"] == "updated"
    assert [row["now"] for row in result["rows"] if row["verdict"] == "changed"] == [6738415616] * 2
    assert path.read_text(encoding="utf-8") == before


def test_update_with_models_is_what_they_say(path: Path, capsys: Capture) -> None:
    result = answer(capsys, "--update", str(path), "--model", "llama-7b,gpt-2", "--ctx", "512", "--gqa", "4", "--weight-dtype", "int4,fp8")
    words = {row["id"]: row["verdict"] for row in result["rows"]}
    assert words["gpt-2 weight_bytes (gqa 4, int4)"] == "new"
    assert words["llama-7b total_params"] == words["t5-small total_params"] == "dropped"
    assert {entry.model for entry in load_baseline(path).exact} == {"llama-7b", "gpt-2"}
    assert run(["check", str(path)]) == 0


def test_lists_make_every_combination(tmp_path: Path) -> None:
    path = tmp_path / "f"
    words = ["--model", "t5-small", "--ctx", "1k,4k", "--batch", "1,8", "--src", "64,128", "--hardware", "l4,h100-80gb-sxm"]
    assert run(["check", "--update", str(path), *words, "--phase", "decode", "--dtype", "fp16"]) == 0
    ids = [entry.id for entry in load_baseline(path).exact]
    assert sum("decode_floor_s" in name for name in ids) == 16
    assert sum("decode_flops" in name for name in ids) == 8
    assert "t5-small decode_floor_s (8 x 4096, source 128, fp16, on l4)" in ids
    assert not any("prefill" in name for name in ids)
    assert run(["check", str(path)]) == 0


def test_settings_that_change_nothing_of_a_model_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert run(["check", "--update", str(path), "--model", "llama-7b,vit-b-16", "--images", "2", "--src", "64", "--phase", "prefill"]) == 0
    ids = [entry.id for entry in load_baseline(path).exact]
    assert not any("source" in name for name in ids)
    assert {name.split()[0] for name in ids if "images" in name} == {"vit-b-16"}


def test_a_model_of_ones_own(tmp_path: Path, capsys: Capture) -> None:
    """A folder of presets, and a file by its path, changed between writing and checking."""
    text = (Path(tfm.__file__).parent / "presets" / "models" / "llama-7b.yaml").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(text.replace("name: llama-7b", "name: mine"), encoding="utf-8")
    path = tmp_path / "f"
    for name, more in (("mine", ["--presets", str(tmp_path)]), (str(tmp_path / "mine.yaml"), [])):
        assert run(["check", "--update", str(path), "--model", name, *more]) == 0
        assert run(["check", str(path), *more]) == 0
    edit(tmp_path / "mine.yaml", "32000", "32064")
    capsys.readouterr()
    found = [row for row in answer(capsys, str(path), code=3)["rows"] if row["id"].endswith("total_params")]
    assert {term["term"] for term in found[0]["moved"]} == {"decoder/embedding/token", "lm_head/weight"}


def test_phases_that_a_model_lacks(tmp_path: Path, capsys: Capture) -> None:
    path = str(tmp_path / "f")
    assert run(["check", "--update", path, "--model", "bert-base", "--phase", "decode"]) == 2
    assert "no decoder" in capsys.readouterr().err
    assert run(["check", "--update", path, "--model", "bert-base,gpt-2"]) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param([], 2, "which baseline?", id="nothing"),
        pytest.param(["none.json"], 1, "no such file", id="no file"),
        pytest.param(["--update"], 2, "which baseline?", id="update of nothing"),
        pytest.param(["--update", "none.json"], 2, "say with --model", id="update of what is not there"),
        pytest.param(["f.json", "--model", "gpt-2"], 2, "--model says what a baseline is to hold", id="model without update"),
        pytest.param(["f.json", "--kv-dtype", "fp8"], 2, "--kv-dtype says", id="another option without update"),
        pytest.param(["--update", "f.json", "--against", "x"], 2, "give one of them", id="update against"),
        pytest.param(["f.json", "--against", "x", "--against-python", "y"], 2, "give one", id="two others"),
        pytest.param(["f.json", "--only", "both"], 2, "--only takes exact or measured", id="unknown half"),
        pytest.param(["f.json", "--threshold", "200%"], 2, "less than 1", id="threshold"),
        pytest.param(["f.json", "--json", "--csv"], 2, "one form of output", id="two forms"),
        pytest.param(["--update", "f.json", "--model", "lama-7b"], 2, "Did you mean", id="unknown model"),
        pytest.param(["--update", "f.json", "--model", "gpt-2", "--phase", "x"], 2, "Allowed: prefill", id="unknown phase"),
        pytest.param(["--update", "f.json", "--model", "gpt-2", "--junit", "x"], 2, "report a check", id="a report of an update"),
        pytest.param(["--update", "f.json", "--measure", "happiness"], 2, "happiness", id="unknown measured gate"),
        pytest.param(["--update", "f.json", "--measure", "decode", "--dtype", "int4"], 2, "int4", id="unmeasurable dtype"),
    ],
)
def test_wrong_usage(words: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["check", *words]) == code
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_baseline_is_left_alone(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "package.json"
    path.write_text('{"name": "mine"}', encoding="utf-8")
    assert run(["check", str(path)]) == 1
    assert run(["check", "--update", str(path), "--model", "gpt-2"]) == 1
    assert path.read_text(encoding="utf-8") == '{"name": "mine"}'
    assert "it is not overwritten" in capsys.readouterr().err


def test_a_spoilt_baseline_is_written_anew_when_that_is_asked_for(path: Path, capsys: Capture) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(f"<<<<<<< HEAD\n{text}", encoding="utf-8")
    assert run(["check", str(path)]) == 1
    assert run(["check", "--update", str(path)]) == 1
    assert path.read_text(encoding="utf-8").startswith("<<<")
    assert run(["check", "--update", str(path), *WRITE]) == 0
    assert path.read_text(encoding="utf-8") == text
    capsys.readouterr()


# --- measured ---------------------------------------------------------------------------------------------------------


class Clock:
    """Stands in for kernels/gates.py: what it says of every gate, and of the machine."""

    def __init__(self) -> None:
        self.machine, self.verdict, self.slowdown = MACHINE, "ok", 0.001
        self.threshold, self.efficiencies = 0.0, (0.8, 0.9, 0.7)
        self.error: BaseException | None = None
        self.measured: list[str] = []

    def default_gates(self, kinds: Sequence[str], models: Sequence[str] | None = None) -> tuple[Gate, ...]:
        names = models or ("llama-7b",)
        return tuple(Gate(what=kind, model=name, layers=2, dtype="bf16", batch=1, context=512) for name in names for kind in kinds)  # type: ignore[arg-type]

    def measure_gates(
        self, gates: Sequence[Gate], *, threshold: float, threads: int | None = None, tell: Callable[[str], None]
    ) -> Measurements:
        self.measured += [gate.id for gate in gates]
        self.threshold = threshold
        entries = tuple(Measured(gate=gate, efficiencies=self.efficiencies) for gate in gates)
        return Measurements(machine=self.machine, entries=entries)

    def check_gates(self, then: Measurements, *, threshold: float, threads: int | None, tell: Callable[[str], None]) -> list[Any]:
        self.measured += [entry.gate.id for entry in then.entries]
        if self.error:
            raise self.error
        judgement = Judgement(slowdown=self.slowdown, low=0.0, high=2 * self.slowdown, p_value=0.002, verdict=self.verdict)  # type: ignore[arg-type]
        return [(Measured(gate=entry.gate, efficiencies=(0.7,)), judgement) for entry in then.entries]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that says what a test wants."""
    from tfm.kernels import gates

    found = Clock()
    for name in ("default_gates", "measure_gates", "check_gates"):
        monkeypatch.setattr(gates, name, getattr(found, name))
    monkeypatch.setattr(gates, "current_machine", lambda _threads=None: found.machine)
    return found


@pytest.fixture
def both(tmp_path: Path, clock: Clock, capsys: Capture) -> Path:
    """A baseline with both halves."""
    path = tmp_path / "tfm.json"
    words = ["--model", "gpt-2", "--ctx", "64", "--measure", "decode,attention", "--layers", "3", "--dtype", "fp32"]
    assert run(["check", "--update", str(path), *words]) == 0
    capsys.readouterr()
    clock.measured.clear()
    return path


DECODE, ATTENTION = "decode gpt-2, 3 layers, fp32, 1 x 512", "attention gpt-2, fp32, 1 x 512"


def test_an_unsure_baseline_says_so(both: Path, clock: Clock, capsys: Capture) -> None:
    assert clock.threshold == 0.05
    clock.efficiencies = (0.8, 0.801, 0.799)
    for words, said in (([], False), (["--threshold", "1%"], False), (["--threshold", "0.1%"], True)):
        assert run(["check", "--update", str(both), *words]) == 0
        assert ("write it anew on a quieter machine" in " ".join(capsys.readouterr().out.split())) is said
    assert clock.threshold == pytest.approx(0.001)


def test_update_measures(both: Path) -> None:
    found = load_baseline(both)
    assert found.measured is not None and found.measured.machine == MACHINE
    assert [gate.id for gate in found.gates] == [ATTENTION, DECODE]


@pytest.mark.parametrize(
    ("verdict", "code", "said"),
    [
        pytest.param("ok", 0, "| 0.800 | 0.700 | ok | time +11.0%", id="ok"),
        pytest.param("slower", 3, "time +11.0% (95 %: +0% to +22.0%, p 0.002)", id="slower"),
        pytest.param("faster", 0, "`tfm check --update` makes it the baseline", id="faster"),
        pytest.param("noisy", 0, "too noisy to exclude", id="noisy"),
    ],
)
def test_a_judgement_and_its_exit_code(verdict: str, code: int, said: str, both: Path, clock: Clock, capsys: Capture) -> None:
    clock.verdict, clock.slowdown = verdict, 0.11
    rows = answer(capsys, str(both), "--threshold", "3%", code=code)["rows"]
    assert [(row["id"], row["verdict"], row["now"], row["slowdown"]) for row in rows[-2:]] == [
        (ATTENTION, verdict, 0.7, 0.11), (DECODE, verdict, 0.7, 0.11),
    ]  # fmt: skip
    assert run(["check", str(both), "--markdown"]) == code
    assert said.replace("`", "\\`") in capsys.readouterr().out


def test_another_machine_cannot_be_compared(both: Path, clock: Clock, capsys: Capture) -> None:
    clock.machine = Machine(device="another", backend="cpu", threads=1, torch="2.14.0", driver=None)
    result = answer(capsys, str(both), code=4)
    assert result["verdict"] == "not compared" and clock.measured == []
    assert [row["verdict"] for row in result["rows"] if row["kind"] == "exact"].count("ok") == len(result["rows"]) - 2
    assert "device was a processor, is another" in result["rows"][-1]["why"] and "torch was 2.13.0" in result["rows"][-1]["why"]
    edit(both, '"value": 124439808', '"value": 1')
    assert run(["check", str(both)]) == 3  # a finding is sure, whatever cannot be compared
    assert run(["check", str(both), "--only", "measured"]) == 4
    capsys.readouterr()


def test_only_one_half(both: Path, clock: Clock, capsys: Capture) -> None:
    assert {row["kind"] for row in answer(capsys, str(both), "--only", "exact")["rows"]} == {"exact"}
    assert clock.measured == []
    assert {row["kind"] for row in answer(capsys, str(both), "--only", "measured")["rows"]} == {"measured"}


@pytest.mark.parametrize(
    ("error", "code", "verdict"),
    [
        pytest.param(UnreadableError("9 GiB needed, 1 GiB free"), 1, "not run", id="no memory"),
        pytest.param(UsageError("no such model"), 3, "gone", id="model gone"),
        pytest.param(KeyboardInterrupt(), 130, "not run", id="interrupted"),
    ],
)
def test_what_cannot_be_measured(error: BaseException, code: int, verdict: str, both: Path, clock: Clock, capsys: Capture) -> None:
    clock.error = error
    rows = answer(capsys, str(both), code=code)["rows"]
    assert [row["verdict"] for row in rows[-2:]] == [verdict, verdict]
    assert {row["verdict"] for row in rows[:-2]} == {"ok"}


def test_without_torch_the_exact_half_is_checked(both: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("tfm.cli.checking.find_spec", lambda name: None if name == "scipy" else object())
    rows = answer(capsys, str(both), code=1)["rows"]
    assert rows[-1]["verdict"] == "not run" and "need scipy" in rows[-1]["why"] and "[bench,check]" in rows[-1]["why"]
    assert run(["check", "--update", str(both), "--measure", "decode"]) == 1


def test_what_update_measures_again(both: Path, clock: Clock, capsys: Capture) -> None:
    clock.machine = Machine(device="another", backend="cpu", threads=1, torch="3", driver=None)
    before = load_baseline(both)
    assert run(["check", "--update", str(both), "--model", "gpt-2", "--ctx", "64", "--dtype", "fp32"]) == 0
    assert clock.measured == [] and load_baseline(both) == before  # the measured half was not asked for
    assert run(["check", "--update", str(both), "--only", "exact"]) == 0
    assert clock.measured == [] and load_baseline(both) == before
    assert run(["check", "--update", str(both)]) == 0
    assert clock.measured == [ATTENTION, DECODE]
    after = load_baseline(both)
    assert after.exact == before.exact and after.measured is not None and after.measured.machine.torch == "3"
    assert run(["check", "--update", str(both), "--measure", "attention"]) == 0
    assert [gate.what for gate in load_baseline(both).gates] == ["attention"]
    capsys.readouterr()


def test_against_another_installation(both: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    from tfm.kernels import alternating

    asked: list[Any] = []

    def check_against(command: Sequence[str], gates: Sequence[Gate], **options: Any) -> list[tuple[Gate, Judgement]]:
        asked.append((tuple(command), [gate.id for gate in gates], options["threshold"], options["threads"]))
        return [(gate, Judgement(slowdown=0.2, low=0.1, high=0.3, p_value=0.001, verdict="slower")) for gate in gates]

    monkeypatch.setattr(alternating, "check_against", check_against)
    rows = answer(capsys, "--against", "/opt/new tfm", "--measure", "decode", "--model", "gpt-2", "--threads", "1", code=3)["rows"]
    assert (rows[0]["kind"], rows[0]["baseline"], rows[0]["now"], rows[0]["slowdown"]) == ("against", None, None, 0.2)
    answer(capsys, str(both), "--against", "tfm", "--threshold", "2%", code=3)
    assert asked == [
        (("/opt/new", "tfm"), ["decode gpt-2, 2 layers, bf16, 1 x 512"], 0.05, 1), (("tfm",), [ATTENTION, DECODE], 0.02, None),
    ]  # fmt: skip
    assert run(["check", "--against-python", "/nowhere"]) == 2
    assert run(["check", str(OWN), "--against", "tfm"]) == 2
    assert "holds no measured gates" in capsys.readouterr().err


# --- reports ----------------------------------------------------------------------------------------------------------

HOSTILE = '<a href="x">&amp;]]>\x00\x07\x1b[31m\n\r\t\ufffe\ud800::error,%25 | `*'


def line(verdict: str, *, name: str = "llama-7b kv_bytes", kind: str = "exact", why: str = "") -> Line:
    moved = (Moved(term=HOSTILE, baseline=1, now=None),) if verdict == "changed" else ()
    return Line(id=name, kind=kind, quantity="kv_bytes", baseline=3, now=2, verdict=verdict, moved=moved, why=why)


EVERYTHING = Checked(
    lines=(
        line("ok"), line("changed", name=HOSTILE), line("gone", why=HOSTILE), line("not run", kind="measured", why="no torch"),
        line("not compared", kind="measured", why="torch was 2, is 3"),
    )
)  # fmt: skip


def test_junit_is_well_formed_whatever_the_names_are() -> None:
    root = ET.fromstring(junit(EVERYTHING).encode())
    assert (root.get("tests"), root.get("failures"), root.get("errors"), root.get("skipped")) == ("5", "2", "1", "1")
    suites = root.findall("testsuite")
    assert [suite.get("name") for suite in suites] == ["tfm check, exact", "tfm check, measured"]
    assert [[child.tag for child in case] for case in root.iter("testcase")] == [[], ["failure"], ["failure"], ["error"], ["skipped"]]
    failure = next(root.iter("failure"))
    assert failure.get("type") == "changed" and "3 -> 2 (-33.3%): <a href" in (failure.text or "")
    assert "\\x1b[31m" in (failure.text or "")


def test_what_is_said_of_a_gate_that_passes_goes_into_the_report() -> None:
    noisy = Line(id="a", kind="measured", quantity="efficiency", baseline=0.9, now=0.8, verdict="noisy", slowdown=0.1, p_value=0.3)
    (case,) = ET.fromstring(junit(Checked(lines=(noisy,))).encode()).iter("testcase")
    assert [child.tag for child in case] == ["system-out"]
    assert (case[0].text or "").startswith("efficiency 0.900 -> 0.800, time +10.0%")


def test_annotations_are_escaped_and_point_at_the_line() -> None:
    assert list(github_lines(EVERYTHING, "tfm.json", {}, {})) == []
    found = list(github_lines(EVERYTHING, "a,b:c.json", {HOSTILE: 7}, {"GITHUB_ACTIONS": "true"}))
    assert len(found) == 4 and not any("\n" in text or "\r" in text for text in found)
    assert found[0].startswith("::error file=a%2Cb%3Ac.json,line=7,title=tfm check%3A changed::<a href")
    assert "%25" in found[0] and "\x1b" not in found[0]
    assert found[3].endswith(",title=tfm check%3A not compared::llama-7b kv_bytes: torch was 2, is 3")
    assert found[3].startswith("::warning file=a%2Cb%3Ac.json,title=")
    many = list(github_lines(Checked(lines=(line("gone", why="x"),) * 30), None, {}, {"GITHUB_ACTIONS": "true"}))
    assert len(many) == 10 and "and 21 more" in many[-1]


@pytest.mark.parametrize(
    ("text", "message", "value"),
    [("50%", "50%25", "50%25"), ("a: b, c", "a: b, c", "a%3A b%2C c"), ("a\nb", "a%0Ab", "a%0Ab"), ("%0A", "%250A", "%250A")],
)
def test_escaping(text: str, message: str, value: str) -> None:
    assert (escaped(text), escaped(text, property_too=True)) == (message, value)


def test_the_summary_is_a_table_of_what_is_not_ok() -> None:
    text = summary(EVERYTHING, "tfm|.json")
    assert text.startswith("### tfm check: finding\n\ntfm\\|.json: 1 changed, 1 gone, 1 not run, 1 not compared, 1 ok\n\n| gate |")
    rows = [row for row in text.splitlines() if row.startswith("|")][2:]
    assert len(rows) == 4
    assert all(len(re.split(r"(?<!\\)\|", row)) == 7 for row in rows)
    assert "more" in summary(Checked(lines=(line("gone"),) * 300), "f")
    assert "|" not in summary(Checked(lines=(line("ok"),)), "f")


def test_reports_are_written_where_they_belong(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    edit(path, '"value": 13476831232', '"value": 1')
    step = tmp_path / "step.md"
    step.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert run(["check", str(path), "--junit", str(tmp_path / "x.xml")]) == 3
    assert step.read_text(encoding="utf-8").startswith("before\n### tfm check: finding")
    assert len(list(ET.parse(tmp_path / "x.xml").iter("failure"))) == 1
    number = next(at for at, text in enumerate(path.read_text().splitlines(), 1) if '"llama-7b weight_bytes (bf16)"' in text)
    err = capsys.readouterr().err
    assert f",line={number},title=tfm check%3A changed::llama-7b weight_bytes (bf16): 1 -> 13,476,831,232" in err
    for _ in range(2):  # a file of one's own is not appended to
        assert run(["check", str(path), "--summary", str(tmp_path / "mine.md")]) == 3
    assert (tmp_path / "mine.md").read_text(encoding="utf-8").count("###") == 1
    capsys.readouterr()
    assert run(["check", str(path), "--junit", str(tmp_path / "none" / "x.xml")]) == 3  # a finding is sure whatever else
    assert "cannot be written" in capsys.readouterr().err
    assert run(["check", str(OWN), "--junit", str(tmp_path / "none" / "x.xml"), "--summary", str(tmp_path / "still.md")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert (tmp_path / "still.md").exists()


def test_a_reader_that_has_gone_changes_no_exit_code(path: Path) -> None:
    """`tfm check FILE | head -1` under `pipefail` is a gate too."""
    edit(path, '"value": 13476831232', '"value": 1')
    command = f"{sys.executable} -P -m tfm check {path} --json | true; echo ${{PIPESTATUS[0]}}"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("3\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--junit", ""], "--junit: got nothing", id="report without a name"),
        pytest.param(["--junit", "f.json"], "the file of BASELINE too", id="report over the baseline"),
        pytest.param(["--junit", "x", "--summary", "./x"], "--summary ./x is the file of --junit too", id="two reports in one file"),
        pytest.param(["--only", "measured"], "holds no measured gates", id="a half that is not there"),
        pytest.param(["--only", "exact", "--threshold", "7%"], "--only exact measures nothing", id="threshold of exact gates"),
        pytest.param(["--only", "exact", "--threads", "2"], "--only exact measures nothing", id="threads of exact gates"),
        pytest.param(["--threads", "0"], "greater than or equal to 1", id="no threads"),
        pytest.param(["--threads", "999999999"], "less than or equal to", id="more threads than there can be"),
        pytest.param(["--update", "--model", "gpt-2", "--threshold", "7%"], "nothing is measured here", id="threshold of an exact update"),
        pytest.param(["--update", "--only", "measured", "--model", "gpt-2"], "writes no exact gates", id="model of no half"),
        pytest.param(["--update", "--only", "exact", "--measure", "decode"], "measures nothing", id="measure what is left out"),
        pytest.param(["--update", "--ctx", "64"], "--ctx says what exact gates are written", id="context without a model"),
        pytest.param(["--update", "--dtype", "fp32"], "--dtype says", id="format without a model"),
        pytest.param(["--update", "--model", "gpt-2", "--layers", "2"], "--measure decode", id="layers of exact gates"),
        pytest.param(["--update", "--model", "gpt-2", "--threads", "2"], "nothing is measured here", id="threads of an exact update"),
        pytest.param(["--update", "--model", "gpt-2", "--phase", ""], "--phase: no value", id="empty phase"),
        pytest.param(["--update", "--model", "gpt-2", "--batch", ""], "--batch: no value", id="empty batch"),
        pytest.param(["--update", "--model", "gpt-2", "--dtype", ""], "no value", id="empty dtype"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    words: list[str], said: str, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    path.rename(path.with_name("f.json"))
    monkeypatch.chdir(path.parent)
    before = Path("f.json").read_bytes()
    assert run(["check", "f.json", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert Path("f.json").read_bytes() == before


def test_options_of_the_clock_say_that_they_change_nothing(path: Path, capsys: Capture) -> None:
    assert run(["check", str(path), "--threshold", "7%", "--threads", "2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--threshold changes nothing" in out and "--threads changes nothing" in out


def test_where_nothing_can_be_written(tmp_path: Path, capsys: Capture) -> None:
    assert run(["check", "--update", str(tmp_path / "none" / "f.json"), "--model", "gpt-2"]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none' / 'f.json'}: cannot be written (No such file or directory)\n"
    assert run(["check", "--update", "", "--model", "gpt-2"]) == 2
    assert "which baseline?" in capsys.readouterr().err


def test_a_baseline_of_nothing_passes_nobody(path: Path, capsys: Capture) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**found, "exact": []}), encoding="utf-8")
    assert run(["check", str(path)]) == 2
    assert "nothing to check" in capsys.readouterr().err


def test_every_verdict_has_its_words() -> None:
    assert counted([]) == "nothing to check"
    assert counted(EVERYTHING.lines) == "1 changed, 1 gone, 1 not run, 1 not compared, 1 ok"
    assert told(line("ok")) == ""
    assert str(EVERYTHING).count("\n") >= 4
    assert EVERYTHING.exit_code == 3
    assert Checked(lines=(line("ok"), line("not compared"), line("not run"))).exit_code == 1
    assert Checked(lines=(line("noisy"), line("faster"))).exit_code == 0


def test_the_table_names_terms_a_row_each(path: Path, capsys: Capture) -> None:
    edit(path, '"decoder/feed_forward/', '"decoder/mlp/')
    assert run(["check", str(path)]) == 3
    out = capsys.readouterr().out
    assert re.search(r"^llama-7b active_params +decoder/mlp/\w+ +-1,442,840,576 \(left out\)$", out, re.MULTILINE)
    assert re.search(r"^ +and 5 more", out, re.MULTILINE)


# --- as a function, and as this project's own gate ------------------------------------------------------------------


def test_the_functions(tmp_path: Path) -> None:
    path = tmp_path / "f"
    entries = tfm.gates("llama-7b", "l4", context=2048, weight_dtype="int8")
    assert {entry.quantity for entry in entries} >= {"total_params", "kv_bytes", "decode_floor_s"}
    tfm.save_gates(path, entries)
    assert tfm.check(path).ok and tfm.check(str(path), measured=False).verdict == "ok"
    edit(path, "6738415616", "6738415615")
    found = tfm.check(path)
    assert not found.ok and len(found.findings) == 3 and "total_params" in str(found)
    path.write_text("x", encoding="utf-8")
    with pytest.raises(UnreadableError, match="is not overwritten"):
        tfm.save_gates(path, entries)


def test_our_own_gate() -> None:
    """Every preset: where this fails on purpose, `tfm check --update tests/data/gate.json` and a look at the diff mend it."""
    found = check_baseline(OWN)
    assert found.ok, str(found)


def test_our_own_gate_has_every_preset() -> None:
    """Made by: tfm check --update tests/data/gate.json --model all --ctx 4k --hardware h100-80gb-sxm."""
    assert {entry.model for entry in load_baseline(OWN).exact} == {*model_names((Path("/nowhere"),))}


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fifty(tmp_path: Path) -> str:
    """A baseline of fifty entries."""
    path = tmp_path / "f"
    words = ["--model", "llama-7b,mistral-7b,deepseek-v3", "--ctx", "4k,32k", "--hardware", "h100-80gb-sxm"]
    assert run(["check", "--update", str(path), *words]) == 0
    assert len(load_baseline(path).exact) >= 50
    return str(path)


def test_exact_gates_load_nothing_heavy(fifty: str, run_python: Run) -> None:
    done = run_python("-X", "importtime", "-m", "tfm", "check", fifty)
    assert done.returncode == 0, done.stderr
    loaded = {text.split("|")[-1].strip().split(".")[0] for text in done.stderr.splitlines() if text.startswith("import time:")}
    assert "tfm" in loaded and not loaded & {"torch", "numpy", "scipy", "pytest"}


@pytest.mark.measured
def test_fifty_entries_take_less_than_a_second(fifty: str, run_python: Run) -> None:
    """The start of the process included."""
    taken = []
    for _ in range(4):
        start = time.perf_counter()
        assert run_python("-m", "tfm", "check", fifty).returncode == 0
        taken.append(time.perf_counter() - start)
    assert min(taken) < 1.0, taken


# --- what stands under examples/ --------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"


def test_the_workflow_is_yaml_and_its_commands_exist(capsys: Capture) -> None:
    import yaml

    text = (EXAMPLES / "github-workflow.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    commands = [found for step in [*steps, text] for found in re.findall(r"tfm check .*", step)]
    assert len(commands) >= 4
    assert run(["check", "--help"]) == 0
    known = capsys.readouterr().out
    assert not [option for command in commands for option in re.findall(r"--[a-z-]+", command) if f"{option} " not in known]


def test_the_example_tests_pass(run_python: Run) -> None:
    """Those of arithmetic; the measured one asks the clock."""
    words = ["-p", "no:tfm", "-p", "tfm.pytest_plugin", "-p", "no:cacheprovider", "-W", "error", "-q", "-c", os.devnull]
    done = run_python("-m", "pytest", *words, "--import-mode=importlib", "-k", "exact", str(EXAMPLES / "test_model_gate.py"))
    assert "3 passed, 1 deselected" in done.stdout, done.stdout + done.stderr
    assert check_baseline(EXAMPLES / "tfm.json").ok
