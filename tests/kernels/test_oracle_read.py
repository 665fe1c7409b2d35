"""Configurations read by `presets/huggingface` against the library: the same weights give the same logits.

One configuration for each mechanism that no preset of ours has: ALiBi, interleaved and partial rotary positions, parallel
sublayers, norms on outputs or per head, multipliers, gated shared experts, and the recurrent mixers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tfm.kernels.model import build_model
from tfm.presets.huggingface import read_config

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("one_thread")]
TOLERANCE = 5e-6  # of the largest logit: the library computes some parts in fp32

Change = Callable[[Any], Any]
Names = dict[str, str | tuple[str, Change]]

# --- where the library keeps the same weights -----------------------------------------------------------------------


def fused(place: int, heads: int) -> Change:
    """Queries, keys or values of a matrix that has them head by head."""
    return lambda t: t.view(heads, 3, -1, *t.shape[1:])[:, place]


def half(place: int) -> Change:
    return lambda t: t.chunk(2, dim=1)[place]


def qwen_rows(first: int, count: int) -> Change:
    """Rows of Qwen3-Next's fused projections: by key head, of each its query, key, values and gates."""
    return lambda t: t.view(KEY_HEADS, -1, t.shape[-1])[:, first : first + count].reshape(-1, t.shape[-1])


def qwen_qkv(t: Any) -> Any:
    parts = ((0, KEY_DIM), (KEY_DIM, KEY_DIM), (2 * KEY_DIM, VALUES))
    return torch.cat([qwen_rows(first, count)(t) for first, count in parts])


