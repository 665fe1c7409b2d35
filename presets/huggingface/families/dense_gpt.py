"""GPT-2 and its kin: layer norms, a feed-forward that is not gated, learned positions or linear biases."""

from __future__ import annotations

from ...spec import Alibi, Embedding, Layer, Linear, Norm, Part, Stack, Sublayer
from ..blocks import Heads, Text, activation, biases, compress, even_width, grouped, layer_norm, one_window, plain
from ..config import Config
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, alike, by_kind, self_attention, sizes, standard, tied

NEO_KINDS = {"global": "full_attention", "local": "sliding_attention"}
SUMMARY = ("summary_proj_to_labels", "summary_use_proj", "n_special", "predict_special_tokens", "afn", "summary_type")


def with_tables(text: Text, *more: Part) -> Text:
    """The same with further parts after the token table."""
    return text.restack(embeddings=(*text.stack.embeddings, *more))


def gpt_sizes(cfg: Config, *, d_model: int = 768, depth: int = 12) -> Sizes:
    """GPT-2's names; the library's usual names mean the same."""
    width = cfg.integer("n_embd", "hidden_size", default=d_model)
    return Sizes(
        vocab=cfg.integer("vocab_size", default=50257),
        d_model=width,
        d_ff=cfg.optional_integer("n_inner") or 4 * width,
        depth=cfg.layers("n_layer", "num_hidden_layers", default=depth),
        positions=cfg.integer("n_positions", "max_position_embeddings", default=1024),
        act=activation(cfg, "activation_function", default="gelu_new"),
    )


def gpt2_like(cfg: Config, *, kv_heads: int | None = None) -> Text:
    """Biases everywhere, learned positions."""
    size = gpt_sizes(cfg)
    heads = cfg.integer("n_head", "num_attention_heads", default=12)
    shape = Heads(heads=heads, kv_heads=kv_heads or heads, head_dim=even_width(cfg, size.d_model, heads))
    cfg.ignore(*SUMMARY)
    text = standard(
        size,
        self_attention(shape, bias=biases(qkv=True, out=True)),
        plain(size.d_ff, activation=size.act),
        alike(size.depth, None),
        norm=layer_norm(cfg, "layer_norm_epsilon"),
        tied=tied(cfg, default=True),
    )
    return with_tables(text, Embedding(name="position", rows=size.positions or 1, role="position"))


@text_family("gpt2")
def gpt2(cfg: Config) -> Text:
    """GPT-2 (Radford et al. 2019)."""
    return gpt2_like(cfg)


@text_family("gpt_bigcode")
def gpt_bigcode(cfg: Config) -> Text:
    """SantaCoder and StarCoder (arXiv:2305.06161): GPT-2 with one key head."""
    cfg.ignore("attention_softmax_in_fp32", "inference_runner", "pad_key_length", "pre_allocate_kv_cache", "validate_runner_input")
    cfg.ignore("max_batch_size", "max_sequence_length")
    return gpt2_like(cfg, kv_heads=1 if cfg.flag("multi_query", default=True) else None)


@text_family("gpt_neo")
def gpt_neo(cfg: Config) -> Text:
    """GPT-Neo: GPT-2 without biases on queries, keys and values; every other layer sees a window."""
    d_model = cfg.integer("hidden_size", default=2048)
    size = Sizes(
        vocab=cfg.integer("vocab_size", default=50257),
        d_model=d_model,
        d_ff=cfg.optional_integer("intermediate_size") or 4 * d_model,
        depth=cfg.layers("num_layers", "num_hidden_layers", default=24),
        positions=cfg.integer("max_position_embeddings", default=2048),
        act=activation(cfg, "activation_function", default="gelu_new"),
    )
    heads = cfg.integer("num_heads", "num_attention_heads", default=16)
    shape = Heads(heads=heads, kv_heads=heads, head_dim=even_width(cfg, d_model, heads))
    window = cfg.integer("window_size", default=256)
    kinds = neo_kinds(cfg, size.depth)
    cfg.ignore("attention_layers", *SUMMARY)
    text = standard(
        size,
        self_attention(shape, bias=biases(out=True), scale=1.0),
        plain(size.d_ff, activation=size.act),
        by_kind(kinds, window, None),
        norm=layer_norm(cfg, "layer_norm_epsilon"),
        tied=tied(cfg, default=True),
    )
    return with_tables(text, Embedding(name="position", rows=size.positions or 1, role="position"))


