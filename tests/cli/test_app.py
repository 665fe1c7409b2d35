"""The command line as a user meets it: exit codes, one clear line, never a traceback."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.cli.app import run
from tfm.presets.device import device_names
from tfm.presets.loader import model_names

Capture = pytest.CaptureFixture[str]


def test_version_and_help(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tfm 0.")
    assert run(["params", "-h"]) == 0
    assert "tfm params llama-7b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        pytest.param("params llama-8", 2, "Did you mean", id="unknown model"),
        pytest.param("params", 2, "which model?", id="no model"),
        pytest.param("flops llama-7b --ctx -1", 2, "--ctx", id="negative"),
        pytest.param("flops llama-7b --ctx 0", 2, "--ctx", id="zero"),
        pytest.param("flops llama-7b --ctx 1e30", 2, "--ctx", id="absurd"),
        pytest.param("flops llama-7b --ctx 32kk", 2, "'32kk'", id="unknown suffix"),
        pytest.param("flops llama-7b --ctx nan", 2, "'nan'", id="not a number"),
        pytest.param("flops llama-7b --batch 0", 2, "--batch", id="no sequences"),
        pytest.param("flops llama-7b --batch 1,,2", 2, "--batch", id="empty member"),
        pytest.param("flops llama-7b --phase sleep", 2, "allowed: prefill, decode, train", id="unknown phase"),
        pytest.param("flops bert-base --phase decode", 2, "no decoder", id="an encoder does not decode"),
        pytest.param("flops llama-7b --phase train --cached 3", 2, "--cached", id="cached means decode"),
        pytest.param("flops llama-7b --ctx 3 --cached 3", 2, "give one", id="two contexts"),
        pytest.param("kvcache --gqa 5", 2, "do not divide the 32 query heads", id="heads that do not divide"),
        pytest.param("kvcache --gqa zero", 2, "--gqa", id="heads that are no number"),
        pytest.param("kvcache --kv-dtype q4_k", 2, "unknown dtype", id="no format for a cache"),
        pytest.param("memory llama-7b --weight-dtype bf61", 2, "Did you mean bf16", id="unknown format"),
        pytest.param("memory llama-7b --hardware h100", 2, "h100-80gb-sxm", id="a name that several boards share"),
        pytest.param("memory llama-7b --phase train --optimizer lion", 2, "Allowed: adam", id="unknown optimizer"),
        pytest.param("latency llama-7b", 2, "--hardware", id="no device"),
        pytest.param("latency llama-7b --peak 1TFLOP/s", 2, "--bandwidth", id="half a device"),
        pytest.param("latency llama-7b --bandwidth 2TB --peak 1", 2, "--bandwidth", id="a size where a rate belongs"),
        pytest.param("params llama-7b --json --csv", 2, "one form", id="two forms of output"),
        pytest.param("params llama-7b --frobnicate", 2, "--frobnicate", id="unknown option"),
        pytest.param("frobnicate", 2, "frobnicate", id="unknown command"),
        pytest.param("params ./nowhere.json", 1, "nowhere.json", id="no such file"),
        pytest.param("params .", 1, "config.json", id="a folder without a config"),
        pytest.param("params --solve 7B llama-7b", 2, "--solve", id="backwards takes no model"),
        pytest.param("params --solve 7B --gqa 8", 2, "--gqa belongs to a model", id="backwards has no groups"),
        pytest.param("params --solve 3", 2, "no plausible shape", id="nothing so small"),
        pytest.param("show nowhere", 2, "unknown model or device", id="unknown name"),
        pytest.param("params mine --presets ./nowhere", 1, "no such folder", id="no such folder of presets"),
        pytest.param("params llama-7b --presets ''", 1, "no such folder", id="a folder of presets without a name"),
        pytest.param("params ~nobody-of-that-name/config.json", 1, "~nobody", id="a home that is not there"),
        pytest.param("flops vit-b-16 --images 0", 2, "--images 0", id="nothing to look at"),
        pytest.param("flops gemma-3-27b --images 99999999999", 2, "--images", id="too many images"),
        pytest.param("latency llama-7b --hardware l4 --new 17m", 2, "at most 16777216", id="too long to be summed"),
        pytest.param("params --solve 1e18", 2, "no plausible shape", id="nothing so large"),
    ],
)
def test_trouble_is_one_line_and_an_exit_code(
    line: str, code: int, said: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(line)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[1, 2]", id="no mapping"),
        pytest.param("name: [", id="no YAML"),
        pytest.param("name: mine\nsource: [me]", id="a missing field"),
        pytest.param("name: mine\nsource: [me]\nstacks: []", id="no stack"),
        pytest.param("name: mine\nsource: [me]\nstacks: []\ncolour: red", id="an extra field"),
        pytest.param(
            "name: other\nsource: [me]\nstacks: [{name: d, role: decoder, d_model: 8, blocks: []}]", id="another name than the file's"
        ),
        pytest.param("name: mine\nsource: []\nstacks: [{name: d, role: decoder, d_model: 8, blocks: []}]", id="no source"),
        pytest.param("name: mine\nsource: [me]\nstacks: [{name: d, role: decoder, d_model: -8, blocks: []}]", id="a negative size"),
        pytest.param(
            "name: mine\nsource: [me]\nstacks: [{name: d, role: decoder, d_model: 8, "
            "blocks: [{repeat: 1000000000, pattern: [{sublayers: []}]}]}]",
            id="more layers than can be gone through",
        ),
        pytest.param("name: mine\nsource: [me]\nstacks: [{name: d, role: decoder, d_model: eight, blocks: []}]", id="a mistyped field"),
    ],
)
def test_a_bad_preset_is_one_line(text: str, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    assert run(["params", "mine", "--presets", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "mine.yaml" in err and err.count("\n") == 1


def test_a_preset_of_ones_own(capsys: Capture, tmp_path: Path) -> None:
    assert run(["show", "llama-7b", "--yaml"]) == 0
    text = capsys.readouterr().out.replace("llama-7b", "mine").replace("repeat: 32", "repeat: 16")
    (tmp_path / "mine.yaml").write_text(text.replace("total_params: 6738415616\n", ""), encoding="utf-8")
    assert run(["params", "mine", "--presets", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["total_params"] == 6_738_415_616 - 16 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096)
    (tmp_path / "folder.yaml").mkdir()
    assert run(["params", "folder", "--presets", str(tmp_path)]) == 1
    assert "folder" in capsys.readouterr().err


def test_one_bad_preset_hides_no_other(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: [", encoding="utf-8")
    assert run(["models", "--presets", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "llama-7b" in out
    assert err.startswith("note: left out: ") and "bad.yaml" in err


# --- processes ------------------------------------------------------------------------------------------------------

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_closed_pipe_is_no_error(home: Path) -> None:
    command = f"{sys.executable} -P -m tfm models --json | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=home, check=False)
    assert done.stdout == "{\n0\n"
    assert done.stderr == ""


def test_without_a_stdout_there_is_one_line(home: Path) -> None:
    command = f"{sys.executable} -P -m tfm kvcache --json >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=home, check=False)
    assert (done.returncode, done.stderr) == (1, "error: stdout: Bad file descriptor\n")


INTERRUPTED_WORK = """
import os, signal, sys, threading
from tfm.cli.app import run

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have left it ignored
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
sys.exit(run(["latency", "deepseek-v3", "--hardware", "l4", "--json", "--ctx", ",".join(map(str, range(1, 9000)))]))
"""


def test_an_interrupt_ends_with_130(run_python: Run) -> None:
    done = run_python("-c", INTERRUPTED_WORK)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


INTERRUPTED_IMPORT = """
import sys
from tfm.__main__ import main

