"""Sparse decoders with attention of their own: GLM-4.5, MiniMax-M2 and M3, MiMo-V2, gpt-oss, Llama 4."""

from __future__ import annotations

import msgspec

from ...spec import Attention, Causal, Chunked, HeadNorm, Indexer, MoE
from ..blocks import Heads, Text, biases, decoder, gated, grouped, layer_types, rms, sliding_types, window_mask
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, alike, by_kind, self_attention, sizes, tied
from .latent import assemble, shared_and_routed
from .moe_blocks import Branch, attention_branches, by_list, feeds_of, routing, two_branches, unread


def whole(cfg: Config, size: Sizes, mixers: list[Branch], feeds: list[Branch], *, eps: float = 1e-6) -> Text:
    """Norms before both branches, a final one, an untied head unless said."""
    norm = rms(cfg, default=eps)
    stack = decoder(size.d_model, size.vocab, two_branches(norm, mixers, feeds), final=norm, max_positions=size.positions)
    return Text(stack=stack, vocab=size.vocab, tied=tied(cfg, default=False))


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
    return whole(cfg, size, mixers, [Branch("moe", moe)] * size.depth)


# --- MiniMax-M3 -----------------------------------------------------------------------------------------------------

SPARSE = "minimax_m3_sparse"


@text_family("minimax_m3_vl_text")
def minimax_m3(cfg: Config) -> Text:
    """MiniMax-M3's text model: in sparse layers a small attention picks blocks of keys; first layers full and dense."""
    size = sizes(cfg, vocab=200064, d_model=6144, d_ff=3072, depth=60, positions=524288)
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
    return whole(cfg, size, mixers, feeds)


def block_indexer(cfg: Config, sparse: Config, d_model: int) -> Indexer:
    """One key a token, several queries, no weights between them: the best blocks of keys for every key-value head."""
    block = sparse.integer("sparse_block_size", default=cfg.integer("index_block_size", default=128))
    blocks = sparse.integer("sparse_topk_blocks", default=cfg.integer("index_topk_blocks", default=16))
    cfg.ignore("index_local_blocks", "rotary_dim")
    sparse.ignore("sparse_local_block")
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
    listed, marks = cfg.texts("mlp_layer_types"), cfg.integers("moe_layer_freq")
    if listed is not None:
        return by_list(cfg, "mlp_layer_types", listed, depth, routed="sparse", dense="dense")
    if marks is not None and len(marks) != depth:
        raise cfg.refuse(f"moe_layer_freq has {len(marks)} entries for {depth} layers")
    return tuple(mark != 0 for mark in marks) if marks is not None else (True,) * depth


# --- MiMo-V2 --------------------------------------------------------------------------------------------------------


@text_family("mimo_v2_flash")
def mimo_v2_flash(cfg: Config) -> Text:
    """MiMo-V2-Flash: keys wider than values; sliding layers have twice the key and value heads, and sinks."""
    size = sizes(cfg, vocab=152576, d_model=4096, d_ff=16384, depth=48, positions=131072)
    heads, groups = cfg.integer("num_attention_heads", default=64), cfg.integer("num_key_value_heads", default=4)
    width, value = cfg.integer("head_dim", default=192), cfg.integer("v_head_dim", default=128)
    # Files give the window without the key of the query itself, and the library's own name counts it.
    beyond, window = cfg.optional_integer("sliding_window_size"), cfg.integer("sliding_window", default=129)
    window = window if beyond is None else beyond + 1
    mimo_unread(cfg, groups)
    bias = biases(qkv=cfg.flag("attention_bias", default=False))

    def attention(kind: str, kv_heads: int) -> Attention:
        position = rope(cfg, width, kind=kind, partial=0.334, theta=5e6)
        return self_attention(Heads(heads=heads, kv_heads=kv_heads, head_dim=width), value_dim=value, bias=bias, position=position)

    sliding = msgspec.structs.replace(attention("sliding_attention", 2 * groups), mask=window_mask(window), sinks=True)
    kinds = {
        "sliding_attention": Branch("sliding", sliding),
        "full_attention": Branch("global", attention("full_attention", groups)),
    }
    types = sliding_types(cfg, size.depth, lambda index: index > 0 and (index + 1) % 6 != 0)
    listed = cfg.texts("mlp_layer_types")
    routed = (
        tuple(index > 0 for index in range(size.depth))
        if listed is None
        else by_list(cfg, "mlp_layer_types", listed, size.depth, routed="sparse", dense="dense")
    )
    moe = MoE(
        experts=cfg.integer("n_routed_experts", "num_local_experts", default=256),
        top_k=cfg.integer("num_experts_per_tok", default=8),
        expert=gated(cfg.integer("moe_intermediate_size", default=2048), activation=size.act),
        correction="buffer",
        **routing(cfg, scoring="sigmoid", normalize=True),
    )
    feeds = feeds_of(size.depth, lambda index: routed[index], gated(size.d_ff, activation=size.act), moe)
    return whole(cfg, size, [kinds[kind] for kind in types], feeds, eps=1e-5)


