"""Whose tensor is this: from the names that files use to rows of the ledger, as data.

A name is a place (which stack, which layer), a module, and a leaf (`weight`, `scales` ...). The module decides: whatever
its leaves are, they are the row's bytes.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# Row of the ledger (below its layer): modules that are it. `a + b`: one module holds both. A module may stand in several
# lines: the first row that the layer has is meant. Names of Hugging Face checkpoints, then of GGUF.
LAYER_ROWS = """
attention/q_proj: self_attn.q_proj self_attention.q_proj attn.q_proj attention.q_proj attention.self.query
  attention.attention.query attention.wq attn_q layer.0.SelfAttention.q attention.q_lin attn.attention.q_proj
attention/k_proj: self_attn.k_proj attn.k_proj attention.k_proj attention.self.key attention.attention.key
  attention.wk attn_k layer.0.SelfAttention.k attention.k_lin attn.attention.k_proj
attention/v_proj: self_attn.v_proj attn.v_proj attention.v_proj attention.self.value attention.attention.value
  attention.wv attn_v layer.0.SelfAttention.v attention.v_lin attn.attention.v_proj
attention/q_proj + attention/k_proj + attention/v_proj: self_attn.qkv_proj self_attn.query_key_value
  self_attention.query_key_value attention.query_key_value attn.c_attn self_attn.W_pack attn.Wqkv self_attn.Wqkv
  attn.qkv_proj attn_qkv
attention/o_proj: self_attn.o_proj self_attn.out_proj self_attn.dense self_attention.dense attn.c_proj attn.o_proj
  attn.out_proj attention.dense attention.output.dense attention.wo attention.o_proj attn_output
  layer.0.SelfAttention.o attention.out_lin attn.attention.out_proj
attention/q_norm: self_attn.q_norm self_attn.q_layernorm self_attn.query_layernorm attn_q_norm
attention/k_norm: self_attn.k_norm self_attn.k_layernorm self_attn.key_layernorm attn_k_norm
attention/sinks: self_attn.sinks attn_sinks
attention/q_a_proj: self_attn.q_a_proj attn_q_a
attention/q_a_norm: self_attn.q_a_layernorm attn_q_a_norm
attention/q_b_proj: self_attn.q_b_proj attn_q_b
attention/kv_a_proj: self_attn.kv_a_proj_with_mqa attn_kv_a_mqa
attention/kv_a_norm: self_attn.kv_a_layernorm attn_kv_a_norm
attention/kv_b_proj: self_attn.kv_b_proj attn_kv_b attn_k_b attn_v_b
cross_attention/q_proj: layer.1.EncDecAttention.q encoder_attn.q_proj
cross_attention/k_proj: layer.1.EncDecAttention.k encoder_attn.k_proj
cross_attention/v_proj: layer.1.EncDecAttention.v encoder_attn.v_proj
cross_attention/o_proj: layer.1.EncDecAttention.o encoder_attn.out_proj
cross_attention/norm: layer.1.layer_norm encoder_attn_layer_norm
attention/norm: ln_attn input_layernorm ln_1 attention_norm attn_norm layer.0.layer_norm norm1 self_attn_layer_norm
attention/output_norm: post_attention_layernorm post_self_attn_layernorm post_attention_norm
feed_forward/norm: ln_mlp layer.2.layer_norm post_attention_layernorm pre_feedforward_layernorm ln_2 ffn_norm layer.1.layer_norm norm2
  final_layer_norm post_attention_norm
moe/norm: post_attention_layernorm pre_feedforward_layernorm ffn_norm post_attention_norm norm2
feed_forward/output_norm: post_feedforward_layernorm post_mlp_layernorm post_ffw_norm
moe/output_norm: post_feedforward_layernorm post_ffw_norm
attention/residual_norm: attention.output.LayerNorm attn_output_norm
feed_forward/residual_norm: output.LayerNorm layer_output_norm
feed_forward/gate_proj: mlp.gate_proj feed_forward.w1 mlp.w1 ffn_gate layer.1.DenseReluDense.wi_0 layer.2.DenseReluDense.wi_0
feed_forward/up_proj: mlp.up_proj feed_forward.w3 mlp.w2 mlp.fc1 mlp.c_fc mlp.fc_in mlp.dense_h_to_4h
  intermediate.dense ffn_up fc1 layer.1.DenseReluDense.wi_1 layer.2.DenseReluDense.wi_1 layer.2.DenseReluDense.wi layer.1.DenseReluDense.wi
