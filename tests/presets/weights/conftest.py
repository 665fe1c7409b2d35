"""Small weights written on the spot, and a Hub on this machine that behaves, or misbehaves, as a test says."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 32, "intermediate_size": 80,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
SHA = "0123456789abcdef0123456789abcdef01234567"
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I32": 4, "I64": 8}
Tensors = dict[str, tuple[str, tuple[int, ...]]]


def llama_tensors(config: dict[str, Any], dtype: str = "BF16") -> Tensors:
    """Name to (dtype, shape) of a small LLaMA."""
    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = d // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,), "lm_head.weight": (v, d)}
    for index in range(config["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj": (d, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, d),
            "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f), "input_layernorm": (d,),
            "post_attention_layernorm": (d,),
        }  # fmt: skip
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return {name: (dtype, shape) for name, shape in shapes.items()}


def header_bytes(tensors: Tensors, metadata: dict[str, str] | None = None) -> tuple[bytes, int]:
    """(length and header of a safetensors file, bytes of the values)."""
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for n in shape:
            size *= n
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text, at


def write_safetensors(path: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> Path:
    """A file whose values are a hole: the header is all that is read."""
    head, size = header_bytes(tensors, metadata)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return path


class Hub:
    """Files of repositories by id, and how the server behaves.

    gated, renamed: ids. api: whether lists of files are served. manner: how parts of files are answered.
    """

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.renamed: dict[str, str] = {}
        self.revisions = {"main", SHA, "v2"}
        self.api = True
        self.manner = "good"
        self.seen: list[tuple[str, str, str | None, str | None]] = []
        self.sent = 0
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    """Answers as its hub says."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            try:
                self.wfile.write(body)
                self.hub.sent += len(body)
            except OSError:
                self.close_connection = True

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, b"{}", X_Error_Code=code, X_Error_Message=code, Content_Type="application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hub.seen.append((self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        if self.hub.manner == "stalls":
            time.sleep(30)
        steps = self.path.split("?")[0].strip("/").split("/")
        api = steps[:2] == ["api", "models"]
        repo = "/".join(steps[2:4] if api else steps[:2])
        if repo in self.hub.renamed:
            self.answer(307, Location=self.path.replace(repo, self.hub.renamed[repo]))
        elif repo not in self.hub.files or (api and not self.hub.api):
            self.refuse(401 if not api else 404, "RepoNotFound")
        elif api:
            self.list_files(repo, steps[5] if len(steps) > 5 else "main")
        else:
            self.file(repo, steps[3], "/".join(steps[4:]))

    def list_files(self, repo: str, revision: str) -> None:
        if revision not in self.hub.revisions:
            return self.refuse(404, "RevisionNotFound")
        files = [{"rfilename": name, "size": len(data)} for name, data in self.hub.files[repo].items()]
        body = json.dumps({"id": repo, "modelId": repo, "sha": SHA, "private": False, "tags": [], "siblings": files})
        return self.answer(200, body.encode(), Content_Type="application/json")

    def file(self, repo: str, revision: str, name: str) -> None:
        if revision not in self.hub.revisions:
            return self.refuse(404, "RevisionNotFound")
        if name not in self.hub.files[repo]:
            return self.refuse(404, "EntryNotFound")
        if repo in self.hub.gated and self.headers.get("Authorization") != "Bearer hf_good":
            return self.refuse(401, "GatedRepo")
        data = self.hub.files[repo][name]
        common = {"X_Repo_Commit": SHA, "ETag": f'"{hash(data) & 0xFFFFFFFF:08x}"', "Accept_Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None or self.hub.manner == "whole":
            return self.answer(200, data, **common)
        return self.part(data, asked, common)

    def part(self, data: bytes, asked: str, common: dict[str, str]) -> None:
        start, end = (int(n) for n in asked.removeprefix("bytes=").split("-"))
        end = min(end + 1, len(data))
        body, shown, total = data[start:end], f"{start}-{end - 1}", len(data)
        if self.hub.manner == "shifted":
            shown = f"{start + 1}-{end}"
        elif self.hub.manner == "short":
            body = body[: len(body) // 2]
        elif self.hub.manner == "longer":
            body += b"x" * 2**22
        elif self.hub.manner == "huge":
            total = 2**61
        elif self.hub.manner == "drips":
            return self.drip(body, shown, total, common)
        return self.answer(206, body, Content_Range=f"bytes {shown}/{total}", **common)

    def drip(self, body: bytes, shown: str, total: int, common: dict[str, str]) -> None:
        self.send_response(206)
        for name, value in {**common, "Content_Range": f"bytes {shown}/{total}", "Content_Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        for index in range(len(body)):
            try:
                self.wfile.write(body[index : index + 1])
                time.sleep(0.2)
            except OSError:
                self.close_connection = True
                return


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A Hub on this machine, with one LLaMA in it."""
    made = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": made}))
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    head, size = header_bytes(llama_tensors(CONFIG))
    made.files["owner/llama"] = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": head + bytes(size)}
    yield made
    server.shutdown()
    server.server_close()


Ask = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def ask(hub: Hub, run_python: Callable[..., Any], tmp_path: Path) -> Ask:
    """Run a command against the Hub: (exit status, JSON, what stands on stderr)."""

    def run(*arguments: str, **env: str) -> tuple[int, dict[str, Any], str]:
        settings = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1", **env}
        done = run_python("-m", "tfm", *arguments, "--json", env=settings)
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr

    return run
