"""Gated DeltaNet in most layers, gated attention in every fourth: Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from ...spec import GatedDelta, HeadNorm, MoE
from ..blocks import Text, biases, gated, grouped, layer_types, rms
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, self_attention, sizes
from .moe_blocks import Branch, routing, two_branch_text, unread
from .moe_qwen import shared_expert, stepped_feeds

KINDS = ("linear_attention", "full_attention")
# What checkpoints hold beside the model, and what says how the class computes anyway.
UNREAD = (
    "mamba_ssm_dtype", "use_sliding_window", "sliding_window", "max_window_layers", "attn_output_gate", "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings", "num_nextn_predict_layers", "mlp_only_layers", "decoder_sparse_step",
)  # fmt: skip


def delta_mixers(cfg: Config, size: Sizes, *, heads: int, kv_heads: int) -> list[Branch]:
    """The mixer of every layer: by `layer_types`, else attention in every `full_attention_interval`-th."""
    shape = grouped(cfg, size.d_model, heads=heads, kv_heads=kv_heads, head_dim=256)
    bias = cfg.flag("attention_bias", default=False)
    head_norm = HeadNorm(eps=rms(cfg).eps, unit_offset=True)
    position = rope(cfg, shape.head_dim, partial=0.25)
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias), head_norm=head_norm, gate="full", position=position)
    delta = GatedDelta(
        key_heads=cfg.integer("linear_num_key_heads", default=16),
        value_heads=cfg.integer("linear_num_value_heads", default=32),
        key_dim=cfg.integer("linear_key_head_dim", default=128),
        value_dim=cfg.integer("linear_value_head_dim", default=128),
        conv=cfg.integer("linear_conv_kernel_dim", default=4),
    )
    if delta.value_heads % delta.key_heads:
        raise cfg.refuse(f"linear_num_key_heads {delta.key_heads} does not divide linear_num_value_heads {delta.value_heads}")
    unread(cfg, attn_output_gate=True)
    cfg.ignore(*UNREAD)
    kinds = {"full_attention": Branch("attention", attention), "linear_attention": Branch("linear", delta, "linear_attention")}
    interval = cfg.integer("full_attention_interval", default=4)
    listed = layer_types(cfg, size.depth, KINDS) or tuple(KINDS[(index + 1) % interval == 0] for index in range(size.depth))
    return [kinds[kind] for kind in listed]


@text_family("qwen3_next")
def qwen3_next(cfg: Config) -> Text:
    """Qwen3-Next (Qwen 2025): many small experts beside a gated shared one."""
    size = sizes(cfg, vocab=151936, d_model=2048, d_ff=5632, depth=48, positions=32768)
    mixers = delta_mixers(cfg, size, heads=16, kv_heads=2)
    return two_branch_text(
        cfg, size, rms(cfg, unit_offset=True), mixers, stepped_feeds(cfg, size, experts=512, top_k=10, d_ff=512, shared=512, normalize=True)
    )


@text_family("qwen3_5_text")
def qwen3_5(cfg: Config) -> Text:
    """The text model of Qwen3.5: Qwen3-Next with dense feed-forwards."""
    size = sizes(cfg, vocab=248320, d_model=4096, d_ff=12288, depth=32, positions=32768)
    mixers = delta_mixers(cfg, size, heads=16, kv_heads=4)
    return two_branch_text(
        cfg, size, rms(cfg, unit_offset=True), mixers, [Branch("dense", gated(size.d_ff, activation=size.act))] * size.depth
    )


@text_family("qwen3_5_moe_text")
def qwen3_5_moe(cfg: Config) -> Text:
    """The text model of Qwen3.5-MoE: experts in every layer."""
    size = sizes(cfg, vocab=248320, d_model=2048, d_ff=5632, depth=40, positions=32768)
    mixers = delta_mixers(cfg, size, heads=16, kv_heads=2)
    moe = MoE(
        experts=cfg.integer("num_experts", "num_local_experts", default=256),
        top_k=cfg.integer("num_experts_per_tok", default=8),
        expert=gated(cfg.integer("moe_intermediate_size", default=512), activation=size.act),
        **shared_expert(cfg, 512, size.act),
        **routing(cfg, scoring="softmax", normalize=True),
    )
    return two_branch_text(cfg, size, rms(cfg, unit_offset=True), mixers, [Branch("moe", moe)] * size.depth)