def neo_kinds(cfg: Config, depth: int) -> list[str]:
    """`attention_types` written out: each [[kinds], n] repeats its kinds n times."""
    value = cfg.raw("attention_types") or [[["global", "local"], 12]]
    kinds: list[str] = []
    for entry in value if isinstance(value, list) else [value]:
        match entry:
            case [list() as names, int() as times] if 0 <= times <= depth and set(map(str, names)) <= set(NEO_KINDS):
                kinds += [NEO_KINDS[name] for name in names] * times
            case _:
                raise cfg.refuse("attention_types must list [[kinds], times], the kinds global or local")
    if len(kinds) != depth:
        raise cfg.refuse(f"attention_types gives {len(kinds)} layers, but there are {depth}")
    return kinds


@text_family("bloom")
def bloom(cfg: Config) -> Text:
    """BLOOM (arXiv:2211.05100): linear biases, a norm after the embedding."""
    d_model = cfg.optional_integer("n_embed") or cfg.integer("hidden_size", "n_embd", default=64)
    cfg.ignore("hidden_size", "n_embd")
    size = Sizes(
        vocab=cfg.integer("vocab_size", default=250880),
        d_model=d_model,
        d_ff=4 * d_model,
        depth=cfg.layers("n_layer", "num_hidden_layers", default=2),
        positions=cfg.optional_integer("seq_length"),
        act="gelu_tanh",
    )
    heads = cfg.integer("n_head", "num_attention_heads", default=8)
    shape = Heads(heads=heads, kv_heads=heads, head_dim=even_width(cfg, d_model, heads))
    cfg.ignore("masked_softmax_fusion", "bias_dropout_fusion", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv", "unk_token_id")
    cfg.ignore("attention_softmax_in_fp32", "hidden_act")
    norm = layer_norm(cfg, "layer_norm_epsilon")
    text = standard(
        size,
        self_attention(shape, bias=biases(qkv=True, out=True)),
        plain(size.d_ff, activation=size.act),
        alike(size.depth, Alibi()),
        norm=norm,
        tied=tied(cfg, default=True),
    )
    return with_tables(text, Norm(type="layer", name="embedding_norm", eps=norm.eps))


@text_family("mpt")
def mpt(cfg: Config) -> Text:
    """MPT: linear biases, no bias anywhere, four times as wide inside, whatever `expansion_ratio` says in this library."""
    d_model = cfg.integer("d_model", "hidden_size", default=2048)
    size = Sizes(
        vocab=cfg.integer("vocab_size", default=50368),
        d_model=d_model,
        d_ff=4 * d_model,
        depth=cfg.layers("n_layers", "num_hidden_layers", default=24),
        positions=cfg.optional_integer("max_seq_len", default=2048),
        act="gelu",
    )
    heads = cfg.integer("n_heads", "num_attention_heads", default=16)
    if cfg.integer("expansion_ratio", default=4) != 4:
        cfg.assume("expansion_ratio is not used: the library's class is always 4 x d_model wide inside")
    refuse_mpt_options(cfg, heads)
    return standard(
        size,
        self_attention(Heads(heads=heads, kv_heads=heads, head_dim=even_width(cfg, d_model, heads))),
        plain(size.d_ff, activation=size.act, bias=False),
        alike(size.depth, Alibi()),
        norm=Norm(type="layer_unbiased", eps=cfg.number("layer_norm_epsilon", default=1e-5)),
        tied=tied(cfg, default=True),
    )


def refuse_mpt_options(cfg: Config, heads: int) -> None:
    """Options that MPT's own code has and the library's class does not build."""
    cfg.ignore("learned_pos_emb", "no_bias", "init_config", "embedding_fraction")
    section = cfg.section("attn_config")
    if section is None:
        return
    section.ignore("attn_uses_sequence_id", "alibi", "alibi_bias_max", "clip_qkv", "prefix_lm", "softmax_scale", "attn_pdrop", "qk_ln")
    given = section.optional_integer("kv_n_heads")
    if given not in (None, heads):
        raise section.refuse(f"kv_n_heads {given} is not built by the library's class, which has as many as heads ({heads})")


@text_family("starcoder2")
def starcoder2(cfg: Config) -> Text:
    """StarCoder 2 (arXiv:2402.19173): grouped and rotary, layer norms, one flag for all biases, perhaps a window."""
    size = sizes(cfg, vocab=49152, d_model=3072, d_ff=12288, depth=30, positions=4096, act="gelu_pytorch_tanh")
    shape = grouped(cfg, size.d_model, heads=24, kv_heads=2)
    bias = cfg.flag("use_bias", default=True)
    return standard(
        size,
        self_attention(shape, bias=biases(qkv=bias, out=bias)),
        plain(size.d_ff, activation=size.act, bias=bias),
        alike(size.depth, rope(cfg, shape.head_dim), window=one_window(cfg, size.depth)),
        norm=layer_norm(cfg, "norm_epsilon"),
        tied=tied(cfg, default=True),
    )


@text_family("opt")
def opt(cfg: Config) -> Text:
    """OPT (arXiv:2205.01068): learned positions from row 2 on; the 350M norms after the residual and has a narrower table."""
    d_model = cfg.integer("hidden_size", default=768)
    vocab = cfg.integer("vocab_size", default=50272)
    positions = cfg.integer("max_position_embeddings", default=2048)
    width = cfg.optional_integer("word_embed_proj_dim") or d_model
    affine = cfg.flag("layer_norm_elementwise_affine", default=True)
    norm = Norm(type="layer" if affine else "layer_plain")
    before = cfg.flag("do_layer_norm_before", default=True)
    layer = opt_layer(cfg, d_model, norm, before=before)
    tables: tuple[Part, ...] = (
        Embedding(name="token", rows=vocab, width=width),
        *((Linear(name="project_in", d_in=width, d_out=d_model),) if width != d_model else ()),
        Embedding(name="position", rows=positions + 2, role="position", offset=2),
    )
    final: tuple[Part, ...] = (norm,) if before and not cfg.flag("_remove_final_layer_norm", default=False) else ()
    cfg.ignore("_remove_final_layer_norm")
    if width != d_model:
        final = (*final, Linear(name="project_out", d_in=d_model, d_out=width))
    stack = Stack(
        name="decoder",
        d_model=d_model,
        role="decoder",
        blocks=compress([layer] * cfg.layers("num_hidden_layers", default=12)),
        embeddings=tables,
        final=final,
        max_positions=positions,
    )
    return Text(stack=stack, vocab=vocab, tied=tied(cfg, default=True), head_width=width)


def opt_layer(cfg: Config, d_model: int, norm: Norm, *, before: bool) -> Layer:
    """Norm before the sublayer, or after its residual."""
    heads = cfg.integer("num_attention_heads", default=12)
    shape = Heads(heads=heads, kv_heads=heads, head_dim=even_width(cfg, d_model, heads))
    bias = cfg.flag("enable_bias", default=True)
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias))
    act = activation(cfg, "activation_function", default="relu")
    mlp = plain(cfg.integer("ffn_dim", "intermediate_size", default=3072), activation=act, bias=bias)
    first, second = norm if before else None, None if before else norm
    return Layer(
        sublayers=(
            Sublayer(name="attention", mixer=attention, pre_norm=first, residual_norm=second),
            Sublayer(name="feed_forward", mixer=mlp, pre_norm=first, residual_norm=second),
        )
    )
