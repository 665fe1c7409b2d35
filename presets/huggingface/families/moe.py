"""Sparse decoders with plain routed experts in every layer: Mixtral, OLMoE, Granite MoE, Phi-3.5-MoE, DBRX."""

from __future__ import annotations

from ...spec import FeedForward, HeadNorm, MoE, Norm
from ..blocks import Heads, Text, activation, biases, decoder, even_width, gated, grouped, rms
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import alike, self_attention, sizes, tied
from .moe_blocks import Branch, attention_branches, routing, two_branches, unread


def every_layer(d_model: int, vocab: int, norm: Norm, mixers: list[Branch], moe: MoE, *, positions: int | None, head: bool) -> Text:
    """A text model whose layers all have the same experts; `head`: the output head is tied."""
    layers = two_branches(norm, mixers, [Branch("moe", moe)] * len(mixers))
    return Text(stack=decoder(d_model, vocab, layers, final=norm, max_positions=positions), vocab=vocab, tied=head)


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
    return every_layer(size.d_model, size.vocab, rms(cfg, default=1e-5), mixers, moe, positions=size.positions, head=tied(cfg, default=False))


@text_family("olmoe")
def olmoe(cfg: Config) -> Text:
    """OLMoE (Muennighoff et al. 2024, arXiv:2409.02060): one norm over all queries and one over all keys."""
    size = sizes(cfg, vocab=50304, d_model=2048, d_ff=2048, depth=16, positions=4096)
    shape = grouped(cfg, size.d_model, heads=16)
    if shape.heads * shape.head_dim != size.d_model:
        raise cfg.refuse(f"head_dim {shape.head_dim} x {shape.heads} heads is not hidden_size {size.d_model}, which the norm on queries is over")
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
    return every_layer(size.d_model, size.vocab, norm, mixers, moe, positions=size.positions, head=tied(cfg, default=False))


@text_family("granitemoe", "granitemoeshared")
def granitemoe(cfg: Config) -> Text:
    """Granite MoE: `num_local_experts` everywhere; the shared variant has one expert more that always runs."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=11008, depth=32)
    shape = grouped(cfg, size.d_model, heads=32)
    bias = cfg.flag("attention_bias", default=False)
    mixers = attention_branches(self_attention(shape, bias=biases(qkv=bias, out=bias)), alike(size.depth, rope(cfg, shape.head_dim)))
    shared = cfg.integer("shared_intermediate_size", default=0, least=0) if cfg.text("model_type", default="") == "granitemoeshared" else 0
    moe = MoE(
        experts=cfg.integer("num_local_experts", default=8),
        top_k=cfg.integer("num_experts_per_tok", default=2),
        expert=gated(size.d_ff, activation=size.act),
        shared=gated(shared, activation=size.act) if shared else None,
        **routing(cfg, scoring="softmax_topk", normalize=False),
    )
    return every_layer(size.d_model, size.vocab, rms(cfg), mixers, moe, positions=size.positions, head=tied(cfg, default=False))


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
    layers = two_branches(norm, mixers, [Branch("moe", moe)] * size.depth)
    stack = decoder(size.d_model, size.vocab, layers, final=norm, max_positions=size.positions)
    return Text(stack=stack, vocab=size.vocab, tied=tied(cfg, default=False), head_bias=cfg.flag("lm_head_bias", default=False))


@text_family("dbrx")
def dbrx(cfg: Config) -> Text:
    """DBRX (Databricks 2024): sizes under names of its own, norms with a weight only, no biases."""
    d_model, vocab = cfg.integer("d_model", "hidden_size", default=2048), cfg.integer("vocab_size", default=32000)
    heads = cfg.integer("n_heads", "num_attention_heads", default=16)
    depth = cfg.layers("n_layers", "num_hidden_layers", default=24)
    attn, ffn = cfg.section("attn_config") or cfg.empty_section("attn_config"), cfg.section("ffn_config") or cfg.empty_section("ffn_config")
    shape = Heads(heads=heads, kv_heads=attn.integer("kv_n_heads", default=1), head_dim=even_width(cfg, d_model, heads))
    if tied(cfg, default=False):
        raise cfg.refuse("tie_word_embeddings must be false, as in the library's class of this family")
    attn.ignore("clip_qkv", "attn_pdrop", "rope_theta")
    ffn.ignore("hidden_size", "moe_jitter_eps", "moe_loss_weight", "moe_normalize_expert_weights", "uniform_expert_assignment", "ffn_act_fn")
    unread(cfg, num_key_value_heads=shape.kv_heads)
    moe = MoE(
        experts=ffn.integer("moe_num_experts", default=4),
        top_k=ffn.integer("moe_top_k", default=1),
        expert=expert_of(ffn),
        **routing(cfg, scoring="softmax", normalize=True),
    )
    sights = alike(depth, rope(attn, shape.head_dim))
    norm = Norm(type="layer_unbiased", eps=1e-5)
    positions = cfg.optional_integer("max_seq_len", "max_position_embeddings", default=2048)
    return every_layer(d_model, vocab, norm, attention_branches(self_attention(shape), sights), moe, positions=positions, head=False)


def expert_of(ffn: Config) -> FeedForward:
    """DBRX's expert; its activation stands in an object of its own."""
    given = ffn.section("ffn_act_fn")
    act = activation(given, "name", default="silu") if given else "silu"
    return gated(ffn.integer("ffn_hidden_size", default=3584), activation=act)