KEY_HEADS, KEY_DIM, VALUES = 2, 6, 2 * 5  # Qwen3-Next below: value heads 4 of 5, so 2 for each key head
SELF, MLP = "model.layers.{i}.self_attn.", "model.layers.{i}.mlp."
TEXT: Names = {"decoder/embedding/token": "model.embed_tokens", "decoder/final/norm": "model.norm", "lm_head/weight": "lm_head"}
LLAMA: Names = TEXT | {
    **{f"decoder/attention/{name}": SELF + name for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")},
    **{f"decoder/feed_forward/{name}": MLP + name for name in ("gate_proj", "up_proj", "down_proj")},
    "decoder/attention/norm": "model.layers.{i}.input_layernorm",
    "decoder/feed_forward/norm": "model.layers.{i}.post_attention_layernorm",
    "decoder/moe/norm": "model.layers.{i}.post_attention_layernorm",
}
OLMO2: Names = LLAMA | {
    "decoder/attention/output_norm": "model.layers.{i}.post_attention_layernorm",
    "decoder/feed_forward/output_norm": "model.layers.{i}.post_feedforward_layernorm",
}
QWEN_MOE: Names = LLAMA | {
    "decoder/moe/router/weight": MLP + "gate",
    "decoder/moe/experts/gate_proj": (MLP + "experts.gate_up_proj", half(0)),
    "decoder/moe/experts/up_proj": (MLP + "experts.gate_up_proj", half(1)),
    "decoder/moe/experts/down_proj": MLP + "experts.down_proj",
    **{f"decoder/moe/shared_expert/{name}": MLP + "shared_expert." + name for name in ("gate_proj", "up_proj", "down_proj")},
    "decoder/moe/shared_expert_gate": MLP + "shared_expert_gate",
}
LINEAR = "model.layers.{i}.linear_attn."
QWEN_NEXT: Names = QWEN_MOE | {
    "decoder/linear_attention/norm": "model.layers.{i}.input_layernorm",
    "decoder/linear_attention/qkv_proj": (LINEAR + "in_proj_qkvz", qwen_qkv),
    "decoder/linear_attention/gate_proj": (LINEAR + "in_proj_qkvz", qwen_rows(2 * KEY_DIM + VALUES, VALUES)),
    "decoder/linear_attention/beta_proj": (LINEAR + "in_proj_ba", qwen_rows(0, 2)),
    "decoder/linear_attention/decay_proj": (LINEAR + "in_proj_ba", qwen_rows(2, 2)),
    "decoder/linear_attention/conv": LINEAR + "conv1d",
    "decoder/linear_attention/A": LINEAR + "A_log",
    "decoder/linear_attention/dt_bias": LINEAR + "dt_bias",
    "decoder/linear_attention/gated_norm": LINEAR + "norm",
    "decoder/linear_attention/out_proj": LINEAR + "out_proj",
}
GPT_J: Names = {
    "decoder/embedding/token": "transformer.wte",
    "decoder/attention/norm": "transformer.h.{i}.ln_1",
    **{f"decoder/attention/{name}_proj": f"transformer.h.{{i}}.attn.{name}_proj" for name in "qkv"},
    "decoder/attention/o_proj": "transformer.h.{i}.attn.out_proj",
    "decoder/feed_forward/up_proj": "transformer.h.{i}.mlp.fc_in",
    "decoder/feed_forward/down_proj": "transformer.h.{i}.mlp.fc_out",
    "decoder/final/norm": "transformer.ln_f",
    "lm_head/weight": "lm_head",
}


def neox(layers: str, attention: str) -> Names:
    """GPT-NeoX and BLOOM: one matrix for queries, keys and values of three heads."""
    return {
        **{f"decoder/attention/{name}_proj": (f"{layers}{attention}.query_key_value", fused(j, 3)) for j, name in enumerate("qkv")},
        "decoder/attention/o_proj": f"{layers}{attention}.dense",
        "decoder/attention/norm": f"{layers}input_layernorm",
        "decoder/feed_forward/norm": f"{layers}post_attention_layernorm",
        "decoder/feed_forward/up_proj": f"{layers}mlp.dense_h_to_4h",
        "decoder/feed_forward/down_proj": f"{layers}mlp.dense_4h_to_h",
    }


NEOX: Names = neox("gpt_neox.layers.{i}.", "attention") | {
    "decoder/embedding/token": "gpt_neox.embed_in",
    "decoder/final/norm": "gpt_neox.final_layer_norm",
    "lm_head/weight": "lm_head",
}
BLOOM: Names = neox("transformer.h.{i}.", "self_attention") | {
    "decoder/embedding/token": "transformer.word_embeddings",
    "decoder/embedding/embedding_norm": "transformer.word_embeddings_layernorm",
    "decoder/final/norm": "transformer.ln_f",
}
OPT: Names = {
    "decoder/embedding/token": "model.decoder.embed_tokens",
    "decoder/embedding/position": "model.decoder.embed_positions",
    **{f"decoder/attention/{name}_proj": f"model.decoder.layers.{{i}}.self_attn.{name}_proj" for name in "qkv"},
    "decoder/attention/o_proj": "model.decoder.layers.{i}.self_attn.out_proj",
    "decoder/attention/norm": "model.decoder.layers.{i}.self_attn_layer_norm",
    "decoder/feed_forward/norm": "model.decoder.layers.{i}.final_layer_norm",
    "decoder/feed_forward/up_proj": "model.decoder.layers.{i}.fc1",
    "decoder/feed_forward/down_proj": "model.decoder.layers.{i}.fc2",
    "decoder/final/norm": "model.decoder.final_layer_norm",
}


def mamba(inside: str) -> Names:
    """The parts of a Mamba mixer, of either version."""
    made: Names = {f"decoder/mamba/{name}": inside + name for name in ("in_proj", "x_proj", "dt_proj", "out_proj", "D", "dt_bias")}
    return made | {
        "decoder/mamba/A": inside + "A_log",
        "decoder/mamba/conv": inside + "conv1d",
        "decoder/mamba/gated_norm": inside + "norm",
    }


MAMBA: Names = mamba("backbone.layers.{i}.mixer.") | {
    "decoder/embedding/token": "backbone.embeddings",
    "decoder/mamba/norm": "backbone.layers.{i}.norm",
    "decoder/final/norm": "backbone.norm_f",
    "lm_head/weight": "lm_head",
}
FEED = "model.layers.{i}.feed_forward."
JAMBA: Names = (
    LLAMA
    | mamba("model.layers.{i}.mamba.")
    | {
        "decoder/final/norm": "model.final_layernorm",
        "decoder/mamba/norm": "model.layers.{i}.input_layernorm",
        **{f"decoder/mamba/{name}_norm": f"model.layers.{{i}}.mamba.{name}_layernorm" for name in ("dt", "b", "c")},
        **{f"decoder/feed_forward/{name}": FEED + name for name in ("gate_proj", "up_proj", "down_proj")},
        "decoder/feed_forward/norm": "model.layers.{i}.pre_ff_layernorm",
        "decoder/moe/norm": "model.layers.{i}.pre_ff_layernorm",
        "decoder/moe/router/weight": FEED + "router",
        "decoder/moe/experts/gate_proj": (FEED + "experts.gate_up_proj", half(0)),
        "decoder/moe/experts/up_proj": (FEED + "experts.gate_up_proj", half(1)),
        "decoder/moe/experts/down_proj": FEED + "experts.down_proj",
    }
)
BLOCK = "model.layers.{i}.temporal_block."
GRIFFIN: Names = TEXT | {
    "decoder/final/norm": "model.final_norm",
    "decoder/recurrent/norm": "model.layers.{i}.temporal_pre_norm",
    "decoder/attention/norm": "model.layers.{i}.temporal_pre_norm",
    **{f"decoder/attention/{name}_proj": f"{BLOCK}{name}_proj" for name in "qkvo"},
    "decoder/recurrent/y_proj": BLOCK + "linear_y",
    "decoder/recurrent/x_proj": BLOCK + "linear_x",
    "decoder/recurrent/out_proj": BLOCK + "linear_out",
    "decoder/recurrent/conv": BLOCK + "conv_1d",
    "decoder/recurrent/decay": BLOCK + "rg_lru.recurrent_param",
    "decoder/recurrent/input_gate": BLOCK + "rg_lru.input_gate",
    "decoder/recurrent/recurrence_gate": BLOCK + "rg_lru.recurrent_gate",
    "decoder/feed_forward/norm": "model.layers.{i}.channel_pre_norm",
    **{f"decoder/feed_forward/{name}": f"model.layers.{{i}}.mlp_block.{name}" for name in ("gate_proj", "up_proj", "down_proj")},
}
LFM2: Names = TEXT | {
    "decoder/final/norm": "model.embedding_norm",
    **{f"decoder/attention/{name}_proj": f"{SELF}{name}_proj" for name in "qkv"},
    "decoder/attention/o_proj": SELF + "out_proj",
    "decoder/attention/q_norm": SELF + "q_layernorm",
    "decoder/attention/k_norm": SELF + "k_layernorm",
    "decoder/attention/norm": "model.layers.{i}.operator_norm",
    "decoder/conv/norm": "model.layers.{i}.operator_norm",
    **{f"decoder/conv/{name}": f"model.layers.{{i}}.conv.{name}" for name in ("conv", "in_proj", "out_proj")},
    "decoder/feed_forward/norm": "model.layers.{i}.ffn_norm",
    **{f"decoder/feed_forward/{ours}_proj": FEED + theirs for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2"))},
}

# --- the configurations ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """A class of the library, where its weights are, and a configuration of it."""

    library: str
    names: Names
    config: dict[str, Any]


SMALL: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 44,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
THREE = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"} | {"hidden_size": 24, "num_attention_heads": 3}
MOE = {
    "hidden_size": 36,
    "num_attention_heads": 6,
    "moe_intermediate_size": 11,
    "shared_expert_intermediate_size": 13,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
TOKENS = {"vocab_size": 31, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MULTIPLIERS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2, "logits_scaling": 2.0}
DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": KEY_DIM,
    "linear_value_head_dim": 5,
    "layer_types": ["linear_attention", "full_attention"],
}
# A width whose root is exact in bf16: the library rounds it there.
GRIFFIN_SIZES = {
    "num_hidden_layers": 3,
    "hidden_size": 36,
    "num_key_value_heads": 1,
    "lru_width": 36,
    "head_dim": 12,
    "attention_window_size": 5,
}
PERIODS = {"attn_layer_period": 4, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
CASES: dict[str, Case] = {
    "gptj": Case(
        library="GPTJ", names=GPT_J, config=TOKENS | {"n_embd": 24, "n_layer": 2, "n_head": 3, "rotary_dim": 4, "n_positions": 40}
    ),
    "gpt_neox": Case(library="GPTNeoX", names=NEOX, config=THREE | {"rotary_pct": 0.5}),
    "gpt_neox-in-turn": Case(library="GPTNeoX", names=NEOX, config=THREE | {"rotary_pct": 0.5, "use_parallel_residual": False}),
    "bloom": Case(library="Bloom", names=BLOOM, config=TOKENS | {"hidden_size": 24, "n_layer": 2, "n_head": 3}),
    "opt": Case(library="OPT", names=OPT, config=THREE | {"ffn_dim": 44, "word_embed_proj_dim": 24}),
    "cohere": Case(library="Cohere", names=LLAMA, config=SMALL | {"use_qk_norm": True, "logit_scale": 0.3}),
    "olmo2": Case(library="Olmo2", names=OLMO2, config=SMALL),
    "granite": Case(library="Granite", names=LLAMA, config=SMALL | MULTIPLIERS),
    "qwen2_moe": Case(library="Qwen2Moe", names=QWEN_MOE, config=SMALL | MOE),
    "qwen3_next": Case(library="Qwen3Next", names=QWEN_NEXT, config=SMALL | MOE | DELTA),
    "mamba": Case(library="Mamba", names=MAMBA, config=TOKENS | {"hidden_size": 20, "num_hidden_layers": 2, "state_size": 5}),
    "mamba2": Case(
        library="Mamba2",
        names=MAMBA,
        config=TOKENS | {"hidden_size": 24, "num_hidden_layers": 2, "state_size": 5, "num_heads": 6, "head_dim": 8, "n_groups": 2},
    ),
    "jamba": Case(
        library="Jamba",
        names=JAMBA,
        config=SMALL
        | PERIODS
        | {"num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 5, "mamba_dt_rank": 3},
    ),
    "recurrent_gemma": Case(
        library="RecurrentGemma",
        names=GRIFFIN,
        config=THREE | GRIFFIN_SIZES,
    ),
    "lfm2": Case(library="Lfm2", names=LFM2, config=SMALL | {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_library_gives_the_same_logits(name: str, library_model: Any, copy_weights: Any) -> None:
    """From the whole prompt, and with our cache from a prompt and steps."""
    case = CASES[name]
    theirs = library_model(case.library, **case.config)
    ours = build_model(read_config(theirs.config.to_dict() | {"architectures": [type(theirs).__name__]}), dtype=torch.float64)
    copy_weights(case.names, theirs, ours)
    torch.manual_seed(2)
    tokens = torch.randint(3, 31, (2, 13))
    with torch.inference_mode():
        expected, found = theirs(input_ids=tokens, use_cache=False).logits, ours(tokens)["lm_head"]
        cache = ours.cache(2, 13)
        steps = [ours(piece, cache=cache)["lm_head"] for piece in tokens.split([6, 1, 1, 5], dim=1)]
    largest = float(expected.abs().max())
    assert expected.std() > 0.01
    assert (found - expected).abs().max() < TOLERANCE * largest
    torch.testing.assert_close(torch.cat(steps, dim=1), found, rtol=0, atol=1e-9)
