"""The ledger by hand on one asymmetric model, and relations that hold for every model: what must equal what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tfm.estimators.ledger import ledger, total
from tfm.estimators.rows import Row
from tfm.estimators.work import Pass
from tfm.presets import spec as s
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model

# All sizes differ, and heads x head_dim is not d_model: a formula that mixes two of them gives another number.
D, N, K, H, HV, F, V, L = 10, 6, 2, 7, 5, 13, 17, 3
SOURCE = 9


ATTENTION = s.Attention(heads=N, kv_heads=K, head_dim=H, value_dim=HV, mask=s.Causal())
FEED_FORWARD = s.FeedForward(d_ff=F, activation="silu", gated=True)
TOKEN = s.Embedding(name="token", rows=V)
OUTPUT = s.Linear(name="weight", d_in=D, d_out=V)


def attention(**change: Any) -> s.Attention:
    return replace(ATTENTION, **change)


def layer(*mixers: s.Mixer) -> s.Layer:
    """A pre-norm layer; its sublayers are called `attention`, `feed_forward` ... as their mixers are."""
    norm = s.Norm(type="rms")
    return s.Layer(sublayers=tuple(s.Sublayer(name=str(mixer.__struct_config__.tag), mixer=mixer, pre_norm=norm) for mixer in mixers))


def head(**change: Any) -> s.Head:
    return s.Head(name="lm_head", stack="decoder", parts=(replace(OUTPUT, **change),))


def decoder(*mixers: s.Mixer, pattern: Sequence[s.Layer] = (), depth: int = L, heads: tuple[s.Head, ...] | None = None) -> s.ModelSpec:
    """A decoder of `depth` equal layers (attention and feed-forward, unless said), with an output matrix of its own."""
    layers = tuple(pattern) or (layer(*(mixers or (attention(), FEED_FORWARD))),)
    stack = s.Stack(name="decoder", d_model=D, role="decoder", embeddings=(TOKEN,), blocks=(s.Block(pattern=layers, repeat=depth),))
    return s.ModelSpec(name="x", source=("test",), stacks=(stack,), heads=(head(),) if heads is None else heads)


def encoder_decoder() -> s.ModelSpec:
    """A decoder that also attends an encoder of its own width."""
    encoder = s.Stack(
        name="encoder", d_model=D, role="encoder", tokens="source", embeddings=(TOKEN,),
        blocks=(s.Block(pattern=(layer(attention(mask=s.Full()), FEED_FORWARD),), repeat=2),),
    )  # fmt: skip
    cross = s.Sublayer(name="cross_attention", mixer=attention(mask=s.Full(), source="encoder"))
    kind = layer(attention(), FEED_FORWARD)
    stack = replace(decoder().stacks[0], blocks=(s.Block(pattern=(s.Layer(sublayers=(*kind.sublayers, cross)),), repeat=L),))
    return s.ModelSpec(name="x", source=("test",), stacks=(encoder, stack), heads=(head(),))


def rows(spec: s.ModelSpec, **options: Any) -> dict[str, Row]:
    """The rows of a pass by path."""
    return {row.path: row for row in ledger(spec, Pass(**options))}


def flops(spec: s.ModelSpec, share: str | None = None, **options: Any) -> Any:
    return total([row for row in ledger(spec, Pass(**options)) if share in (None, row.share)], "flops")


def kept(spec: s.ModelSpec, policy: str = "minimal", of: str = "self", **options: Any) -> Any:
    return sum(getattr(row.store, policy) * row.repeat for row in ledger(spec, Pass(**options)) if row.store and row.store.of == of)


def parameters(spec: s.ModelSpec, **options: Any) -> int:
    count: int = total(ledger(spec, Pass(**options)), "params", per="copies")
    return count


def weight_reads(spec: s.ModelSpec, **options: Any) -> Any:
    return total(ledger(spec, Pass(**options)), "weight_reads", per="fetches")


# --- by hand --------------------------------------------------------------------------------------------------------

B, T, S = 3, 4, 11
PAIRS = T * S - T * (T - 1) // 2  # the last 4 of 11 positions see 8 + 9 + 10 + 11 keys


@pytest.mark.parametrize(
    ("path", "params", "one_run"),
    [
        ("decoder/embedding/token", V * D, 0),
        ("decoder/attention/norm", D, 0),
        ("decoder/attention/q_proj", D * N * H, 2 * B * T * D * N * H),
        ("decoder/attention/k_proj", D * K * H, 2 * B * T * D * K * H),
        ("decoder/attention/v_proj", D * K * HV, 2 * B * T * D * K * HV),
        ("decoder/attention/scores", 0, 2 * B * N * PAIRS * (H + HV)),
        ("decoder/attention/o_proj", N * HV * D, 2 * B * T * N * HV * D),
        ("decoder/feed_forward/gate_proj", D * F, 2 * B * T * D * F),
        ("decoder/feed_forward/up_proj", D * F, 2 * B * T * D * F),
        ("decoder/feed_forward/down_proj", F * D, 2 * B * T * F * D),
        ("lm_head/weight", D * V, 2 * B * T * D * V),
    ],
)
def test_a_row_by_hand(path: str, params: int, one_run: int) -> None:
    row = rows(decoder(), batch=B, new=T, context=S)[path]
    assert (row.params, row.flops) == (params, one_run)
    assert row.copies == row.repeat == (1 if path.endswith(("token", "weight")) else L)


def test_the_rows_above_are_all_that_count() -> None:
    assert parameters(decoder()) == V * D + D * V + L * (D * (N * H + K * H + K * HV) + N * HV * D + 3 * D * F + 2 * D)


def test_the_cache_by_hand() -> None:
    assert kept(decoder(), batch=B, context=S, phase="decode") == B * S * L * K * (H + HV)


@pytest.mark.parametrize("bias", ["q", "k", "v", "o"])
def test_a_bias_is_as_wide_as_its_projection(bias: str) -> None:
    widths = {"q": N * H, "k": K * H, "v": K * HV, "o": D}
    assert parameters(decoder(attention(bias=(bias,)), FEED_FORWARD)) - parameters(decoder()) == L * widths[bias]


# --- sums -----------------------------------------------------------------------------------------------------------

SPECS: dict[str, s.ModelSpec] = {
    "decoder": decoder(),
    "encoder-decoder": encoder_decoder(),
    **{name: load_model(name) for name in ("gpt-2", "gemma-2-27b", "deepseek-v3", "whisper-large-v3", "bert-base", "gpt-oss-20b")},
}
PHASES: dict[str, dict[str, Any]] = {
    "prefill": {"context": 37},
    "decode": {"phase": "decode", "context": 37},
    "train": {"phase": "train", "context": 37},
}


@pytest.mark.parametrize("options", PHASES.values(), ids=PHASES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_the_parts_are_the_whole(spec: s.ModelSpec, options: dict[str, Any]) -> None:
    assert sum(flops(spec, share, **options) for share in ("linear", "attention", "head")) == flops(spec, **options)
    found = ledger(spec, Pass(**options))
    assert len({row.path for row in found}) == len(found)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_parameters_do_not_depend_on_what_is_run(spec: s.ModelSpec) -> None:
    counts = {
        parameters(spec, **options, batch=batch, images=images) for options in PHASES.values() for batch in (1, 5) for images in (0, 2)
    }
    assert len(counts) == 1


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_row_is_for_one_run(spec: s.ModelSpec) -> None:
    """Twice the layers double what layers cost and leave one run of each row as it is."""
    main = spec.main
    double = replace(main, blocks=main.blocks * 2)
    deeper = replace(spec, stacks=tuple(double if stack is main else stack for stack in spec.stacks))
    once, twice = rows(spec, context=37), rows(deeper, context=37)
    layered = {sub.name for kind in main.layers() for sub in kind.sublayers}
    for path, row in once.items():
        factor = 2 if path.startswith(f"{main.name}/") and layered & set(path.split("/")[1:-1]) else 1
        assert (twice[path].flops, twice[path].copies, twice[path].repeat) == (row.flops, factor * row.copies, factor * row.repeat)


# --- attention ------------------------------------------------------------------------------------------------------


def test_as_many_key_heads_as_query_heads_is_multi_head_attention() -> None:
    """The same cache, weights and FLOPs as N heads of their own; fewer key heads shrink K, V and cache, not the scores."""
    found = rows(decoder(attention(kv_heads=N, value_dim=H), FEED_FORWARD), context=S)
    q, k, v = (found[f"decoder/attention/{name}_proj"] for name in "qkv")
    assert q.params == k.params == v.params == D * N * H
    assert q.flops == k.flops == v.flops
    store = found["decoder/attention/scores"].store
    assert store is not None
    assert store.minimal == S * 2 * N * H


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_grouped_heads_shrink_the_cache_and_nothing_else_of_attention(groups: int) -> None:
    full, grouped = (decoder(attention(kv_heads=k), FEED_FORWARD) for k in (N, groups))
    assert kept(full, context=S) * groups == kept(grouped, context=S) * N
    assert flops(full, "attention", context=S) == flops(grouped, "attention", context=S)
    assert parameters(full) - parameters(grouped) == L * D * (N - groups) * (H + HV)


@pytest.mark.parametrize("window", [S, S + 1, 1000])
@pytest.mark.parametrize("options", [{}, {"new": T}, {"phase": "decode"}], ids=["prefill", "extend", "decode"])
def test_a_window_that_sees_all_is_none(window: int, options: dict[str, Any]) -> None:
    wide = decoder(attention(mask=s.Sliding(window=window)), FEED_FORWARD)
    assert rows(wide, context=S, **options) == rows(decoder(), context=S, **options)


def test_a_window_that_does_not_see_all_costs_less() -> None:
    narrow = decoder(attention(mask=s.Sliding(window=S - 1)), FEED_FORWARD)
    assert flops(decoder(), "attention", context=S) - flops(narrow, "attention", context=S) == 2 * L * N * (H + HV)
    assert kept(decoder(), context=S) - kept(narrow, context=S) == L * K * (H + HV)
    assert kept(narrow, "full", context=S) == kept(decoder(), context=S)


def seen(mask: s.Mask, query: int, key: int, length: int) -> bool:
    """Whether a mask shows a key to a query, position by position."""
    match mask:
        case s.Causal():
            return key <= query
        case s.Sliding(window=window):
            return query - window < key <= query
        case s.Chunked(chunk=chunk):
            return query // chunk * chunk <= key <= query
        case s.Local(reach=reach):
            return abs(query - key) <= reach
        case _:
            return key < length


MASKS = (
    st.builds(s.Causal) | st.builds(s.Full) | st.builds(s.Sliding, window=st.integers(1, 9)) | st.builds(s.Chunked, chunk=st.integers(1, 9))
)


@given(mask=MASKS, length=st.integers(1, 25), data=st.data())
def test_pairs_are_those_that_the_mask_leaves(mask: s.Mask, length: int, data: st.DataObject) -> None:
    new = data.draw(st.integers(1, length))
    found = rows(decoder(attention(mask=mask)), context=length, new=new, batch=2)["decoder/attention/scores"]
    assert found.dims["pairs"] == sum(seen(mask, query, key, length) for query in range(length - new, length) for key in range(length))
    square = rows(decoder(attention(mask=mask)), context=length, new=new, full_attention=True)["decoder/attention/scores"]
    assert square.dims["pairs"] == new * length


@given(reach=st.integers(1, 30), length=st.integers(1, 25))
def test_pairs_of_a_local_encoder(reach: int, length: int) -> None:
    mask = s.Local(reach=reach)
    found = rows(decoder(attention(mask=mask)), context=length)["decoder/attention/scores"]
    assert found.dims["pairs"] == sum(seen(mask, query, key, length) for query in range(length) for key in range(length))


@pytest.mark.parametrize(
    "mask", [s.Causal(), s.Sliding(window=5), s.Sliding(window=1), s.Chunked(chunk=4)], ids=["causal", "window-5", "window-1", "chunk-4"]
)
@pytest.mark.parametrize("kind", ["attention", "latent"])
def test_prefill_is_the_sum_of_its_decode_steps(mask: s.Mask, kind: str) -> None:
    """In FLOPs, part by part. MLA runs the steps in its absorbed form, which does more, so only its pairs are compared."""
    latent = s.LatentAttention(heads=N, kv_rank=8, nope_dim=4, rope_dim=3, value_dim=5, mask=mask)
    spec = decoder(attention(mask=mask) if kind == "attention" else latent, FEED_FORWARD)
    steps = [rows(spec, phase="decode", context=n, batch=B) for n in range(1, S + 1)]
    for path, row in rows(spec, context=S, batch=B).items():
        pairs = "pairs" in row.dims
        assert sum(step[path].dims["pairs"] for step in steps) == row.dims["pairs"] if pairs else True
        if kind == "attention" or not pairs:
            assert sum(step[path].flops for step in steps) == row.flops


def test_prefill_in_two_halves_costs_what_prefill_costs() -> None:
    for share in ("linear", "attention", "head"):
        first, second = flops(decoder(), share, context=T), flops(decoder(), share, context=S, new=S - T)
        assert first + second == flops(decoder(), share, context=S)


def test_absorbed_latent_attention_by_hand() -> None:
    """Scores over the latent and its rotary part, values over the latent (DeepSeek-V2, section 2.1.2)."""
    latent = s.LatentAttention(heads=N, kv_rank=8, nope_dim=4, rope_dim=3, value_dim=5, mask=s.Causal())
    spec = decoder(latent)
    assert flops(spec, "attention", context=S, phase="decode") == L * 2 * N * S * (8 + 3 + 8)
    assert flops(spec, "attention", context=S) == L * 2 * N * (S * (S + 1) // 2) * (4 + 3 + 5)
    assert kept(spec, context=S) == L * S * (8 + 3)
    assert kept(spec, "decompressed", context=S) == L * S * N * (4 + 3 + 5)
    step, prefill = (rows(spec, context=S, phase=phase)["decoder/latent_attention/kv_b_proj"].dims["m"] for phase in ("decode", "prefill"))
    assert (step, prefill) == (1, S)


def test_a_paged_cache_is_whole_blocks() -> None:
    assert [kept(decoder(), "paged", context=n) // (L * K * (H + HV)) for n in (1, 16, 17)] == [16, 16, 32]


# --- what grows with what -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", PHASES.values(), ids=PHASES)
@pytest.mark.parametrize("name", ["decoder", "encoder-decoder", "gpt-2", "gemma-2-27b", "whisper-large-v3", "bert-base"])
def test_batch_scales_work_and_cache_and_no_weights(name: str, options: dict[str, Any]) -> None:
    spec = SPECS[name]
    for share in ("linear", "attention", "head"):
        assert flops(spec, share, batch=5, **options) == 5 * flops(spec, share, **options)
    for policy in ("minimal", "full", "decompressed", "paged"):
        assert kept(spec, policy, batch=5, **options) == 5 * kept(spec, policy, **options)
    assert kept(spec, of="cross", batch=5, **options) == 5 * kept(spec, of="cross", **options)
    assert weight_reads(spec, batch=5, **options) == weight_reads(spec, **options)


def test_a_decode_step_does_not_read_the_input_table() -> None:
    assert weight_reads(decoder(), phase="decode", context=S) == parameters(decoder()) - V * D


def test_last_logits_runs_the_head_at_one_position() -> None:
    assert flops(decoder(), "head", context=S, batch=B, last_logits=True) == 2 * B * D * V
    assert flops(decoder(), "linear", context=S, last_logits=True) == flops(decoder(), "linear", context=S)
    assert flops(decoder(), "head", phase="train", context=S, batch=B, last_logits=True) == 2 * B * S * D * V


@pytest.mark.parametrize("options", [{}, {"phase": "decode"}, {"new": 1}], ids=["prefill", "decode", "extend"])
@pytest.mark.parametrize("name", SPECS)
def test_arrays_give_what_ints_give(name: str, options: dict[str, Any]) -> None:
    """A sweep is one call with arrays; every number of every row is that of the single calls."""
    spec = SPECS[name]
    batches, contexts = [1, 2, 7], [1, 4096, 5000]
    swept = ledger(spec, Pass(batch=np.array(batches), context=np.array(contexts), **options))
    for index, (batch, context) in enumerate(zip(batches, contexts, strict=True)):
        single = ledger(spec, Pass(batch=batch, context=context, **options))
        assert [at(row, index) for row in swept] == [at(row, 0) for row in single]


def at(row: Row, index: int) -> list[Any]:
    """A row's numbers at one point of a sweep."""
    store = [] if row.store is None else [getattr(row.store, name) for name in ("minimal", "full", "decompressed", "paged", "moved")]
    numbers = [row.flops, row.weight_reads, row.reads, row.writes, row.saved, row.saved_square, *row.dims.values(), *store]
    return [row.path, row.params, row.copies, row.repeat, *(n[index] if hasattr(n, "shape") and n.shape else n for n in numbers)]