feed_forward/gate_proj + feed_forward/up_proj: mlp.gate_up_proj ffn_up
feed_forward/down_proj: mlp.down_proj feed_forward.w2 mlp.fc2 mlp.c_proj mlp.fc_out mlp.dense_4h_to_h output.dense
  ffn_down fc2 layer.1.DenseReluDense.wo layer.2.DenseReluDense.wo
moe/router/weight: mlp.gate block_sparse_moe.gate mlp.router mlp.router.layer ffn_gate_inp feed_forward.router
moe/router/correction: mlp.gate.e_score_correction exp_probs_b
moe/experts/gate_proj: mlp.experts.gate_proj block_sparse_moe.experts.w1 ffn_gate_exps ffn_gate.
moe/experts/up_proj: mlp.experts.up_proj block_sparse_moe.experts.w3 ffn_up_exps ffn_up.
moe/experts/gate_proj + moe/experts/up_proj: mlp.experts.gate_up_proj ffn_gate_up_exps
moe/experts/down_proj: mlp.experts.down_proj block_sparse_moe.experts.w2 ffn_down_exps ffn_down.
moe/shared_expert/gate_proj: mlp.shared_expert.gate_proj mlp.shared_experts.gate_proj ffn_gate_shexp
moe/shared_expert/up_proj: mlp.shared_expert.up_proj mlp.shared_experts.up_proj ffn_up_shexp
moe/shared_expert/down_proj: mlp.shared_expert.down_proj mlp.shared_experts.down_proj ffn_down_shexp
moe/shared_expert_gate: mlp.shared_expert_gate ffn_gate_inp_shexp
mamba/norm: norm attn_norm input_layernorm
mamba/in_proj: mixer.in_proj ssm_in mamba.in_proj
mamba/conv: mixer.conv1d ssm_conv1d mamba.conv1d
mamba/x_proj: mixer.x_proj ssm_x mamba.x_proj
mamba/dt_proj: mixer.dt_proj ssm_dt mamba.dt_proj
mamba/A: mixer.A_log ssm_a mamba.A_log
mamba/D: mixer.D ssm_d mamba.D
mamba/dt_bias: mixer.dt ssm_dt
mamba/gated_norm: mixer.norm ssm_norm
mamba/out_proj: mixer.out_proj ssm_out mamba.out_proj
"""
# The same beside the layers, below the stack; a head's rows stand below no stack (`/lm_head/weight`).
MODEL_ROWS = """
embedding/token: embed_tokens wte word_embeddings embeddings.word_embeddings embed_in embeddings embedding shared
  tok_embeddings token_embd
embedding/position: wpe embeddings.position_embeddings embed_positions position_embd
embedding/type: embeddings.token_type_embeddings token_types
embedding/norm: word_embeddings_layernorm embeddings.LayerNorm token_embd_norm embeddings.layer_norm
final/norm: norm final_layernorm final_layer_norm ln_f norm_f output_norm
/lm_head/weight: cls.predictions lm_head output embed_out cls.predictions.decoder
/lm_head/dense: cls.predictions.transform.dense
/lm_head/norm: cls.predictions.transform.LayerNorm
/lm_head/bias: cls.predictions
/pooler/dense: pooler.dense
"""
# Wrappers around the stack that changes nothing; what is left of a prefix must be a stack.
WRAPPERS = frozenset("model transformer language_model gpt_neox backbone bert roberta base_model".split())
LAYERS = re.compile(r"(?P<prefix>(?:[A-Za-z_]\w*\.)*)(?:layers|layer|h|blocks|block|blk)\.(?P<index>\d{1,5})\.(?P<rest>.+)")
# Leaves: what a module is made of. Scales and zero points come with a quantised weight and are no parameters.
SCALES = frozenset(
    """
    scales scale qzeros g_idx weight_scale weight_scale_inv weight_scale_2 input_scale output_scale k_scale v_scale q_scale
    weight_zero_point weight_shape weight_g_idx absmax quant_map nested_absmax nested_quant_map quant_state
    bitsandbytes__nf4 bitsandbytes__fp4 SCB perm input_global_scale
    weight_global_scale zero_point
