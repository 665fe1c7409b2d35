"""Attention in a few layers, a gated recurrence or a short convolution in the others: RecurrentGemma and LFM2."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import msgspec

from ...spec import HeadNorm, MoE, Norm, RgLru, ShortConv
from ..blocks import Heads, Text, activation, biases, decoder, even_width, gated, grouped, layer_types, window_mask
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, self_attention, tied
from .moe_blocks import Branch, feeds_of, routing, two_branch_text, two_branches


@text_family("recurrent_gemma")
def recurrent_gemma(cfg: Config) -> Text:
    """RecurrentGemma (Botev et al. 2024, arXiv:2404.07839): Griffin's recurrence, and attention that slides in every third layer.

    Feed-forwards have biases and are half as wide as `intermediate_size` says.
    """
    d_model, vocab = cfg.integer("hidden_size", default=2560), cfg.integer("vocab_size", default=256000)
    depth, heads = cfg.layers("num_hidden_layers", default=26), cfg.integer("num_attention_heads", default=10)
    width = cfg.optional_integer("lru_width") or d_model
    kv_heads = cfg.optional_integer("num_key_value_heads") or heads
    shape = Heads(heads=heads, kv_heads=kv_heads, head_dim=cfg.optional_integer("head_dim") or even_width(cfg, d_model, heads))
    if width % heads:
        raise cfg.refuse(f"num_attention_heads {heads} does not divide lru_width {width}: its gates have a block a head")
    norm = Norm(type="rms", eps=cfg.number("rms_norm_eps", default=1e-6), unit_offset=True)
    attention = self_attention(
        shape,
        bias=biases(qkv=cfg.flag("attention_bias", default=False), out=True),
        position=rope(cfg, shape.head_dim, partial=0.5),
    )
    window = cfg.integer("attention_window_size", "sliding_window", default=2048)
    recurrent = RgLru(width=width, conv=cfg.integer("conv1d_width", default=4), blocks=heads)
    mixers = {
        True: Branch("recurrent", recurrent, "recurrent"),
        False: Branch("attention", msgspec.structs.replace(attention, mask=window_mask(window))),
    }
    pattern = cfg.texts("block_types", default=("recurrent", "recurrent", "attention")) or ("recurrent",)
    cfg.ignore("w_init_variance_scale", "final_w_init_variance_scale", "_block_types", "layers_block_type", "layer_types")
    act = activation(cfg, "hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    feed = Branch("dense", gated(cfg.integer("intermediate_size", default=7680) // 2, activation=act, bias=True))
    layers = two_branches(norm, [mixers[pattern[index % len(pattern)] == "recurrent"] for index in range(depth)], [feed] * depth)
    stack = decoder(d_model, vocab, layers, final=norm, scale=sqrt(d_model))
    return Text(stack=stack, vocab=vocab, tied=tied(cfg, default=True), softcap=cfg.number("logits_soft_cap", default=30.0))


# Keys of the original repository that files still carry.
LFM2_UNREAD = (
    "block_dim", "block_mlp_init_scale", "block_out_init_scale", "block_use_swiglu", "block_use_xavier_init", "block_norm_eps",
    "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "use_pos_enc", "theta",
)  # fmt: skip


@text_family("lfm2")
def lfm2(cfg: Config) -> Text:
    """LFM2 (Liquid AI 2025): gated short convolutions, attention with normed heads in the layers that are named."""
    size = lfm2_sizes(cfg, d_model=2560, depth=32)
    named = cfg.integers("full_attn_idxs")
    mixers = lfm2_mixers(cfg, size, lambda index: named is None or index in named)
    return lfm2_text(cfg, size, mixers, [Branch("dense", gated(lfm2_width(cfg)))] * size.depth)


@text_family("lfm2_moe")
def lfm2_moe(cfg: Config) -> Text:
    """LFM2 with experts in all but the first layers, corrected by a buffer."""
    size = lfm2_sizes(cfg, d_model=2048, depth=32)
    if not cfg.has("layer_types"):
        raise cfg.refuse("layer_types is missing: which layers attend?")
    mixers = lfm2_mixers(cfg, size, lambda _: True)
    moe = MoE(
        experts=cfg.integer("num_experts", default=32),
        top_k=cfg.integer("num_experts_per_tok", default=4),
        expert=gated(cfg.integer("moe_intermediate_size", default=1792)),
        correction="buffer" if cfg.flag("use_expert_bias", default=True) else "none",
        **routing(cfg, scoring="sigmoid", normalize=True),
    )
    dense, first = gated(cfg.integer("intermediate_size", default=7168)), cfg.integer("num_dense_layers", default=2, least=0)
    return lfm2_text(cfg, size, mixers, feeds_of(size.depth, lambda index: index >= first, dense, moe))


def lfm2_sizes(cfg: Config, *, d_model: int, depth: int) -> Sizes:
    """The sizes both have; the width of the feed-forward is theirs to read."""
    return Sizes(
        vocab=cfg.integer("vocab_size", default=65536),
        d_model=cfg.integer("hidden_size", default=d_model),
        d_ff=1,
        depth=cfg.layers("num_hidden_layers", default=depth),
        positions=cfg.optional_integer("max_position_embeddings", default=128000),
        act="silu",
    )


def lfm2_mixers(cfg: Config, size: Sizes, attends: Callable[[int], bool]) -> list[Branch]:
    """The mixer of every layer: by `layer_types`, else attention where `attends(index)` says so."""
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    eps = cfg.number("norm_eps", default=1e-5)
    attention = self_attention(shape, head_norm=HeadNorm(eps=eps), position=rope(cfg, shape.head_dim, theta=1e6))
    bias = cfg.flag("conv_bias", default=False)
    conv = ShortConv(width=size.d_model, conv=cfg.integer("conv_L_cache", default=3), bias=bias)
    kinds = {"full_attention": Branch("attention", attention), "conv": Branch("conv", conv, "conv")}
    listed = layer_types(cfg, size.depth, tuple(kinds))
    return [kinds[kind] for kind in listed or ("full_attention" if attends(index) else "conv" for index in range(size.depth))]


def lfm2_text(cfg: Config, size: Sizes, mixers: list[Branch], feeds: list[Branch]) -> Text:
    """Two normed branches a layer; the head is tied unless the file says otherwise, under either name."""
    cfg.ignore(*LFM2_UNREAD)
    norm = Norm(type="rms", eps=cfg.number("norm_eps", default=1e-5))
    text = two_branch_text(cfg, size, norm, mixers, feeds)
    return text.retied(tied=cfg.flag("tie_embedding", "tie_word_embeddings", default=True))


def lfm2_width(cfg: Config) -> int:
    """Width of the feed-forward: two thirds of what is given, times a factor, rounded up to a multiple, where it adjusts itself."""
    width = cfg.integer("block_ff_dim", "intermediate_size", default=12288)
    factor = cfg.optional_number("block_ffn_dim_multiplier") if cfg.given("block_ffn_dim_multiplier") else 1.0
    multiple = cfg.integer("block_multiple_of", default=256)
    if not cfg.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(2 * width / 3)
    if factor is None:
        return width
    return multiple * ((int(factor * width) + multiple - 1) // multiple)
