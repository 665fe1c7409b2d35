"""Sparse decoders with plain routed experts in every layer: Mixtral, OLMoE, Granite MoE, Phi-3.5-MoE, DBRX."""

from __future__ import annotations

from ...spec import HeadNorm, MoE, Norm
from ..blocks import Heads, Text, activation, biases, even_width, gated, grouped, rms
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, alike, self_attention, sizes, tied, with_multipliers
from .moe_blocks import Branch, attention_branches, routing, two_branch_text, unread


@text_family("mixtral")
def mixtral(cfg: Config) -> Text:
    """Mixtral (Jiang et al. 2024, arXiv:2401.04088): Mistral with experts in place of the feed-forward."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=14336, depth=32, positions=131072)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    sights = alike(size.depth, rope(cfg, shape.head_dim, theta=1e6), window=cfg.optional_integer("sliding_window"))
    moe = MoE(
        experts=cfg.integer("num_local_experts", "num_experts", default=8),
        top_k=cfg.integer("num_experts_per_tok", default=2),
        expert=gated(size.d_ff, activation=size.act),
        **routing(cfg, scoring="softmax", normalize=True),
    )
    mixers = attention_branches(self_attention(shape), sights)
    return two_branch_text(cfg, size, rms(cfg, default=1e-5), mixers, [Branch("moe", moe)] * size.depth)


@text_family("olmoe")
def olmoe(cfg: Config) -> Text:
    """OLMoE (Muennighoff et al. 2024, arXiv:2409.02060): one norm over all queries and one over all keys."""
    size = sizes(cfg, vocab=50304, d_model=2048, d_ff=2048, depth=16, positions=4096)
    shape = grouped(cfg, size.d_model, heads=16)
    if shape.heads * shape.head_dim != size.d_model:
        raise cfg.refuse(f"head_dim {shape.head_dim} x {shape.heads} heads is not hidden_size {size.d_model}, as the norm on queries needs")
    bias = cfg.flag("attention_bias", default=False)
    cfg.ignore("clip_qkv")
    norm = rms(cfg, default=1e-5)
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias), head_norm=HeadNorm(over="all", eps=norm.eps))
    moe = MoE(
        experts=cfg.integer("num_experts", "num_local_experts", default=64),
        top_k=cfg.integer("num_experts_per_tok", default=8),
        expert=gated(size.d_ff, activation=size.act),
        **routing(cfg, scoring="softmax", normalize=False),
    )
    mixers = attention_branches(attention, alike(size.depth, rope(cfg, shape.head_dim)))
    return two_branch_text(cfg, size, norm, mixers, [Branch("moe", moe)] * size.depth)


@text_family("granitemoe", "granitemoeshared")
def granitemoe(cfg: Config) -> Text:
    """Granite MoE: `num_local_experts` everywhere; the shared variant has one expert more that always runs."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=11008, depth=32)
    shape = grouped(cfg, size.d_model, heads=32)
    bias = cfg.flag("attention_bias", default=False)
    mixers = attention_branches(self_attention(shape, bias=biases(qkv=bias, out=bias)), alike(size.depth, rope(cfg, shape.head_dim)))
    shared = cfg.integer("shared_intermediate_size", default=0, least=0) if cfg.raw("model_type") == "granitemoeshared" else 0
    moe = MoE(
        experts=cfg.integer("num_local_experts", default=8),
        top_k=cfg.integer("num_experts_per_tok", default=2),
        expert=gated(size.d_ff, activation=size.act),
        shared=gated(shared, activation=size.act) if shared else None,
        **routing(cfg, scoring="softmax_topk", normalize=False),
    )
    return with_multipliers(cfg, two_branch_text(cfg, size, rms(cfg), mixers, [Branch("moe", moe)] * size.depth))


@text_family("phimoe")
def phimoe(cfg: Config) -> Text:
    """Phi-3.5-MoE (Abdin et al. 2024, arXiv:2404.14219): layer norms with bias, a head that may have one."""
    size = sizes(cfg, vocab=32064, d_model=4096, d_ff=6400, depth=32, positions=131072)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    bias = cfg.flag("attention_bias", default=False)
    sights = alike(size.depth, rope(cfg, shape.head_dim, theta=1e6), window=cfg.optional_integer("sliding_window"))
    moe = MoE(
        experts=cfg.integer("num_local_experts", default=16),
        top_k=cfg.integer("num_experts_per_tok", default=2),
        expert=gated(size.d_ff, activation=size.act),
        **routing(cfg, scoring="softmax", normalize=False),
    )
    norm = Norm(type="layer", eps=cfg.number("rms_norm_eps", default=1e-5))
    mixers = attention_branches(self_attention(shape, bias=biases(qkv=bias, out=bias)), sights)
    return two_branch_text(cfg, size, norm, mixers, [Branch("moe", moe)] * size.depth, head_bias=cfg.flag("lm_head_bias", default=False))


@text_family("dbrx")
def dbrx(cfg: Config) -> Text:
    """DBRX (Databricks 2024): sizes under names of its own, norms with a weight only, no biases."""
    size = Sizes(
        vocab=cfg.integer("vocab_size", default=32000),
        d_model=cfg.integer("d_model", "hidden_size", default=2048),
        d_ff=1,  # every layer has experts
        depth=cfg.layers("n_layers", "num_hidden_layers", default=24),
        positions=cfg.optional_integer("max_seq_len", "max_position_embeddings", default=2048),
        act="silu",
    )
    heads = cfg.integer("n_heads", "num_attention_heads", default=16)
    attn = cfg.section("attn_config") or cfg.empty_section("attn_config")
    shape = Heads(heads=heads, kv_heads=attn.integer("kv_n_heads", default=1), head_dim=even_width(cfg, size.d_model, heads))
    if tied(cfg, default=False):
        raise cfg.refuse("tie_word_embeddings must be false, as in the library's class of this family")
    attn.ignore("clip_qkv", "attn_pdrop")
    unread(cfg, num_key_value_heads=shape.kv_heads)
    mixers = attention_branches(self_attention(shape), alike(size.depth, rope(attn, shape.head_dim)))
    norm = Norm(type="layer_unbiased", eps=1e-5)
    return two_branch_text(cfg, size, norm, mixers, [Branch("moe", dbrx_experts(cfg))] * size.depth)


def dbrx_experts(cfg: Config) -> MoE:
    """DBRX's experts stand in an object of their own, their activation in one inside it."""
    ffn = cfg.section("ffn_config") or cfg.empty_section("ffn_config")
    ffn.ignore("hidden_size", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment")
    given = ffn.section("ffn_act_fn")
    act = activation(given, "name", default="silu") if given else "silu"
    return MoE(
        experts=ffn.integer("moe_num_experts", default=4),
        top_k=ffn.integer("moe_top_k", default=1),
        expert=gated(ffn.integer("ffn_hidden_size", default=3584), activation=act),
        **routing(cfg, scoring="softmax", normalize=True),
    )