# --- shared weights -------------------------------------------------------------------------------------------------


def test_layers_that_share_their_weights() -> None:
    """ALBERT: one layer's weights, as many runs as there are layers (Lan et al. 2019, arXiv:1909.11942, section 3.1)."""
    kind = layer(attention(), FEED_FORWARD)
    named = replace(kind, sublayers=tuple(replace(sub, shared=sub.name) for sub in kind.sublayers))
    shared, own = decoder(pattern=[named], depth=12), decoder(depth=12)
    for path, row in rows(shared, context=S).items():
        if path.startswith(("decoder/attention", "decoder/feed_forward")):
            assert (row.copies, row.repeat) == (1, 12)
            assert row.fetches == (0 if row.op == "attention" else 1)
    assert parameters(shared) == parameters(decoder(depth=1))
    assert flops(shared, context=S) == flops(own, context=S)
    assert kept(shared, context=S) == kept(own, context=S)
    contexts = np.array([1, S, 5000])
    assert flops(shared, context=contexts).tolist() == [flops(own, context=n) for n in contexts.tolist()]


def test_a_block_shared_between_layers_of_different_kinds() -> None:
    """Zamba: every layer has a feed-forward of its own, two of four also the one shared attention."""
    block = s.Sublayer(name="attention", mixer=attention(), shared="block")
    plain = layer(FEED_FORWARD)
    pattern = [replace(plain, name="plain"), s.Layer(name="hybrid", sublayers=(block, *plain.sublayers))]
    spec = decoder(pattern=pattern, depth=2)
    row = rows(spec, context=S)["decoder/hybrid/attention/q_proj"]
    assert (row.copies, row.repeat) == (1, 2)
    assert kept(spec, context=S) == 2 * S * K * (H + HV)


