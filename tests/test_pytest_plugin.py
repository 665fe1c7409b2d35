"""The pytest plugin as a team meets it: small suites run by pytest itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import tfm
from tfm.presets.baseline import Gate, Measured, Measurements
from tfm.presets.calibration import Machine

pytest_plugins = ["pytester"]

Run = Callable[..., subprocess.CompletedProcess[str]]
MACHINE = Machine(device="a", backend="cpu", threads=1, torch="2", driver=None)


def outcome(pytester: pytest.Pytester, *tests: str) -> pytest.RunResult:
    """Run tests, each a line of a body."""
    body = "\n\n".join(f"def test_{number}(tfm_check):\n    {text}" for number, text in enumerate(tests))
    pytester.makepyfile(body)
    return pytester.runpytest_inprocess("-p", "no:tfm", "-p", "tfm.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:cov")


@pytest.mark.parametrize(
    "test",
    [
        pytest.param("tfm_check.params('llama-7b').equals(6738415616)", id="parameters"),
        pytest.param("tfm_check.active_params('mixtral-8x7b').at_most(13 * 10**9)", id="active parameters"),
        pytest.param("tfm_check.flops('llama-2-7b', context=4096).equals(58524298117120)", id="FLOPs"),
        pytest.param("tfm_check.kvcache('llama-2-70b', context=4096).equals(1342177280)", id="cache"),
        pytest.param("tfm_check.memory('llama-7b', context=512, weight_dtype='int4').at_least(3 * 2**30)", id="memory"),
    ],
)
def test_counts_that_hold(test: str, pytester: pytest.Pytester) -> None:
    outcome(pytester, test).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("test", "said"),
    [
        pytest.param(
            "tfm_check.params('llama-7b').equals(6738415617)",
            "AssertionError: llama-7b: total_params is 6,738,415,616, expected 6,738,415,617 (-1)", id="parameters",
        ),
        pytest.param(
            "tfm_check.kvcache('llama-7b', context=4096, batch=2).at_most(2**30)",
            "llama-7b: kv_bytes (context 4096, batch 2) is 4,294,967,296, expected at most 1,073,741,824 (+3,221,225,472)", id="cache",
        ),
        pytest.param("tfm_check.flops('gpt-2', phase='decode').at_least(10**12)", "expected at least 1,000,000,000,000", id="FLOPs"),
        pytest.param("tfm_check.params('lama-7b')", "unknown model 'lama-7b'. Did you mean llama-7b", id="unknown model"),
        pytest.param("tfm_check.kvcache('gpt-2', context=-5)", "context: got -5", id="negative context"),
        pytest.param("tfm_check.decode('gpt-2', ctx=-8)", "no gate: Expected `int` >= 1", id="negative context of a gate"),
        pytest.param("tfm_check.attention('gpt-2', batch=0)", "no gate: Expected `int` >= 1", id="no sequence"),
        pytest.param("tfm_check.baseline('none.json')", "none.json: no such file", id="no baseline"),
    ],
)  # fmt: skip
def test_what_fails_says_why(test: str, said: str, pytester: pytest.Pytester) -> None:
    found = outcome(pytester, test)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines([f"*{said.replace('[', '[[]')}*"])


def test_a_baseline_is_one_assertion(pytester: pytest.Pytester) -> None:
    path = pytester.path / "tfm.json"
    tfm.save_gates(path, tfm.gates("llama-7b", context=512))
    outcome(pytester, "tfm_check.baseline('tfm.json')", "tfm_check.baseline('tfm.json', measured=False)").assert_outcomes(passed=2)
    path.write_text(path.read_text().replace('"decoder/attention/v_proj": 536870912', '"decoder/attention/v_proj": 7'))
    found = outcome(pytester, "tfm_check.baseline('tfm.json')")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(
        ["*AssertionError: tfm.json: 2 changed, * ok", "*changed: llama-7b active_params: *decoder/attention/v_proj +536,870,905*"]
    )


# --- measured -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The efficiencies that the next measurements reach; what was asked for is left in `measured`."""
    from tfm.kernels import gates

    found: list[float] = []

    def measure_gates(asked: Sequence[Gate], **_: Any) -> Measurements:
        value = found.pop(0)
        return Measurements(machine=MACHINE, entries=tuple(Measured(gate=gate, efficiencies=(value,)) for gate in asked))

    monkeypatch.setattr(gates, "measure_gates", measure_gates)
    return found


@pytest.mark.parametrize(
    ("efficiencies", "said"),
    [
        pytest.param([0.7], None, id="at once"),
        pytest.param([0.5, 0.61], None, id="in a second measurement"),
        pytest.param(
            [0.5, 0.55], "decode gpt-2, 2 layers, bf16, 1 x 128: efficiency 0.500, measured again 0.550, expected at least 0.6",
            id="not at all",
        ),
    ],
)  # fmt: skip
def test_efficiency(efficiencies: list[float], said: str | None, reached: list[float], pytester: pytest.Pytester) -> None:
    reached[:] = efficiencies
    found = outcome(pytester, "tfm_check.decode('gpt-2', layers=2, ctx=128).efficiency_at_least(0.6)")
    found.assert_outcomes(passed=said is None, failed=said is not None)
    assert reached == []
    if said:
        found.stdout.fnmatch_lines([f"*AssertionError: {said}*"])


def test_attention(reached: list[float], pytester: pytest.Pytester) -> None:
    reached[:] = [0.9]
    outcome(pytester, "tfm_check.attention('gpt-2', dtype='fp32', ctx=256, threads=1).efficiency_at_least(0.8)").assert_outcomes(passed=1)


def test_without_torch_it_fails_with_what_to_install(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    found = outcome(pytester, "tfm_check.decode('gpt-2')")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*measured gates need torch and numpy: pip install 'tfm-toolkit[[]bench]'"])


# --- as it is installed ---------------------------------------------------------------------------------------------


def test_it_is_light(run_python: Run) -> None:
    """What every pytest run of somebody who has tfm installed pays for."""
    done = run_python("-c", "import sys, pytest; before = {*sys.modules}; import tfm.pytest_plugin; print(*{*sys.modules} - before)")
    assert {name for name in done.stdout.split() if name.partition(".")[0] != "statistics"} >= {"tfm", "tfm.pytest_plugin"}
    heavy = {"torch", "numpy", "typer", "rich", "yaml", "msgspec", "tfm.api", "tfm.presets"}
    assert not heavy & set(done.stdout.split()), done.stdout


def test_the_entry_point() -> None:
    """Where tfm is installed: the fixture is there without a word in any configuration."""
    found = [entry for entry in entry_points(group="pytest11") if entry.name == "tfm"]
    if not found:
        pytest.skip("tfm was installed before it had a plugin: pip install -e . again")
    assert {entry.value for entry in found} == {"tfm.pytest_plugin"}


def test_an_installation_offers_the_fixture(run_python: Run, tmp_path: Path) -> None:
    if not [entry for entry in entry_points(group="pytest11") if entry.name == "tfm"]:
        pytest.skip("tfm was installed before it had a plugin: pip install -e . again")
    (tmp_path / "test_it.py").write_text("def test_it(tfm_check):\n    tfm_check.params('gpt-2').equals(124439808)\n", encoding="utf-8")
    done = run_python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path), cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
