"""What a calibration measures: the sizes of every point, and the small models that it is checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ..presets import spec as s
from .beats import POOL_BYTES
from .benchmarks.setting import Setting
from .timing import Stopping

POINT = Stopping(min_samples=3, min_seconds=0.04, max_seconds=0.11, target_spread=0.05)
WHOLE = Stopping(min_samples=3, min_seconds=0.3, max_seconds=0.7, target_spread=0.03)
CAREFUL = Stopping(min_samples=7, min_seconds=0.5, max_seconds=3.0, target_spread=0.05)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured; a test plans less.

    Attributes:
        dtypes: formats. sizes: bytes of the bandwidth probes, the largest first. pool_bytes: memory that weights and caches rotate in.
        products: (m, k, n). steps: (heads, kv_heads, head_dim, context) of one new token. flash: the same, all tokens new.
        between: bytes that are read at each product of a model that is next to nothing, the middle one also before attention.
        width, inner: of the elementwise probes over `rows` tokens. checks: (spec, phase, batch, context).
        stopping: of each point. whole: of small models. careful: of the beats at the start, and of the bandwidth that counts as memory's.
        rounds: visits to every point but matrix products of many rows, far apart: what lasted seconds is then found once, and left out.
        visits_s, checks_s: seconds after the start at which no point is visited again, and no further model is run: a calibration keeps
            to its two minutes where loops have to be compiled first, or the machine is slow.
    """

    dtypes: tuple[torch.dtype, ...]
    sizes: tuple[int, ...]
    pool_bytes: int
    products: tuple[tuple[int, int, int], ...]
    steps: tuple[tuple[int, int, int, int], ...]
    flash: tuple[tuple[int, int, int, int], ...]
    between: tuple[int, ...]
    rows: int
    width: int
    inner: int
    checks: tuple[tuple[s.ModelSpec, str, int, int], ...]
    stopping: Stopping = POINT
    whole: Stopping = WHOLE
    careful: Stopping = CAREFUL
    rounds: int = 2
    visits_s: float = 85.0
    checks_s: float = 109.0
    beat_bytes: int = POOL_BYTES


def llama_like(name: str, *, layers: int, width: int, heads: int, kv_heads: int, head_dim: int, d_ff: int, vocabulary: int) -> s.ModelSpec:
    """A decoder of the common kind: RMSNorm, rotary positions, grouped queries, gated feed-forward, a head of its own."""
    mixer = s.Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, mask=s.Causal(), position=s.Rope())
    forward = s.FeedForward(d_ff=d_ff, activation="silu", gated=True)
    return decoder(name, s.Norm(type="rms"), mixer, forward, layers=layers, width=width, vocabulary=vocabulary)


def gpt_like(name: str, *, layers: int, width: int, heads: int, vocabulary: int) -> s.ModelSpec:
    """A decoder of GPT-2's kind: LayerNorm, biases, no turning of queries, GELU."""
    mixer = s.Attention(heads=heads, kv_heads=heads, head_dim=width // heads, mask=s.Causal(), bias=("q", "k", "v", "o"))
    forward = s.FeedForward(d_ff=4 * width, activation="gelu_tanh", bias=True)
    return decoder(name, s.Norm(type="layer"), mixer, forward, layers=layers, width=width, vocabulary=vocabulary)


def decoder(
    name: str, norm: s.Norm, mixer: s.Attention, forward: s.FeedForward, *, layers: int, width: int, vocabulary: int
) -> s.ModelSpec:
    """Equal layers of attention and feed-forward, each after a norm."""
    layer = s.Layer(
        sublayers=(s.Sublayer(name="attention", pre_norm=norm, mixer=mixer), s.Sublayer(name="feed_forward", pre_norm=norm, mixer=forward))
    )
    stack = s.Stack(
        name="decoder", d_model=width, role="decoder", blocks=(s.Block(pattern=(layer,), repeat=layers),),
        embeddings=(s.Embedding(name="token", rows=vocabulary),), final=(norm,),
    )  # fmt: skip
    head = s.Head(name="lm_head", stack="decoder", parts=(s.Linear(name="weight", d_in=width, d_out=vocabulary),))
    return s.ModelSpec(name=name, source=("made for the calibration",), stacks=(stack,), heads=(head,))


WIDE = llama_like("wide", layers=1, width=4096, heads=32, kv_heads=8, head_dim=128, d_ff=11008, vocabulary=16000)
NARROW = llama_like("narrow", layers=3, width=2048, heads=16, kv_heads=16, head_dim=128, d_ff=4096, vocabulary=32000)
TINY = llama_like("tiny", layers=12, width=64, heads=4, kv_heads=2, head_dim=16, d_ff=128, vocabulary=64)
TINIEST: dict[Literal["rms", "layer"], s.ModelSpec] = {"rms": TINY, "layer": gpt_like("tiny", layers=12, width=64, heads=4, vocabulary=64)}


def standard_plan(setting: Setting) -> Plan:
    """The plan of `tfm calibrate`."""
    gpu = setting.device.type != "cpu"
    shapes = [(1024, 1024), (2048, 2048), (4096, 4096), (4096, 11008), (11008, 4096), (4096, 32000)]
    few = [(1024, 1024), (4096, 4096), (11008, 4096)]
    odd = (2048, 25001)
    many = (256, 512, 1024, 4096) if gpu else (136, 256, 512)  # from 129 rows on a processor has another way to multiply
    products = [(1, *shape) for shape in (*shapes, odd)]
    products += [(m, *shape) for m in (2, 4, 8, 16, 64, 72) for shape in few] + [(m, *odd) for m in (4, 16, 64)]
    products += [(m, *shape) for m in many for shape in ((2048, 2048), (4096, 8192 if gpu else 4096))] + [(m, *odd) for m in many[:-1]]
    return Plan(
        dtypes=(torch.float32, torch.bfloat16),
        sizes=(setting.probe_bytes, 64 << 20, 8 << 20, 1 << 20),
        pool_bytes=max(1 << 30, 4 * setting.cache_bytes),
        products=tuple(products),
        steps=(
            *((32, kv_heads, 128, context) for kv_heads in (32, 8, 4) for context in (512, 4096, 16384)),
            *((32, 32, 64, context) for context in (1024, 8192)),
        ),
        flash=tuple((32, 8, 128, context) for context in (128, 512, 2048)),
        between=(3 << 20, 17 << 20, 61 << 20),
        rows=512,
        width=4096,
        inner=11008,
        checks=(
            (WIDE, "decode", 1, 2048), (WIDE, "prefill", 1, 136), (NARROW, "prefill", 1, 136), (NARROW, "decode", 1, 512),
            (WIDE, "decode", 4, 1024), (NARROW, "decode", 2, 4096),
        ),
    )  # fmt: skip