def test_a_tied_head_owns_nothing_and_is_read() -> None:
    tied, own = decoder(heads=(head(shares="decoder/embedding/token"),)), decoder()
    assert parameters(own) - parameters(tied) == V * D
    row = rows(tied, phase="decode", context=S)["lm_head/weight"]
    assert row.params * row.copies == 0
    assert (row.weight_reads, row.fetches) == (V * D, 1)
    assert weight_reads(tied, phase="decode", context=S) == weight_reads(own, phase="decode", context=S)
    assert flops(tied, context=S) == flops(own, context=S)


def test_the_bias_of_a_tied_head_is_its_own() -> None:
    tied = decoder(heads=(head(shares="decoder/embedding/token", bias=True),))
    assert rows(tied)["lm_head/weight"].params == V


def test_a_table_that_is_shared_counts_once() -> None:
    spec = encoder_decoder()
    encoder, stack = spec.stacks
    tied = replace(
        spec,
        stacks=(encoder, replace(stack, embeddings=(replace(TOKEN, shares="encoder/embedding/token"),))),
    )
    assert parameters(spec) - parameters(tied) == V * D


# --- stacks ---------------------------------------------------------------------------------------------------------


def test_an_encoder_rests_in_decode_and_keeps_its_weights() -> None:
    step = rows(encoder_decoder(), phase="decode", context=S, source=SOURCE)
    resting = [row for path, row in step.items() if path.startswith("encoder/")]
    resting += [step[f"decoder/cross_attention/{name}_proj"] for name in "kv"]
    assert all((row.repeat, row.fetches) == (0, 0) for row in resting)
    assert sum(row.params * row.copies for row in resting) > 0
    assert step["decoder/cross_attention/q_proj"].repeat == L


