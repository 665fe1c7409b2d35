"""Whole models from their descriptions: every preset shrunk, what feeds what, fewer layers, what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from tfm.estimators.params import params
from tfm.estimators.policy import image_tokens
from tfm.estimators.work import Pass
from tfm.kernels.cut import cut
from tfm.kernels.inputs import random_inputs
from tfm.kernels.mixers import Run
from tfm.kernels.model import Model, build_model
from tfm.kernels.modules import UnsupportedError
from tfm.kernels.positions import sinusoidal
from tfm.kernels.shrink import shrink
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model, model_names
from tfm.presets.spec import (
    Attention,
    Block,
    Causal,
    Chain,
    Connector,
    Conv,
    Embedding,
    FeedForward,
    Full,
    Head,
    Layer,
    Linear,
    ModelSpec,
    Norm,
    Parameter,
    Sinusoidal,
    Stack,
    StreamMix,
    Sublayer,
)

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = model_names()
RMS = Norm(type="rms")
HEADS = Attention(heads=4, kv_heads=2, head_dim=6, mask=Causal())
FEED = FeedForward(d_ff=11, activation="silu", gated=True)


def shrunk(name: str) -> tuple[Model, dict[str, Any]]:
    """A shrunk preset in float64 and inputs for it."""
    spec = shrink(load_model(name))
    model = build_model(spec, dtype=torch.float64)
    source = None if any(stack.default_tokens for stack in spec.stacks) else 7
    torch.manual_seed(0)
    images = max((n for n in (1, 2, 3) if image_tokens(spec, n) <= 8), default=1) if spec.connectors else None
    return model, random_inputs(model, Pass(batch=2, context=13, source=source, images=images))


def output(model: Model, inputs: dict[str, Any], **more: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(**inputs, **more)[model.spec.heads[0].name]
    return found


# --- every preset ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_runs_shrunk(name: str) -> None:
    model, inputs = shrunk(name)
    found = output(model, inputs)
    assert found.isfinite().all()
    assert found.std() > 0.01
    assert found.shape[0] == 2
    assert sum(weight.numel() for weight in model.parameters()) == params(model.spec).total_params < 400_000


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-2-9b", "gpt-oss-20b", "deepseek-v3", "t5-small", "bert-base"])
def test_every_kernel_gives_the_same(name: str) -> None:
    model, inputs = shrunk(name)
    expected = output(model, inputs)
    for kernel in ("eager", "tiled", "sdpa", "grouped"):
        torch.testing.assert_close(output(model, inputs, kernel=kernel), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in NAMES if load_model(name).decodes])
def test_a_later_token_changes_no_earlier_logits(name: str) -> None:
    model, inputs = shrunk(name)
    other = inputs | {"tokens": inputs["tokens"].clone()}
    other["tokens"][:, 9:] = (other["tokens"][:, 9:] + 1) % 5
    before, after = output(model, inputs), output(model, other)
    torch.testing.assert_close(after[:, :9], before[:, :9], rtol=0, atol=1e-12)
    assert not torch.allclose(after[:, 9:], before[:, 9:])


@pytest.mark.parametrize("name", ["llama-7b", "mixtral-8x7b", "whisper-large-v3", "vit-b-16", "bert-base"])
def test_sequences_of_a_batch_do_not_meet(name: str) -> None:
    model, inputs = shrunk(name)
    alone = {key: value[1:] for key, value in inputs.items()}
    torch.testing.assert_close(output(model, inputs)[1:], output(model, alone), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["llama-7b", "gpt-oss-20b", "t5-small"])
def test_low_precision_is_near(name: str) -> None:
    """The weights of one seed rounded to bf16: logits near 1 differ by a few hundredths."""
    exact, inputs = shrunk(name)
    rounded = build_model(exact.spec, dtype=torch.bfloat16)
    difference = output(rounded, inputs).double() - output(exact, inputs)
    assert 0 < difference.square().mean().sqrt() < 0.1


def test_the_last_position_alone() -> None:
    model, inputs = shrunk("gemma-2-9b")
    torch.testing.assert_close(output(model, inputs, last=True), output(model, inputs)[:, -1:], rtol=0, atol=1e-12)


def test_weights_take_gradients() -> None:
    model, inputs = shrunk("mixtral-8x7b")
    model(**inputs)["lm_head"].sum().backward()
    assert all(weight.grad is not None for name, weight in model.named_parameters() if "experts" not in name)


# --- what feeds what ------------------------------------------------------------------------------------------------


def text(*sublayers: Sublayer, **more: Any) -> ModelSpec:
    """Two layers of 20 channels over 31 tokens, with a head of their own."""
    settings: dict[str, Any] = {"embeddings": (Embedding(name="token", rows=31),), "parallel": False} | more
    layer = Layer(sublayers=sublayers, parallel=settings.pop("parallel"))
    stack = Stack(name="decoder", d_model=20, role="decoder", blocks=(Block(pattern=(layer,), repeat=2),), **settings)
    head = Head(name="lm_head", stack="decoder", parts=(Linear(name="weight", d_in=20, d_out=31),))
    return ModelSpec(name="small", source=("a test",), stacks=(stack,), heads=(head,))


def built(spec: ModelSpec) -> Any:
    return build_model(spec, dtype=torch.float64)


IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 8]])


def test_parallel_sublayers_read_one_input_and_share_its_norm() -> None:
    subs = (Sublayer(name="attention", mixer=HEADS, pre_norm=RMS), Sublayer(name="feed_forward", mixer=FEED))
    model = built(text(*subs, parallel=True))
    layer = model.stacks[0].layers[0]
    x = torch.randn(2, 5, 20, dtype=torch.float64)
    run = Run(start=0, tokens=5, device=torch.device("cpu"), dtype=torch.float64)
    attention, feed = layer.subs
    normed = attention.norm(x)
    expected = x + attention.mixer(normed, run, None) + feed.mixer(normed)
    torch.testing.assert_close(layer(x, run, [None, None]), expected)


@pytest.mark.parametrize(
    ("change", "factor"),
    [({"residual_scale": 0.25}, 0.25), ({"extra": (Parameter(name="layer_scale", shape=(20,)),)}, None)],
    ids=["constant", "learned"],
)
def test_a_branch_is_scaled(change: dict[str, Any], factor: float | None) -> None:
    scaled = built(text(Sublayer(name="feed_forward", mixer=FEED, pre_norm=RMS, **change)))
    sub = scaled.stacks[0].layers[0].subs[0]
    x = torch.randn(2, 5, 20, dtype=torch.float64)
    by = sub.scales[0].weight if factor is None else factor
    torch.testing.assert_close(sub(x, None, None), x + by * sub.mixer(sub.norm(x)))


def test_norms_before_after_and_around() -> None:
    sub = Sublayer(name="feed_forward", mixer=FEED, pre_norm=RMS, output_norm=Norm(type="layer"), residual_norm=Norm(type="layer_unbiased"))
    module = built(text(sub)).stacks[0].layers[0].subs[0]
    x = torch.randn(2, 5, 20, dtype=torch.float64)
    expected = module.residual_norm(x + module.output_norm(module.mixer(module.norm(x))))
    torch.testing.assert_close(module(x, None, None), expected)


def test_a_chain_of_parts() -> None:
    chain = Chain(parts=(Linear(name="gate.in", d_in=20, d_out=7), Linear(name="out", d_in=7, d_out=20)), activation="gelu")
    module = built(text(Sublayer(name="chain", mixer=chain))).stacks[0].layers[0].subs[0].mixer
    x = torch.randn(2, 5, 20, dtype=torch.float64)
    torch.testing.assert_close(module(x), torch.nn.functional.gelu(module.out(module.gate_in(x))))


def test_shared_sublayers_are_one_module_with_caches_of_their_own() -> None:
    model = built(text(Sublayer(name="attention", mixer=HEADS, pre_norm=RMS, shared="all")))
    first, second = (layer.subs[0] for layer in model.stacks[0].layers)
    assert first is second
    cache = model.cache(2, 5)
    entries = [layer[0] for layer in cache.entries["decoder"]]
    assert entries[0] is not entries[1]
    whole = model(IDS)["lm_head"]
    steps = [model(IDS[:, i : i + 1], cache=cache)["lm_head"] for i in range(5)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


def test_tables_positions_and_projections_make_the_first_state() -> None:
    embeddings = (
        Embedding(name="token", rows=31, width=8, scale=2.0),
        Embedding(name="position", rows=12, role="position", width=8, offset=2),
        Embedding(name="type", rows=2, role="type", width=8),
        Norm(type="layer", width=8),
        Linear(name="projection", d_in=8, d_out=20, bias=True),
        Sinusoidal(),
    )
    model = built(text(Sublayer(name="feed_forward", mixer=FEED), embeddings=embeddings))
    part = model.stacks[0].embedding
    run = Run(start=3, tokens=5, device=torch.device("cpu"), dtype=torch.float64)
    rows = 2.0 * part.token.weight[IDS] + part.position.weight[5:10] + part.type_.weight[0]
    expected = part.projection(part.norm(rows)) + sinusoidal(torch.arange(3, 8), 20)
    torch.testing.assert_close(part(IDS, run), expected)


@pytest.mark.parametrize("d_in", [20, 80], ids=["mean", "side-by-side"])
def test_a_projector_merges_neighbours(d_in: int) -> None:
    """12 patches become 3 tokens that stand in place of the first three of the text."""
    vision = Stack(
        name="vision",
        d_model=20,
        role="encoder",
        tokens="image",
        default_tokens=12,
        embeddings=(Conv(name="patches", d_in=3, d_out=20, kernel=(2, 2), stride=(2, 2)),),
        blocks=(Block(pattern=(Layer(sublayers=(Sublayer(name="attention", mixer=msgspec.structs.replace(HEADS, mask=Full())),)),)),),
    )
    spec = text(Sublayer(name="attention", mixer=HEADS))
    joint = Connector(name="projector", source="vision", target="decoder", parts=(Linear(name="weight", d_in=d_in, d_out=20, merge=4),))
    model = built(msgspec.structs.replace(spec, stacks=(vision, *spec.stacks), connectors=(joint,)))
    images = torch.randn(2, 3, 6, 8, dtype=torch.float64)
    found = model(IDS, images=images)
    patches = found["vision"].unflatten(1, (3, 4))
    merged = patches.flatten(2) if d_in == 80 else patches.mean(dim=2)
    states = model.connectors[0](found["vision"])
    torch.testing.assert_close(states, merged @ model.connectors[0].weight.weight.T)
    assert found["lm_head"].shape == (2, 5, 31)
    assert not torch.allclose(found["lm_head"], model(IDS)["lm_head"])


def test_heads_scale_and_cap_and_pool() -> None:
    spec = text(Sublayer(name="feed_forward", mixer=FEED))
    heads = (
        Head(name="capped", stack="decoder", parts=spec.heads[0].parts, softcap=0.5, scale=3.0),
        Head(name="pooler", stack="decoder", parts=(Linear(name="dense", d_in=20, d_out=7, once=True, activation="tanh"),)),
    )
    model = built(msgspec.structs.replace(spec, heads=heads))
    found = model(IDS)
    capped, pooler = model.heads
    torch.testing.assert_close(found["capped"], 0.5 * torch.tanh(3.0 * capped.weight(found["decoder"]) / 0.5))
    torch.testing.assert_close(found["pooler"], torch.tanh(pooler.dense(found["decoder"][:, -1])))


def test_learned_queries_pool_what_a_tower_saw() -> None:
    """SigLIP's head: one query that attends the patches. Of its own input only the number of sequences counts."""
    layer = Layer(sublayers=(Sublayer(name="attention", mixer=msgspec.structs.replace(HEADS, mask=Full())),))
    patches = Conv(name="patches", d_in=3, d_out=20, kernel=(2, 2), stride=(2, 2))
    vision: dict[str, Any] = {"name": "vision", "d_model": 20, "role": "encoder", "tokens": "image", "default_tokens": 12}
    vision["blocks"] = (Block(pattern=(layer,)),)
    cross = Layer(sublayers=(Sublayer(name="attention", mixer=msgspec.structs.replace(HEADS, mask=Full(), source="vision")),))
    query = Parameter(name="query", shape=(20,))
    stacks = (
        Stack(**vision, embeddings=(patches, Parameter(name="mask_token", shape=(20,)), Parameter(name="position", shape=(12, 20)))),
        Stack(**(vision | {"name": "pooler", "default_tokens": 1, "blocks": (Block(pattern=(cross,)),)}), embeddings=(query,)),
    )
    model = built(ModelSpec(name="small", source=("a test",), stacks=stacks, images=1))
    images = torch.randn(2, 3, 6, 8, dtype=torch.float64)
    found = model(images=images)
    assert (found["vision"].shape, found["pooler"].shape) == ((2, 12, 20), (2, 1, 20))
    run = Run(start=0, tokens=1, device=torch.device("cpu"), dtype=torch.float64, sources={"vision": found["vision"]})
    query_state = model.stacks[1].embedding.query.weight.expand(2, 1, 20)
    torch.testing.assert_close(found["pooler"], model.stacks[1].layers[0](query_state, run, [None]))


