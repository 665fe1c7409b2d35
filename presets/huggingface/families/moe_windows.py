"""Sparse decoders whose layers see differently: MiMo-V2, gpt-oss, Llama 4."""

from __future__ import annotations

import msgspec

from ...spec import Attention, Causal, Chunked, HeadNorm, MoE
from ..blocks import Heads, Text, biases, gated, grouped, layer_types, rms, sliding_types, window_mask
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import by_kind, self_attention, sizes
from .moe_blocks import Branch, attention_branches, feeds_of, routed_layers, routing, two_branch_text, unread


@text_family("mimo_v2_flash")
def mimo_v2_flash(cfg: Config) -> Text:
    """MiMo-V2-Flash: keys wider than values; sliding layers have twice the key and value heads, and sinks."""
    size = sizes(cfg, vocab=152576, d_model=4096, d_ff=16384, depth=48, positions=131072)
    heads, groups = cfg.integer("num_attention_heads", default=64), cfg.integer("num_key_value_heads", default=4)
    width, value = cfg.integer("head_dim", default=192), cfg.integer("v_head_dim", default=128)
    # Files give the window without the key of the query itself, and the library's own name counts it.
    beyond, window = cfg.optional_integer("sliding_window_size"), cfg.integer("sliding_window", default=129)
    window = window if beyond is None else beyond + 1
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
    routed = routed_layers(cfg, size.depth, dense=1)
    mimo_unread(cfg, groups, types, routed)
    moe = MoE(
        experts=cfg.integer("n_routed_experts", "num_local_experts", default=256),
        top_k=cfg.integer("num_experts_per_tok", default=8),
        expert=gated(cfg.integer("moe_intermediate_size", default=2048), activation=size.act),
        correction="buffer",
        **routing(cfg, scoring="sigmoid", normalize=True),
    )
    feeds = feeds_of(size.depth, lambda index: routed[index], gated(size.d_ff, activation=size.act), moe)
    return two_branch_text(cfg, size, rms(cfg, default=1e-5), [kinds[kind] for kind in types], feeds)


def mimo_unread(cfg: Config, groups: int, types: tuple[str, ...], routed: tuple[bool, ...]) -> None:
    """Keys of the repository's own code, which the library's class derives from others."""
    unread(
        cfg,
        swa_num_key_value_heads=2 * groups,
        hybrid_layer_pattern=[int(kind == "sliding_attention") for kind in types],
        moe_layer_freq=[int(has) for has in routed],
        add_swa_attention_sink_bias=True,
        add_full_attention_sink_bias=False,
        n_shared_experts=None,
    )
    cfg.ignore("attention_chunk_size", "attention_value_scale", "swa_rope_theta", "swa_num_attention_heads", "swa_head_dim")
    cfg.ignore("swa_v_head_dim", "hybrid_block_size")


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
    return two_branch_text(cfg, size, rms(cfg, default=1e-5), mixers, [Branch("moe", moe)] * size.depth)


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
    return two_branch_text(cfg, size, rms(cfg, default=1e-5), mixers, feeds_of(size.depth, lambda index: index in routed, dense, moe))


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
