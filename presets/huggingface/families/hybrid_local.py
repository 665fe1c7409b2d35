"""Attention in a few layers, a gated recurrence or a short convolution in the others: RecurrentGemma and LFM2."""

from __future__ import annotations

from math import sqrt

import msgspec

from ...spec import HeadNorm, Norm, RgLru, ShortConv
from ..blocks import Heads, Text, activation, biases, decoder, even_width, gated, grouped, layer_types, window_mask
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import self_attention, tied
from .moe_blocks import Branch, two_branches


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
    d_model, vocab = cfg.integer("hidden_size", default=2560), cfg.integer("vocab_size", default=65536)
    depth = cfg.layers("num_hidden_layers", default=32)
    norm = Norm(type="rms", eps=cfg.number("norm_eps", default=1e-5))
    shape = grouped(cfg, d_model, heads=32, kv_heads=8)
    attention = self_attention(shape, head_norm=HeadNorm(eps=norm.eps), position=rope(cfg, shape.head_dim, theta=1e6))
    bias = cfg.flag("conv_bias", default=False)
    conv = ShortConv(width=d_model, conv=cfg.integer("conv_L_cache", default=3), bias=bias)
    kinds = {"full_attention": Branch("attention", attention), "conv": Branch("conv", conv, "conv")}
    listed, named = layer_types(cfg, depth, tuple(kinds)), cfg.integers("full_attn_idxs")
    if listed is None:
        listed = tuple("full_attention" if named is None or index in named else "conv" for index in range(depth))
    cfg.ignore(*LFM2_UNREAD)
    feed = Branch("dense", gated(lfm2_width(cfg)))
    layers = two_branches(norm, [kinds[kind] for kind in listed], [feed] * depth)
    stack = decoder(d_model, vocab, layers, final=norm, max_positions=cfg.optional_integer("max_position_embeddings", default=128000))
    return Text(stack=stack, vocab=vocab, tied=cfg.flag("tie_embedding", "tie_word_embeddings", default=True))


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
