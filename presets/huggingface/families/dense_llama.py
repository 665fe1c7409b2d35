"""Llama and what is built like it: RMS norm before each sublayer, grouped rotary attention, a gated feed-forward."""

from __future__ import annotations

from ...spec import FeedForward, HeadNorm, Norm
from ..blocks import Heads, Text, activation, biases, gated, grouped, layer_norm, one_window, plain, rms, sliding_types
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sight, Sizes, alike, by_kind, self_attention, sizes, standard, tied, with_multipliers


def llama_like(
    cfg: Config,
    size: Sizes,
    shape: Heads,
    *,
    attention_bias: bool = False,
    norm: Norm | None = None,
    feed_forward: FeedForward | None = None,
    head_norm: HeadNorm | None = None,
    partial: float = 1.0,
) -> Text:
    """Biases by `attention_bias` (all four projections) and `mlp_bias`."""
    bias = cfg.flag("attention_bias", default=attention_bias)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias), head_norm=head_norm),
        feed_forward or gated(size.d_ff, activation=size.act, bias=cfg.flag("mlp_bias", default=False)),
        alike(size.depth, rope(cfg, shape.head_dim, partial=partial)),
        norm=norm or rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("llama", "code_llama")
def llama(cfg: Config) -> Text:
    """LLaMA (Touvron et al. 2023, arXiv:2302.13971)."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=11008, depth=32)
    return llama_like(cfg, size, grouped(cfg, size.d_model, heads=32, must_divide=True))


@text_family("granite")
def granite(cfg: Config) -> Text:
    """Granite: LLaMA with fixed multipliers."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=11008, depth=32)
    return with_multipliers(cfg, llama_like(cfg, size, grouped(cfg, size.d_model, heads=32)))


@text_family("exaone")
def exaone(cfg: Config) -> Text:
    """EXAONE 3: LLaMA, some keys under GPT-2's names."""
    size = Sizes(
        vocab=cfg.integer("vocab_size", default=102400),
        d_model=cfg.integer("hidden_size", default=4096),
        d_ff=cfg.integer("intermediate_size", default=14336),
        depth=cfg.layers("num_hidden_layers", "num_layers", default=32),
        positions=cfg.optional_integer("max_position_embeddings", default=4096),
        act=activation(cfg, "hidden_act", "activation_function", default="silu"),
    )
    return llama_like(cfg, size, grouped(cfg, size.d_model, heads=32, kv_heads=8, must_divide=True))


@text_family("arcee")
def arcee(cfg: Config) -> Text:
    """Arcee: LLaMA with a feed-forward that is not gated."""
    size = sizes(cfg, vocab=32000, d_model=2560, d_ff=18432, depth=32, positions=4096, act="relu2")
    mlp = plain(size.d_ff, activation=size.act, bias=cfg.flag("mlp_bias", default=False))
    return llama_like(cfg, size, grouped(cfg, size.d_model, heads=32, must_divide=True), feed_forward=mlp)


@text_family("nemotron")
def nemotron(cfg: Config) -> Text:
    """Nemotron 4 (arXiv:2402.16819): layer norms, squared ReLU, half of a head rotated."""
    size = sizes(cfg, vocab=256000, d_model=6144, d_ff=24576, depth=32, positions=4096, act="relu2")
    mlp = plain(size.d_ff, activation=size.act, bias=cfg.flag("mlp_bias", default=False))
    shape = grouped(cfg, size.d_model, heads=48)
    return llama_like(cfg, size, shape, feed_forward=mlp, norm=layer_norm(cfg, "norm_eps"), partial=0.5)


@text_family("hunyuan_v1_dense")
def hunyuan(cfg: Config) -> Text:
    """Hunyuan dense: LLaMA with normed queries and keys."""
    size = sizes(cfg, vocab=290943, d_model=4096, d_ff=11008, depth=32)
    cfg.ignore("use_qk_norm", "attention_head_dim", "cla_share_factor", "dense_list", "use_rotary_pos_emb", "norm_type")
    return llama_like(
        cfg,
        size,
        grouped(cfg, size.d_model, heads=32),
        feed_forward=gated(size.d_ff, activation=size.act),
        head_norm=HeadNorm(eps=rms(cfg).eps),
    )


@text_family("apertus")
def apertus(cfg: Config) -> Text:
    """Apertus (arXiv:2509.14233): normed queries and keys, xIELU with two learned numbers a layer, not gated."""
    size = sizes(cfg, vocab=131072, d_model=4096, d_ff=14336, depth=32, positions=65536, act="xielu")
    return llama_like(
        cfg,
        size,
        grouped(cfg, size.d_model, heads=32),
        feed_forward=plain(size.d_ff, activation=size.act, bias=False),
        head_norm=HeadNorm(eps=rms(cfg).eps),
    )


