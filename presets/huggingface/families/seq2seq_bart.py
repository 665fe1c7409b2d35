"""BART and the translation models of its shape: they differ in positions, in where the norms stand, and in what is shared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ...spec import (
    Attention,
    Block,
    Causal,
    Embedding,
    Full,
    Head,
    Layer,
    Linear,
    Mixer,
    ModelSpec,
    Norm,
    Part,
    Sinusoidal,
    Stack,
    Sublayer,
)
from ..blocks import activation, even_width, plain
from ..config import Config
from ..registry import family
from .encoder_shared import class_ending, classifier, dense

ENDINGS = ("ForConditionalGeneration", "MTModel", "Model", "ForSequenceClassification", "ForQuestionAnswering", "ForCausalLM")
UNREAD = (
    "normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits", "static_position_embeddings",
    "extra_pos_embeddings", "extra_layer_norm", "do_blenderbot_90_layernorm", "layernorm_variant", "encoder_layerdrop", "decoder_layerdrop",
    "force_bos_token_to_be_generated", "save_step", "unk_token_id", "is_encoder_decoder", "init_std", "extra_vocab",
)  # fmt: skip
ENCODER_KEYS = (
    "encoder_layers",
    "encoder_ffn_dim",
    "encoder_attention_heads",
    "num_hidden_layers",
    "num_attention_heads",
    "scale_embedding",
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a family differs from the others.

    Attributes:
        vocab, d_model, depth, d_ff, heads, positions: defaults.
        table: positions are learned or fixed in a table (counted either way), or computed (None).
        offset: rows of the table before position 0.
        pre: norms before each sublayer, not after the sum. final: a norm behind the last layer. first: one on the embeddings.
        labels: classes of a classifier where the file does not say.
    """

    vocab: int
    table: Literal["learned", "fixed"] | None
    pre: bool
    final: bool
    first: bool
    offset: int = 0
    d_model: int = 1024
    depth: int = 12
    decoder_depth: int = 12
    d_ff: int = 4096
    heads: int = 16
    positions: int = 1024
    labels: int = 2
    act: str = "gelu"
    scaled: bool = False


NORM = Norm(type="layer", eps=1e-5)


def read_stack(cfg: Config, recipe: Recipe, name: Literal["encoder", "decoder"], token: Embedding) -> Stack:
    """The encoder or the decoder."""
    width = cfg.integer("d_model", "hidden_size", default=recipe.d_model)
    decodes = name == "decoder"
    keys = ("encoder_layers", "num_hidden_layers") if not decodes else ("decoder_layers",)
    depth = cfg.layers(*keys, default=recipe.decoder_depth if decodes else recipe.depth)
    embeddings: tuple[Part, ...] = (token, positions(cfg, recipe), *((NORM,) if recipe.first else ()))
    return Stack(
        name=name,
        d_model=width,
        role=name,
        tokens="context" if decodes else "source",
        blocks=(Block(pattern=(layer(cfg, recipe, width, name),), repeat=depth),),
        embeddings=embeddings,
        final=(NORM,) if recipe.final else (),
        max_positions=cfg.integer("max_position_embeddings", default=recipe.positions),
    )


def positions(cfg: Config, recipe: Recipe) -> Part:
    """The position table, or computed positions."""
    if recipe.table is None:
        return Sinusoidal()
    rows = cfg.integer("max_position_embeddings", default=recipe.positions) + recipe.offset
    return Embedding(name="position", rows=rows, role="position", offset=recipe.offset)


def layer(cfg: Config, recipe: Recipe, width: int, name: str) -> Layer:
    """Attention, in the decoder attention to the encoder, and a feed-forward."""
    keys = (f"{name}_attention_heads", "num_attention_heads") if name == "encoder" else (f"{name}_attention_heads",)
    heads = cfg.integer(*keys, default=recipe.heads)
    dim = even_width(cfg, width, heads)

    def branch(label: str, mixer: Mixer) -> Sublayer:
        before, after = (NORM, None) if recipe.pre else (None, NORM)
        return Sublayer(name=label, mixer=mixer, pre_norm=before, residual_norm=after)

    def attention(source: str | None) -> Attention:
        mask = Causal() if name == "decoder" and source is None else Full()
        return Attention(heads=heads, kv_heads=heads, head_dim=dim, mask=mask, bias=("q", "k", "v", "o"), source=source)

    act = activation(cfg, "activation_function", default=recipe.act)
    mlp = plain(cfg.integer(f"{name}_ffn_dim", default=recipe.d_ff), activation=act)
    cross = (branch("cross_attention", attention("encoder")),) if name == "decoder" else ()
    return Layer(sublayers=(branch("attention", attention(None)), *cross, branch("feed_forward", mlp)))