class Interrupt:
    def find_spec(self, name, *rest):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
main()
"""


def test_an_interrupt_while_loading_ends_with_130(run_python: Run) -> None:
    done = run_python("-c", INTERRUPTED_IMPORT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_completion_knows_the_presets(run_python: Run) -> None:
    environment = {"_TFM_COMPLETE": "complete_bash", "COMP_WORDS": "tfm params llama-2-", "COMP_CWORD": "2"}
    done = run_python("-c", "from tfm.cli.app import app; app(prog_name='tfm')", env=environment)
    assert {"llama-2-7b", "llama-2-13b", "llama-2-70b"} <= set(done.stdout.split())


# --- random arguments -----------------------------------------------------------------------------------------------

WORDS = st.one_of(
    st.sampled_from([*model_names(), *device_names()]),
    st.sampled_from(
        ["1", "0", "-1", "8k", "1k,4k", "1e30", "nan", "inf", "", ",", "7B", "bf16", "int4", "q8_0", "decode", "train", "2TB/s", "@x"]
    ),
    st.text(max_size=12),
)
FLAGS = st.sampled_from(
    "--batch --ctx --cached --src --images --phase --weight-dtype --kv-dtype --activation-dtype --gqa --hardware --bandwidth --peak "
    "--full-attention --last-logits --json --csv --markdown --explain --solve --new --lenient --optimizer --recompute --nonsense".split()
)
COMMANDS = st.sampled_from(["params", "flops", "kvcache", "memory", "latency", "show", "models", "hardware", "nonsense"])


@settings(max_examples=400)
@given(COMMANDS, st.lists(st.one_of(WORDS, FLAGS), max_size=8))
def test_random_arguments_never_raise(command: str, words: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFM_DEBUG", "1")  # a fault of ours would be a line and exit 1: here it raises
        assert run([command, *words]) in (0, 1, 2)


def test_unicode_and_control_characters_do_not_reach_the_terminal(capsys: Capture) -> None:
    assert run(["params", "llama\x1b[31m"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}", encoding="utf-8")
    path.chmod(0)
    assert run(["params", str(path)]) == 1
    assert "config.json" in capsys.readouterr().err