""".split()
)
LEAVES = frozenset("weight bias qweight weight_packed blocks gamma beta".split())
# Stored, and not parameters.
BUFFERS = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|inv_freq|masked_bias|position_ids|token_type_ids|running_mean|running_var|num_batches_tracked"
    r"|rope_freqs|rope_factors_long|rope_factors_short|relative_position_index|embed_positions\.weights|cos_cached|sin_cached)(\.weight)?$"
    r"|(^|\.)h\.\d+\.attn\.bias$|\.attention\.bias$|attn\.attention\.bias$"
)
PREDICTION = re.compile(r"(^|\.)(mtp|nextn|mtp_layers|model_mtp)(\.|$)")


class Spot(NamedTuple):
    """Where a tensor belongs by its name.

    stack: empty for the main one. layer: None beside the layers. rows: of each entry all together, the first entry whose
    rows are there counts. scale: it comes with a quantised weight and is no parameter.
    """

    stack: str
    layer: int | None
    rows: tuple[tuple[str, ...], ...]
    scale: bool


def table(text: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Module to candidate rows, of the lines above."""
    found: dict[str, tuple[tuple[str, ...], ...]] = {}
    for line in text.strip().replace("\n ", "").splitlines():  # a line that is indented belongs to the one above
        rows, _, modules = line.partition(": ")
        for module in modules.split():
            found[module] = (*found.get(module, ()), tuple(rows.split(" + ")))
    return found


IN_LAYER = table(LAYER_ROWS)
BESIDE = table(MODEL_ROWS)


def module_of(rest: str) -> tuple[str, bool]:
    """(module, whether it is a scale) of a name without its place: the leaf taken off, experts without their number."""
    parts = rest.split(".")
    scale = parts[-1] in SCALES or (len(parts) > 2 and parts[-2] == "weight")
    if len(parts) > 2 and parts[-2] == "weight":  # weight.absmax, weight.quant_state.bitsandbytes__nf4
        parts = parts[:-1]
    while len(parts) > 1 and (parts[-1] in LEAVES or parts[-1] in SCALES):
        parts = parts[:-1]
    last = parts[-1]
    for ending in ("_blocks", "_scales", "_bias", "_scale", "_scale_inv"):
        if last.endswith(ending):
            scale = scale or "scale" in ending
            parts[-1] = last.removesuffix(ending)
            break
    if len(parts) == 2 and parts[1].isdigit():  # ffn_gate.3: one file's experts apart
        return f"{parts[0]}.", scale
    return ".".join(part for part in parts if not part.isdigit() or parts[0] == "layer"), scale


def locate(name: str) -> Spot | None:
    """Where a tensor belongs, None where its name says nothing that is known."""
    found = LAYERS.fullmatch(name)
    prefix, rest = (found["prefix"].rstrip("."), found["rest"]) if found else ("", name)
    module, scale = module_of(rest)
    if found:
        stack = stack_of(prefix)
        rows = IN_LAYER.get(module)
        return None if stack is None or rows is None else Spot(stack, int(found["index"]), rows, scale)
    steps = module.split(".")
    for cut in range(len(steps)):
        rows = BESIDE.get(".".join(steps[cut:]))
        stack = stack_of(".".join(steps[:cut]))
        if rows is not None and stack is not None:
            return Spot(stack, None, rows, scale)
    return None


def stack_of(prefix: str) -> str | None:
    """The stack that a prefix means, empty for the main one, None for one that is not known (a vision tower)."""
    left = [step for step in prefix.split(".") if step and step not in WRAPPERS]
    if not left:
        return ""
    return left[0] if len(left) == 1 and left[0] in ("encoder", "decoder") else None


def kind_of(name: str) -> str | None:
    """What a tensor is that no row owns, by its name: a buffer, a layer for multi-token prediction, or not known."""
    if BUFFERS.search(name):
        return "stored buffers"
    if PREDICTION.search(name):
        return "MTP layers"
    return None
