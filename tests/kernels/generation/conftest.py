"""Small models of every kind of memory: keys and values, windows, chunks, latents, states, cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
import torch

from tfm.kernels.model import Model, build_model
from tfm.kernels.shrink import shrink
from tfm.presets import spec as s
from tfm.presets.loader import load_model

VOCABULARY, WIDTH = 11, 24
NORM = s.Norm(type="rms")
MIXERS: dict[str, s.Mixer] = {
    "chunked": s.Attention(heads=3, kv_heads=1, head_dim=8, mask=s.Chunked(chunk=4), position=s.Rope()),
    "alibi": s.Attention(heads=3, kv_heads=3, head_dim=8, mask=s.Sliding(window=4), position=s.Alibi()),
    "mamba": s.Mamba(d_inner=28, state=5, conv=4, dt_rank=3),
    "mamba2": s.Mamba2(heads=6, head_dim=4, groups=2, state=5, conv=3),
    "gated-delta": s.GatedDelta(key_heads=2, value_heads=6, key_dim=7, value_dim=5, conv=4),
    "rg-lru": s.RgLru(width=24, conv=4, blocks=3),
    "short-conv": s.ShortConv(width=20, conv=3),
}
# A preset shrunk, or one of the mixers above beside attention with a window: what a hybrid is.
KINDS = ("llama-3-8b", "gpt-2", "gemma-2-9b", "deepseek-v3", "gpt-oss-20b", *MIXERS)


def hybrid(mixer: s.Mixer) -> s.ModelSpec:
    """A layer with the mixer, then one with a closed window."""
    window = s.Attention(heads=3, kv_heads=1, head_dim=8, mask=s.Sliding(window=5), position=s.Rope())
    inner = s.Sublayer(name="feed_forward", pre_norm=NORM, mixer=s.FeedForward(d_ff=31, activation="silu", gated=True))
    layers = tuple(
        s.Layer(name=name, sublayers=(s.Sublayer(name="mixer", pre_norm=NORM, mixer=each), inner))
        for name, each in (("mixed", mixer), ("window", window))
    )
    stack = s.Stack(
        name="decoder",
        role="decoder",
        d_model=WIDTH,
        embeddings=(s.Embedding(name="token", rows=VOCABULARY),),
        blocks=(s.Block(pattern=layers),),
        final=(NORM,),
    )
    head = s.Head(name="lm_head", stack="decoder", parts=(s.Linear(name="weight", d_in=WIDTH, d_out=VOCABULARY),))
    return s.ModelSpec(name="hybrid", source=("a test",), stacks=(stack,), heads=(head,))


@lru_cache(maxsize=64)
def small(kind: str, seed: int = 0) -> Model:
    """The model of a kind, in float64, its logits far enough apart that rounding decides nothing."""
    spec = hybrid(MIXERS[kind]) if kind in MIXERS else shrink(load_model(kind))
    model = build_model(spec, dtype=torch.float64, seed=seed)
    with torch.no_grad():
        for leaf in model.heads.parameters():
            if leaf.ndim == 2:
                leaf.mul_(3)
    return model


@pytest.fixture(scope="session")
def model_of() -> Callable[..., Model]:
    """`model_of("mamba", seed=1)`."""
    return small


@pytest.fixture(autouse=True)
def quick(one_thread: None) -> None:
    """One thread for tensors this small."""
