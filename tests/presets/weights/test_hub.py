"""Models on the Hub, against a real HTTP server on this machine, each command in a process of its own."""

from __future__ import annotations

import json
import struct
import time
from math import prod
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub")

PARAMS = 96 * 32 * 2 + 32 + 3 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 80 * 32 + 2 * 32)


def test_configuration_and_header_are_all_that_is_read(hub: Any, ask: Any) -> None:
    values = bytes(2**22)
    hub.files["owner/llama"]["model.safetensors"] = grown(hub, len(values))
    status, found, error = ask("params", "owner/llama")
    assert (status, error) == (0, "")
    assert found["result"]["total_params"] == PARAMS
    assert found["result"]["stored_elements"] == PARAMS + len(values) // 2
    assert found["inputs"]["model"] == "llama"
    assert hub.sent < 2**18
    assert [path for command, path, part, _ in hub.seen if command == "GET" and path.endswith(".safetensors") and not part] == []


def grown(hub: Any, more: int) -> bytes:
    """The weights with one large tensor more."""
    data = hub.files["owner/llama"]["model.safetensors"]
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    end = len(data) - 8 - length
    entries["mtp.weight"] = {"dtype": "BF16", "shape": [more // 2], "data_offsets": [end, end + more]}
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end + more)


def test_latency_reads_the_stored_bytes(ask: Any) -> None:
    status, found, _ = ask("latency", "owner/llama", "--hardware", "rtx-4090")
    assert status == 0
    assert found["inputs"]["weight_dtype"] == "stored"
    assert found["result"]["weight_read_bytes"] == 2 * (PARAMS - 96 * 32)


def test_a_plain_mirror_without_lists_will_do(hub: Any, ask: Any) -> None:
    hub.api = False
    status, found, error = ask("memory", "owner/llama")
    assert (status, error) == (0, "")
    assert found["result"]["weight_bytes"] == 2 * PARAMS


def test_shards_by_their_index(hub: Any, ask: Any, tmp_path: Path) -> None:
    files = hub.files["owner/llama"]
    data = files.pop("model.safetensors")
    length = int.from_bytes(data[:8], "little")
    names = list(json.loads(data[8 : 8 + length]))
    files["a.safetensors"] = data
    files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "a.safetensors")}).encode()
    assert ask("memory", "owner/llama")[1]["result"]["weight_bytes"] == 2 * PARAMS
    files["model.safetensors.index.json"] = json.dumps({"weight_map": dict.fromkeys(names, "b.safetensors")}).encode()
    status, _, error = ask("memory", "owner/llama", HF_HOME=str(tmp_path / "other"))
    assert (status, error.count("\n")) == (1, 1)
    assert "b.safetensors" in error


def gguf_file(tokens: int) -> tuple[bytes, int]:
    """(a small llama in F32 with so many tokens in its header, parameters)."""
    numbers = {"embedding_length": 32, "block_count": 1, "feed_forward_length": 64, "context_length": 64}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2}
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (96, 32), "output_norm": (32,), "blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    shapes |= {f"blk.0.attn_{name}": (rows, 32) for name, rows in (("q", 32), ("k", 16), ("v", 16), ("output", 32))}
    shapes |= {"blk.0.ffn_gate": (64, 32), "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64)}
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    keys += [text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    keys.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, tokens) + text("token") * tokens)
    made, at = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys)) + b"".join(keys), 0
    for name, shape in shapes.items():
        made += text(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, at)
        at += 4 * prod(shape)
    return made + bytes(-len(made) % 32) + bytes(at), at // 4


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def test_a_gguf_file_in_a_repository(hub: Any, ask: Any) -> None:
    """Its header is longer than one part: the vocabulary comes before the tensors."""
    pytest.importorskip("gguf")
    hub.files["owner/ggufs"] = dict.fromkeys(("f32.gguf", "sub/f32.gguf"), gguf_file(40_000)[0])
    for name in hub.files["owner/ggufs"]:
        status, found, error = ask("latency", f"owner/ggufs:{name}", "--hardware", "rtx-4090")
        assert (status, error) == (0, "")
        assert found["result"]["weight_read_bytes"] == 4 * gguf_file(1)[1]
        assert found["inputs"]["weight_dtype"] == "stored"


def test_a_server_that_drips_is_left(hub: Any, run_python: Any) -> None:
    """A byte every fifth of a second is no stall to a client; the deadline is."""
    hub.manner = "drips"
    code = (
        "import sys, huggingface_hub as h; from tfm.presets.weights.remote import *; "
        "RangeSource(sys.argv[1], {}, name='it', session=h.get_session(), deadline=Deadline(2.0))"
    )
    begin = time.monotonic()
    done = run_python("-c", code, f"{hub.url}/owner/llama/resolve/main/model.safetensors", env={"HF_HUB_OFFLINE": "0"})
    assert "the server sends too slowly" in done.stderr
    assert time.monotonic() - begin < 15


