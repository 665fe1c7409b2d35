"""The ledger against PyTorch: parameters of real modules, its own FLOP counter on `meta`, the bytes of a cache's tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch.utils.flop_counter import FlopCounterMode

from tfm.estimators.flops import flops, row_flops
from tfm.estimators.kvcache import kvcache
from tfm.estimators.ledger import ledger
from tfm.estimators.params import params
from tfm.estimators.policy import usual_context
from tfm.estimators.work import Pass, Phase
from tfm.kernels.counting import (
    convolution_backward_flops,
    counted_buffers,
    counted_cache_bytes,
    counted_flops,
    counted_parameters,
    meta_model,
)
from tfm.kernels.cut import cut, kinds_of
from tfm.kernels.model import Model
from tfm.presets.dtypes import DTYPES
from tfm.presets.loader import load_model, model_names
from tfm.presets.spec import (
    Attention,
    Block,
    Causal,
    Chunked,
    Embedding,
    FeedForward,
    GatedDelta,
    Head,
    Layer,
    Linear,
    Mamba,
    Mamba2,
    Mixer,
    ModelSpec,
    Norm,
    RgLru,
    ShortConv,
    Sliding,
    Stack,
    Sublayer,
)

NAMES = model_names()
DEEP = ("transformer-base", "gpt-2", "t5-small", "vit-b-16")  # counted with all their layers; of the others one of each kind
RMS = Norm(type="rms")


def whole_or_cut(name: str) -> ModelSpec:
    spec = load_model(name)
    return spec if name in DEEP else cut(spec, max(kinds_of(stack) for stack in spec.stacks))


def work_for(spec: ModelSpec, phase: Phase, **more: Any) -> Pass:
    """A pass longer than the windows of 128, within what the model has positions for; batch and lengths all different."""
    context = usual_context(spec, spec.images) or 150  # an image's tokens are some of them
    return Pass(phase=phase, batch=3, context=min(context, spec.main.max_positions or 150), source=source_of(spec), **more)


def source_of(spec: ModelSpec) -> int | None:
    """A length that is not the context's, where the model does not fix one."""
    return None if any(stack.default_tokens for stack in spec.stacks) else 21


def predicted(spec: ModelSpec, work: Pass, field: str = "flops", per: str = "repeat") -> Counter[str]:
    found: Counter[str] = Counter()
    for row in ledger(spec, work):
        found[row.path] += getattr(row, field) * getattr(row, per)
    return +found


# --- every preset ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_the_whole_model_row_by_row(name: str) -> None:
    spec = load_model(name)
    model = meta_model(spec)
    assert counted_parameters(model) == predicted(spec, Pass(context=1), "params", "copies")
    assert counted_buffers(model) == predicted(spec, Pass(context=1), "buffers", "copies")
    assert sum(weight.numel() for weight in model.parameters()) == (spec.total_params or params(spec).total_params)


@pytest.mark.parametrize("name", NAMES)
def test_flops_of_prefill_row_by_row(name: str) -> None:
    spec = whole_or_cut(name)
    work = work_for(spec, "prefill", full_attention=True)
    assert +counted_flops(meta_model(spec), work) == predicted(spec, work)


@pytest.mark.parametrize("square", [True, False], ids=["all-tokens-kept", "windows-closed"])
@pytest.mark.parametrize("name", [name for name in NAMES if load_model(name).decodes])
def test_flops_of_a_decode_step_row_by_row(name: str, square: bool) -> None:
    """With a cache of closed windows the counter gives the exact pairs, not the square."""
    spec = whole_or_cut(name)
    work = work_for(spec, "decode", full_attention=square)
    assert +counted_flops(meta_model(spec), work) == predicted(spec, work)


def trained(spec: ModelSpec, work: Pass) -> Counter[str]:
    """FLOPs by path, the backward pass among them."""
    found: Counter[str] = Counter()
    for row in ledger(spec, work):
        found[row.path] += row_flops(row, work) * row.repeat
    return +found


