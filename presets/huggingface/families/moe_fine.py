"""Sparse decoders with fine-grained experts under grouped attention: GLM-4.5, MiniMax-M2 and M3."""

from __future__ import annotations

import msgspec

from ...spec import HeadNorm, Indexer, MoE
from ..blocks import Text, activation, biases, gated, grouped, layer_types, rms, sliding_types
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, alike, by_kind, self_attention, sizes
from .latent import PREDICTION, assemble, shared_and_routed
from .moe_blocks import Branch, attention_branches, feeds_of, routed_layers, routing, two_branch_text, unread


@text_family("glm4_moe")
def glm4_moe(cfg: Config) -> Text:
    """GLM-4.5 (arXiv:2508.06471): DeepSeek-V3's experts under grouped attention."""
    size = sizes(cfg, vocab=151552, d_model=4096, d_ff=10944, depth=46, positions=131072)
    shape = grouped(cfg, size.d_model, heads=96, kv_heads=8)
    normed = cfg.flag("use_qk_norm", default=False)
    attention = self_attention(
        shape,
        bias=biases(qkv=cfg.flag("attention_bias", default=False)),
        head_norm=HeadNorm(eps=rms(cfg, default=1e-5).eps) if normed else None,
    )
    mixers = attention_branches(attention, alike(size.depth, rope(cfg, shape.head_dim, partial=0.5)))
    moe = shared_and_routed(cfg, size, experts=128, top_k=8, d_ff=1408, shared=1, scoring="sigmoid", correction="buffer")
    return assemble(cfg, size, mixers, moe, gated(size.d_ff, activation=size.act), first=1)


@text_family("solar_open")
def solar_open(cfg: Config) -> Text:
    """Solar Open: GLM-4.5 without dense layers, rotating whole heads."""
    size = Sizes(
        vocab=cfg.integer("vocab_size", default=196608),
        d_model=cfg.integer("hidden_size", default=4096),
        d_ff=1,  # every layer has experts
        depth=cfg.layers("num_hidden_layers", default=48),
        positions=cfg.optional_integer("max_position_embeddings", default=131072),
        act=activation(cfg, default="silu"),
    )
    shape = grouped(cfg, size.d_model, heads=64, kv_heads=8, head_dim=128)
    attention = self_attention(shape, bias=biases(qkv=cfg.flag("attention_bias", default=False)))
    moe = shared_and_routed(cfg, size, experts=128, top_k=8, d_ff=1280, shared=1, scoring="sigmoid", correction="buffer")
    unread(cfg, first_k_dense_replace=0, use_qk_norm=False)
    cfg.ignore(*PREDICTION, "intermediate_size", "moe_layer_freq")
    mixers = attention_branches(attention, alike(size.depth, rope(cfg, shape.head_dim, theta=1e6)))
    return two_branch_text(cfg, size, rms(cfg, default=1e-5), mixers, [Branch("moe", moe)] * size.depth)


@text_family("dots1")
def dots1(cfg: Config) -> Text:
    """dots.llm1 (arXiv:2506.05767): Qwen3's attention over DeepSeek-V3's experts; upper layers may slide."""
    size = sizes(cfg, vocab=152064, d_model=4608, d_ff=10944, depth=62)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=32)
    window, start = cfg.optional_integer("sliding_window", default=4096), cfg.integer("max_window_layers", default=62, least=0)
    types = sliding_types(cfg, size.depth, lambda index: window is not None and index >= start)
    bias = cfg.flag("attention_bias", default=False)
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias), head_norm=HeadNorm(eps=rms(cfg).eps))
    moe = shared_and_routed(cfg, size, experts=None, top_k=None, d_ff=1408, shared=0, scoring="sigmoid", correction="buffer")
    mixers = attention_branches(attention, by_kind(types, window, rope(cfg, shape.head_dim)))
    return assemble(cfg, size, mixers, moe, gated(size.d_ff, activation=size.act), first=0)


