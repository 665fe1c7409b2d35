"""Names of tensors and the rows they mean."""

from __future__ import annotations

import pytest

from tfm.presets.weights.names import kind_of, locate


@pytest.mark.parametrize(
    ("name", "layer", "row", "scale"),
    [
        pytest.param("model.layers.12.self_attn.q_proj.weight", 12, "attention/q_proj", False, id="llama"),
        pytest.param("model.layers.2.self_attn.q_proj.bias", 2, "attention/q_proj", False, id="bias"),
        pytest.param("model.layers.2.mlp.down_proj.weight_scale_inv", 2, "feed_forward/down_proj", True, id="fp8 scale"),
        pytest.param("model.layers.2.mlp.down_proj.qzeros", 2, "feed_forward/down_proj", True, id="gptq zeros"),
        pytest.param(
            "model.layers.0.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4", 0, "attention/q_proj", True, id="bitsandbytes"
        ),
        pytest.param("model.layers.3.mlp.experts.17.up_proj.weight", 3, "moe/experts/up_proj", False, id="an expert"),
        pytest.param("model.layers.3.mlp.experts.gate_up_proj_blocks", 3, "moe/experts/gate_proj", False, id="gpt-oss blocks"),
        pytest.param("model.layers.3.mlp.experts.gate_up_proj_scales", 3, "moe/experts/gate_proj", True, id="gpt-oss scales"),
        pytest.param("model.language_model.layers.1.mlp.up_proj.weight", 1, "feed_forward/up_proj", False, id="text of a multimodal model"),
        pytest.param("transformer.h.5.attn.c_attn.weight", 5, "attention/q_proj", False, id="gpt-2"),
        pytest.param("bert.encoder.layer.4.attention.self.query.weight", 4, "attention/q_proj", False, id="bert"),
        pytest.param("blk.7.ffn_down_exps.weight", 7, "moe/experts/down_proj", False, id="gguf experts"),
        pytest.param("blk.7.ffn_up.3.weight", 7, "moe/experts/up_proj", False, id="gguf, experts apart"),
        pytest.param("blk.7.ssm_a", 7, "mamba/A", False, id="gguf without a leaf"),
        pytest.param("backbone.layers.0.mixer.A_log", 0, "mamba/A", False, id="mamba"),
        pytest.param("encoder.block.1.layer.0.SelfAttention.q.weight", 1, "attention/q_proj", False, id="t5"),
        pytest.param("lm_head.weight", None, "/lm_head/weight", False, id="head"),
        pytest.param("token_embd.weight", None, "embedding/token", False, id="gguf table"),
        pytest.param("bert.embeddings.LayerNorm.gamma", None, "embedding/norm", False, id="old leaf"),
    ],
)
def test_where_a_tensor_belongs(name: str, layer: int | None, row: str, scale: bool) -> None:
    spot = locate(name)
    assert spot is not None
    assert (spot.layer, spot.rows[0][0], spot.scale) == (layer, row, scale)


@pytest.mark.parametrize(
    "name",
    [
        "vision_tower.encoder.layers.0.self_attn.q_proj.weight",
        "visual.blocks.0.attn.qkv.weight",
        "",
        ".",
        "....",
        "layers.1.",
        "x" * 5000,
        "1.2.3",
    ],
)
def test_what_belongs_nowhere(name: str) -> None:
    assert locate(name) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "stored buffers"),
        ("h.3.attn.bias", "stored buffers"),
        ("h.3.attn.c_attn.bias", None),
        ("rope_freqs.weight", "stored buffers"),
        ("embeddings.position_ids", "stored buffers"),
        ("mtp.layers.0.mlp.up_proj.weight", "MTP layers"),
        ("model.layers.0.mlp.up_proj.weight", None),
    ],
)
def test_kinds_by_name(name: str, kind: str | None) -> None:
    assert kind_of(name) == kind