def test_cross_attention_by_hand() -> None:
    """Queries of T new tokens, keys of the source: every pair counts, and K and V are made once from the source."""
    found = rows(encoder_decoder(), context=S, new=T, source=SOURCE, batch=B)
    assert found["decoder/cross_attention/scores"].flops == 2 * B * N * T * SOURCE * (H + HV)
    assert found["decoder/cross_attention/k_proj"].flops == 2 * B * SOURCE * D * K * H
    assert found["encoder/attention/scores"].flops == 2 * B * N * SOURCE * SOURCE * (H + HV)


@pytest.mark.parametrize("context", [1, 5, 50])
def test_the_cache_of_the_source_does_not_grow(context: int) -> None:
    spec = encoder_decoder()
    assert kept(spec, of="cross", phase="decode", context=context, source=SOURCE) == L * SOURCE * K * (H + HV)
    assert kept(spec, phase="decode", context=context, source=SOURCE) == L * context * K * (H + HV)


def test_an_image_tower_runs_per_image_and_never_in_decode() -> None:
    tower = s.Stack(
        name="vision", d_model=8, role="encoder", tokens="image", default_tokens=12, blocks=(s.Block(pattern=(layer(FEED_FORWARD),)),)
    )
    joint = s.Connector(name="projector", source="vision", target="decoder", parts=(s.Linear(name="weight", d_in=8, d_out=D, merge=4),))
    text = decoder()
    spec = replace(text, stacks=(tower, *text.stacks), connectors=(joint,))
    assert flops(spec, context=S) == flops(text, context=S)
    assert flops(spec, context=S, images=2, batch=B) - flops(text, context=S, batch=B) == 2 * B * 2 * (12 * 3 * 8 * F + 3 * 8 * D)
    assert flops(spec, phase="decode", context=S, images=2) == flops(text, phase="decode", context=S)


