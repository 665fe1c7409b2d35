"""Metadata of GGUF files as models: every architecture's tensors are the described parameters, none over, none missing.

Names and shapes of tensors are those that llama.cpp writes; whether a name exists is asked of the package.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest

gguf: Any = pytest.importorskip("gguf")

from tfm.estimators.params import params  # noqa: E402 - after the package is known to be there
from tfm.estimators.stored import differences, stored  # noqa: E402
from tfm.presets.errors import UnreadableError  # noqa: E402
from tfm.presets.spec import Attention, MoE, Sliding  # noqa: E402
from tfm.presets.weights.gguf_model import TRANSLATORS, model_of_gguf  # noqa: E402
from tfm.presets.weights.stored import StoredTensor, StoredWeights  # noqa: E402

Shapes = dict[str, tuple[int, ...]]
D, F, V, N, K, H, L = 48, 80, 100, 6, 2, 8, 4  # H x N = D; the tests change what must differ


def attention(*, bias: tuple[str, ...] = (), norms: bool = False, head: int = H, fused: bool = False, value: int | None = None) -> Shapes:
    q, k = N * head, K * head
    made: Shapes = (
        {"attn_qkv.weight": (q + 2 * k, D)}
        if fused
        else {"attn_q.weight": (q, D), "attn_k.weight": (k, D), "attn_v.weight": (value or k, D)}
    )
    made |= {"attn_output.weight": (D, q), "attn_norm.weight": (D,)}
    widths = {"attn_q": q, "attn_k": k, "attn_v": k, "attn_output": D}
    made |= {f"{name}.bias": (widths[name],) for name in bias}
    return made | ({"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)} if norms else {})


GATED: Shapes = {"ffn_norm.weight": (D,), "ffn_gate.weight": (F, D), "ffn_up.weight": (F, D), "ffn_down.weight": (D, F)}
SANDWICH: Shapes = {"post_attention_norm.weight": (D,), "post_ffw_norm.weight": (D,)}
E, TOP, FE = 8, 3, 24
ROUTED: Shapes = {
    "ffn_norm.weight": (D,), "ffn_gate_inp.weight": (E, D), "ffn_gate_exps.weight": (E, FE, D), "ffn_up_exps.weight": (E, FE, D),
    "ffn_down_exps.weight": (E, D, FE),
}  # fmt: skip
SHARED: Shapes = {"ffn_gate_shexp.weight": (40, D), "ffn_up_shexp.weight": (40, D), "ffn_down_shexp.weight": (D, 40)}
QKV = ("attn_q", "attn_k", "attn_v")
BASE = {
    "embedding_length": D, "block_count": L, "feed_forward_length": F, "context_length": 512, "attention.head_count": N,
    "attention.head_count_kv": K, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
EXPERTS = {"expert_count": E, "expert_used_count": TOP, "expert_feed_forward_length": FE}
MIXTRAL: Shapes = {name: (E, *(F if n == FE else n for n in shape[1:])) if "exps" in name else shape for name, shape in ROUTED.items()}
APART: Shapes = {f"ffn_{name}.{n}.weight": (D, F) if name == "down" else (F, D) for name in ("gate", "up", "down") for n in range(E)}
OSS: Shapes = {**attention(bias=(*QKV, "attn_output"), head=16), "attn_sinks.weight": (N,), "post_attention_norm.weight": (D,)}
OSS |= {name: shape for name, shape in ROUTED.items() if name != "ffn_norm.weight"}
OSS |= {"ffn_gate_inp.bias": (E,), "ffn_gate_exps.bias": (E, FE), "ffn_up_exps.bias": (E, FE), "ffn_down_exps.bias": (E, D)}
LATENT: Shapes = {
    "attn_norm.weight": (D,), "attn_q_a.weight": (20, D), "attn_q_a_norm.weight": (20,), "attn_q_b.weight": (N * 12, 20),
    "attn_kv_a_mqa.weight": (16 + 4, D), "attn_kv_a_norm.weight": (16,), "attn_kv_b.weight": (N * (8 + 10), 16),
    "attn_output.weight": (D, N * 10),
}  # fmt: skip
ABSORBED: Shapes = {name: shape for name, shape in LATENT.items() if name != "attn_kv_b.weight"}
ABSORBED |= {"attn_k_b.weight": (N, 16, 8), "attn_v_b.weight": (N, 10, 16)}
MLA = {
    **BASE, **EXPERTS, "attention.q_lora_rank": 20, "attention.kv_lora_rank": 16, "attention.key_length": 12, "attention.value_length": 10,
    "rope.dimension_count": 4, "leading_dense_block_count": 1, "expert_shared_count": 1,
}  # fmt: skip
MLA_ABSORBED = {
    **MLA,
    "attention.key_length": 20,
    "attention.value_length": 16,
    "attention.key_length_mla": 12,
    "attention.value_length_mla": 10,
}
DEEP: Shapes = {**ROUTED, "ffn_gate_shexp.weight": (FE, D), "ffn_up_shexp.weight": (FE, D), "ffn_down_shexp.weight": (D, FE)}
MAMBA: Shapes = {
    "attn_norm.weight": (D,), "ssm_in.weight": (2 * 96, D), "ssm_conv1d.weight": (96, 4), "ssm_conv1d.bias": (96,),
    "ssm_x.weight": (3 + 2 * 16, 96),
    "ssm_dt.weight": (96, 3), "ssm_dt.bias": (96,), "ssm_a": (96, 16), "ssm_d": (96,), "ssm_out.weight": (D, 96),
}  # fmt: skip
BERT: Shapes = {
    **{f"attn_{name}.weight": (D, D) for name in ("q", "k", "v", "output")},
    **{f"attn_{name}.bias": (D,) for name in ("q", "k", "v", "output")},
    "attn_output_norm.weight": (D,), "attn_output_norm.bias": (D,), "ffn_up.weight": (F, D), "ffn_up.bias": (F,), "ffn_down.weight": (D, F),
    "ffn_down.bias": (D,), "layer_output_norm.weight": (D,), "layer_output_norm.bias": (D,),
}  # fmt: skip
HEAD: Shapes = {"token_embd.weight": (V, D), "output_norm.weight": (D,), "output.weight": (V, D)}
TIED: Shapes = {"token_embd.weight": (V, D), "output_norm.weight": (D,)}
TABLES: Shapes = {
    "token_embd.weight": (V, D), "position_embd.weight": (512, D), "token_types.weight": (2, D),
    "token_embd_norm.weight": (D,), "token_embd_norm.bias": (D,),
}  # fmt: skip
HEAD_16 = {"attention.key_length": 16, "attention.value_length": 16}


def case(arch: str, numbers: dict[str, Any], beside: Shapes, layers: list[Shapes] | Shapes) -> tuple[str, dict[str, Any], Shapes]:
    each = layers if isinstance(layers, list) else [layers] * L
    return arch, numbers, beside | {f"blk.{index}.{name}": shape for index, layer in enumerate(each) for name, shape in layer.items()}


CASES = {
    "llama": case("llama", BASE, HEAD, attention() | GATED),
    "llama, tied": case("llama", BASE, TIED, attention() | GATED),
    "llama with biases of q, k, v": case("llama", BASE, HEAD, attention(bias=QKV) | GATED),
    "mixtral": case("llama", BASE | {"expert_count": E, "expert_used_count": TOP}, HEAD, attention() | MIXTRAL),
    "mixtral, experts apart": case(
        "llama",
        BASE | {"expert_count": E, "expert_used_count": TOP},
        HEAD,
        attention() | {"ffn_norm.weight": (D,), "ffn_gate_inp.weight": (E, D)} | APART,
    ),
    "qwen2": case("qwen2", BASE, HEAD, attention(bias=QKV) | GATED),
    "qwen3": case("qwen3", BASE | HEAD_16, TIED, attention(norms=True, head=16) | GATED),
    "qwen2moe": case(
        "qwen2moe",
        BASE | {"expert_count": E, "expert_used_count": TOP},
        HEAD,
        attention(bias=QKV) | ROUTED | SHARED | {"ffn_gate_inp_shexp.weight": (D,)},
    ),
    "qwen3moe": case("qwen3moe", BASE | EXPERTS | HEAD_16, HEAD, attention(norms=True, head=16) | ROUTED),
    "gemma2": case("gemma2", BASE | HEAD_16 | {"attention.sliding_window": 64}, TIED, attention(head=16) | GATED | SANDWICH),
    "gemma3": case("gemma3", BASE | HEAD_16 | {"attention.sliding_window": 64}, TIED, attention(head=16, norms=True) | GATED | SANDWICH),
    "phi3": case(
        "phi3", BASE, HEAD, attention(fused=True) | {"ffn_norm.weight": (D,), "ffn_up.weight": (2 * F, D), "ffn_down.weight": (D, F)}
    ),
    "deepseek2": case("deepseek2", MLA, HEAD, [LATENT | GATED, *[LATENT | DEEP] * (L - 1)]),
    "deepseek2, absorbed, with correction": case(
        "deepseek2", MLA_ABSORBED, HEAD, [ABSORBED | GATED, *[ABSORBED | DEEP | {"exp_probs_b.bias": (E,)}] * (L - 1)]
    ),
    "gpt-oss": case("gpt-oss", BASE | EXPERTS | HEAD_16 | {"attention.sliding_window": 64}, HEAD, OSS),
    "mamba": case(
        "mamba",
        {
            "embedding_length": D,
            "block_count": L,
            "ssm.inner_size": 96,
            "ssm.state_size": 16,
            "ssm.conv_kernel": 4,
            "ssm.time_step_rank": 3,
        },
        TIED,
        MAMBA,
    ),
    "bert": case("bert", BASE | {"attention.head_count_kv": N}, TABLES, BERT),
}


def weights_of(arch: str, numbers: dict[str, Any], shapes: Shapes) -> StoredWeights:
    metadata = {"general.architecture": arch, "general.name": "A Model", **{f"{arch}.{key}": value for key, value in numbers.items()}}
    tensors = tuple(StoredTensor(name=name, dtype="F16", shape=shape, bytes=2 * prod(shape)) for name, shape in shapes.items())
    return StoredWeights(tensors=tensors, metadata=metadata, files=("a-model.gguf",), origin="a-model.gguf")


@pytest.mark.parametrize("name", CASES)
def test_tensors_are_the_described_parameters(name: str) -> None:
    weights = weights_of(*CASES[name])
    spec = model_of_gguf(weights)
    left = {one.kind: one.elements for one in differences(spec, weights)}
    assert left == ({"stored buffers": E * (L - 1)} if "correction" in name else {})
    assert params(spec).total_params == weights.elements - sum(left.values())
    found = stored(spec, weights)
    assert found.named_bytes == found.total_bytes == weights.bytes
    assert (spec.name, spec.title) == ("a-model", "A Model")
    assert spec.source == (f"metadata of a-model.gguf, architecture {CASES[name][0]}",)


@pytest.mark.parametrize("name", [name for name in CASES if "apart" not in name])  # files before 2024, names gone since
def test_the_names_are_those_of_the_package(name: str) -> None:
    arch, _, shapes = CASES[name]
    known = {kind: text for kind, text in gguf.constants.MODEL_ARCH_NAMES.items() if text == arch}
    formats = [gguf.constants.TENSOR_NAMES[tensor] for tensor in gguf.constants.MODEL_TENSORS[next(iter(known))]]
    patterns = [re.escape(text).replace(r"\{bid\}", r"\d+").replace(r"\{xid\}", r"\d+") for text in formats]
    modules = {re.sub(r"\.(weight|bias)$", "", tensor) for tensor in shapes}
    assert [module for module in modules if not any(re.fullmatch(pattern, module) for pattern in patterns)] == []


def test_every_architecture_of_the_issue_is_here() -> None:
    assert {arch for arch, _, _ in CASES.values()} == set(TRANSLATORS) - {"gemma"}


def test_windows_and_experts() -> None:
    masks = [sub.mixer.mask for _, sub in model_of_gguf(weights_of(*CASES["gemma2"])).sublayers() if isinstance(sub.mixer, Attention)]
    assert [mask.window if isinstance(mask, Sliding) else None for mask in masks] == [64, None]
    (moe,) = [sub.mixer for _, sub in model_of_gguf(weights_of(*CASES["qwen3moe"])).sublayers() if isinstance(sub.mixer, MoE)]
    assert (moe.experts, moe.top_k, moe.expert.d_ff) == (E, TOP, FE)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"general.architecture": "rwkv7"}, "'rwkv7' is not known", id="unknown architecture"),
        pytest.param({"general.architecture": 5}, "no general.architecture", id="no architecture"),
        pytest.param({"llama.block_count": None}, "lacks llama.block_count", id="no layers"),
        pytest.param({"llama.block_count": 2**31}, "num_hidden_layers must be from 1 to", id="2^31 layers"),
        pytest.param({"llama.attention.head_count": [6, 6, 5, 6]}, "differs from layer to layer", id="heads a layer"),
        pytest.param({"llama.embedding_length": "wide"}, "must be a whole number", id="no number"),
        pytest.param({"llama.attention.head_count": 5}, "does not divide", id="heads that do not divide"),
    ],
)
def test_metadata_that_describes_no_model(change: dict[str, Any], said: str) -> None:
    weights = weights_of(*CASES["llama"])
    weights.metadata.update(change)
    with pytest.raises(UnreadableError, match=re.escape(said)) as error:
        model_of_gguf(weights)
    assert "\n" not in str(error.value)


def test_one_number_a_layer_is_one_number() -> None:
    weights = weights_of(*CASES["llama"])
    weights.metadata["llama.feed_forward_length"] = [F] * L
    assert params(model_of_gguf(weights)).total_params == weights.elements
