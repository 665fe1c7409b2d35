"""Metadata of a GGUF file as a `ModelSpec`: its keys under the names that the configuration readers know.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (LLM section) and gguf-py's constants. What only the
tensors say (a tied head, biases, the width of an expert) is read off their names and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import UnreadableError
from ..huggingface.registry import printable, read_config
from ..spec import ModelSpec
from .source import safe_text
from .stored import StoredWeights

Translator = Callable[["Metadata"], dict[str, Any]]


class Metadata:
    """The keys of one architecture, and the shapes of the tensors."""

    def __init__(self, weights: StoredWeights) -> None:
        self.weights = weights
        self.shapes = {tensor.name: tensor.shape for tensor in weights.tensors}
        found = weights.metadata.get("general.architecture")
        if not isinstance(found, str):
            raise self.refuse("its metadata has no general.architecture, so it describes no model")
        self.arch = found

    def refuse(self, why: str) -> UnreadableError:
        """The error to raise."""
        return UnreadableError(f"{self.weights.origin}: {why}")

    def get(self, key: str, *, default: object = None) -> Any:
        """A value below the architecture's name; one number a layer counts as one number where all are the same."""
        value = self.weights.metadata.get(f"{self.arch}.{key}", default)
        if not isinstance(value, list):
            return value
        if not value or any(item != value[0] for item in value):
            raise self.refuse(f"{self.arch}.{key} differs from layer to layer ({safe_text(str(value[:8]))}), which is not understood yet")
        return value[0]

    def need(self, key: str) -> Any:
        """A value that must be there."""
        value = self.get(key)
        if value is None:
            raise self.refuse(f"its metadata lacks {self.arch}.{key}")
        return value

    def has(self, *names: str) -> bool:
        """Whether one of these tensors is there."""
        return any(name in self.shapes for name in names)

    def size(self, name: str, axis: int) -> int | None:
        """One size of a tensor, None where it is not there."""
        shape = self.shapes.get(name, ())
        return shape[axis] if -len(shape) <= axis < len(shape) else None

    def in_layers(self, name: str, axis: int) -> int | None:
        """One size of the tensor `blk.N.NAME` in the first layer that has it."""
        return next((self.size(full, axis) for full in self.shapes if full.startswith("blk.") and full.endswith(f".{name}.weight")), None)


# --- translations ---------------------------------------------------------------------------------------------------


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are known."""
    return {key: value for key, value in values.items() if value is not None}


def common(meta: Metadata) -> dict[str, Any]:
    """What every transformer has."""
    return without_none(
        {
            "hidden_size": meta.need("embedding_length"),
            "num_hidden_layers": meta.need("block_count"),
            "num_attention_heads": meta.need("attention.head_count"),
            "num_key_value_heads": meta.get("attention.head_count_kv"),
            "intermediate_size": meta.get("feed_forward_length"),
            "max_position_embeddings": meta.get("context_length"),
            "vocab_size": vocabulary(meta),
            "head_dim": meta.get("attention.key_length"),
            "rms_norm_eps": meta.get("attention.layer_norm_rms_epsilon"),
            "rope_theta": meta.get("rope.freq_base"),
            "tie_word_embeddings": not meta.has("output.weight"),
        }
    )


def vocabulary(meta: Metadata) -> int:
    """Rows of the token table."""
    rows = meta.size("token_embd.weight", 0)
    if rows is None:
        raise meta.refuse("has no tensor token_embd.weight, so it is no whole model (a projector, an adapter?)")
    return rows


def dense(model_type: str) -> Translator:
    """A family whose configuration is the common one; its feed-forward must be given."""

    def translate(meta: Metadata) -> dict[str, Any]:
        meta.need("feed_forward_length")
        return {"model_type": model_type, **common(meta)}

    return translate


def llama(meta: Metadata) -> dict[str, Any]:
    """LLaMA, Mistral, and Mixtral, which is LLaMA with experts."""
    if meta.get("expert_count"):
        width = meta.in_layers("ffn_down_exps", -1) or meta.in_layers("ffn_down.0", -1) or meta.need("feed_forward_length")
        experts = {**routed(meta, "num_local_experts"), "intermediate_size": width, "sliding_window": None}
        return {"model_type": "mixtral", **common(meta), **experts}
    biased, out = meta.has("blk.0.attn_q.bias"), meta.has("blk.0.attn_output.bias")
    if biased and not out:
        return dense("qwen2")(meta)
    return {**dense("llama")(meta), "attention_bias": biased, "mlp_bias": meta.has("blk.0.ffn_up.bias")}


def routed(meta: Metadata, key: str) -> dict[str, Any]:
    """How many experts there are and run."""
    return {key: meta.need("expert_count"), "num_experts_per_tok": meta.need("expert_used_count")}


def qwen_moe(model_type: str) -> Translator:
    """Qwen's sparse models: the width of an expert is that of its matrices."""

    def translate(meta: Metadata) -> dict[str, Any]:
        width = meta.get("expert_feed_forward_length") or meta.in_layers("ffn_down_exps", -1) or meta.need("expert_feed_forward_length")
        shared = meta.get("expert_shared_feed_forward_length") or meta.in_layers("ffn_down_shexp", -1)
        found = {"model_type": model_type, **common(meta), **routed(meta, "num_experts"), "moe_intermediate_size": width}
        return found | ({"shared_expert_intermediate_size": shared or 0} if model_type == "qwen2_moe" else {})

    return translate