# --- experts --------------------------------------------------------------------------------------------------------


def test_experts_by_hand() -> None:
    """Router in full; top_k of the experts run, all of them exist, the shared one always runs."""
    shared = s.FeedForward(d_ff=4, activation="silu", gated=True)
    moe = s.MoE(experts=9, top_k=2, expert=FEED_FORWARD, shared=shared, correction="buffer")
    spec = decoder(moe, depth=1)
    found = ledger(spec, Pass(context=S, batch=B))
    outside = 2 * V * D + D
    assert total(found, "params", per="copies") == outside + 9 * D + 9 * 3 * D * F + 3 * D * 4
    assert total(found, "active", per="copies") == outside + 9 * D + 2 * 3 * D * F + 3 * D * 4
    assert total(found, "buffers", per="copies") == 9
    assert flops(spec, "linear", context=S, batch=B) == 2 * B * S * (9 * D + 2 * 3 * D * F + 3 * D * 4)


@pytest.mark.parametrize(
    ("experts", "top_k", "batch", "expected"),
    [(8, 2, 3, 4.625), (256, 8, 64, 222.4424876855), (8, 2, 1, 2), (8, 8, 5, 8), (9, 1, 10**6, 9)],
    ids=["mixtral", "deepseek", "one-token", "all-chosen", "saturated"],
)
def test_a_step_reads_the_experts_that_its_tokens_touch(experts: int, top_k: int, batch: int, expected: float) -> None:
    moe = s.MoE(experts=experts, top_k=top_k, expert=FEED_FORWARD)
    row = rows(decoder(moe), phase="decode", batch=batch)["decoder/moe/experts/up_proj"]
    assert row.dims["distinct"] == pytest.approx(expected, rel=1e-12)
    assert row.weight_reads == pytest.approx(row.dims["distinct"] * D * F)
    assert row.params == experts * D * F


# --- refused --------------------------------------------------------------------------------------------------------


def test_two_operators_of_one_name_are_refused() -> None:
    wider = replace_d_ff(layer(FEED_FORWARD), 2 * F)
    both = s.Layer(sublayers=(*layer(FEED_FORWARD).sublayers, *wider.sublayers))
    with pytest.raises(UsageError, match="two different operators"):
        ledger(decoder(pattern=[both]), Pass())


def replace_d_ff(kind: s.Layer, d_ff: int) -> s.Layer:
    mixer = replace(FEED_FORWARD, d_ff=d_ff)
    return replace(kind, sublayers=tuple(replace(sub, mixer=mixer) for sub in kind.sublayers))