def spec(cfg: Config, recipe: Recipe, *, separate: bool = False, decoder_vocab: int | None = None) -> ModelSpec:
    """Encoder, decoder and the head of the class; `separate`: the stacks have tables of their own.

    Where `tie_word_embeddings` is false the library ties nothing: a table that is not used, one a stack, an output matrix.
    """
    kind = class_ending(cfg, ENDINGS, usual="ForConditionalGeneration")
    if kind == "ForCausalLM":
        return decoder_alone(cfg, recipe, decoder_vocab)
    vocab = cfg.integer("vocab_size", default=recipe.vocab)
    width = cfg.integer("d_model", "hidden_size", default=recipe.d_model)
    tied = cfg.flag("tie_word_embeddings", default=True)
    scale = width**0.5 if cfg.flag("scale_embedding", default=recipe.scaled) else None
    one_table = tied and not separate
    rows = vocab if one_table else decoder_vocab or vocab
    encoder = read_stack(cfg, recipe, "encoder", Embedding(name="token", rows=vocab, scale=scale))
    shares = "encoder/embedding/token" if one_table else None
    decoder = read_stack(cfg, recipe, "decoder", Embedding(name="token", rows=rows, scale=scale, shares=shares))
    cfg.ignore(*UNREAD)
    unused = () if tied or separate else (Embedding(name="shared", rows=vocab, width=width),)
    if unused:
        cfg.assume("tie_word_embeddings is false: the library then keeps a token table a stack and a third that is not used")
    table = shares or "decoder/embedding/token"
    heads = heads_of(cfg, recipe, decoder, kind, rows, table if tied else None)
    return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(encoder, decoder), heads=heads, extra=unused)


def decoder_alone(cfg: Config, recipe: Recipe, vocab: int | None) -> ModelSpec:
    """The decoder as a language model: its attention to the encoder keeps its weights and rests."""
    rows = vocab or cfg.integer("vocab_size", default=recipe.vocab)
    decoder = read_stack(cfg, recipe, "decoder", Embedding(name="token", rows=rows))
    tied = cfg.flag("tie_word_embeddings", default=True)
    cfg.ignore(*UNREAD, *ENCODER_KEYS)
    heads = heads_of(cfg, recipe, decoder, "ForConditionalGeneration", rows, "decoder/embedding/token" if tied else None)
    return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(decoder,), heads=heads, absent=("encoder",))


def heads_of(cfg: Config, recipe: Recipe, decoder: Stack, kind: str, vocab: int, shares: str | None) -> tuple[Head, ...]:
    """The output matrix, or a classifier on the decoder's states."""
    width = decoder.d_model
    match kind:
        case "ForConditionalGeneration" | "MTModel":
            matrix = Linear(name="weight", d_in=width, d_out=vocab, shares=shares)
            return (Head(name="lm_head", stack="decoder", parts=(matrix,)),)
        case "ForSequenceClassification":
            return (classifier(cfg, decoder, once=True, before=(dense(width, width, once=True),), labels=recipe.labels),)
        case "ForQuestionAnswering":
            return (classifier(cfg, decoder, once=False, outputs=2),)
        case _:
            return ()


@family("bart")
def bart(cfg: Config) -> ModelSpec:
    """BART (Lewis et al. 2019, arXiv:1910.13461)."""
    return spec(cfg, Recipe(vocab=50265, table="learned", offset=2, pre=False, final=False, first=True, labels=3))


@family("mbart")
def mbart(cfg: Config) -> ModelSpec:
    """mBART (Liu et al. 2020, arXiv:2001.08210)."""
    return spec(cfg, Recipe(vocab=50265, table="learned", offset=2, pre=True, final=True, first=True))


@family("m2m_100")
def m2m_100(cfg: Config) -> ModelSpec:
    """M2M-100 (Fan et al. 2020, arXiv:2010.11125) and NLLB: positions are computed."""
    return spec(cfg, Recipe(vocab=128112, table=None, pre=True, final=True, first=False, act="relu", scaled=True))


@family("pegasus")
def pegasus(cfg: Config) -> ModelSpec:
    """PEGASUS (Zhang et al. 2019, arXiv:1912.08777): fixed positions in a table."""
    return spec(cfg, Recipe(vocab=50265, table="fixed", pre=True, final=True, first=False))


@family("blenderbot")
def blenderbot(cfg: Config) -> ModelSpec:
    """BlenderBot (Roller et al. 2020, arXiv:2004.13637)."""
    recipe = Recipe(vocab=8008, table="learned", pre=True, final=True, first=False)
    return spec(cfg, replace(recipe, d_model=2560, depth=2, decoder_depth=24, d_ff=10240, heads=32, positions=128))


@family("blenderbot-small")
def blenderbot_small(cfg: Config) -> ModelSpec:
    """BlenderBot 90M: post-norm."""
    recipe = Recipe(vocab=50265, table="learned", pre=False, final=False, first=True)
    return spec(cfg, replace(recipe, d_model=512, depth=8, decoder_depth=8, d_ff=2048, heads=16, positions=512))


@family("marian")
def marian(cfg: Config) -> ModelSpec:
    """Marian (Junczys-Dowmunt et al. 2018, arXiv:1804.00344): fixed positions in a table; perhaps a table a language."""
    separate = not cfg.flag("share_encoder_decoder_embeddings", default=True)
    vocab = cfg.integer("vocab_size", default=58101)
    given = cfg.optional_integer("decoder_vocab_size", least=0) or vocab
    recipe = Recipe(vocab=58101, table="fixed", pre=False, final=False, first=False)
    return spec(cfg, recipe, separate=separate, decoder_vocab=given)
