"""safetensors headers: exact bytes by format, every lie one line, bounded memory."""

from __future__ import annotations

import json
import resource
import struct
from pathlib import Path
from typing import Any

import pytest

from tfm.presets.errors import UnreadableError
from tfm.presets.weights.safetensors_file import read_safetensors


def write(path: Path, entries: dict[str, Any], values: int, *, length: int | None = None) -> Path:
    """A file of this header and so many bytes of values; `length`: what it claims its header is long."""
    text = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text) if length is None else length) + text)
        file.truncate(8 + len(text) + values)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_the_package_writes_is_read(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    path = tmp_path / "a.safetensors"
    save_file(
        {"w": numpy.zeros((3, 5), numpy.float16), "b": numpy.zeros(7, numpy.int64), "e": numpy.zeros((0, 4), numpy.float32)},
        path,
        {"k": "v"},
    )
    found = read_safetensors(path)
    assert {t.name: (t.dtype, t.shape, t.bytes) for t in found.tensors} == {
        "w": ("F16", (3, 5), 30),
        "b": ("I64", (7,), 56),
        "e": ("F32", (0, 4), 0),
    }
    assert (found.metadata, found.elements, found.bytes) == ({"k": "v"}, 22, 86)


def test_packed_and_unknown_formats_are_as_stored(tmp_path: Path) -> None:
    entries = {
        "q": entry("U8", [4, 8], 0, 32), "s": entry("F8_E8M0", [4], 32, 36), "f": entry("F4", [3, 6], 36, 45),
        "n": entry("X9_NEW", [10], 45, 52),
    }  # fmt: skip
    found = read_safetensors(write(tmp_path / "a.safetensors", entries, 52))
    assert {share.dtype: (share.tensors, share.elements, share.bytes) for share in found.by_dtype()} == {
        "U8": (1, 32, 32), "F8_E8M0": (1, 4, 4), "F4": (1, 18, 9), "X9_NEW": (1, 10, 7),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "values", "length", "said"),
    [
        pytest.param({}, 0, 2**60, "claims a header of 1,152,921,504,606,846,976 bytes", id="2^60 bytes"),
        pytest.param({}, 0, 5000, "it was cut off", id="header longer than the file"),
        pytest.param({"a": entry("F32", [4], 0, 16)}, 10, None, "was cut off", id="values cut off"),
        pytest.param({"a": entry("F32", [4], 0, 16), "b": entry("F32", [4], 8, 24)}, 24, None, "overlap", id="overlap"),
        pytest.param({"a": entry("F32", [4], 0, 16), "b": entry("F32", [4], 20, 36)}, 36, None, "belong to no tensor", id="hole"),
        pytest.param({"a": entry("F32", [4], 0, 16)}, 20, None, "4 bytes more", id="bytes behind"),
        pytest.param({"a": entry("F32", [4], -16, 0)}, 0, None, "negative or reversed", id="negative offset"),
        pytest.param({"a": entry("F32", [4], 16, 0)}, 16, None, "negative or reversed", id="reversed"),
        pytest.param({"a": entry("F32", [2**40, 2**40], 0, 16)}, 16, None, "product overflows", id="overflow"),
        pytest.param({"a": entry("F32", [2**70], 0, 16)}, 16, None, "no safetensors header", id="a size that is no size"),
        pytest.param({"a": entry("F32", [-4], 0, 16)}, 16, None, "no possible shape", id="negative size"),
        pytest.param({"a": entry("F32", [1] * 1000, 0, 4)}, 4, None, "no possible shape", id="a thousand dimensions"),
        pytest.param({"a": entry("BF16", [4], 0, 16)}, 16, None, "one of them is wrong", id="shape against bytes"),
        pytest.param({"a": {"dtype": "F32"}}, 0, None, "lacks dtype, shape", id="no shape"),
        pytest.param({"a": {"dtype": 3, "shape": [1], "data_offsets": [0, 4]}}, 4, None, "no safetensors header", id="dtype no text"),
        pytest.param({"a" * 5000: entry("F32", [1], 0, 4)}, 4, None, "too long", id="a long name"),
    ],
)
def test_one_line_for_every_lie(tmp_path: Path, entries: dict[str, Any], values: int, length: int | None, said: str) -> None:
    path = write(tmp_path / "a.safetensors", entries, values, length=length)
    with pytest.raises(UnreadableError) as error:
        read_safetensors(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400 + len(str(path))


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02\0\0\0\0\0\0\0[]", b"\x02\0\0\0\0\0\0\0{\xff", b"\x09\0\0\0\0\0\0\0[[[[[[[[[" + b"["])
def test_what_is_no_header(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(UnreadableError):
        read_safetensors(path)


def test_of_ten_gigabytes_the_header_is_read(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = write(tmp_path / "a.safetensors", {"w": entry("BF16", [5 * 2**30], 0, 10 * 2**30)}, 10 * 2**30)
    assert read_safetensors(path).bytes == 10 * 2**30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


# --- folders and indexes ------------------------------------------------------------------------------------------------


def two_shards(folder: Path) -> dict[str, str]:
    write(folder / "model-1.safetensors", {"a": entry("F32", [4], 0, 16)}, 16)
    write(folder / "model-2.safetensors", {"b": entry("BF16", [3], 0, 6)}, 6)
    return {"a": "model-1.safetensors", "b": "model-2.safetensors"}


def index(folder: Path, places: dict[str, Any]) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 22}, "weight_map": places}))
    return path


def test_an_index_and_its_folder_are_the_same(tmp_path: Path) -> None:
    path = index(tmp_path, two_shards(tmp_path))
    assert read_safetensors(path).tensors == read_safetensors(tmp_path).tensors
    assert read_safetensors(tmp_path).bytes == 22
    path.unlink()
    assert read_safetensors(tmp_path).bytes == 22


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"c": "model-3.safetensors"}, "shard 'model-3.safetensors' is missing", id="missing shard"),
        pytest.param({"c": "model-1.safetensors"}, "are in none of its files", id="missing tensor"),
        pytest.param({"c": "../model-1.safetensors"}, "must be a *.safetensors file in the folder", id="parent folder"),
        pytest.param({"c": "/etc/x.safetensors"}, "must be a *.safetensors file in the folder", id="absolute"),
        pytest.param({"c": "..\\x.safetensors"}, "must be a *.safetensors file in the folder", id="backslash"),
        pytest.param({"c": "sub/x.safetensors"}, "must be a *.safetensors file in the folder", id="sub-folder"),
        pytest.param({"c": "passwd"}, "must be a *.safetensors file in the folder", id="another ending"),
        pytest.param({"c": 3}, "is no index of shards", id="no text"),
        pytest.param({str(n): f"{n}.safetensors" for n in range(5000)}, "from 1 to 4096", id="too many"),
    ],
)
def test_an_index_that_lies(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnreadableError) as error:
        read_safetensors(index(tmp_path, two_shards(tmp_path) | change))
    assert said in str(error.value)


def test_the_same_tensor_in_two_files(tmp_path: Path) -> None:
    two_shards(tmp_path)
    write(tmp_path / "x.safetensors", {"a": entry("F32", [4], 0, 16)}, 16)
    with pytest.raises(UnreadableError, match="is in two files"):
        read_safetensors(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"holds no \*\.safetensors file"):
        read_safetensors(tmp_path)
