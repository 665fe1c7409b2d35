"""Families whose class is not in the library but comes with their files (that code is never run), LLaMA-like all."""

from __future__ import annotations

from ...spec import Alibi, Norm
from ..blocks import Heads, Text, biases, even_width, gated, grouped, layer_norm, rms
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, alike, self_attention, sizes, standard, tied


@text_family("baichuan")
def baichuan(cfg: Config) -> Text:
    """Baichuan 1 and 2 (arXiv:2309.10305): no grouping, no bias; the 13B has linear biases in place of rotation."""
    size = sizes(cfg, vocab=125696, d_model=4096, d_ff=11008, depth=32, positions=4096)
    heads = cfg.integer("num_attention_heads", default=32)
    width = even_width(cfg, size.d_model, heads)
    # Files of the 13B give model_max_length only, and no number of positions.
    position = rope(cfg, width) if cfg.has("max_position_embeddings") or not cfg.has("model_max_length") else Alibi()
    return standard(
        size,
        self_attention(Heads(heads=heads, kv_heads=heads, head_dim=width)),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, position),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("internlm")
def internlm(cfg: Config) -> Text:
    """InternLM: no grouping, one flag for the biases of all four projections."""
    size = sizes(cfg, vocab=103168, d_model=4096, d_ff=11008, depth=32)
    heads = cfg.integer("num_attention_heads", default=32)
    shape = Heads(heads=heads, kv_heads=heads, head_dim=even_width(cfg, size.d_model, heads))
    return with_bias(cfg, size, shape)


@text_family("internlm2")
def internlm2(cfg: Config) -> Text:
    """InternLM2 (arXiv:2403.17297): grouped, one flag for the biases of all four projections."""
    size = sizes(cfg, vocab=103168, d_model=4096, d_ff=11008, depth=32)
    return with_bias(cfg, size, grouped(cfg, size.d_model, heads=32))


def with_bias(cfg: Config, size: Sizes, shape: Heads) -> Text:
    """LLaMA whose four projections have a bias unless `bias` is false."""
    bias = cfg.flag("bias", default=True)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias)),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim)),
        norm=rms(cfg),
        tied=tied(cfg, default=False),
    )


@text_family("minicpm")
def minicpm(cfg: Config) -> Text:
    """MiniCPM (arXiv:2404.06395): LLaMA with fixed scales on embedding, depth and logits."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=11008, depth=32)
    cfg.ignore("scale_emb", "scale_depth", "dim_model_base")
    return plain_llama(cfg, size, grouped(cfg, size.d_model, heads=32), norm=rms(cfg), tie=True)


@text_family("orion")
def orion(cfg: Config) -> Text:
    """Orion: LLaMA with layer norms."""
    size = sizes(cfg, vocab=84608, d_model=4096, d_ff=15360, depth=40, positions=4096)
    shape = grouped(cfg, size.d_model, heads=40, kv_heads=40)
    return plain_llama(cfg, size, shape, norm=layer_norm(cfg, "rms_norm_eps"), tie=False)


def plain_llama(cfg: Config, size: Sizes, shape: Heads, *, norm: Norm, tie: bool) -> Text:
    """LLaMA without any bias."""
    return standard(
        size,
        self_attention(shape),
        gated(size.d_ff, activation=size.act),
        alike(size.depth, rope(cfg, shape.head_dim)),
        norm=norm,
        tied=tied(cfg, default=tie),
    )


@text_family("chatglm", base_has_head=True)
def chatglm(cfg: Config) -> Text:
    """ChatGLM 2 and 3, and GLM-4 under that name: half of a head rotated, a flag for the input biases, one for all others."""
    size = Sizes(
        vocab=cfg.integer("padded_vocab_size", "vocab_size", default=65024),
        d_model=cfg.integer("hidden_size", default=4096),
        d_ff=cfg.integer("ffn_hidden_size", default=13696),
        depth=cfg.layers("num_layers", "num_hidden_layers", default=28),
        positions=cfg.optional_integer("seq_length", default=2048),
        act="silu",
    )
    heads = cfg.integer("num_attention_heads", default=32)
    groups = cfg.integer("multi_query_group_num", default=1)
    shape = Heads(
        heads=heads,
        kv_heads=groups if cfg.flag("multi_query_attention", default=False) else heads,
        head_dim=cfg.integer("kv_channels", default=128),
    )
    if heads % shape.kv_heads:
        raise cfg.refuse(f"multi_query_group_num {groups} does not divide num_attention_heads {heads}")
    everywhere = cfg.flag("add_bias_linear", default=False)
    qkv = cfg.flag("add_qkv_bias", default=False) or everywhere
    norm = rms(cfg, key="layernorm_epsilon") if cfg.flag("rmsnorm", default=True) else layer_norm(cfg, "layernorm_epsilon")
    cfg.ignore("original_rope", "rope_ratio", "apply_query_key_layer_scaling", "bias_dropout_fusion", "prefix_projection")
    text = standard(
        size,
        self_attention(shape, bias=biases(qkv=qkv, out=everywhere)),
        gated(size.d_ff, bias=everywhere),
        alike(size.depth, rope(cfg, shape.head_dim, partial=0.5, interleaved=True)),
        norm=norm,
        tied=tied(cfg, default=False),
    )
    return text if cfg.flag("post_layer_norm", default=True) else text.restack(final=())


@text_family("qwen")
def qwen(cfg: Config) -> Text:
    """Qwen 1 (arXiv:2309.16609): biases on queries, keys and values; each half of the feed-forward is intermediate_size / 2."""
    size = sizes(cfg, vocab=151936, d_model=4096, d_ff=22016, depth=32, positions=8192)
    heads = cfg.integer("num_attention_heads", default=32)
    if size.d_ff % 2:
        raise cfg.refuse(f"intermediate_size {size.d_ff} must be even: it is the width of both halves")
    shape = Heads(heads=heads, kv_heads=heads, head_dim=cfg.optional_integer("kv_channels") or even_width(cfg, size.d_model, heads))
    bias = not cfg.flag("no_bias", default=True)
    cfg.ignore("seq_length", "onnx_safe", "softmax_in_fp32", "use_cache_quantization", "use_cache_kernel")
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=True, out=bias)),
        gated(size.d_ff // 2, bias=bias),
        alike(size.depth, rope(cfg, shape.head_dim)),
        norm=rms(cfg, key="layer_norm_epsilon"),
        tied=tied(cfg, default=False),
    )