@pytest.mark.parametrize("name", NAMES)
def test_flops_of_training_row_by_row(name: str) -> None:
    """Forward and backward, of every preset; a tower has an image to train with."""
    spec = whole_or_cut(name)
    towers = any(stack.tokens == "image" for stack in spec.stacks)
    work = replace(work_for(spec, "train", full_attention=True), images=1 if towers else None)
    work = replace(work, context=min(700, spec.main.max_positions or 700)) if towers else work
    found = counted_flops(meta_model(spec), work)
    assert +found == trained(spec, work)
    assert found.total() == flops(spec, work).total_flops


def test_the_first_product_over_raw_data_has_no_gradient_of_its_input() -> None:
    """Patches and frames are given; what follows them, and what follows a table of ids, is not."""
    rows = {row.path: row.backward for row in ledger(load_model("whisper-large-v3"), Pass(phase="train", context=9)) if row.flops}
    assert [path for path, backward in rows.items() if backward == 1] == ["encoder/embedding/conv1"]
    (patch,) = [row for row in ledger(load_model("vit-b-16"), Pass(phase="train")) if row.backward == 1 and row.flops]
    assert patch.path.startswith("vision/embedding/")
    assert {row.backward for row in ledger(load_model("gpt-2"), Pass(phase="train")) if row.flops} == {2}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_the_cache(name: str, dtype: str) -> None:
    spec = load_model(name)
    work = Pass(phase="decode", batch=3, context=5000, source=source_of(spec), kv_dtype=DTYPES[dtype])
    found = kvcache(spec, work)
    counted = counted_cache_bytes(meta_model(spec), work)
    assert counted == {"kv_bytes": found.kv_bytes, "cross_kv_bytes": found.cross_kv_bytes, "state_bytes": found.state_bytes}


def test_an_image_passes_the_tower_and_the_projector() -> None:
    spec = whole_or_cut("gemma-3-27b")
    work = Pass(batch=2, context=600, images=2, full_attention=True)
    found = counted_flops(meta_model(spec), work)
    assert +found == predicted(spec, work)
    assert found["projector/weight"] > 0


@pytest.mark.parametrize("last", [True, False])
def test_the_head_at_one_position(last: bool) -> None:
    spec = whole_or_cut("gpt-2")
    work = Pass(batch=2, context=9, full_attention=True, last_logits=last)
    assert +counted_flops(meta_model(spec), work) == predicted(spec, work)


# --- mixers that no preset has --------------------------------------------------------------------------------------


def one_mixer(*mixers: Mixer, parallel: bool = False) -> ModelSpec:
    """Two layers of some mixers, each with its norm, under a tied head."""
    subs = tuple(Sublayer(name=f"mixer{place}", mixer=mixer, pre_norm=RMS) for place, mixer in enumerate(mixers))
    stack = Stack(
        name="decoder",
        d_model=20,
        role="decoder",
        embeddings=(Embedding(name="token", rows=31),),
        blocks=(Block(pattern=(Layer(sublayers=subs, parallel=parallel),), repeat=2),),
        final=(RMS,),
    )
    head = Head(name="lm_head", stack="decoder", parts=(Linear(name="weight", d_in=20, d_out=31, shares="decoder/embedding/token"),))
    return ModelSpec(name="small", source=("a test",), stacks=(stack,), heads=(head,))


MIXERS: dict[str, Mixer] = {
    "mamba": Mamba(d_inner=28, state=5, conv=4, dt_rank=3, inner_norms=True, proj_bias=True),
    "mamba2": Mamba2(heads=6, head_dim=4, groups=2, state=5, conv=3),
    "mamba2-plain": Mamba2(heads=3, head_dim=8, groups=1, state=5, conv=4, gated_norm=False, conv_bias=False),
    "gated-delta": GatedDelta(key_heads=2, value_heads=6, key_dim=7, value_dim=5, conv=4),
    "rg-lru": RgLru(width=24, conv=4, blocks=3),
    "short-conv": ShortConv(width=18, conv=3, bias=True),
    "chunked": Attention(heads=4, kv_heads=2, head_dim=6, value_dim=3, mask=Chunked(chunk=4), bias=("q",)),
    "sliding": Attention(heads=3, kv_heads=1, head_dim=6, mask=Sliding(window=4), gate="full", sinks=True),
    "head-gate": Attention(heads=3, kv_heads=3, head_dim=6, mask=Causal(), gate="head"),
    "inner-norm": FeedForward(d_ff=33, activation="xielu", act_params=2, inner_norm=Norm(type="layer", name="inner")),
}


