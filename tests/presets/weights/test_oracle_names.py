"""Names of checkpoints as transformers writes them: every tensor of a small model finds its row, none over, none missing."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.estimators.stored import differences, stored
from tfm.presets.huggingface import read_config
from tfm.presets.weights.stored import StoredTensor, StoredWeights

SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 128, "max_position_embeddings": 128,
}  # fmt: skip
WIDE = {**SMALL, "head_dim": 16}
MOE = {**WIDE, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {
    **SMALL, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "num_key_value_heads": 4,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "llama": WIDE, "qwen2": SMALL, "qwen3": WIDE, "gemma2": WIDE, "gemma3_text": WIDE, "phi3": {**SMALL, "pad_token_id": 0},
    "gpt2": {"vocab_size": 128, "n_embd": 64, "n_layer": 3, "n_head": 4}, "mixtral": MOE,
    "qwen2_moe": {**MOE, "shared_expert_intermediate_size": 48},
    "qwen3_moe": MOE, "deepseek_v3": MLA, "gpt_oss": MOE,
    "mamba": {"hidden_size": 64, "vocab_size": 128, "num_hidden_layers": 3, "state_size": 8},
    "bert": SMALL, "opt": {**SMALL, "ffn_dim": 96, "word_embed_proj_dim": 64}, "gpt_neox": SMALL,
    "falcon": {**SMALL, "num_kv_heads": 2, "new_decoder_architecture": True},
}  # fmt: skip
BUFFERS = {"deepseek_v3": {"stored buffers": 12}}  # one correction an expert, in three layers


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_every_tensor_of_the_library_has_its_row(kind: str) -> None:
    import torch
    import transformers

    config = transformers.CONFIG_MAPPING[kind](**CASES[kind])
    made = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = made.from_config(config)
    state = model.state_dict(keep_vars=True)
    own = {id(value): name for name, value in reversed(state.items())}  # a tied weight once, under its first name
    tensors = tuple(
        StoredTensor(name=name, dtype="BF16", shape=tuple(state[name].shape), bytes=2 * state[name].numel()) for name in own.values()
    )
    weights = StoredWeights(tensors=tensors, origin=kind)
    spec = read_config({**config.to_dict(), "architectures": [type(model).__name__]}, lenient=True)
    assert {one.kind: one.elements for one in differences(spec, weights)} == BUFFERS.get(kind, {})
    assert stored(spec, weights).named_bytes == weights.bytes