@text_family("ernie4_5_moe")
def ernie4_5_moe(cfg: Config) -> Text:
    """ERNIE 4.5 with experts: from one layer to another at an interval; the router's correction is a parameter here."""
    size = sizes(cfg, vocab=103424, d_model=2560, d_ff=12288, depth=28, positions=131072)
    shape = grouped(cfg, size.d_model, heads=20, kv_heads=4)
    bias = cfg.flag("use_bias", default=False)
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias))
    width, beside = cfg.integer("moe_intermediate_size", default=1536), cfg.integer("moe_num_shared_experts", default=2, least=0)
    moe = MoE(
        experts=cfg.integer("moe_num_experts", "num_experts", default=64),
        top_k=cfg.integer("moe_k", "num_experts_per_tok", default=6),
        expert=gated(width, activation=size.act),
        shared=gated(width * beside, activation=size.act, bias=bias) if beside else None,
        correction="parameter",
        **routing(cfg, scoring="softmax", normalize=True),
    )
    first, last = cfg.integer("moe_layer_start_index", default=1, least=0), cfg.integer("moe_layer_end_index", default=-1, least=-1)
    step, last = cfg.integer("moe_layer_interval", default=1), size.depth - 1 if last == -1 else last
    cfg.ignore(*ERNIE_UNREAD, *PREDICTION)
    mixers = attention_branches(attention, alike(size.depth, rope(cfg, shape.head_dim, theta=500000.0, interleaved=True)))
    dense = gated(size.d_ff, activation=size.act, bias=bias)
    feeds = feeds_of(size.depth, lambda index: (index + 1) % step == 0 and first <= index <= last, dense, moe)
    text = two_branch_text(cfg, size, rms(cfg, default=1e-5), mixers, feeds, head_bias=bias)
    return text.retied(tied=cfg.flag("tie_word_embeddings", default=True))


ERNIE_UNREAD = ("moe_norm_min", "moe_capacity", "moe_gate", "moe_use_aux_free", "moe_aux_loss_lambda", "compression_ratio")


@text_family("minimax_m2")
def minimax_m2(cfg: Config) -> Text:
    """MiniMax-M2: one norm over all queries and one over all keys, experts in every layer."""
    size = sizes(cfg, vocab=200064, d_model=3072, d_ff=1536, depth=62, positions=196608)
    shape = grouped(cfg, size.d_model, heads=48, kv_heads=8, head_dim=128)
    norm = rms(cfg)
    attention = self_attention(shape, head_norm=HeadNorm(over="all", eps=norm.eps))
    # Keys of the repository's own code.
    unread(cfg, use_qk_norm=True, attn_type_list=[1] * size.depth, shared_intermediate_size=0)
    cfg.ignore("qk_norm_type", "use_mtp", "num_mtp_modules", "mtp_transformer_layers", "rotary_dim")
    moe = MoE(
        experts=cfg.integer("num_local_experts", "num_experts", default=256),
        top_k=cfg.integer("num_experts_per_tok", default=8),
        expert=gated(size.d_ff, activation=size.act),
        correction="buffer",
        **routing(cfg, scoring="sigmoid", normalize=True),
    )
    mixers = attention_branches(attention, alike(size.depth, rope(cfg, shape.head_dim, theta=5e6)))
    return two_branch_text(cfg, size, norm, mixers, [Branch("moe", moe)] * size.depth)


SPARSE = "minimax_m3_sparse"


