"""Shrunk presets against the transformers library: the same weights give the same logits.

What the library needs beside sizes (epsilons, activations, scales, rotary recipes) stands in FAMILIES as each model's
published configuration has it, so that a preset's own such fields are tested too. Float64; the library computes its rotary
angles and some softmaxes in fp32, which leaves differences of about 1e-7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import torch

from tfm.estimators.work import Pass
from tfm.kernels.inputs import random_inputs
from tfm.kernels.model import build_model
from tfm.kernels.shrink import shrink
from tfm.presets.loader import load_model
from tfm.presets.spec import Attention, Embedding, FeedForward, LatentAttention, ModelSpec, MoE, Stack

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("one_thread")]


TOLERANCE = 5e-6  # of logits near 1

# --- from a small description to the sizes of a configuration -------------------------------------------------------


def sublayer(stack: Stack, name: str) -> Any:
    return next(sub.mixer for layer in stack.layers() for sub in layer.sublayers if sub.name == name)


def rows(stack: Stack, role: str = "token") -> int:
    return next(leaf.rows for leaf in stack.embeddings if isinstance(leaf, Embedding) and leaf.role == role)


def feed_forward(stack: Stack) -> int:
    found = [sub.mixer for layer in stack.layers() for sub in layer.sublayers if isinstance(sub.mixer, FeedForward)]
    return found[0].d_ff if found else 11


def layer_types(stack: Stack) -> list[str]:
    kinds = [layer.sublayers[0].mixer.mask.__struct_config__.tag for layer in stack.layers()]  # type: ignore[union-attr]
    return ["sliding_attention" if kind == "sliding" else "full_attention" for kind in kinds]


def text(spec: ModelSpec) -> dict[str, Any]:
    """What Llama and its relatives call their sizes."""
    stack = spec.main
    attention = sublayer(stack, "attention")
    return {
        "vocab_size": rows(stack),
        "hidden_size": stack.d_model,
        "intermediate_size": feed_forward(stack),
        "num_hidden_layers": stack.depth,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": stack.max_positions,
        "tie_word_embeddings": spec.heads[0].parts[0].shares is not None,  # type: ignore[union-attr]
    }


def sliding(spec: ModelSpec) -> dict[str, Any]:
    window = next(m.mask.window for _, sub in spec.sublayers() if isinstance(m := sub.mixer, Attention) and hasattr(m.mask, "window"))
    return text(spec) | {"sliding_window": window, "layer_types": layer_types(spec.main)}


def routed(spec: ModelSpec) -> dict[str, Any]:
    moe = sublayer(spec.main, "moe")
    return text(spec) | {"num_local_experts": moe.experts, "num_experts_per_tok": moe.top_k, "intermediate_size": moe.expert.d_ff}


def routed_fine(spec: ModelSpec) -> dict[str, Any]:
    moe = sublayer(spec.main, "moe")
    return text(spec) | {"num_experts": moe.experts, "num_experts_per_tok": moe.top_k, "moe_intermediate_size": moe.expert.d_ff}


def deepseek(spec: ModelSpec) -> dict[str, Any]:
    attention, moe = sublayer(spec.main, "attention"), sublayer(spec.main, "moe")
    assert isinstance(attention, LatentAttention)
    assert isinstance(moe, MoE)
    return {
        "vocab_size": rows(spec.main),
        "hidden_size": spec.main.d_model,
        "intermediate_size": feed_forward(spec.main),
        "moe_intermediate_size": moe.expert.d_ff,
        "num_hidden_layers": spec.main.depth,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.heads,
        "n_shared_experts": 1,
        "n_routed_experts": moe.experts,
        "num_experts_per_tok": moe.top_k,
        "n_group": moe.groups,
        "topk_group": moe.top_groups,
        "q_lora_rank": attention.q_rank,
        "kv_lora_rank": attention.kv_rank,
        "qk_nope_head_dim": attention.nope_dim,
        "qk_rope_head_dim": attention.rope_dim,
        "v_head_dim": attention.value_dim,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 163840,
    }


def gpt2(spec: ModelSpec) -> dict[str, Any]:
    stack = spec.main
    heads = sublayer(stack, "attention").heads
    return {
        "vocab_size": rows(stack),
        "n_embd": stack.d_model,
        "n_layer": stack.depth,
        "n_head": heads,
        "n_inner": feed_forward(stack),
        "n_positions": stack.max_positions,
    }


def encoder(spec: ModelSpec) -> dict[str, Any]:
    stack = spec.stacks[0]
    return {
        "hidden_size": stack.d_model,
        "intermediate_size": feed_forward(stack),
        "num_hidden_layers": stack.depth,
        "num_attention_heads": sublayer(stack, "attention").heads,
    }


def bert(spec: ModelSpec) -> dict[str, Any]:
    return encoder(spec) | {"vocab_size": rows(spec.main), "max_position_embeddings": rows(spec.main, "position"), "type_vocab_size": 2}


def vit(spec: ModelSpec) -> dict[str, Any]:
    return encoder(spec) | {"image_size": (4, 6), "patch_size": 2, "num_labels": spec.heads[0].parts[0].d_out}  # type: ignore[union-attr]


def t5(spec: ModelSpec) -> dict[str, Any]:
    stack = spec.main
    attention = sublayer(stack, "attention")
    sizes = {"d_model": stack.d_model, "d_ff": feed_forward(stack), "d_kv": attention.head_dim, "num_heads": attention.heads}
    return sizes | {"vocab_size": rows(stack), "num_layers": spec.stacks[0].depth, "num_decoder_layers": stack.depth}


def whisper(spec: ModelSpec) -> dict[str, Any]:
    audio, stack = spec.stacks
    made: dict[str, Any] = {"vocab_size": rows(stack), "d_model": stack.d_model, "num_mel_bins": audio.embeddings[0].d_in}  # type: ignore[union-attr]
    for side, part in (("encoder", audio), ("decoder", stack)):
        made |= {
            f"{side}_layers": part.depth,
            f"{side}_attention_heads": sublayer(part, "attention").heads,
            f"{side}_ffn_dim": feed_forward(part),
        }
    return made | {"max_source_positions": audio.default_tokens, "max_target_positions": stack.max_positions, "pad_token_id": 0}


# --- where the library keeps the same weights -----------------------------------------------------------------------

Change = Callable[[Any], Any]  # a tensor of the library's as ours has it
Names = dict[str, str | tuple[str, Change]]


def third(place: int) -> Change:
    return lambda t: (t.T if t.ndim == 2 else t).chunk(3, dim=0)[place]


def half(place: int) -> Change:
    return lambda t: t.chunk(2, dim=1)[place]


def every_other(place: int) -> Change:
    return lambda t: t[..., place::2].transpose(1, -1)


def flipped(t: Any) -> Any:
    return t.transpose(-2, -1) if t.ndim > 1 else t


SELF, MLP = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
LLAMA: Names = {
    "decoder/embedding/token": "model.embed_tokens",
    "decoder/final/norm": "model.norm",
    "lm_head/weight": "lm_head",
    **{f"decoder/attention/{name}": SELF + name for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "sinks")},
    **{f"decoder/feed_forward/{name}": MLP + name for name in ("gate_proj", "up_proj", "down_proj")},
    "decoder/attention/norm": "model.layers.{i}.input_layernorm",
    "decoder/feed_forward/norm": "model.layers.{i}.post_attention_layernorm",
    "decoder/moe/norm": "model.layers.{i}.post_attention_layernorm",
}
GEMMA: Names = LLAMA | {
    "decoder/attention/output_norm": "model.layers.{i}.post_attention_layernorm",
    "decoder/feed_forward/norm": "model.layers.{i}.pre_feedforward_layernorm",
    "decoder/feed_forward/output_norm": "model.layers.{i}.post_feedforward_layernorm",
}
EXPERTS: Names = LLAMA | {
    "decoder/moe/router/weight": MLP + "gate",
    "decoder/moe/router/correction": MLP + "gate.e_score_correction_bias",
    "decoder/moe/experts/gate_proj": (MLP + "experts.gate_up_proj", half(0)),
    "decoder/moe/experts/up_proj": (MLP + "experts.gate_up_proj", half(1)),
    "decoder/moe/experts/down_proj": MLP + "experts.down_proj",
}
GPT_OSS: Names = EXPERTS | {
    "decoder/moe/router/weight": MLP + "router",
    "decoder/moe/experts/gate_proj": (MLP + "experts.gate_up_proj", every_other(0)),
    "decoder/moe/experts/up_proj": (MLP + "experts.gate_up_proj", every_other(1)),
    "decoder/moe/experts/down_proj": (MLP + "experts.down_proj", lambda t: flipped(t) if t.ndim == 3 else t),
}
DEEPSEEK: Names = EXPERTS | {
    **{f"decoder/attention/{name}": SELF + name for name in ("q_a_proj", "q_b_proj", "kv_b_proj")},
    "decoder/attention/kv_a_proj": SELF + "kv_a_proj_with_mqa",
    "decoder/attention/q_a_norm": SELF + "q_a_layernorm",
    "decoder/attention/kv_a_norm": SELF + "kv_a_layernorm",
    **{f"decoder/moe/shared_expert/{name}": MLP + "shared_experts." + name for name in ("gate_proj", "up_proj", "down_proj")},
}
GPT2: Names = {
    "decoder/embedding/token": "transformer.wte",
    "decoder/embedding/position": "transformer.wpe",
    "decoder/attention/norm": "transformer.h.{i}.ln_1",
    **{f"decoder/attention/{name}_proj": ("transformer.h.{i}.attn.c_attn", third(place)) for place, name in enumerate("qkv")},
    "decoder/attention/o_proj": ("transformer.h.{i}.attn.c_proj", flipped),
    "decoder/feed_forward/norm": "transformer.h.{i}.ln_2",
    "decoder/feed_forward/up_proj": ("transformer.h.{i}.mlp.c_fc", flipped),
    "decoder/feed_forward/down_proj": ("transformer.h.{i}.mlp.c_proj", flipped),
    "decoder/final/norm": "transformer.ln_f",
}
BERT: Names = {
    "encoder/embedding/token": "embeddings.word_embeddings",
    "encoder/embedding/position": "embeddings.position_embeddings",
    "encoder/embedding/type": "embeddings.token_type_embeddings",
    "encoder/embedding/norm": "embeddings.LayerNorm",
    "encoder/attention/q_proj": "encoder.layer.{i}.attention.self.query",
    "encoder/attention/k_proj": "encoder.layer.{i}.attention.self.key",
    "encoder/attention/v_proj": "encoder.layer.{i}.attention.self.value",
    "encoder/attention/o_proj": "encoder.layer.{i}.attention.output.dense",
    "encoder/attention/residual_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "encoder/feed_forward/up_proj": "encoder.layer.{i}.intermediate.dense",
    "encoder/feed_forward/down_proj": "encoder.layer.{i}.output.dense",
    "encoder/feed_forward/residual_norm": "encoder.layer.{i}.output.LayerNorm",
    "pooler/dense": "pooler.dense",
}
VIT: Names = {
    "vision/embedding/patches": "vit.embeddings.patch_embeddings.projection",
    "vision/embedding/class_token": ("vit.embeddings.cls_token", lambda t: t.flatten()),
    "vision/embedding/position": ("vit.embeddings.position_embeddings", lambda t: t.squeeze(0)),
    **{f"vision/attention/{name}_proj": f"vit.layers.{{i}}.attention.{name}_proj" for name in "qkvo"},
    "vision/attention/norm": "vit.layers.{i}.layernorm_before",
    "vision/feed_forward/norm": "vit.layers.{i}.layernorm_after",
    "vision/feed_forward/up_proj": "vit.layers.{i}.mlp.fc1",
    "vision/feed_forward/down_proj": "vit.layers.{i}.mlp.fc2",
    "vision/final/norm": "vit.layernorm",
    "classifier/weight": "classifier",
}


def t5_side(side: str, sublayers: tuple[str, ...]) -> Names:
    """Names of one stack: its sublayers stand in a list."""
    made: Names = {
        f"{side}/embedding/relative_bias": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{side}/final/norm": f"{side}.final_layer_norm",
    }
    for place, name in enumerate(sublayers):
        inside = {"attention": "SelfAttention.", "cross_attention": "EncDecAttention.", "feed_forward": "DenseReluDense."}[name]
        made[f"{side}/{name}/norm"] = f"{side}.block.{{i}}.layer.{place}.layer_norm"
        parts = {"up_proj": "wi", "down_proj": "wo"} if name == "feed_forward" else {f"{part}_proj": part for part in "qkvo"}
        made |= {f"{side}/{name}/{ours}": f"{side}.block.{{i}}.layer.{place}.{inside}{theirs}" for ours, theirs in parts.items()}
    return made


T5: Names = {
    "encoder/embedding/token": "shared",
    **t5_side("encoder", ("attention", "feed_forward")),
    **t5_side("decoder", ("attention", "cross_attention", "feed_forward")),
}


def whisper_side(side: str) -> Names:
    """Names of one stack."""
    layer = f"model.{side}.layers.{{i}}."
    made: Names = {f"{side}/final/norm": f"model.{side}.layer_norm", f"{side}/embedding/position": f"model.{side}.embed_positions"}
    for ours, theirs in (("attention", "self_attn"), ("cross_attention", "encoder_attn")):
        made |= {f"{side}/{ours}/{part}_proj": f"{layer}{theirs}.{part}_proj" for part in "qkv"}
        made |= {f"{side}/{ours}/o_proj": f"{layer}{theirs}.out_proj", f"{side}/{ours}/norm": f"{layer}{theirs}_layer_norm"}
    made |= {f"{side}/feed_forward/up_proj": layer + "fc1", f"{side}/feed_forward/down_proj": layer + "fc2"}
    return made | {f"{side}/feed_forward/norm": layer + "final_layer_norm"}


WHISPER: Names = {
    "encoder/embedding/conv1": "model.encoder.conv1",
    "encoder/embedding/conv2": "model.encoder.conv2",
    "decoder/embedding/token": "model.decoder.embed_tokens",
    **whisper_side("encoder"),
    **whisper_side("decoder"),
}

# --- the models -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """A class of the library, how a small description becomes its sizes, where its weights are, and what was published."""

    library: str
    sizes: Callable[[ModelSpec], dict[str, Any]]
    names: Names
    published: dict[str, Any] = field(default_factory=dict)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
GEMMA2 = {"rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
FAMILIES: dict[str, Case] = {
    "llama-7b": Case(library="Llama", sizes=text, names=LLAMA, published={"rms_norm_eps": 1e-6, "rope_theta": 10000.0}),
    "llama-2-70b": Case(library="Llama", sizes=text, names=LLAMA, published={"rms_norm_eps": 1e-5, "rope_theta": 10000.0}),
    "llama-3-8b": Case(library="Llama", sizes=text, names=LLAMA, published={"rms_norm_eps": 1e-5, "rope_theta": 500000.0}),
    "llama-3.1-405b": Case(
        library="Llama", sizes=text, names=LLAMA, published={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": LLAMA3}
    ),
    "mistral-7b": Case(library="Mistral", sizes=sliding, names=LLAMA, published={"rms_norm_eps": 1e-5, "rope_theta": 10000.0}),
    "qwen2.5-7b": Case(library="Qwen2", sizes=text, names=LLAMA, published={"rms_norm_eps": 1e-6, "rope_theta": 1000000.0}),
    "qwen3-8b": Case(library="Qwen3", sizes=text, names=LLAMA, published={"rms_norm_eps": 1e-6, "rope_theta": 1000000}),
    "qwen3-30b-a3b": Case(
        library="Qwen3Moe",
        sizes=routed_fine,
        names=EXPERTS,
        published={"rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    ),
    "mixtral-8x7b": Case(library="Mixtral", sizes=routed, names=EXPERTS, published={"rms_norm_eps": 1e-5, "rope_theta": 1000000.0}),
    "gemma-2-9b": Case(library="Gemma2", sizes=sliding, names=GEMMA, published=GEMMA2 | {"query_pre_attn_scalar": 256}),
    "gemma-2-27b": Case(library="Gemma2", sizes=sliding, names=GEMMA, published=GEMMA2 | {"query_pre_attn_scalar": 144}),
    "gemma-3-27b": Case(
        library="Gemma3",
        sizes=sliding,
        names=GEMMA,
        published={
            "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 168,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            },
        },
    ),
    "gpt-2": Case(library="GPT2", sizes=gpt2, names=GPT2, published={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}),
    "gpt-oss-20b": Case(
        library="GptOss",
        sizes=lambda spec: routed(spec) | sliding(spec) | {"intermediate_size": sublayer(spec.main, "moe").expert.d_ff},
        names=GPT_OSS,
        published={
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000,
            "rope_scaling": YARN | {"rope_type": "yarn", "factor": 32.0, "truncate": False},
            "swiglu_limit": 7.0,
        },
    ),
    "deepseek-v3": Case(
        library="DeepseekV3",
        sizes=deepseek,
        names=DEEPSEEK,
        published={
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000,
            "rope_scaling": YARN | {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
        },
    ),
    "bert-base": Case(library="BertModel", sizes=bert, names=BERT, published={"layer_norm_eps": 1e-12, "hidden_act": "gelu"}),
    "t5-small": Case(library="T5", sizes=t5, names=T5, published={"layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu"}),
    "t5-11b": Case(library="T5", sizes=t5, names=T5, published={"layer_norm_epsilon": 1e-6, "feed_forward_proj": "relu"}),
    "vit-b-16": Case(library="ViT", sizes=vit, names=VIT, published={"layer_norm_eps": 1e-12, "hidden_act": "gelu"}),
    "whisper-large-v3": Case(library="Whisper", sizes=whisper, names=WHISPER, published={"activation_function": "gelu"}),
}
CLASSES = {
    "BertModel": ("BertConfig", "BertModel"),
    "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
    "GPT2": ("GPT2Config", "GPT2LMHeadModel"),
    "T5": ("T5Config", "T5ForConditionalGeneration"),
    "ViT": ("ViTConfig", "ViTForImageClassification"),
    "Whisper": ("WhisperConfig", "WhisperForConditionalGeneration"),
}


def built_by_library(build: Callable[..., Any], case: Case, spec: ModelSpec) -> Any:
    """The library's model of a description's sizes with the published settings."""
    return build(case.library, classes=CLASSES.get(case.library), **case.sizes(spec), **case.published)


def small(name: str) -> ModelSpec:
    """The shrunk preset, of a language model with a vision tower the text alone."""
    spec = load_model(name)
    if spec.connectors:
        spec = msgspec.structs.replace(spec, stacks=(spec.main,), connectors=())
    return shrink(spec)


def library_output(theirs: Any, spec: ModelSpec, inputs: dict[str, Any]) -> Any:
    """Logits, or what a model without them gives last."""
    if "images" in inputs:
        return theirs(pixel_values=inputs["images"]).logits
    if "source" in inputs:
        key = "input_features" if inputs["source"].is_floating_point() else "input_ids"
        return theirs(**{key: inputs["source"]}, decoder_input_ids=inputs["tokens"]).logits
    out = theirs(input_ids=inputs["tokens"])
    return out.pooler_output if spec.heads[0].name == "pooler" else out.logits


def largest_difference(name: str, spec: ModelSpec, theirs: Any, copy: Callable[..., None]) -> float:
    """Between our logits and the library's, over the largest of them."""
    ours = build_model(spec, dtype=torch.float64)
    copy(FAMILIES[name].names, theirs, ours)
    torch.manual_seed(2)
    inputs = random_inputs(ours, Pass(batch=2, context=13, source=None if name.startswith("whisper") else 7))
    with torch.inference_mode():
        expected, found = library_output(theirs, spec, inputs), ours(**inputs)[spec.heads[0].name]
    assert expected.std() > 0.01
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_library_gives_the_same_logits(name: str, library_model: Any, copy_weights: Any) -> None:
    spec = small(name)
    assert largest_difference(name, spec, built_by_library(library_model, FAMILIES[name], spec), copy_weights) < TOLERANCE


