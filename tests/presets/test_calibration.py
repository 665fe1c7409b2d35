"""The stored calibration: written whole or not at all, refused when it is not one, and then the hardware `local`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tfm.presets.calibration import SCHEMA, Calibration, Machine, Product, calibration_path, load_calibration, save_calibration
from tfm.presets.device import Device, device_names, load_device
from tfm.presets.errors import UnreadableError


def made() -> Calibration:
    """A small calibration."""
    device = Device(
        name="local", title="a machine", vendor="this machine", kind="cpu", form=None, capacity_bytes=2**34, memory_bytes_per_s=20e9,
        peak_flops_per_s={"fp32": 1e11}, link_bytes_per_s=None, cache_bytes=None, tdp_w=None, source=("tfm calibrate",),
        retrieved="2026-11-30",
    )  # fmt: skip
    return Calibration(
        schema=SCHEMA, made="2026-11-30T12:00:00+00:00", version="0",
        machine=Machine(device="a", backend="cpu", threads=2, torch="2", driver=None),
        device=device, launch_s=1e-6, streams=(), products=(Product(dtype="fp32", m=1, k=3, n=5, seconds=1e-3, spread=0.0),), attended=(),
        elementwise=(), overheads=(), checks=(),
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_round_trip_and_hardware_local(folder: Path) -> None:
    assert load_calibration() is None
    assert "local" not in device_names()
    path = save_calibration(made())
    assert path == calibration_path()
    assert path.is_relative_to(folder)
    assert load_calibration() == made()
    assert load_device("local") == made().device
    assert "local" in device_names()
    assert [entry.name for entry in path.parent.iterdir()] == ["local.json"]
    assert made().day == "2026-11-30"


def test_no_calibration_says_what_to_do(folder: Path) -> None:
    with pytest.raises(UnreadableError, match="run `tfm calibrate`"):
        load_device("local")


def changed(**fields: Any) -> bytes:
    return msgspec.json.encode({**json.loads(msgspec.json.encode(made())), **fields})


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param(b"", "truncated", id="empty"),
        pytest.param(b"{}", "missing required field", id="no field"),
        pytest.param(b'{"schema": 3}', "schema", id="wrong type"),
        pytest.param(changed(schema="tfm-calibration/9"), "expected 'tfm-calibration/4'", id="another schema"),
        pytest.param(changed(launch_s=-1.0), "launch_s", id="negative time"),
        pytest.param(
            changed(products=[{"dtype": "fp32", "m": 0, "k": 1, "n": 1, "seconds": 1.0, "spread": 0.0}]), "products", id="no rows"
        ),
        pytest.param(changed(surprise=1), "surprise", id="unknown field"),
        pytest.param(b"\xff\xfe", "tfm calibrate", id="no JSON"),
        pytest.param(changed()[:-20], "tfm calibrate", id="cut off"),
    ],
)
def test_what_is_none_is_refused(raw: bytes, said: str, folder: Path) -> None:
    path = calibration_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(raw)
    with pytest.raises(UnreadableError, match=said) as caught:
        load_calibration()
    assert str(path) in str(caught.value)


def test_a_failed_write_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_calibration(made())
    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        save_calibration(msgspec.structs.replace(made(), version="1"))
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["local.json"]


def test_what_differs_between_two_machines() -> None:
    one = Machine(device="a", backend="cpu", threads=2, torch="2", driver=None)
    assert one.differences(one) == []
    assert one.differences(msgspec.structs.replace(one, driver="12", threads=3)) == ["threads was 2, is 3", "driver was none, is 12"]
