"""The measuring commands as a user meets them: keys, tables, interrupts, refusals, and `local` from end to end."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.cli import measuring
from tfm.cli.app import run
from tfm.kernels.benchmarks.record import Record
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.plan import Plan, llama_like
from tfm.kernels.timing import Sample, Stopping
from tfm.presets.calibration import calibration_path

Capture = pytest.CaptureFixture[str]
KEYS = set(
    "device dtype median_s p20_s p80_s samples flops bytes floor_s bound_s expected_s bandwidth_bytes_per_s of_bandwidth backend".split()
)
BRIEF = Stopping(min_samples=2, min_seconds=0.0, max_seconds=0.02, target_spread=9.0)
TINY = llama_like("tiny", layers=2, width=64, heads=4, kv_heads=2, head_dim=16, d_ff=96, vocabulary=80)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements that take no time and mean nothing."""
    monkeypatch.setattr("tfm.kernels.benchmarks.yardstick.PROBING", BRIEF)
    monkeypatch.setattr("tfm.kernels.benchmarks.yardstick.MULTIPLYING", BRIEF)
    monkeypatch.setattr("tfm.kernels.benchmarks.setting.MOST_COPIES", 2)
    monkeypatch.setattr(measuring, "setting_for", lambda *_: Setting(device=torch.device("cpu"), stopping=BRIEF, probe_bytes=1 << 20))


def ask(capsys: Capture, line: str, code: int = 0) -> dict[str, Any]:
    assert run([*line.split(), "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        pytest.param("bench bandwidth --size 512KiB,64KiB", 12, id="bandwidth"),
        pytest.param("bench gemm --m 1,3 --k 32 --n 48", 2, id="gemm"),
        pytest.param("bench gemm --m 3 --k 32 --n 48 --dtype fp32", None, id="one product"),
        pytest.param("bench attention --ctx 24 --heads 4 --kv-heads 2 --head-dim 16", 4, id="attention"),
        pytest.param("bench attention --impl grouped --ctx 24 --tokens 3 --heads 4 --kv-heads 2 --head-dim 16", None, id="one kernel"),
        pytest.param("bench decode transformer-toy --ctx 9", None, id="decode"),
        pytest.param("bench decode transformer-toy --batch 1,2 --ctx 9,17", 4, id="decode, swept"),
        pytest.param("bench prefill transformer-toy --ctx 9 --dtype fp32,bf16", 2, id="prefill, swept"),
    ],
)
def test_the_contract(line: str, rows: int | None, capsys: Capture) -> None:
    answer = ask(capsys, line)
    assert answer["command"] == " ".join(line.split()[:2])
    found = answer["result"]["rows"] if rows else [answer["result"]]
    assert len(found) == (rows or 1)
    for row in found:
        assert set(row) >= KEYS | (
            {"layers_timed", "layers_total", "of_bandwidth_in_turn"} if "code" in line or "prefill" in line else set()
        )
        assert row["p20_s"] <= row["median_s"] <= row["p80_s"]


def test_for_people(capsys: Capture) -> None:
    assert run("bench decode transformer-toy --ctx 9,17,33".split()) == 0
    out = capsys.readouterr().out
    assert "1 of 1 layers timed" in out
    assert "probes reached in this run" in out
    assert "└" in out or "+--" in out  # the plot
    assert run("bench prefill transformer-toy --ctx 9".split()) == 0
    out = capsys.readouterr().out
    assert "median" in out
    assert "verdict" in out
    assert run("bench gemm --m 1,2 --k 32 --n 48 --csv".split()) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        pytest.param("bench decode bert-base", 2, "no decode step", id="an encoder"),
        pytest.param("bench decode gpt-2 --ctx 2k", 2, "learned positions", id="too long"),
        pytest.param("bench decode gpt-2 --dtype fp8", 2, "Allowed: fp32, bf16, fp16", id="dtype"),
        pytest.param("bench decode gpt-2 --layers 13", 2, "from 1 to 12", id="layers"),
        pytest.param("bench decode gpt-2 --weight-dtype int3 --layers 1", 2, "Allowed: int8, int4", id="weights"),
        pytest.param("bench decode gpt-9", 2, "unknown model", id="model"),
        pytest.param("bench decode llama-3.1-405b --layers all", 1, "What would fit", id="memory"),
        pytest.param("bench attention --impl eagre", 2, "Did you mean eager", id="kernel"),
        pytest.param("bench attention --heads 6 --kv-heads 4", 2, "--kv-heads 4 does not divide", id="heads"),
        pytest.param("bench attention --ctx 4 --tokens 5", 2, "--tokens 5", id="tokens"),
        pytest.param("bench gemm --m 0", 2, "--m", id="no rows"),
        pytest.param("bench bandwidth --size 1GB,x", 2, "--size", id="size"),
        pytest.param("bench allreduce", 2, "torchrun", id="no processes"),
        pytest.param("bench decode --json --csv", 2, "one form", id="two forms"),
        pytest.param("validate gpt-2 --only speed", 2, "counts or times", id="no such part"),
        pytest.param("validate gpt-2 --phase sleep", 2, "Allowed: prefill", id="no such phase"),
    ],
)
def test_trouble_is_one_line(line: str, code: int, said: str, capsys: Capture) -> None:
    assert run(line.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err


def record(ctx: int) -> Record:
    return Record(
        labels={"model": "m", "dtype": "bf16", "batch": 1, "ctx": ctx}, device="d", dtype="bf16",
        sample=Sample(times=(1.0, 1.0, 9.0, 9.0), calls=1, stop="budget"), flops=1.0, bytes=1.0, bandwidth_bytes_per_s=1.0, probe="mv",
        peak_flops_per_s=None, floor_s=1.0, bound_s=1.0, backend="mv", facts={"layers_timed": 1, "layers_total": 1, "weight_dtype": "bf16"},
    )  # fmt: skip


@pytest.mark.parametrize(("before", "contexts"), [(0, "9"), (0, "9,17"), (1, "9,17"), (2, "9,17,33")])
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), torch.OutOfMemoryError("CUDA out of memory")], ids=["Ctrl-C", "out of memory"])
def test_what_was_measured_before_is_printed(
    before: int, contexts: str, failure: BaseException, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(*_: object, **__: object) -> Iterator[Record]:
        yield from (record(ctx) for ctx in (9, 17, 33)[:before])
        raise failure

    monkeypatch.setattr("tfm.kernels.benchmarks.passes.bench_decode", lines)
    code = run(f"bench decode transformer-toy --ctx {contexts} --json".split())
    out, err = capsys.readouterr()
    assert code == (130 if isinstance(failure, KeyboardInterrupt) else 1)
    if before or isinstance(failure, KeyboardInterrupt):
        result = json.loads(out)["result"]
        assert len(result["rows"]) == before if "," in contexts else result["median_s"] is None
    assert "Traceback" not in err
    assert ("busy machine" in err) is (before > 0)


def test_no_torch_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "find_spec", lambda _: None)
    for line in ("bench decode", "calibrate", "validate gpt-2", "doctor"):
        assert run(line.split()) == 1
        said = "running PyTorch kernels needs torch and numpy: install them with `pip install 'tfm-toolkit[bench]'`"
        assert capsys.readouterr().err == f"error: {said}\n"