def test_what_attends_a_stack_that_is_not_there_rests() -> None:
    """A decoder taken alone: its cross-attention keeps its weights and adds nothing."""
    cross = Sublayer(name="cross_attention", mixer=msgspec.structs.replace(HEADS, mask=Full(), source="encoder"), pre_norm=RMS)
    own = Sublayer(name="attention", mixer=HEADS, pre_norm=RMS)
    alone, spec = built(text(own)), text(own)
    layer = Layer(sublayers=(own, cross))
    stack = msgspec.structs.replace(spec.main, blocks=(Block(pattern=(layer,), repeat=2),))
    both = built(msgspec.structs.replace(spec, stacks=(stack,), absent=("encoder",)))
    both.load_state_dict(alone.state_dict(), strict=False)
    torch.testing.assert_close(both(IDS)["lm_head"], alone(IDS)["lm_head"])


# --- fewer layers, smaller sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layers", "expected"),
    [
        ("llama-7b", 4, {"": 4}),
        ("gemma-3-27b", 4, {"sliding": 3, "global": 1}),
        ("gemma-3-27b", 12, {"sliding": 10, "global": 2}),
        ("gpt-oss-20b", 4, {"sliding": 2, "global": 2}),
        ("deepseek-v3", 2, {"dense": 1, "moe": 1}),
        ("deepseek-v3", 1, {"moe": 1}),
        ("deepseek-v3", 20, {"dense": 1, "moe": 19}),
        ("whisper-large-v3", 3, {"": 3}),
    ],
)
def test_fewer_layers_keep_the_proportion_of_kinds(name: str, layers: int, expected: dict[str, int]) -> None:
    found = cut(load_model(name), layers)
    assert Counter(layer.name for layer in found.main.layers()) == expected
    assert all(stack.depth == min(layers, whole.depth) for stack, whole in zip(found.stacks, load_model(name).stacks, strict=True))
    model: Any = build_model(load_model(name), device="meta", layers=layers)
    assert len(model.stacks[-1].layers) == layers


