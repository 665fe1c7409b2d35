"""Decoding with a cache gives the logits of the whole pass; windows close, latents are absorbed, nothing grows that must not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tfm.estimators.policy import image_tokens
from tfm.estimators.work import Pass
from tfm.kernels.cache import Cache, Cross, KeyValue, Latent, Policy, Ring, State
from tfm.kernels.inputs import cross_tokens, random_inputs
from tfm.kernels.model import Model, build_model
from tfm.kernels.shrink import shrink
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model, model_names
from tfm.presets.spec import (
    Alibi,
    Attention,
    Block,
    Causal,
    Chunked,
    Embedding,
    FeedForward,
    GatedDelta,
    Head,
    HeadNorm,
    LatentAttention,
    Layer,
    Linear,
    Mamba,
    Mamba2,
    Mixer,
    ModelSpec,
    Norm,
    RelativeBuckets,
    RgLru,
    Rope,
    ShortConv,
    Sliding,
    Stack,
    Sublayer,
)

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = 13  # the windows of the shrunk copies are 5: they close, and turn round twice
DECODERS = [name for name in model_names() if load_model(name).decodes]
# How the tokens come: one by one; a prompt, then one by one; in pieces that are shorter and longer than a window.
PIECES = {"one-by-one": [1] * TOKENS, "prompt-then-steps": [8] + [1] * 5, "pieces": [6, 1, 2, 4], "two-halves": [7, 6]}


def pieces_of(model: Model, inputs: dict[str, Tensor], lengths: list[int], cache: Cache) -> Tensor:
    """The logits of tokens that come in pieces; source and images with the first."""
    out, start = [], 0
    for length in lengths:
        given = {"tokens": inputs["tokens"][:, start : start + length]}
        if start == 0:
            given = inputs | given
        out.append(model(**given, cache=cache)["lm_head"])
        start += length
    return torch.cat(out, dim=1)


def check(model: Model, work: Pass, lengths: list[int], policy: Policy = "minimal") -> None:
    torch.manual_seed(3)
    inputs = random_inputs(model, work)
    with torch.inference_mode():
        whole = model(**inputs)["lm_head"]
        cache = model.cache(work.batch, work.context, source=cross_tokens(model.spec, work), policy=policy)
        found = pieces_of(model, inputs, lengths, cache)
    assert whole.std() > 0.1
    assert cache.length == work.context
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-9)


def shrunk(name: str) -> tuple[Model, Pass]:
    """A shrunk preset in float64, and a pass over it: two sequences, up to three images where there is a vision tower."""
    spec = shrink(load_model(name))
    images = max((n for n in (1, 2, 3) if image_tokens(spec, n) <= 8), default=1)  # the first piece has 8 tokens
    source = None if any(stack.default_tokens for stack in spec.stacks) else 7
    return build_model(spec, dtype=torch.float64), Pass(batch=2, context=TOKENS, source=source, images=images if spec.connectors else None)


@pytest.mark.parametrize("name", DECODERS)
def test_every_preset_decodes_what_it_would_have_said_at_once(name: str) -> None:
    model, work = shrunk(name)
    check(model, work, PIECES["prompt-then-steps"])


# One of each kind of cache; an image's tokens have to come in one piece, so Gemma 3 is tested above alone.
KINDS = ("llama-3-8b", "gemma-2-9b", "gpt-oss-20b", "deepseek-v3", "t5-small", "whisper-large-v3")


@pytest.mark.parametrize("policy", ["minimal", "full"])
@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", KINDS)
def test_however_the_tokens_come(name: str, pieces: str, policy: Policy) -> None:
    model, work = shrunk(name)
    check(model, work, PIECES[pieces], policy)


# --- mixers by themselves -------------------------------------------------------------------------------------------

CHUNK = Chunked(chunk=4)
MIXERS: dict[str, Mixer] = {
    "chunked": Attention(heads=4, kv_heads=2, head_dim=6, value_dim=3, mask=CHUNK, position=Rope(interleaved=True, dims=4)),
    "sliding-gated": Attention(heads=3, kv_heads=1, head_dim=6, mask=Sliding(window=4), gate="full", sinks=True, position=Rope()),
    "sliding-alibi": Attention(heads=3, kv_heads=3, head_dim=6, mask=Sliding(window=4), position=Alibi()),
    "chunked-alibi": Attention(heads=3, kv_heads=3, head_dim=6, mask=CHUNK, position=Alibi()),
    "alibi": Attention(heads=3, kv_heads=3, head_dim=6, mask=Causal(), position=Alibi(), gate="head"),
    "values-are-keys": Attention(heads=4, kv_heads=2, head_dim=6, mask=Causal(), keys="values_are_keys", head_norm=HeadNorm(values=True)),
    "norm-over-all": Attention(heads=4, kv_heads=2, head_dim=6, mask=Causal(), head_norm=HeadNorm(over="all"), position=Rope()),
    "norm-per-head": Attention(heads=4, kv_heads=2, head_dim=6, mask=Causal(), head_norm=HeadNorm(over="heads", type="layer_unbiased")),
    "latent-straight": LatentAttention(heads=3, kv_rank=7, nope_dim=5, rope_dim=4, value_dim=6, mask=Causal(), position=Rope(), bias=True),
    "latent-sliding": LatentAttention(heads=3, kv_rank=7, nope_dim=5, rope_dim=4, value_dim=6, mask=Sliding(window=4), q_rank=9),
    "mamba": Mamba(d_inner=28, state=5, conv=4, dt_rank=3, inner_norms=True),
    "mamba2": Mamba2(heads=6, head_dim=4, groups=2, state=5, conv=3),
    "gated-delta": GatedDelta(key_heads=2, value_heads=6, key_dim=7, value_dim=5, conv=4),
    "rg-lru": RgLru(width=24, conv=4, blocks=3),
    "short-conv": ShortConv(width=18, conv=3),
}


def model_of(*mixers: Mixer) -> Model:
    """A layer for every mixer, each with a small feed-forward, twice."""
    rms = Norm(type="rms")
    feed = Sublayer(name="feed_forward", mixer=FeedForward(d_ff=11, activation="silu", gated=True), pre_norm=rms)
    layers = tuple(
        Layer(name=f"kind{place}", sublayers=(Sublayer(name="mixer", mixer=mixer, pre_norm=rms), feed))
        for place, mixer in enumerate(mixers)
    )
    embeddings = (Embedding(name="token", rows=31),)
    stack = Stack(name="decoder", d_model=20, role="decoder", embeddings=embeddings, blocks=(Block(pattern=layers, repeat=2),))
    head = Head(name="lm_head", stack="decoder", parts=(Linear(name="weight", d_in=20, d_out=31),))
    return build_model(ModelSpec(name="small", source=("a test",), stacks=(stack,), heads=(head,)), dtype=torch.float64)


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("name", MIXERS)
def test_mixers(name: str, pieces: str) -> None:
    check(model_of(MIXERS[name]), Pass(batch=2, context=TOKENS), PIECES[pieces])


def test_layers_that_read_an_earlier_cache() -> None:
    own = Attention(heads=4, kv_heads=2, head_dim=6, mask=Causal(), position=Rope())
    window = Attention(heads=4, kv_heads=2, head_dim=6, mask=Sliding(window=4), position=Rope())
    later = Attention(heads=4, kv_heads=2, head_dim=6, mask=Causal(), position=Rope(), keys="reused")
    model = model_of(own, window, later)
    check(model, Pass(batch=2, context=TOKENS), PIECES["pieces"])
    held = [entry for layer in model.cache(1, 9).entries["decoder"] for entry in layer if entry is not None]
    assert len(held) == 4


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), kind=st.sampled_from(sorted(MIXERS)))
@settings(max_examples=15)
def test_any_pieces(lengths: list[int], kind: str) -> None:
    check(model_of(MIXERS[kind]), Pass(batch=1, context=sum(lengths)), lengths)


def test_a_bias_by_distance_and_a_table() -> None:
    """T5's decoder alone, as a layer's position: the table is a parameter of the stack."""
    name = "t5-small"
    assert any(isinstance(getattr(sub.mixer, "position", None), RelativeBuckets) for _, sub in load_model(name).sublayers())
    model, work = shrunk(name)
    check(model, work, [5, 1, 1, 6])


# --- what is held ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mistral-7b", KeyValue), ("deepseek-v3", Latent)],
)
def test_which_entry_a_layer_has(name: str, kind: type[Any]) -> None:
    model, _ = shrunk(name)
    cache = model.cache(2, TOKENS)
    assert all(isinstance(layer[0], kind) and layer[1] is None for layer in cache.entries["decoder"])


def test_a_window_never_holds_more_than_its_tokens() -> None:
    model, _ = shrunk("mistral-7b")
    cache = model.cache(2, TOKENS)
    before = cache.bytes
    for position in range(TOKENS):
        model(torch.full((2, 1), position), cache=cache)
    entry = next(cache.each())
    assert isinstance(entry, KeyValue)
    assert entry.keys.slots == entry.values.slots == 5
    assert cache.bytes == before


def test_cross_attention_is_held_once() -> None:
    model, work = shrunk("t5-small")
    inputs = random_inputs(model, work)
    cache = model.cache(2, TOKENS, source=7)
    with torch.inference_mode():
        model(inputs["tokens"][:, :3], source=inputs["source"], cache=cache)
        held = [entry.keys.clone() for entry in cache.each() if isinstance(entry, Cross)]
        model(inputs["tokens"][:, 3:4], cache=cache)
    after = [entry.keys for entry in cache.each() if isinstance(entry, Cross)]
    assert len(held) == model.spec.main.depth
    assert all(torch.equal(a, b) for a, b in zip(held, after, strict=True))
    assert cache.bytes_of("cross") == model.spec.main.depth * 2 * 2 * 3 * 7 * 8 * 8  # K and V, B, heads, tokens, width, bytes


def test_state_is_kept_in_fp32_and_its_tail_in_the_cache_s_format() -> None:
    model = model_of(MIXERS["mamba2"])
    entry = next(model.cache(2, 5, dtype=torch.bfloat16).each())
    assert isinstance(entry, State)
    assert entry.state is not None
    assert entry.tail is not None
    assert (entry.state.dtype, entry.tail.dtype) == (torch.float32, torch.bfloat16)
    assert (entry.state.shape, entry.tail.shape) == ((2, 6, 4, 5), (2, 44, 3))


def test_latent_logits_do_not_depend_on_the_form() -> None:
    """Expanded over all tokens, and absorbed over all but the first few."""
    model, work = shrunk("deepseek-v3")
    check(model, work, [2, 11])


def test_a_full_cache_refuses_more() -> None:
    model, _ = shrunk("llama-7b")
    cache = model.cache(1, 4)
    model(torch.zeros(1, 3, dtype=torch.int64), cache=cache)
    with pytest.raises(UsageError, match="holds 4 tokens; 3 are in it and 2 more"):
        model(torch.zeros(1, 2, dtype=torch.int64), cache=cache)
    assert cache.length == 3


def test_randomised_as_if_tokens_were_in_it() -> None:
    model, _ = shrunk("gemma-2-9b")
    cache = model.cache(1, 9)
    cache.randomise(8)
    assert cache.length == 8
    assert all(bool((tensor != 0).all()) for entry in cache.each() for _, tensor in entry.tensors())
    assert model(torch.zeros(1, 1, dtype=torch.int64), cache=cache)["lm_head"].isfinite().all()


# --- the ring -------------------------------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), limit=st.integers(1, 6), chunked=st.booleans())
def test_a_ring_gives_what_a_query_can_see(lengths: list[int], limit: int, chunked: bool) -> None:
    """Against a plain list: a single token sees its window or chunk, several see at least that, oldest first."""
    ring, start = Ring(buffer=torch.zeros(1, 1, min(limit, sum(lengths)), 1), limit=limit, chunked=chunked), 0
    for length in lengths:
        new = torch.arange(start, start + length, dtype=torch.float32).view(1, 1, -1, 1)
        seen, end = ring.append(new, start).flatten().tolist(), start + length
        first = start // limit * limit if chunked else max(0, start - limit + 1)
        wanted = list(range(first, end))
        if length == 1:
            assert sorted(seen) == wanted
        else:
            assert seen[len(seen) - len(wanted) :] == wanted
            assert seen == list(range(int(seen[0]), end))
        start = end


def test_an_ordered_ring_turns_a_single_token_s_slots() -> None:
    ring = Ring(buffer=torch.zeros(1, 1, 3, 1), limit=3)
    seen = [ring.append(torch.full((1, 1, 1, 1), float(position)), position, ordered=True) for position in range(5)]
    assert seen[-1].flatten().tolist()[-3:] == [2.0, 3.0, 4.0]


# --- copies and other orders ------------------------------------------------------------------------------------------

HELD = ("llama-3-8b", "gemma-2-9b", "deepseek-v3", "t5-small", *MIXERS)


def held(kind: str) -> tuple[Model, Pass, Cache]:
    """A model and a cache of two sequences with all but the last three of the tokens in it."""
    model, work = (model_of(MIXERS[kind]), Pass(batch=2, context=TOKENS)) if kind in MIXERS else shrunk(kind)
    return model, work, model.cache(work.batch, work.context, source=cross_tokens(model.spec, work))


@pytest.mark.parametrize("kind", HELD)
def test_sequences_of_a_cache_in_another_order_go_on_as_themselves(kind: str) -> None:
    """Reordered, repeated, and the one they came from untouched: whatever the layers keep."""
    model, work, cache = held(kind)
    torch.manual_seed(3)
    inputs = random_inputs(model, work)
    tokens = inputs["tokens"]
    with torch.inference_mode():
        whole = model(**inputs)["lm_head"]
        model(**inputs | {"tokens": tokens[:, :-3]}, cache=cache)
        index = torch.tensor([1, 0, 1])
        other = cache.reordered(index)
        found = torch.cat([model(tokens[index, i : i + 1], cache=other)["lm_head"] for i in range(TOKENS - 3, TOKENS)], dim=1)
        doubled = cache.expanded(2)
        twice = model(tokens.repeat_interleave(2, dim=0)[:, -3:], cache=doubled)["lm_head"]
        before = model(tokens[:, -3:], cache=cache)["lm_head"]
    torch.testing.assert_close(found, whole[index, -3:], rtol=0, atol=1e-9)
    torch.testing.assert_close(twice, whole[:, -3:].repeat_interleave(2, dim=0), rtol=0, atol=1e-9)
    torch.testing.assert_close(before, whole[:, -3:], rtol=0, atol=1e-9)
    assert other.bytes * 2 == cache.bytes * 3 == doubled.bytes / 2 * 3


@pytest.mark.parametrize("kind", HELD)
def test_tokens_are_taken_back_or_a_copy_is_kept(kind: str) -> None:
    model, work, cache = held(kind)
    torch.manual_seed(3)
    inputs = random_inputs(model, work)
    tokens = inputs["tokens"]
    with torch.inference_mode():
        whole = model(**inputs)["lm_head"]
        model(**inputs | {"tokens": tokens[:, :-3]}, cache=cache)
        kept = None if cache.rewinds else cache.copied()
        model(tokens[:, :2] * 0, cache=cache)  # tokens that nobody wanted
        if kept is None:
            cache.rewind(TOKENS - 3)
        else:
            with pytest.raises(UsageError, match="cannot take tokens back"):
                cache.rewind(TOKENS - 3)
            cache = kept
        found = model(tokens[:, -3:], cache=cache)["lm_head"]
    torch.testing.assert_close(found, whole[:, -3:], rtol=0, atol=1e-9)
    closed = ("gemma", "sliding", "chunked", "mamba", "gated-delta", "rg-lru", "short-conv")
    assert (kept is None) == (not any(word in kind for word in closed))


def test_a_cache_goes_back_not_forward() -> None:
    cache = build_model(shrink(load_model("llama-3-8b"))).cache(1, 4)
    with pytest.raises(UsageError, match="allowed: 0 to 0"):
        cache.rewind(1)


def test_used_bytes_are_those_of_the_tokens_in_it() -> None:
    """Keys and values grow token by token and stop at the window; states are there from the beginning."""
    for kind in ("llama-3-8b", "gemma-2-9b", "mamba"):
        model, work, cache = held(kind)
        inputs = random_inputs(model, work)
        seen = [cache.used_bytes]
        for i in range(TOKENS):
            with torch.inference_mode():
                model(inputs["tokens"][:, i : i + 1], cache=cache)
            seen.append(cache.used_bytes)
        growth = [b - a for a, b in pairwise(seen)]
        assert seen[-1] == cache.bytes
        if kind == "llama-3-8b":
            assert seen[0] == 0 and len(set(growth)) == 1
        elif kind == "mamba":
            assert set(growth) == {0}
        else:
            assert growth[0] == 2 * growth[-1]  # of its two layers one has a window of 5
