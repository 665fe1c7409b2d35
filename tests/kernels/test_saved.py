"""A model in a file: what comes back is what went in, and anything else is refused before memory is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tfm.kernels.model import Model, build_model
from tfm.kernels.saved import load_saved, read_saved, save_model
from tfm.presets.errors import UnreadableError
from tfm.presets.loader import load_model
from tfm.presets.weights.safetensors_file import read_safetensors

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def toy() -> Model:
    return build_model(load_model("transformer-toy"), seed=5)


def test_back_as_it_was(toy: Model, tmp_path: Path) -> None:
    state = {"adam/step": torch.tensor(3.0), "ids": torch.arange(7), "empty": torch.zeros(0, 4), "on": torch.tensor([True, False])}
    path = save_model(tmp_path / "toy.safetensors", toy.spec, toy, {"vocabulary": ["<pad>", "ü"]}, state=state)
    spec, model, extra = load_saved(path)
    assert spec == toy.spec
    assert extra == {"vocabulary": ["<pad>", "ü"]}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), toy.parameters(), strict=True))
    found = read_saved(path).state
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in state.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_formats_stay(dtype: torch.dtype, tmp_path: Path) -> None:
    model = build_model(load_model("transformer-toy"), dtype=dtype)
    _, back, _ = load_saved(save_model(tmp_path / "m.safetensors", model.spec, model))
    assert {weight.dtype for weight in back.parameters()} == {dtype}


def test_other_readers_read_it(toy: Model, tmp_path: Path) -> None:
    path = save_model(tmp_path / "toy.safetensors", toy.spec, toy)
    assert sum(tensor.elements for tensor in read_safetensors(path).tensors) == 2208
    safetensors = pytest.importorskip("safetensors.torch")
    theirs = safetensors.load_file(path)
    assert theirs.keys() == dict(toy.named_parameters()).keys()
    assert all(torch.equal(theirs[name], weight) for name, weight in toy.named_parameters())


def test_a_write_that_fails_leaves_the_old_file(toy: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_model(tmp_path / "toy.safetensors", toy.spec, toy)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnreadableError, match="No space left"):
        save_model(path, toy.spec, toy, {"other": 1})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_no_such_folder(toy: Model, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="cannot write"):
        save_model(tmp_path / "no" / "m.safetensors", toy.spec, toy)
    with pytest.raises(UnreadableError, match="cannot read"):
        load_saved(tmp_path / "none.safetensors")


def edited(path: Path, **changes: str | None) -> Path:
    """The file with other metadata."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    metadata = header["__metadata__"] | changes
    header["__metadata__"] = {name: value for name, value in metadata.items() if value is not None}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    return path


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tfm": None}, "no description of ours"),
        ({"tfm": "tfm-model/9"}, "layout 'tfm-model/9'"),
        ({"tfm_spec": "name: x"}, "missing required"),
        ({"tfm_spec": "- 1"}, "expected a mapping"),
        ({"tfm_extra": "[1]"}, "no JSON object"),
        ({"tfm_extra": "{"}, "no JSON object"),
    ],
    ids=["weights alone", "another layout", "half a description", "no description", "no object", "broken JSON"],
)
def test_what_is_something_else_is_refused(toy: Model, changes: dict[str, str | None], match: str, tmp_path: Path) -> None:
    path = edited(save_model(tmp_path / "toy.safetensors", toy.spec, toy), **changes)
    with pytest.raises(UnreadableError, match=match):
        load_saved(path)


def test_a_description_of_another_model_takes_no_memory(toy: Model, tmp_path: Path) -> None:
    from tfm.presets.dump import model_to_yaml

    path = edited(save_model(tmp_path / "toy.safetensors", toy.spec, toy), tfm_spec=model_to_yaml(load_model("llama-3.1-405b")))
    with pytest.raises(UnreadableError, match="not those of its description"):
        load_saved(path)


def test_a_file_that_was_cut_off(toy: Model, tmp_path: Path) -> None:
    path = save_model(tmp_path / "toy.safetensors", toy.spec, toy)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UnreadableError, match="cut off"):
        load_saved(path)