@text_family("helium")
def helium(cfg: Config) -> Text:
    """Helium: LLaMA, but its output projection is square and never has a bias."""
    size = sizes(cfg, vocab=48000, d_model=2560, d_ff=7040, depth=24, positions=4096)
    shape = grouped(cfg, size.d_model, heads=20, kv_heads=20, head_dim=128)
    if shape.heads * shape.head_dim != size.d_model:
        raise cfg.refuse(f"head_dim {shape.head_dim} x {shape.heads} heads must be hidden_size {size.d_model} in this family")
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=cfg.flag("attention_bias", default=False))),
        gated(size.d_ff, activation=size.act, bias=cfg.flag("mlp_bias", default=False)),
        alike(size.depth, rope(cfg, shape.head_dim, theta=100000.0)),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("ernie4_5")
def ernie(cfg: Config) -> Text:
    """ERNIE 4.5 dense: one flag for every bias."""
    size = sizes(cfg, vocab=103424, d_model=1024, d_ff=3072, depth=18, positions=131072)
    shape = grouped(cfg, size.d_model, heads=16, kv_heads=2, head_dim=128)
    bias = cfg.flag("use_bias", default=False)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias)),
        gated(size.d_ff, activation=size.act, bias=bias),
        alike(size.depth, rope(cfg, shape.head_dim, theta=500000.0)),
        norm=rms(cfg),
        tied=tied(cfg, default=True),
    )


@text_family("seed_oss")
def seed_oss(cfg: Config) -> Text:
    """Seed-OSS: biases on queries, keys and values, another flag for the output's."""
    size = sizes(cfg, vocab=155136, d_model=4096, d_ff=27648, depth=64, positions=524288)
    shape = grouped(cfg, size.d_model, heads=80, kv_heads=8, head_dim=128)
    qkv, out = cfg.flag("attention_bias", default=True), cfg.flag("attention_out_bias", default=False)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=qkv, out=out)),
        gated(size.d_ff, activation=size.act, bias=cfg.flag("mlp_bias", default=False)),
        alike(size.depth, rope(cfg, shape.head_dim)),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("phi3")
def phi3(cfg: Config) -> Text:
    """Phi-3 (arXiv:2404.14219): LLaMA without biases, fused projections, perhaps a window."""
    size = sizes(cfg, vocab=32064, d_model=3072, d_ff=8192, depth=32, positions=4096)
    shape = grouped(cfg, size.d_model, heads=32)
    cfg.ignore("full_attn_mod", "interpolate_factor")  # published, read by no class
    return standard(
        size,
        self_attention(shape),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim), window=one_window(cfg, size.depth)),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("smollm3")
def smollm3(cfg: Config) -> Text:
    """SmolLM3: every fourth layer has no positions (NoPE), and may slide."""
    size = sizes(cfg, vocab=128256, d_model=2048, d_ff=11008, depth=36, positions=32768)
    shape = grouped(cfg, size.d_model, heads=16, kv_heads=4)
    window = cfg.optional_integer("sliding_window") if cfg.flag("use_sliding_window", default=False) else None
    cfg.ignore("sliding_window")
    rotated = rotated_layers(cfg, size.depth)
    types = sliding_types(cfg, size.depth, lambda index: window is not None and not rotated[index])
    position = rope(cfg, shape.head_dim, theta=2000000.0)
    sights = [
        Sight(
            name=sight.name or ("rope" if turns else "nope") * (len(set(rotated)) > 1),
            mask=sight.mask,
            position=position if turns else None,
        )
        for sight, turns in zip(by_kind(types, window, position), rotated, strict=True)
    ]
    bias = cfg.flag("attention_bias", default=False)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias)),
        gated(size.d_ff, activation=size.act, bias=cfg.flag("mlp_bias", default=False)),
        sights,
        norm=rms(cfg),
        tied=tied(cfg, default=True),
    )


def rotated_layers(cfg: Config, depth: int) -> tuple[bool, ...]:
    """Which layers have rotary positions: a list of 1 and 0, else all but every n-th."""
    interval = cfg.integer("no_rope_layer_interval", default=4)
    listed = cfg.integers("no_rope_layers", most=1)
    if listed and len(listed) != depth:
        raise cfg.refuse(f"no_rope_layers has {len(listed)} entries for {depth} layers")
    return tuple(bool(item) for item in listed) if listed else tuple((index + 1) % interval != 0 for index in range(depth))