def gemma(model_type: str) -> Translator:
    """Gemma 2 and 3: windows and soft caps."""

    def translate(meta: Metadata) -> dict[str, Any]:
        extra = {
            "sliding_window": meta.get("attention.sliding_window"),
            "attn_logit_softcapping": meta.get("attn_logit_softcapping"),
            "final_logit_softcapping": meta.get("final_logit_softcapping"),
        }
        return {**dense(model_type)(meta), **without_none(extra)}

    return translate


def phi3(meta: Metadata) -> dict[str, Any]:
    """Phi-3: perhaps a window, 0 where there is none."""
    return {**dense("phi3")(meta), "sliding_window": meta.get("attention.sliding_window") or None}


def gpt_oss(meta: Metadata) -> dict[str, Any]:
    """gpt-oss: every layer has experts, every other one a window."""
    width = meta.get("expert_feed_forward_length") or meta.in_layers("ffn_down_exps", -1) or meta.need("expert_feed_forward_length")
    window = without_none({"sliding_window": meta.get("attention.sliding_window")})
    return {"model_type": "gpt_oss", **common(meta), "intermediate_size": width, **window, **routed(meta, "num_local_experts")}


def deepseek(meta: Metadata) -> dict[str, Any]:
    """DeepSeek-V2 and V3: latent attention; files that hold it absorbed say its widths under keys of their own."""
    rope = meta.need("rope.dimension_count")
    key = meta.get("attention.key_length_mla") or meta.need("attention.key_length")
    value = meta.get("attention.value_length_mla") or meta.need("attention.value_length")
    if not isinstance(key, int) or not isinstance(rope, int) or key <= rope:
        raise meta.refuse(f"keys of {safe_text(str(key))} with {safe_text(str(rope))} rotated leave nothing that is not")
    found = common(meta)
    for name in ("head_dim", "num_key_value_heads"):
        found.pop(name, None)
    return {
        "model_type": "deepseek_v3" if any("exp_probs_b" in name for name in meta.shapes) else "deepseek_v2",
        **found,
        "q_lora_rank": meta.get("attention.q_lora_rank"),
        "kv_lora_rank": meta.need("attention.kv_lora_rank"),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": value,
        "first_k_dense_replace": meta.get("leading_dense_block_count", default=0),
        "n_shared_experts": meta.get("expert_shared_count", default=0),
        "moe_intermediate_size": meta.need("expert_feed_forward_length"),
        **routed(meta, "n_routed_experts"),
    }


def mamba(meta: Metadata) -> dict[str, Any]:
    """Mamba: no attention, no feed-forward."""
    return without_none(
        {
            "model_type": "mamba",
            "hidden_size": meta.need("embedding_length"),
            "num_hidden_layers": meta.need("block_count"),
            "vocab_size": vocabulary(meta),
            "intermediate_size": meta.need("ssm.inner_size"),
            "state_size": meta.need("ssm.state_size"),
            "conv_kernel": meta.need("ssm.conv_kernel"),
            "time_step_rank": meta.need("ssm.time_step_rank"),
            "layer_norm_epsilon": meta.get("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": not meta.has("output.weight"),
        }
    )


def bert(meta: Metadata) -> dict[str, Any]:
    """BERT as an encoder of text: tables of tokens, positions and types."""
    found = dense("bert")(meta)
    for name in ("head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta"):
        found.pop(name, None)
    return found | without_none(
        {
            "architectures": ["BertModel"],
            "max_position_embeddings": meta.size("position_embd.weight", 0),
            "type_vocab_size": meta.size("token_types.weight", 0) or 0,
            "layer_norm_eps": meta.get("attention.layer_norm_epsilon"),
        }
    )


TRANSLATORS: dict[str, Translator] = {
    "llama": llama,
    "qwen2": dense("qwen2"),
    "qwen2moe": qwen_moe("qwen2_moe"),
    "qwen3": dense("qwen3"),
    "qwen3moe": qwen_moe("qwen3_moe"),
    "gemma": dense("gemma"),
    "gemma2": gemma("gemma2"),
    "gemma3": gemma("gemma3_text"),
    "phi3": phi3,
    "deepseek2": deepseek,
    "gpt-oss": gpt_oss,
    "mamba": mamba,
    "bert": bert,
}


def model_of_gguf(weights: StoredWeights) -> ModelSpec:
    """The model that a GGUF file's metadata and tensors describe.

    Raises UnreadableError where the architecture is not known or its metadata is not understood.
    """
    meta = Metadata(weights)
    if meta.arch not in TRANSLATORS:
        raise meta.refuse(f"its architecture {safe_text(meta.arch)} is not known as a model; known are {', '.join(sorted(TRANSLATORS))}")
    try:
        spec = read_config(TRANSLATORS[meta.arch](meta), lenient=True)
    except UnreadableError as error:
        raise meta.refuse(f"its metadata describes no model that is understood: {str(error).removeprefix('configuration: ')}") from None
    if meta.arch == "bert" and not any(name.startswith(("cls", "pooler")) for name in meta.shapes):
        spec = msgspec.structs.replace(spec, heads=())
    name = weights.metadata.get("general.name")
    title = printable(name) if isinstance(name, str) and name.strip() else ""
    stem = printable(weights.files[0].rsplit("/", 1)[-1].removesuffix(".gguf")) if weights.files else "model"
    source = (f"metadata of {stem}.gguf, architecture {meta.arch}",)
    return msgspec.structs.replace(spec, name=stem, title=title or stem, source=source)