def test_validate(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(capsys, "validate transformer-toy --only counts --phase prefill,decode,train --ctx 9")
    assert answer["result"]["ok"] is True
    assert {"name", "quantity", "predicted", "observed", "error", "ok"} == set(answer["result"]["rows"][0])
    answer = ask(capsys, "validate transformer-toy --only times --ctx 9")
    assert {row["quantity"] for row in answer["result"]["rows"]} == {"floor_s"}
    monkeypatch.setattr("tfm.kernels.validation.counted_parameters", lambda _: __import__("collections").Counter({"x": 1}))
    answer = ask(capsys, "validate transformer-toy --only counts --ctx 9", code=3)
    assert answer["result"]["ok"] is False


def test_calibrate_then_local_everywhere(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = Plan(
        dtypes=(torch.float32, torch.bfloat16), sizes=(1 << 20,), pool_bytes=1 << 18, products=((1, 64, 32), (4, 32, 48)),
        steps=((4, 2, 16, 40),), flash=((4, 2, 16, 24),), rows=3, width=32, inner=40,
        checks=((TINY, "decode", 1, 12), (TINY, "prefill", 1, 7)),
        between=(1 << 12,), stopping=BRIEF, whole=BRIEF, careful=BRIEF,
    )  # fmt: skip
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("tfm.kernels.calibration.standard_plan", lambda _: plan)
    assert run("latency llama-7b --hardware local".split()) == 1
    assert "run `tfm calibrate`" in capsys.readouterr().err
    result = ask(capsys, "calibrate")["result"]
    assert Path(result["path"]) == calibration_path()
    assert calibration_path().exists()
    timed = ask(capsys, "latency llama-7b --hardware local --ctx 100")
    figures = timed["result"]
    for phase in ("decode", "prefill"):
        low, middle, high = (figures[f"{phase}_expected{end}_s"] for end in ("_low", "", "_high"))
        assert 0 < low < middle < high
    assert any("measured by `tfm calibrate`" in line for line in timed["assumptions"])
    swept = ask(capsys, "latency llama-7b --hardware local --ctx 100,200")["result"]["rows"]
    assert swept[0]["decode_expected_s"] == figures["decode_expected_s"] < swept[1]["decode_expected_s"]
    by_hand = ask(capsys, "latency llama-7b --hardware local --bandwidth 1TB/s")["result"]
    assert by_hand["decode_expected_s"] is None  # those are not the rates that were measured
    assert ask(capsys, "latency llama-7b --hardware local --weight-dtype int8")["result"]["decode_expected_s"] is None
    assert "local" in {row["device"] for row in ask(capsys, "hardware")["result"]["rows"]}
    assert ask(capsys, "show local")["result"]["name"] == "local"
    assert ask(capsys, "memory llama-7b --hardware local")["result"]["capacity_bytes"] > 0
    assert ask(capsys, "doctor")["result"]["calibration"] == result["made"]
    assert run("latency llama-7b --hardware local --explain".split()) == 0
    assert "expected decode" in capsys.readouterr().out


def test_local_needs_no_torch(run_python: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """The calibrated device is read without what measured it."""
    script = "import sys; from tfm.cli.app import run; run(['latency', 'llama-7b', '--hardware', 'local']); print('torch' in sys.modules)"
    done = run_python("-c", script, env={"XDG_DATA_HOME": str(tmp_path)})
    assert done.stdout.splitlines()[-1] == "False"
