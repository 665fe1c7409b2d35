"""Layers whose attention and feed-forward read the same input: GPT-J, GPT-NeoX, Falcon, Phi, Cohere, StableLM."""

from __future__ import annotations

from dataclasses import replace

from ...spec import Alibi, HeadNorm, Position, Rope
from ..blocks import Heads, Text, activation, biases, even_width, gated, grouped, layer_norm, plain, sliding_types
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Order, Sight, Sizes, alike, by_kind, self_attention, sizes, standard, tied


@text_family("gptj", "codegen")
def gptj(cfg: Config) -> Text:
    """GPT-J: one norm a layer, attention without biases, an output head with one."""
    d_model = cfg.integer("n_embd", "hidden_size", default=4096)
    size = Sizes(
        vocab=cfg.integer("vocab_size", default=50400),
        d_model=d_model,
        d_ff=cfg.optional_integer("n_inner") or 4 * d_model,
        depth=cfg.layers("n_layer", "num_hidden_layers", default=28),
        positions=cfg.integer("n_positions", "max_position_embeddings", default=2048),
        act=activation(cfg, "activation_function", default="gelu_new"),
    )
    heads = cfg.integer("n_head", "num_attention_heads", default=16)
    width = even_width(cfg, d_model, heads)
    dims = cfg.optional_integer("rotary_dim", default=64)
    cfg.ignore("rotary", "summary_proj_to_labels", "summary_use_proj")
    return standard(
        size,
        self_attention(Heads(heads=heads, kv_heads=heads, head_dim=width)),
        plain(size.d_ff, activation=size.act),
        alike(size.depth, Rope(dims=dims if dims and dims < width else None, interleaved=True)),
        norm=layer_norm(cfg, "layer_norm_epsilon"),
        order="parallel",
        tied=tied(cfg, default=False),
        head_bias=True,
    )


@text_family("gpt_neox")
def gpt_neox(cfg: Config) -> Text:
    """GPT-NeoX (arXiv:2204.06745) and Pythia: two norms a layer, whether its sublayers are parallel or not."""
    size = sizes(cfg, vocab=50432, d_model=6144, d_ff=24576, depth=44, act="gelu")
    heads = cfg.integer("num_attention_heads", default=64)
    shape = Heads(heads=heads, kv_heads=heads, head_dim=even_width(cfg, size.d_model, heads))
    bias = cfg.flag("attention_bias", default=True)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias)),
        plain(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim, partial=0.25)),
        norm=layer_norm(cfg),
        order="parallel_two" if cfg.flag("use_parallel_residual", default=True) else "pre",
        tied=tied(cfg, default=False),
    )


@text_family("falcon")
def falcon(cfg: Config) -> Text:
    """Falcon (arXiv:2311.16867): one key head, or groups of them in the newer architecture; one flag for all biases."""
    size = falcon_sizes(cfg)
    heads = cfg.integer("num_attention_heads", "n_head", default=71)
    newer = cfg.flag("new_decoder_architecture", default=False)
    groups = cfg.optional_integer("num_kv_heads") or heads
    single = cfg.flag("multi_query", default=True)
    kv_heads = groups if newer else 1 if single else heads
    if heads % kv_heads:
        raise cfg.refuse(f"num_kv_heads {kv_heads} does not divide num_attention_heads {heads}")
    shape = Heads(heads=heads, kv_heads=kv_heads, head_dim=even_width(cfg, size.d_model, heads))
    bias = cfg.flag("bias", default=False)
    position: Position = Alibi() if cfg.flag("alibi", default=False) else rope(cfg, shape.head_dim)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias)),
        plain(size.d_ff, activation=size.act, bias=bias),
        alike(size.depth, position),
        norm=layer_norm(cfg, "layer_norm_epsilon"),
        order=falcon_order(cfg, newer=newer),
        tied=tied(cfg, default=True),
    )


def falcon_sizes(cfg: Config) -> Sizes:
    """Falcon's keys, older names included."""
    d_model = cfg.optional_integer("n_embed") or cfg.integer("hidden_size", default=4544)
    cfg.ignore("hidden_size")
    return Sizes(
        vocab=cfg.integer("vocab_size", default=65024),
        d_model=d_model,
        d_ff=cfg.optional_integer("ffn_hidden_size") or 4 * d_model,
        depth=cfg.layers("num_hidden_layers", "n_layer", default=32),
        positions=cfg.optional_integer("max_position_embeddings", default=2048),
        act=activation(cfg, "activation", default="gelu"),
    )


def falcon_order(cfg: Config, *, newer: bool) -> Order:
    """Sublayers in turn with a norm each, or in parallel with a norm each (two, the newer default) or one for both."""
    norms = cfg.optional_integer("num_ln_in_parallel_attn", least=0)
    side_by_side = cfg.flag("parallel_attn", default=True)
    if not side_by_side:
        return "pre"
    return "parallel_two" if norms == 2 or (norms is None and newer) else "parallel"