@pytest.mark.parametrize("name", MIXERS)
def test_training_of_other_mixers(name: str) -> None:
    spec = one_mixer(MIXERS[name])
    work = Pass(phase="train", batch=2, context=11, full_attention=True)
    assert +counted_flops(meta_model(spec), work) == trained(spec, work)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_grouped_convolution_backwards(groups: int) -> None:
    """Each gradient is a product like the forward one, whatever the groups."""
    layer = torch.nn.Conv1d(6, 12, 3, groups=groups, bias=False, device="meta")
    mapping = {torch.ops.aten.convolution_backward: convolution_backward_flops}
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        out = layer(torch.empty(2, 6, 9, device="meta", requires_grad=True))
        forward = counter.get_total_flops()
        out.sum().backward()
    assert forward == 2 * 2 * 7 * 12 * (6 // groups) * 3
    assert counter.get_total_flops() == 3 * forward


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", MIXERS)
def test_other_mixers(name: str, phase: Phase) -> None:
    spec = one_mixer(MIXERS[name])
    model, work = meta_model(spec), Pass(phase=phase, batch=2, context=11, full_attention=phase == "prefill")
    assert counted_parameters(model) == predicted(spec, work, "params", "copies")
    assert +counted_flops(model, work) == predicted(spec, work)
    found = kvcache(spec, work)
    assert counted_cache_bytes(model, work) == {"kv_bytes": found.kv_bytes, "cross_kv_bytes": 0, "state_bytes": found.state_bytes}


def test_a_shared_sublayer_counts_once_and_runs_often() -> None:
    spec = one_mixer(MIXERS["head-gate"])
    block = spec.main.blocks[0]
    sub = msgspec.structs.replace(block.pattern[0].sublayers[0], shared="all")
    stack = msgspec.structs.replace(spec.main, blocks=(Block(pattern=(Layer(sublayers=(sub,)),), repeat=2),))
    shared = msgspec.structs.replace(spec, stacks=(stack,))
    work = Pass(batch=2, context=7, full_attention=True)
    assert counted_parameters(meta_model(shared)) == predicted(shared, work, "params", "copies")
    assert counted_parameters(meta_model(shared)).total() < counted_parameters(meta_model(spec)).total()
    assert counted_flops(meta_model(shared), work).total() == counted_flops(meta_model(spec), work).total()


def test_parallel_sublayers() -> None:
    spec = one_mixer(MIXERS["head-gate"], FeedForward(d_ff=33, activation="gelu"), parallel=True)
    work = Pass(batch=2, context=7, full_attention=True)
    assert +counted_flops(meta_model(spec), work) == predicted(spec, work)


# --- the counter itself ---------------------------------------------------------------------------------------------


def test_a_wrong_description_is_noticed() -> None:
    """The comparison can fail: a model of other sizes does not fit the ledger."""
    spec = whole_or_cut("llama-7b")
    text = msgspec.json.encode(spec).replace(b'"d_ff":11008', b'"d_ff":11009')
    other = msgspec.json.decode(text, type=ModelSpec)
    work = work_for(spec, "prefill", full_attention=True)
    assert counted_parameters(meta_model(other)) != predicted(spec, work, "params", "copies")
    assert +counted_flops(meta_model(other), work) != predicted(spec, work)


def test_nothing_is_allocated_on_meta() -> None:
    model = meta_model(load_model("llama-3.1-405b"))
    assert isinstance(model, Model)
    assert {weight.device.type for weight in model.parameters()} == {"meta"}


def test_counting_leaves_no_gradients_switched_off() -> None:
    before = torch.is_grad_enabled()
    spec = one_mixer(MIXERS["head-gate"])
    counted_flops(meta_model(spec), Pass(batch=1, context=5))
    assert torch.is_grad_enabled() == before
