"""The Python API where it is more than a name for one function: what needs torch, and the defaults that it fills in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tfm
from tfm.kernels.benchmarks.setting import Setting
from tfm.kernels.timing import Stopping
from tfm.presets.errors import MissingExtraError, UnknownNameError


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements that take no time and mean nothing."""
    short = Stopping(min_samples=2, min_seconds=0.0, max_seconds=0.01, target_spread=9.0)
    for name in ("PROBING", "MULTIPLYING"):
        monkeypatch.setattr(f"tfm.kernels.benchmarks.yardstick.{name}", short)
    monkeypatch.setattr("tfm.kernels.benchmarks.setting.MOST_COPIES", 1)
    plain = Setting
    for module in ("passes", "training"):
        monkeypatch.setattr(f"tfm.kernels.benchmarks.{module}.Setting", lambda: plain(stopping=short, probe_bytes=1 << 20))


@pytest.mark.parametrize("phase", ["decode", "prefill", "train"])
def test_bench(phase: str, brief: None) -> None:
    found = tfm.bench(phase, "transformer-toy", context=12, dtype="fp32", layers="all")
    assert found.figures()["layers_timed"] == found.figures()["layers_total"]
    assert found.sample.median_s > 0


def test_bench_of_what_there_is_not() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean decode"):
        tfm.bench("decod", "gpt-2")


def test_validate() -> None:
    found = tfm.validate("gpt-2", phases=["decode"])
    assert {one.quantity for one in found} >= {"params", "flops", "kv_bytes"}
    assert all(one.ok for one in found)


def test_claims() -> None:
    (found,) = tfm.claims(["softmax-of-3-1-02"])
    assert found.finding.ok
    with pytest.raises(UnknownNameError):
        tfm.claims(["softmax-of-3-1-03"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        pytest.param(lambda _: tfm.gates("gpt-2", context=-1), "context: got -1", id="negative"),
        pytest.param(lambda _: tfm.gates("gpt-2", context=1.5), "context: got 1.5", id="fraction"),
        pytest.param(lambda _: tfm.flops("gpt-2", context="4k"), "context: got '4k'", id="text"),
        pytest.param(lambda _: tfm.memory("gpt-2", batch=0), "batch: got 0", id="no sequence"),
        pytest.param(lambda _: tfm.gates("gpt-2", batch=2**61), "no setting of a gate", id="too many sequences"),
        pytest.param(lambda _: tfm.gates("gpt-2", full_attention=True), "no full_attention", id="what a gate does not say"),
        pytest.param(lambda _: tfm.gates("gpt-2", phase="train"), "no phase; phases=", id="one phase"),
        pytest.param(lambda _: tfm.gates("gpt-2", phases="train"), "a list of prefill", id="phases as text"),  # type: ignore[arg-type]
        pytest.param(lambda _: tfm.gates(tfm.model("gpt-2")), "by its name", id="a description"),  # type: ignore[arg-type]
        pytest.param(lambda path: tfm.check(path, threshold=-1), "threshold -1", id="threshold"),
        pytest.param(lambda path: tfm.check(path, threads=0), "threads: got 0", id="threads"),
        pytest.param(tfm.check, "nothing to check", id="a baseline of nothing"),
        pytest.param(lambda path: tfm.save_gates(path / "x.json", []), "cannot be", id="no folder"),
        pytest.param(lambda path: tfm.save_gates(path, tfm.gates("gpt-2") * 2), "twice", id="twice"),
        pytest.param(lambda _: tfm.control("openvla-7b", "l4", images=-1), "images: got -1", id="images"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    tfm.save_gates(path, [])
    with pytest.raises(tfm.TfmError, match=words):
        call(path)


def test_gates_of_a_phase_and_of_other_heads() -> None:
    found = {entry.id: entry.value for entry in tfm.gates("gpt-2", phases=["train"], gqa=2, context=8)}
    assert "gpt-2 train_flops (gqa 2, 1 x 8)" in found
    assert not any("prefill" in name for name in found)


@pytest.mark.parametrize(
    "call",
    [
        lambda: tfm.bench("decode", "gpt-2"),
        tfm.calibrate,
        lambda: tfm.validate("gpt-2"),
        tfm.claims,
        lambda: tfm.generate("gpt-2", [[1]], new=1),
    ],
)
def test_without_torch(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm.cli.measuring.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"tfm-toolkit\[bench\]"):
        call()