# What no count shows: each of these fields, changed in the description alone, has to be noticed.
CHANGES = [
    ("llama-7b", '"eps":1e-6', '"eps":1e-5'),
    ("llama-7b", '"activation":"silu"', '"activation":"gelu"'),
    ("llama-3-8b", '"theta":500000', '"theta":10000'),
    ("llama-3.1-405b", '"factor":8', '"factor":4'),
    ("mistral-7b", '"window":5', '"window":6'),
    ("qwen3-30b-a3b", '"top_k":3', '"top_k":3,"scoring":"sigmoid"'),
    ("mixtral-8x7b", '"top_k":2', '"top_k":2,"normalize":false'),
    ("gemma-2-9b", '"unit_offset":true', '"unit_offset":false'),
    ("gemma-2-9b", '"softcap":50.0', '"softcap":0.5'),
    ("gemma-2-9b", '"softcap":30', '"softcap":29'),
    ("gemma-2-9b", '"scale":6.0', '"scale":6.1'),
    ("gemma-2-27b", '"activation":"gelu_tanh"', '"activation":"gelu"'),
    ("gemma-3-27b", '"type":"linear"', '"type":"ntk"'),
    ("gpt-2", '"activation":"gelu_tanh"', '"activation":"gelu"'),
    ("gpt-oss-20b", '"truncate":false', '"truncate":true'),
    ("gpt-oss-20b", '"activation":"clamped_swiglu"', '"activation":"silu"'),
    ("deepseek-v3", '"routed_scale":2.5', '"routed_scale":2.6'),
    ("deepseek-v3", '"top_groups":2', '"top_groups":3'),
    ("deepseek-v3", '"interleaved":true', '"interleaved":false'),
    ("deepseek-v3", '"mscale":1.0', '"mscale":0.5'),
    ("bert-base", '"activation":"tanh"', '"activation":"relu"'),
    ("bert-base", '"eps":1e-12', '"eps":1e-5'),
    ("t5-small", '"bidirectional":true', '"bidirectional":false'),
    ("t5-small", '"scale":1.0', '"scale":1.01'),
    ("vit-b-16", '"activation":"gelu"', '"activation":"gelu_tanh"'),
    ("whisper-large-v3", '"stride":[2],"bias":true,"activation":"gelu"', '"stride":[2],"bias":true,"activation":"relu"'),
]


@pytest.mark.parametrize(("name", "right", "wrong"), CHANGES, ids=[f"{name}-{wrong}" for name, _, wrong in CHANGES])
def test_a_wrong_field_is_noticed(name: str, right: str, wrong: str, library_model: Any, copy_weights: Any) -> None:
    spec = small(name)
    text = msgspec.json.encode(spec).decode()
    assert right in text
    changed = msgspec.json.decode(text.replace(right, wrong), type=ModelSpec)
    assert largest_difference(name, changed, built_by_library(library_model, FAMILIES[name], spec), copy_weights) > 2 * TOLERANCE
