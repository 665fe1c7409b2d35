"""Weights in files through the commands, as a user runs them, and through the Python functions."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tfm

CONFIG = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
PARAMS = 96 * 32 + 32 + 3 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 80 * 32 + 2 * 32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tied model in F16 whose head is stored again, and its configuration."""
    made = tmp_path / "small"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    shapes: dict[str, tuple[int, int]] = {"model.embed_tokens.weight": (96, 32), "model.norm.weight": (1, 32), "lm_head.weight": (96, 32)}
    for n in range(3):
        each = {"q_proj": 32, "k_proj": 16, "v_proj": 16, "o_proj": 32}
        shapes |= {f"model.layers.{n}.self_attn.{name}.weight": (size, 32) for name, size in each.items()}
        shapes |= {f"model.layers.{n}.mlp.{name}.weight": (80, 32) for name in ("gate_proj", "up_proj", "down_proj")}
        shapes |= {f"model.layers.{n}.{name}.weight": (1, 32) for name in ("input_layernorm", "post_attention_layernorm")}
    entries, at = {}, 0
    for name, (rows, width) in shapes.items():
        entries[name] = {"dtype": "F16", "shape": [rows, width], "data_offsets": [at, at + 2 * rows * width]}
        at += 2 * rows * width
    text = json.dumps(entries).encode()
    (made / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return made


def run(tfm_command: Callable[..., Any], *arguments: str) -> dict[str, Any]:
    done = tfm_command("-m", "tfm", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("place", ["small", "small/model.safetensors"])
def test_params_compares_file_and_description(run_python: Any, folder: Path, place: str) -> None:
    result = run(run_python, "params", str(folder.parent / place))["result"]
    assert (result["total_params"], result["stored_elements"]) == (PARAMS, PARAMS + 96 * 32)
    assert result["stored_dtypes"] == {"F16": {"tensors": 30, "elements": PARAMS + 96 * 32, "bytes": 2 * (PARAMS + 96 * 32)}}
    assert result["stored_differences"] == {"tied head stored twice": 96 * 32}
    assert result["stored_bits_per_weight"] == 16


def test_memory_and_latency_use_what_is_stored(run_python: Any, folder: Path) -> None:
    found = run(run_python, "memory", str(folder))
    assert found["inputs"]["weight_dtype"] == "stored"
    assert (
        found["result"]["weight_bytes"] == 2 * (PARAMS + 96 * 32) == sum(term["weight_bytes"] * term["copies"] for term in found["terms"])
    )
    assert any("weights as stored in" in line for line in found["assumptions"])
    assert any("tied head stored twice" in line for line in found["assumptions"])
    step = run(run_python, "latency", str(folder), "--hardware", "rtx-4090", "--batch", "1,4")
    assert [row["weight_read_bytes"] for row in step["result"]["rows"]] == [2 * PARAMS] * 2  # the table is read as the head's matrix


def test_a_format_that_is_said_wins(run_python: Any, folder: Path) -> None:
    found = run(run_python, "memory", str(folder), "--weight-dtype", "q8_0")
    assert found["inputs"]["weight_dtype"] == "q8_0"
    assert found["result"]["weight_bytes"] == -(-PARAMS * 34 // 32)


def test_weights_without_a_description(run_python: Any, folder: Path) -> None:
    (folder / "config.json").unlink()
    found = run(run_python, "params", str(folder / "model.safetensors"))
    assert found["result"]["total_params"] == PARAMS + 96 * 32
    assert found["result"]["active_params"] is None
    done = run_python("-m", "tfm", "memory", str(folder / "model.safetensors"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "put its config.json beside it" in done.stderr


def test_the_configuration_alone_is_the_configuration(run_python: Any, folder: Path) -> None:
    assert "stored_bytes" not in run(run_python, "params", str(folder / "config.json"))["result"]


def test_kv_heads_of_ones_own_leave_the_file(run_python: Any, folder: Path) -> None:
    assert run(run_python, "memory", str(folder), "--gqa", "4")["inputs"]["weight_dtype"] == "bf16"


def test_the_same_in_python(folder: Path) -> None:
    held = tfm.weights(str(folder))
    assert held is not None
    assert held.bytes == tfm.memory(str(folder)).weight_bytes == 2 * (PARAMS + 96 * 32)
    assert tfm.memory(str(folder), weight_dtype="fp32").weight_bytes == 4 * PARAMS
    step = tfm.latency(str(folder), "rtx-4090", context=9).decode
    assert step is not None
    assert step.weight_read_bytes == 2 * PARAMS
    assert tfm.weights("llama-7b") is None


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        pytest.param("nowhere.gguf", 1, "cannot read", id="no file"),
        pytest.param("models/nowhere.gguf", 1, "cannot read", id="a path is no id"),
        pytest.param("owner/name:config.json", 2, "must be a .gguf or a .safetensors", id="another file of a repository"),
        pytest.param("owner/name", 1, "is not in the cache", id="offline"),
        pytest.param("a/b/c", 2, "unknown model", id="two slashes"),
    ],
)
def test_names_that_are_nothing(run_python: Any, name: str, status: int, said: str) -> None:
    if status == 1 and name == "owner/name":
        pytest.importorskip("huggingface_hub")
    if name.endswith(".gguf"):
        pytest.importorskip("gguf")
    done = run_python("-m", "tfm", "params", name)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1)
    assert said in done.stderr
