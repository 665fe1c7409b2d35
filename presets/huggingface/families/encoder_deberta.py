"""DeBERTa 1 (He et al. 2020, arXiv:2006.03654) and 2 and 3 (arXiv:2111.09543): content compared with relative positions."""

from __future__ import annotations

from typing import Literal

import msgspec

from ...spec import (
    Attention,
    Block,
    Chain,
    Conv,
    Disentangled,
    Full,
    Head,
    Layer,
    Linear,
    ModelSpec,
    Norm,
    Parameter,
    Part,
    Stack,
    Sublayer,
)
from ..blocks import activation, even_width, layer_norm
from ..config import Config
from ..registry import family
from .encoder_bert import ENDINGS
from .encoder_shared import class_ending, classifier, encoder_spec, feed_forward, masked_lm, pooler, post_norm, tables, text_encoder, tied

Term = Literal["c2p", "p2c"]


@family("deberta")
def deberta(cfg: Config) -> ModelSpec:
    """DeBERTa 1: keys without bias, position keys and queries of their own, no more positions than tokens."""
    width = cfg.integer("hidden_size", default=768)
    heads = cfg.integer("num_attention_heads", default=12)
    if cfg.flag("talking_head", default=False):
        raise cfg.refuse("talking_head (heads that are mixed) is not understood; remove it")
    span = reach(cfg) if cfg.flag("relative_attention", default=False) else None
    position = span and Disentangled(span=span, terms=terms(cfg), own_projections=True, capped=True)
    dim = even_width(cfg, width, heads)
    attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, mask=Full(), bias=("q", "v", "o"), position=position or None)
    cfg.ignore("max_relative_positions", "pos_att_type")
    cfg.ignore("position_buckets", "share_att_key", "attention_head_size")  # DeBERTa 2's; this class does not read them
    return assembled(cfg, width, attention, span, vocab=50265, depth=12, d_ff=3072)


@family("deberta-v2")
def deberta_v2(cfg: Config) -> ModelSpec:
    """DeBERTa 2 and 3: positions in buckets, their keys and queries perhaps made by the content's matrices; a convolution."""
    width = cfg.integer("hidden_size", default=1536)
    heads = cfg.integer("num_attention_heads", default=24)
    dim = even_width(cfg, width, heads)
    if cfg.integer("attention_head_size", default=dim) != dim:
        raise cfg.refuse(f"attention_head_size must be hidden_size / num_attention_heads = {dim} in this family")
    span = None
    if cfg.flag("relative_attention", default=False):
        buckets = cfg.integer("position_buckets", default=-1, least=-1)
        span = buckets if buckets > 0 else reach(cfg)
    own = not cfg.flag("share_att_key", default=False)
    position = span and Disentangled(span=span, terms=terms(cfg), own_projections=own, key_bias=True)
    attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, mask=Full(), bias=("q", "k", "v", "o"), position=position or None)
    cfg.ignore("position_buckets", "max_relative_positions", "pos_att_type")
    return assembled(cfg, width, attention, span, vocab=128100, depth=24, d_ff=6144, convolution=convolution(cfg, width))


def reach(cfg: Config) -> int:
    """Positions to either side: `max_relative_positions`, else as many as there are absolute ones."""
    given = cfg.integer("max_relative_positions", default=-1, least=-1)
    return given if given > 0 else cfg.integer("max_position_embeddings", default=512)


def terms(cfg: Config) -> tuple[Term, ...]:
    """Which comparisons `pos_att_type` names, a list or `c2p|p2c`."""
    given = cfg.raw("pos_att_type")
    named = [word.strip() for word in given.lower().split("|")] if isinstance(given, str) else given or []
    if not isinstance(named, list):
        raise cfg.refuse("pos_att_type must be a text or a list of texts")
    known: tuple[Term, ...] = ("c2p", "p2c")
    return tuple(term for term in known if term in named)


