"""Sparse decoders with fine-grained experts under grouped attention: GLM-4.5, MiniMax-M2 and M3."""

from __future__ import annotations

import msgspec

from ...spec import HeadNorm, Indexer, MoE
from ..blocks import Text, biases, gated, grouped, layer_types, rms
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, alike, self_attention, sizes
from .latent import assemble, shared_and_routed
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