@text_family("phi")
def phi(cfg: Config) -> Text:
    """Phi 1 and 2 (arXiv:2306.11644): one norm a layer, biases everywhere, in the output head too."""
    size = sizes(cfg, vocab=51200, d_model=2048, d_ff=8192, depth=24, act="gelu_new")
    shape = grouped(cfg, size.d_model, heads=32)
    norm = layer_norm(cfg)
    head_norm = HeadNorm(type="layer", eps=norm.eps) if cfg.flag("qk_layernorm", default=False) else None
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=True, out=True), head_norm=head_norm),
        plain(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim, partial=0.5)),
        norm=norm,
        order="parallel",
        tied=tied(cfg, default=False),
        head_bias=True,
    )


@text_family("stablelm")
def stablelm(cfg: Config) -> Text:
    """StableLM 2 (arXiv:2402.17834): layer norms, gated, a quarter of a head rotated; may be parallel with one norm."""
    size = sizes(cfg, vocab=50304, d_model=2560, d_ff=6912, depth=32, positions=4096)
    heads = cfg.integer("num_attention_heads", default=32)
    kv_heads = cfg.optional_integer("num_key_value_heads", default=32) or heads
    if heads % kv_heads:
        raise cfg.refuse(f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    shape = Heads(heads=heads, kv_heads=kv_heads, head_dim=even_width(cfg, size.d_model, heads))
    norm = layer_norm(cfg)
    normed = cfg.flag("qk_layernorm", default=False)
    return standard(
        size,
        self_attention(
            shape,
            bias=biases(qkv=cfg.flag("use_qkv_bias", default=False)),
            head_norm=HeadNorm(type="layer_unbiased", over="heads", eps=norm.eps) if normed else None,
        ),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim, partial=0.25)),
        norm=norm,
        order="parallel" if cfg.flag("use_parallel_residual", default=False) else "pre",
        tied=tied(cfg, default=False),
    )


def cohere_like(cfg: Config, size: Sizes, shape: Heads, sights: list[Sight], *, head_norm: HeadNorm | None) -> Text:
    """One layer norm without bias for both sublayers."""
    bias = cfg.flag("attention_bias", default=False)
    text = standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias), head_norm=head_norm),
        gated(size.d_ff, activation=size.act),
        sights,
        norm=layer_norm(cfg, bias=False),
        order="parallel",
        tied=tied(cfg, default=True),
    )
    return replace(text, scale=cfg.number("logit_scale", default=0.0625))


@text_family("cohere")
def cohere(cfg: Config) -> Text:
    """Command R: perhaps with norms on queries and keys, a weight for every head's every element."""
    size = sizes(cfg, vocab=256000, d_model=8192, d_ff=22528, depth=40, positions=8192)
    shape = grouped(cfg, size.d_model, heads=64)
    normed = cfg.flag("use_qk_norm", default=False)
    head_norm = HeadNorm(type="layer_unbiased", over="heads", eps=layer_norm(cfg).eps) if normed else None
    return cohere_like(cfg, size, shape, alike(size.depth, rope(cfg, shape.head_dim, interleaved=True)), head_norm=head_norm)


@text_family("cohere2")
def cohere2(cfg: Config) -> Text:
    """Command R7B and A: three of four layers slide, the fourth has no positions."""
    size = sizes(cfg, vocab=256000, d_model=8192, d_ff=22528, depth=40, positions=8192)
    shape = grouped(cfg, size.d_model, heads=64)
    cfg.ignore("order_of_interleaved_layers", "use_gated_activation", "layer_switch", "use_embedding_sharing", "use_parallel_block")
    window = cfg.optional_integer("sliding_window", default=4096)
    every = cfg.integer("sliding_window_pattern", "_sliding_window_pattern", default=4)
    types = sliding_types(cfg, size.depth, lambda index: (index + 1) % every != 0)
    sights = by_kind(types, window, rope(cfg, shape.head_dim, interleaved=True), full="none")
    return cohere_like(cfg, size, shape, sights, head_norm=None)


@text_family("persimmon")
def persimmon(cfg: Config) -> Text:
    """Persimmon: biases everywhere but in the head, squared ReLU, norms on queries and keys."""
    size = sizes(cfg, vocab=262144, d_model=4096, d_ff=16384, depth=36, positions=16384, act="relu2")
    heads = cfg.integer("num_attention_heads", default=64)
    shape = Heads(heads=heads, kv_heads=heads, head_dim=even_width(cfg, size.d_model, heads))
    norm = layer_norm(cfg)
    head_norm = HeadNorm(type="layer", eps=norm.eps) if cfg.flag("qk_layernorm", default=True) else None
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=True, out=True), head_norm=head_norm),
        plain(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim, partial=0.5)),
        norm=norm,
        tied=tied(cfg, default=False),
    )
