"""GGUF headers: sizes of every format as the package has them, every lie one line."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

gguf: Any = pytest.importorskip("gguf")

from tfm.presets.errors import UnreadableError  # noqa: E402 - after the package is known to be there
from tfm.presets.weights import gguf_file  # noqa: E402
from tfm.presets.weights.gguf_file import read_gguf, read_header  # noqa: E402
from tfm.presets.weights.source import MemorySource  # noqa: E402

# Bits an element by ggml-common.h: a block's bytes, written out.
BITS = {
    "Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0, "Q8_0": 8.5, "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5,
    "Q5_K": 5.5, "Q6_K": 6.5625,
    "IQ1_S": 1.5625, "IQ2_XXS": 2.0625, "IQ3_XXS": 3.0625, "IQ4_NL": 4.5, "IQ4_XS": 4.25, "MXFP4": 4.25, "F16": 16.0,
    "BF16": 16.0, "F32": 32.0,
}  # fmt: skip


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(*parts: bytes, tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts)


def tensor(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize("name", sorted(BITS))
def test_bits_of_every_format(name: str) -> None:
    kind = int(gguf.GGMLQuantizationType[name])
    (found,), _ = read_header(MemorySource(header(tensor(b"w", (512, 3), kind, 0), tensors=1), size=2**20))
    assert (found.dtype, found.shape, 8 * found.bytes / found.elements) == (name, (3, 512), BITS[name])


def test_what_the_package_writes_is_read(tmp_path: Path) -> None:
    import numpy as np

    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_name("A")
    writer.add_token_list(["x"] * 5000)
    writer.add_array("llama.list", [1, 2, 3])
    writer.add_chat_template("y" * 5000)
    writer.add_tensor("w", np.zeros((3, 64), np.float32))
    writer.add_tensor("v", np.zeros((2, 36), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(tmp_path / "a.gguf")
    theirs = {
        t.name: (t.tensor_type.name, tuple(reversed([int(n) for n in t.shape])), t.n_bytes)
        for t in gguf.GGUFReader(tmp_path / "a.gguf").tensors
    }
    assert {t.name: (t.dtype, t.shape, t.bytes) for t in found.tensors} == theirs
    assert found.metadata["general.name"] == "A"
    assert found.metadata["llama.list"] == [1, 2, 3]
    assert found.metadata["tokenizer.ggml.tokens"] is None


F32 = 0
KEY = text(b"general.alignment")
NESTED = text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40


@pytest.mark.parametrize(
    ("data", "said"),
    [
        pytest.param(b"", "is no GGUF file", id="empty"),
        pytest.param(b"GGML" + bytes(60), "is no GGUF file", id="another format"),
        pytest.param(header(version=1), "GGUF version 1", id="version 1"),
        pytest.param(header(version=0x03000000), "big-endian", id="big-endian"),
        pytest.param(header(tensors=2**60), "claims 1,152,921,504,606,846,976 tensors", id="2^60 tensors"),
        pytest.param(header(keys=2**60), "claims 1,152,921,504,606,846,976 keys", id="2^60 keys"),
        pytest.param(header(struct.pack("<Q", 2**50), keys=1), "bytes of a key", id="a key of 2^50 bytes"),
        pytest.param(header(text(b"k") + struct.pack("<IQ", 8, 2**40), keys=1), "bytes of text", id="a text of 2^40 bytes"),
        pytest.param(header(text(b"k") + struct.pack("<IIQ", 9, 8, 2**62), keys=1), "items of a list", id="2^62 texts"),
        pytest.param(header(text(b"k") + struct.pack("<IIQ", 9, 8, 2**25), keys=1), "items in its header", id="too many texts"),
        pytest.param(header(text(b"k") + struct.pack("<IIQ", 9, 10, 2**24), keys=1), "cut off", id="a list beyond the end"),
        pytest.param(header(NESTED, keys=1), "unknown kind 9", id="lists in lists"),
        pytest.param(header(text(b"k") + struct.pack("<I", 77), keys=1), "unknown kind 77", id="unknown kind"),
        pytest.param(header(*[text(b"k") + struct.pack("<II", 4, 1)] * 2, keys=2), "the key 'k' twice", id="a key twice"),
        pytest.param(header(KEY + struct.pack("<II", 4, 3), keys=1), "no power of two", id="alignment 3"),
        pytest.param(header(KEY + struct.pack("<II", 4, 0), keys=1), "no power of two", id="alignment 0"),
        pytest.param(header(tensor(b"w", (2**40, 2**40), F32, 0), tensors=1), "product overflows", id="overflow"),
        pytest.param(header(tensor(b"w", (33,), 2, 0), tensors=1), "whose blocks hold 32", id="half a block"),
        pytest.param(header(tensor(b"w", (32,), 999, 0), tensors=1), "in the format 999", id="unknown format"),
        pytest.param(header(text(b"w") + struct.pack("<I", 200), tensors=1), "200 dimensions of 'w'", id="200 dimensions"),
        pytest.param(header(tensor(b"w", (32,), F32, 7), tensors=1), "no multiple of the alignment", id="not aligned"),
        pytest.param(header(tensor(b"w", (32,), F32, 0), tensor(b"v", (32,), F32, 64), tensors=2), "overlaps", id="overlap"),
        pytest.param(header(tensor(b"w", (32,), F32, 0), tensor(b"w", (32,), F32, 128), tensors=2), "same name", id="a name twice"),
        pytest.param(header(tensor(b"w", (2**30,), F32, 0), tensors=1), "the file was cut off", id="values cut off"),
        pytest.param(header(tensors=3), "cut off", id="list cut off"),
    ],
)
def test_one_line_for_every_lie(data: bytes, said: str) -> None:
    with pytest.raises(UnreadableError) as error:
        read_header(MemorySource(data, size=max(len(data), 2**16) if "cut off" not in said else len(data)))
    assert said in str(error.value), error.value
    assert "\n" not in str(error.value)


def test_parts_of_one_file(tmp_path: Path) -> None:
    assert gguf_file.part_names("a-00001-of-00003.gguf") == [f"a-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for number, name in enumerate((b"w", b"v"), start=1):
        data = header(tensor(name, (8,), F32, 0), tensors=1)
        (tmp_path / f"a-0000{number}-of-00002.gguf").write_bytes(data + bytes(-len(data) % 32 + 32))
    assert {t.name for t in read_gguf(tmp_path / "a-00001-of-00002.gguf").tensors} == {"w", "v"}
    (tmp_path / "a-00002-of-00002.gguf").unlink()
    with pytest.raises(UnreadableError, match="a-00002-of-00002"):
        read_gguf(tmp_path / "a-00001-of-00002.gguf")


def test_without_the_package_one_line(run_python: Any, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(header() + bytes(64))
    code = "import sys; sys.modules['gguf'] = None; from tfm.cli.app import main; sys.argv = ['tfm', 'params', sys.argv[1]]; main()"
    done = run_python("-c", code, str(tmp_path / "a.gguf"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install 'tfm-toolkit[files]'" in done.stderr