def test_a_revision(hub: Any, ask: Any) -> None:
    assert ask("params", "owner/llama@v2")[0] == 0
    assert any("/revision/v2" in path for _, path, _, _ in hub.seen)
    status, _, error = ask("params", "owner/llama@v9")
    assert (status, "no revision 'v9'" in error, error.count("\n")) == (1, True, 1)


def test_a_gated_model_and_its_token(hub: Any, ask: Any) -> None:
    hub.gated.add("owner/llama")
    status, _, error = ask("params", "owner/llama")
    assert (status, error.count("\n")) == (1, 1)
    assert f"is gated; ask for access at {hub.url}/owner/llama" in error
    assert ask("params", "owner/llama", HF_TOKEN="hf_good")[0] == 0
    assert ("Bearer hf_good") in {token for _, _, _, token in hub.seen}


def test_a_renamed_model_says_its_new_id(hub: Any, ask: Any) -> None:
    hub.renamed["old/llama"] = "owner/llama"
    status, found, _ = ask("params", "old/llama")
    assert status == 0
    assert "old/llama was renamed: it is owner/llama now, use that id" in found["assumptions"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("owner/none", "is not on", id="missing"),
        pytest.param("owner/llama:nothing.gguf", "has no file 'nothing.gguf'", id="no such file"),
        pytest.param("owner/ggufs", "name one, as in owner/ggufs:q4.gguf", id="only ggufs"),
        pytest.param("owner/empty", "neither a config.json nor safetensors", id="nothing"),
        pytest.param("owner/broken", "owner/broken: config.json", id="broken configuration"),
    ],
)
def test_one_line_of_what_is_wrong(hub: Any, ask: Any, name: str, said: str) -> None:
    hub.files |= {
        "owner/ggufs": {"q4.gguf": b""},
        "owner/empty": {"x.txt": b""},
        "owner/broken": {"config.json": b'{"model_type": "llmaa"}'},
    }
    status, _, error = ask("params", name)
    assert (status, error.count("\n")) == (1, 1), error
    assert said in error


def test_offline_is_the_cache(hub: Any, ask: Any) -> None:
    status, _, error = ask("params", "owner/llama", HF_HUB_OFFLINE="1")
    assert (status, error.count("\n")) == (1, 1)
    assert "is not in the cache" in error
    assert ask("params", "owner/llama")[0] == 0
    seen = len(hub.seen)
    status, found, _ = ask("params", "owner/llama", HF_HUB_OFFLINE="1")
    assert (status, found["result"]["total_params"], len(hub.seen)) == (0, PARAMS, seen)
    assert any("its weights are not there" in line for line in found["assumptions"])


def test_no_server(ask: Any) -> None:
    status, _, error = ask("params", "owner/llama", HF_ENDPOINT="http://127.0.0.1:9")
    assert (status, error.count("\n")) == (1, 1)
    assert "is not reached" in error


@pytest.mark.parametrize(
    ("manner", "said"),
    [
        pytest.param("shifted", "answered another range", id="another range"),
        pytest.param("short", "", id="less than announced"),
        pytest.param("huge", "", id="a size that cannot be"),
    ],
)
def test_a_server_that_lies(hub: Any, ask: Any, manner: str, said: str) -> None:
    hub.manner = manner
    status, _, error = ask("memory", "owner/llama")
    assert (status, error.count("\n")) == (1, 1), error
    assert "owner/llama" in error
    assert said in error


@pytest.mark.parametrize("manner", ["whole", "longer"])
def test_a_server_that_sends_more_is_cut_short(hub: Any, ask: Any, manner: str) -> None:
    hub.manner = manner
    status, found, _ = ask("memory", "owner/llama")
    assert (status, found["result"]["weight_bytes"]) == (0, 2 * PARAMS)


@pytest.mark.slow
def test_a_server_that_stalls(hub: Any, ask: Any) -> None:
    hub.manner = "stalls"
    begin = time.monotonic()
    status, _, error = ask("params", "owner/llama")
    assert (status, error.count("\n")) == (1, 1)
    assert "did not answer in time" in error
    assert time.monotonic() - begin < 25


def test_without_the_package_one_line(run_python: Any) -> None:
    code = "import sys; sys.modules['huggingface_hub'] = None; from tfm.cli.app import main; sys.argv = ['tfm', 'params', 'a/b']; main()"
    done = run_python("-c", code)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install 'tfm-toolkit[hub]'" in done.stderr