def convolution(cfg: Config, width: int) -> Sublayer | None:
    """A convolution over the embeddings, added behind the first layer (DeBERTa 2 XXL)."""
    kernel, groups = cfg.integer("conv_kernel_size", default=0, least=0), cfg.integer("conv_groups", default=1)
    if not kernel:
        return None
    if width % groups or kernel % 2 == 0:
        raise cfg.refuse(f"conv_kernel_size {kernel} must be odd, and conv_groups {groups} must divide hidden_size {width}")
    act = activation(cfg, "conv_act", default="tanh")
    part = Conv(name="conv", d_in=width, d_out=width, kernel=(kernel,), groups=groups, bias=True)
    return Sublayer(name="conv", mixer=Chain(parts=(part,), activation=act), residual_norm=layer_norm(cfg, default=1e-7))


def assembled(
    cfg: Config,
    width: int,
    attention: Attention,
    span: int | None,
    *,
    vocab: int,
    depth: int,
    d_ff: int,
    convolution: Sublayer | None = None,
) -> ModelSpec:
    """Tables, layers and heads; the norm of the relative table is DeBERTa 2's."""
    norm = layer_norm(cfg, default=1e-7)
    layer = post_norm(norm, attention, feed_forward(cfg, d_ff=d_ff))
    count = cfg.layers("num_hidden_layers", default=depth)
    blocks: tuple[Block, ...] = (Block(pattern=(layer,), repeat=count),)
    if convolution:
        first = Layer(name="first", sublayers=(*layer.sublayers, convolution))
        rest = (Block(pattern=(msgspec.structs.replace(layer, name="other"),), repeat=count - 1),) if count > 1 else ()
        blocks = (Block(pattern=(first,)), *rest)
    stack = text_encoder(cfg, width, blocks, embedded(cfg, width, norm, span, vocab=vocab))
    return encoder_spec(cfg, stack, *heads(cfg, stack, norm))


def embedded(cfg: Config, width: int, norm: Norm, span: int | None, *, vocab: int) -> tuple[Part, ...]:
    """Tables (of positions only where the input is biased with them), a projection where they are narrow, the relative table."""
    table = cfg.integer("embedding_size", default=width)
    biased = cfg.flag("position_biased_input", default=True)
    made = tables(cfg, vocab=vocab, types=0, width=None if table == width else table)
    parts: tuple[Part, ...] = tuple(leaf for leaf in made if biased or leaf.role != "position")
    if table != width:
        parts += (Linear(name="projection", d_in=table, d_out=width),)
    parts += (norm,)
    named = cfg.text("norm_rel_ebd", default="none").lower().split("|")
    if span:
        parts += (Parameter(name="relative_positions", shape=(2 * span, width)),)
    if "layer_norm" in (word.strip() for word in named) and cfg.raw("model_type") == "deberta-v2":
        parts += (Norm(type="layer", name="relative_norm", eps=norm.eps),)
    return parts


def heads(cfg: Config, stack: Stack, norm: Norm) -> tuple[Head, ...]:
    """By class; the newer masked-language head multiplies with the table itself."""
    kind = class_ending(cfg, ENDINGS, usual="ForMaskedLM")
    legacy = cfg.flag("legacy", default=True)
    table = cfg.integer("embedding_size", default=stack.d_model)
    pooled = cfg.integer("pooler_hidden_size", default=stack.d_model)
    match kind:
        case "ForMaskedLM" if legacy:
            return (masked_lm(stack, norm, tied=tied(cfg), width=table, second_bias=True),)
        case "ForMaskedLM":
            return (masked_lm(stack, norm, tied=True),)
        case "ForSequenceClassification" | "ForMultipleChoice":
            if pooled != stack.d_model:
                raise cfg.refuse(f"pooler_hidden_size must be hidden_size {stack.d_model}: the pooler reads the last layer")
            outputs = 1 if kind == "ForMultipleChoice" else None
            return (pooler(stack, activation="gelu"), classifier(cfg, stack, once=True, outputs=outputs))
        case "ForTokenClassification" | "ForQuestionAnswering":
            return (classifier(cfg, stack, once=False),)
        case _:
            return ()
