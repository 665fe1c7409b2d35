"""Mutated headers of weights: each gives tensors or one clear line, in bounded time and memory.

python benchmarks/fuzz_weights.py [COUNT] [SEED]     100,000 mutations of both kinds together unless said

Seeds are small real headers (a safetensors file and GGUF files of several architectures), each changed in one to eight
bytes, cut, doubled, or with an absurd number written over a count. What can still be read is described and matched too.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tfm.estimators.stored import stored
from tfm.presets.errors import TfmError
from tfm.presets.weights import gguf_file, safetensors_file
from tfm.presets.weights.gguf_model import model_of_gguf
from tfm.presets.weights.source import MemorySource
from tfm.presets.weights.stored import StoredWeights

SECONDS = 2.0  # no single header may take longer
MOST_MIB = 200
ABSURD = (0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1)
ROOM = 2**20  # what the values of a seed take at most: sources claim to be that much longer than their header


def safetensors_seed() -> bytes:
    """A header with plain, packed and unknown formats."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, size in (
        ("model.embed_tokens.weight", "BF16", [96, 32], 6144),
        ("model.layers.0.self_attn.q_proj.weight", "F8_E4M3", [32, 32], 1024),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", "U8", [2, 4, 16], 128),
        ("model.layers.0.mlp.experts.gate_up_proj_scales", "F8_E8M0", [2, 4], 8),
        ("model.layers.1.future.weight", "F3_NEW", [64], 24),
    ):
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def text(value: str) -> bytes:
    """A GGUF string."""
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_seed(arch: str, numbers: dict[str, int], tensors: dict[str, tuple[int, ...]]) -> bytes:
    """A header in F32, aligned; the values are not there."""
    keys = [text("general.architecture") + struct.pack("<I", 8) + text(arch)]
    keys += [text(f"{arch}.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    keys.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("b") + text("c"))
    keys.append(text(f"{arch}.rope.scales") + struct.pack("<IIQ2f", 9, 6, 2, 1.0, 2.0))
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    at = 0
    for name, shape in tensors.items():
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, at)
        size = 4
        for n in shape:
            size *= n
        at += -(-size // 32) * 32
    return out


def gguf_seeds() -> list[bytes]:
    """Headers of a llama, a sparse one and a mamba."""
    common = {"embedding_length": 32, "block_count": 1, "feed_forward_length": 64, "context_length": 64}
    heads = {"attention.head_count": 4, "attention.head_count_kv": 2}
    blocks: dict[str, tuple[int, ...]] = {
        "blk.0.attn_q.weight": (32, 32),
        "blk.0.attn_k.weight": (16, 32),
        "blk.0.ffn_up.weight": (64, 32),
        "blk.0.attn_norm.weight": (32,),
    }
    table: dict[str, tuple[int, ...]] = {"token_embd.weight": (96, 32)}
    experts = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
    state = {"ssm.inner_size": 64, "ssm.state_size": 8, "ssm.conv_kernel": 4, "ssm.time_step_rank": 2}
    return [
        gguf_seed("llama", common | heads, table | blocks),
        gguf_seed("qwen3moe", common | heads | experts, table | {"blk.0.ffn_down_exps.weight": (4, 32, 32)}),
        gguf_seed("mamba", common | state, table | {"blk.0.ssm_in.weight": (128, 32)}),
    ]


def mutated(seed: bytes, rng: random.Random) -> bytes:
    """The seed with something wrong."""
    data = bytearray(seed)
    kind = rng.random()
    if kind < 0.5:
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind < 0.75:
        form = rng.choice(("<I", "<Q"))
        at = rng.randrange(len(data) - 8)
        struct.pack_into(form, data, at, rng.choice(ABSURD) % 2 ** (8 * struct.calcsize(form)))
    elif kind < 0.85:
        del data[rng.randrange(len(data)) :]
    else:
        begin = rng.randrange(len(data))
        end = min(begin + rng.randint(1, 64), len(data))
        data[begin:end] = data[begin:end] * rng.choice((0, 2, 40))
    return bytes(data)


def mutated_json(seed: bytes, rng: random.Random) -> bytes:
    """The seed's JSON with a number or a text changed, its length right."""
    body = seed[8:].decode()
    at = rng.randrange(len(body))
    odd = rng.choice(("-1", "1e400", str(2**70), "null", '"x"', "[]", "{}", "[[[[", '"\\ud800"', "9" * 4000, "{" * 3000, ""))
    changed = (body[:at] + odd + body[at + rng.randint(0, 4) :]).encode()
    return struct.pack("<Q", len(changed)) + changed


def read(kind: str, data: bytes) -> str:
    """How reading ends: what it gave, or the error's first words."""
    source = MemorySource(data, size=len(data) + ROOM) if kind == "gguf" else MemorySource(data, size=len(data) + 7328)
    if kind == "gguf":
        tensors, metadata = gguf_file.read_header(source)
        weights = StoredWeights(tensors=tensors, metadata=metadata, files=("fuzz.gguf",), origin="fuzz.gguf")
        stored(model_of_gguf(weights), weights)
    else:
        safetensors_file.read_header(source)
    return "read"


def run(count: int, seed: int, *, watch: Callable[[int], None] = lambda _: None) -> tuple[Counter[str], float]:
    """Outcomes of `count` mutations and the slowest one's seconds; what is not a TfmError ends it as it is."""
    rng = random.Random(seed)
    seeds = [("safetensors", safetensors_seed()), *(("gguf", one) for one in gguf_seeds())]
    for kind, data in seeds:
        read(kind, data)  # the seeds themselves must be good
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    for index in range(count):
        kind, data = seeds[0] if index % 2 else rng.choice(seeds[1:])
        made = mutated_json(data, rng) if kind == "safetensors" and rng.random() < 0.4 else mutated(data, rng)
        begin = time.perf_counter()
        try:
            outcomes[f"{kind}: {read(kind, made)}"] += 1
        except TfmError as error:
            line = str(error)
            assert "\n" not in line and len(line) < 1000, line
            outcomes[f"{kind}: refused"] += 1
        except Exception:
            print(f"mutation {index} of seed {seed}: {made!r}", file=sys.stderr)
            raise
        slowest = max(slowest, time.perf_counter() - begin)
        watch(index)
    return outcomes, slowest


def main(arguments: list[str]) -> int:
    """Run and print the figures."""
    count = int(arguments[0]) if arguments else 100_000
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    begin = time.perf_counter()
    outcomes, slowest = run(count, seed)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)
    for outcome, times in sorted(outcomes.items()):
        print(f"{times:>9,}  {outcome}")
    print(f"{count:,} inputs in {time.perf_counter() - begin:.1f} s, the slowest {slowest * 1000:.1f} ms, peak memory {peak:.0f} MiB")
    return int(slowest > SECONDS or peak > MOST_MIB)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