def mimo_unread(cfg: Config, groups: int) -> None:
    """Keys of the repository's own code, which the library's class derives from others."""
    unread(cfg, swa_num_key_value_heads=2 * groups, n_shared_experts=None, add_swa_attention_sink_bias=True)
    unread(cfg, add_full_attention_sink_bias=False)
    cfg.ignore("hybrid_layer_pattern", "moe_layer_freq", "attention_chunk_size", "attention_value_scale", "swa_rope_theta")
    cfg.ignore("swa_num_attention_heads", "swa_head_dim", "swa_v_head_dim", "hybrid_block_size")


# --- gpt-oss --------------------------------------------------------------------------------------------------------


@text_family("gpt_oss")
def gpt_oss(cfg: Config) -> Text:
    """gpt-oss (OpenAI 2025, arXiv:2508.10925): sinks, biases everywhere, experts with biases, every other layer slides."""
    size = sizes(cfg, vocab=201088, d_model=2880, d_ff=2880, depth=36, positions=131072)
    shape = grouped(cfg, size.d_model, heads=64, kv_heads=8, head_dim=64)
    window = cfg.optional_integer("sliding_window", default=128)
    types = sliding_types(cfg, size.depth, lambda index: index % 2 == 0)
    bias = cfg.flag("attention_bias", default=True)
    cfg.ignore("experts_per_token", "initial_context_length")
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias), sinks=True)
    moe = MoE(
        experts=cfg.integer("num_local_experts", "num_experts", default=128),
        top_k=cfg.integer("num_experts_per_tok", default=4),
        expert=gated(size.d_ff, activation=size.act, bias=True),
        router_bias=True,
        **routing(cfg, scoring="softmax_topk", normalize=False),
    )
    mixers = attention_branches(attention, by_kind(types, window, rope(cfg, shape.head_dim, theta=150000.0)))
    return whole(cfg, size, mixers, [Branch("moe", moe)] * size.depth, eps=1e-5)


# --- Llama 4 --------------------------------------------------------------------------------------------------------


@text_family("llama4_text")
def llama4(cfg: Config) -> Text:
    """Llama 4's text model: rotary layers see a chunk, every few layers all and without positions; one expert a token."""
    size = sizes(cfg, vocab=202048, d_model=5120, d_ff=8192, depth=48, positions=131072)
    shape = grouped(cfg, size.d_model, heads=40, kv_heads=8, head_dim=128)
    bias = cfg.flag("attention_bias", default=False)
    cfg.ignore("attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor")
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias))
    mixers = llama4_attention(cfg, attention, size.depth)
    expert = gated(size.d_ff, activation=size.act)
    moe = MoE(
        experts=cfg.integer("num_local_experts", default=16),
        top_k=cfg.integer("num_experts_per_tok", default=1),
        expert=expert,
        shared=expert,
        **routing(cfg, scoring="sigmoid", normalize=False),
    )
    dense = gated(cfg.integer("intermediate_size_mlp", default=16384), activation=size.act)
    step = cfg.integer("interleave_moe_layer_step", default=1)
    listed = cfg.integers("moe_layers")
    routed = frozenset(range(step - 1, size.depth, step) if listed is None else listed)
    return whole(cfg, size, mixers, feeds_of(size.depth, lambda index: index in routed, dense, moe), eps=1e-5)


def llama4_attention(cfg: Config, attention: Attention, depth: int) -> list[Branch]:
    """Rotary layers are normed (without weights) and chunked where a chunk is given; the others see everything."""
    interval = cfg.integer("no_rope_layer_interval", default=4)
    listed = cfg.integers("no_rope_layers") or tuple(int((index + 1) % interval != 0) for index in range(depth))
    if len(listed) != depth:
        raise cfg.refuse(f"no_rope_layers has {len(listed)} entries for {depth} layers")
    chunk, normed = cfg.optional_integer("attention_chunk_size", default=8192), cfg.flag("use_qk_norm", default=True)
    given = layer_types(cfg, depth, ("full_attention", "chunked_attention"))
    types = given or tuple("chunked_attention" if rotary and chunk else "full_attention" for rotary in listed)
    position = rope(cfg, attention.head_dim, theta=500000.0, interleaved=True)
    rotated = msgspec.structs.replace(attention, position=position, head_norm=HeadNorm(type="rms_plain") if normed else None)
    branches = []
    for kind, rotary in zip(types, listed, strict=True):
        mask = Chunked(chunk=chunk) if kind == "chunked_attention" and chunk else Causal()
        mixer = msgspec.structs.replace(rotated if rotary else attention, mask=mask)
        branches.append(Branch("chunked" if isinstance(mask, Chunked) else "global", mixer))
    return branches
