"""What doctor says of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import torch

from tfm.kernels.doctor import calibration_fact, examine, load_fact, pages_fact, preset_fact, preset_for
from tfm.kernels.machine import machine, processor_name, total_memory_bytes
from tfm.presets.calibration import SCHEMA, Calibration, calibration_path, save_calibration
from tfm.presets.device import load_device

CPU = torch.device("cpu")


def test_every_fact() -> None:
    facts = {fact.name: fact for fact in examine(CPU)}
    assert {"device", "memory_bytes", "threads", "torch", "sdpa_backends", "datasheet_preset", "calibration", "load"} <= set(facts)
    assert facts["torch"].value == torch.__version__
    assert "decode: flash (cpu)" in str(facts["sdpa_backends"].value)
    assert all(fact.state in ("ok", "note", "trouble") for fact in facts.values())


@pytest.mark.parametrize(
    ("title", "preset"),
    [
        pytest.param("NVIDIA H200", None, id="which of two is not said"),
        pytest.param("NVIDIA GeForce RTX 4090", "rtx-4090", id="exact"),
        pytest.param("NVIDIA L40S", "l40s", id="not l4"),
        pytest.param("NVIDIA A100-SXM4-80GB", None, id="written otherwise"),
        pytest.param("Apple M2 Ultra", "m2-ultra", id="a processor"),
        pytest.param("Intel(R) Xeon(R) Processor", None, id="no preset"),
    ],
)
def test_presets(title: str, preset: str | None) -> None:
    assert preset_for(title) == preset
    assert preset_fact(title).state == ("note" if preset is None else "ok")


def stored(**fields: object) -> Calibration:
    made = Calibration(
        schema=SCHEMA, made="2026-11-30T12:00:00+00:00", version="0", machine=machine(CPU), device=load_device("l4"), launch_s=1e-6,
        streams=(), products=(), attended=(), elementwise=(), overheads=(), checks=(),
    )  # fmt: skip
    return msgspec.structs.replace(made, **fields)


def test_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert calibration_fact(CPU).state == "note"
    save_calibration(stored())
    assert calibration_fact(CPU).state == "ok"
    save_calibration(stored(machine=msgspec.structs.replace(machine(CPU), threads=99, torch="1.0")))
    fact = calibration_fact(CPU)
    assert fact.state == "trouble"
    assert "threads was 99" in fact.advice
    assert "torch was 1.0" in fact.advice
    calibration_path().write_text("{")
    assert calibration_fact(CPU).state == "trouble"


def test_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert load_fact().state == "ok"
    monkeypatch.setattr(os, "getloadavg", lambda: (1e3, 0.0, 0.0))
    assert "busy machine" in load_fact().advice


@pytest.mark.parametrize(
    ("setting", "asked", "value", "state"),
    [
        ("[always] madvise never", "0", "always", "ok"),
        ("always [madvise] never", "1", "madvise", "ok"),
        ("always [madvise] never", "0", "madvise", "note"),
        ("always madvise [never]", "1", "never", "note"),
        (None, "1", None, "ok"),
    ],
)
def test_huge_pages(
    setting: str | None, asked: str, value: str | None, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", asked)
    file = tmp_path / "enabled"
    if setting is not None:
        file.write_text(setting + "\n")
    fact = pages_fact(file)
    assert (fact.value, fact.state) == (value, state)


def test_who_measures_asks_for_huge_pages() -> None:
    assert os.environ["THP_MEM_ALLOC_ENABLE"] in ("0", "1")  # somebody's own setting, else ours


def test_machine(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some CPU @ 3 GHz\n")
    assert processor_name(info) == "Some CPU @ 3 GHz"
    assert processor_name(tmp_path / "missing")
    assert total_memory_bytes(CPU) > 2**28
    assert machine(CPU).threads == torch.get_num_threads()