@pytest.mark.parametrize("layers", [32, 99])
def test_all_layers_are_the_model(layers: int) -> None:
    spec = load_model("llama-7b")
    assert list(cut(spec, layers).main.layers()) == list(spec.main.layers())


def test_no_layers_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 layer; got 0"):
        cut(load_model("llama-7b"), 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_shrunk_copy_keeps_every_option(name: str) -> None:
    """What is not a size is the same in every kind of layer; a window, a group and a tied table are still there."""

    def options(spec: ModelSpec) -> set[str]:
        kept = set()
        for stack, sub in spec.sublayers():
            plain = {key: value for key, value in msgspec.to_builtins(sub.mixer).items() if not isinstance(value, int | float | dict)}
            kept.add(f"{stack.name} {sub.name} {sorted(plain.items(), key=str)}")
        return kept

    spec = load_model(name)
    small = shrink(spec)
    assert options(small) == options(spec)
    tied = [(head.name, leaf.shares) for head in spec.heads for leaf in head.parts if isinstance(leaf, Linear)]
    assert [(head.name, leaf.shares) for head in small.heads for leaf in head.parts if isinstance(leaf, Linear)] == tied
    assert params(small).total_params < 400_000


def test_shrunk_sizes_differ_where_sizes_differed() -> None:
    attention = next(sub.mixer for _, sub in shrink(load_model("qwen2.5-7b")).sublayers() if isinstance(sub.mixer, Attention))
    spec = shrink(load_model("deepseek-v3"))
    assert (attention.heads, attention.kv_heads) == (6, 2)
    moe: Any = next(sub.mixer for _, sub in spec.sublayers() if sub.name == "moe")
    assert (moe.experts, moe.groups, moe.top_groups, moe.top_k) == (12, 4, 2, 3)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (text(Sublayer(name="feed_forward", mixer=FEED), embeddings=(StreamMix(name="mix", streams=2, width=20),)), "stream_mix"),
        (text(Sublayer(name="feed_forward", mixer=FEED, extra=(Parameter(name="odd", shape=(3,)),))), "'odd'"),
        (
            text(Sublayer(name="feed_forward", mixer=FEED), final=(Linear(name="out", d_in=20, d_out=20, shares="decoder/nowhere"),)),
            "nowhere",
        ),
    ],
    ids=["streams", "extra", "nowhere"],
)
def test_what_has_no_module_says_so(spec: ModelSpec, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        build_model(spec, device="meta")


def test_a_source_that_is_not_there() -> None:
    model, inputs = shrunk("t5-small")
    with pytest.raises(UnsupportedError, match="output of 'encoder'"):
        model(inputs["tokens"])