@text_family("minimax_m3_vl_text")
def minimax_m3(cfg: Config) -> Text:
    """MiniMax-M3's text model: in sparse layers a small attention picks blocks of keys; first layers full and dense."""
    size = Sizes(
        vocab=cfg.integer("vocab_size", default=200064),
        d_model=cfg.integer("hidden_size", default=6144),
        d_ff=cfg.integer("intermediate_size", default=3072),
        depth=cfg.layers("num_hidden_layers", default=60),
        positions=cfg.optional_integer("max_position_embeddings", default=524288),
        act="silu",  # whatever the file calls it
    )
    unread(cfg, attention_output_gate=False, use_qk_norm=True, n_shared_experts=1)
    cfg.ignore("hidden_act", "use_gemma_norm", "qk_norm_type", "num_mtp_modules")
    shape = grouped(cfg, size.d_model, heads=64, kv_heads=4, head_dim=128)
    norm = rms(cfg)
    sparse = cfg.section("sparse_attention_config") or cfg.empty_section("sparse_attention_config")
    attention = self_attention(shape, head_norm=HeadNorm(eps=norm.eps, unit_offset=True), position=rope(cfg, shape.head_dim, theta=5e6))
    kinds = {
        "full_attention": Branch("global", attention),
        SPARSE: Branch("sparse", msgspec.structs.replace(attention, indexer=block_indexer(cfg, sparse, size.d_model))),
    }
    mixers = [kinds[kind] for kind in m3_attention_types(cfg, sparse, size.depth)]
    moe = MoE(
        experts=cfg.integer("num_local_experts", "num_experts", default=128),
        top_k=cfg.integer("num_experts_per_tok", default=4),
        expert=gated(size.d_ff),
        shared=gated(cfg.integer("shared_intermediate_size", default=3072)),
        correction="buffer",
        **routing(cfg, scoring="sigmoid", normalize=True),
    )
    routed = m3_routed_layers(cfg, size.depth)
    feeds = feeds_of(size.depth, lambda index: routed[index], gated(cfg.integer("dense_intermediate_size", default=12288)), moe)
    return two_branch_text(cfg, size, norm, mixers, feeds)


def block_indexer(cfg: Config, sparse: Config, d_model: int) -> Indexer:
    """One key a token, several queries, no weights between them: the best blocks of keys for every key-value head."""
    block = sparse.integer("sparse_block_size", default=cfg.integer("index_block_size", default=128))
    blocks = sparse.integer("sparse_topk_blocks", default=cfg.integer("index_topk_blocks", default=16))
    cfg.ignore("index_local_blocks", "rotary_dim")
    sparse.ignore("sparse_local_block", "sparse_init_block", "sparse_score_type", "sparse_disable_index_value", "use_sparse_attention")
    return Indexer(
        heads=sparse.integer("sparse_num_index_heads", default=cfg.integer("index_n_heads", default=4)),
        head_dim=sparse.integer("sparse_index_dim", default=cfg.integer("index_head_dim", default=128)),
        top_k=block * blocks,
        block=block,
        q_in=d_model,
        key_norm="rms",
        query_norm="rms",
        head_weights=False,
    )


def m3_attention_types(cfg: Config, sparse: Config, depth: int) -> tuple[str, ...]:
    """The kind of every layer: `layer_types`, else `sparse_attention_freq` (1 is sparse), else all full."""
    listed, marks = layer_types(cfg, depth, ("full_attention", SPARSE)), sparse.integers("sparse_attention_freq")
    if listed is not None or marks is None:
        return listed or ("full_attention",) * depth
    if len(marks) != depth:
        raise sparse.refuse(f"sparse_attention_freq has {len(marks)} entries for {depth} layers")
    return tuple(SPARSE if mark else "full_attention" for mark in marks)


def m3_routed_layers(cfg: Config, depth: int) -> tuple[bool, ...]:
    """Which layers have experts: `mlp_layer_types`, else `moe_layer_freq` (1 has), else all."""
    marks = cfg.integers("moe_layer_freq")
    if marks is None or cfg.has("mlp_layer_types"):
        return routed_layers(cfg, depth, dense=0)
    if len(marks) != depth:
        raise cfg.refuse(f"moe_layer_freq has {len(marks)} entries for {depth} layers")
    return tuple(mark != 0 for mark in marks)
