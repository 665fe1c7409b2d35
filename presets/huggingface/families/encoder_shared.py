"""What encoders share: the ending of the class that a configuration names, tables, layers with norms behind, heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ...spec import (
    Attention,
    Block,
    Causal,
    Embedding,
    FeedForward,
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
from ..blocks import activation, even_width, plain
from ..classes import class_name, label_count
from ..config import Config, shown


def class_ending(cfg: Config, known: Sequence[str], *, usual: str) -> str:
    """How the class that `architectures` names ends, the longest of the `known` endings; `usual` where it names none."""
    name = class_name(cfg)
    if name is None:
        return usual
    for ending in sorted(known, key=len, reverse=True):
        if name.endswith(ending):
            return ending
    raise cfg.refuse(f"architectures names {shown(name)}; known here are classes that end in {', '.join(known)}")


# --- embeddings and layers ------------------------------------------------------------------------------------------


def tables(
    cfg: Config, *, vocab: int, positions: int = 512, types: int = 2, width: int | None = None, offset: int = 0
) -> tuple[Embedding, ...]:
    """Tables of tokens, learned positions and token types (none where `type_vocab_size` is 0)."""
    rows = cfg.integer("max_position_embeddings", default=positions)
    kinds = cfg.integer("type_vocab_size", default=types, least=0)
    made = (
        Embedding(name="token", rows=cfg.integer("vocab_size", default=vocab), width=width),
        Embedding(name="position", rows=rows, role="position", width=width, offset=min(offset, rows - 1)),
    )
    return (*made, Embedding(name="type", rows=kinds, role="type", width=width)) if kinds else made


def self_attention(cfg: Config, d_model: int, *, heads: int, key: str = "num_attention_heads") -> Attention:
    """Ungrouped attention to both sides, every projection with a bias; causal where `is_decoder` says so."""
    n = cfg.integer(key, default=heads)
    mask = Causal() if cfg.flag("is_decoder", default=False) else Full()
    return Attention(heads=n, kv_heads=n, head_dim=even_width(cfg, d_model, n), mask=mask, bias=("q", "k", "v", "o"))


def feed_forward(cfg: Config, *, d_ff: int) -> FeedForward:
    """Up and down, both with a bias."""
    return plain(cfg.integer("intermediate_size", default=d_ff), activation=activation(cfg, default="gelu"))


def crosses(cfg: Config) -> bool:
    """Whether a decoder of this kind attends an encoder, which its configuration does not describe."""
    return cfg.flag("is_decoder", default=False) and cfg.flag("add_cross_attention", default=False)


def post_norm(
    norm: Norm, attention: Attention, mlp: FeedForward, *, name: str = "", shared: str | None = None, crosses: bool = False
) -> Layer:
    """The layer of the original Transformer: attention, sum, norm, feed-forward, sum, norm; with `crosses` attention to `source`."""
    first = Sublayer(name="attention", mixer=attention, residual_norm=norm, shared=shared and f"{shared}.attention")
    if crosses:
        other = msgspec.structs.replace(attention, mask=Full(), source="source")
        cross = Sublayer(name="cross_attention", mixer=other, residual_norm=norm)
        return Layer(name=name, sublayers=(first, cross, Sublayer(name="feed_forward", mixer=mlp, residual_norm=norm)))
    second = Sublayer(name="feed_forward", mixer=mlp, residual_norm=norm, shared=shared and f"{shared}.feed_forward")
    return Layer(name=name, sublayers=(first, second))


def text_encoder(cfg: Config, d_model: int, blocks: Sequence[Block], embeddings: Iterable[Part], *, final: tuple[Part, ...] = ()) -> Stack:
    """A stack over text; with `is_decoder` it keeps a cache. Its longest text is what the position table has rows for."""
    decodes = cfg.flag("is_decoder", default=False)
    parts = tuple(embeddings)
    reach = [leaf.rows - leaf.offset for leaf in parts if isinstance(leaf, Embedding) and leaf.role == "position"]
    return Stack(
        name="decoder" if decodes else "encoder",
        d_model=d_model,
        role="decoder" if decodes else "encoder",
        blocks=tuple(blocks),
        embeddings=parts,
        final=final,
        max_positions=reach[0] if reach else None,
    )


# --- heads ----------------------------------------------------------------------------------------------------------


def pooler(stack: Stack, d_out: int | None = None, *, activation: str = "tanh") -> Head:
    """A linear layer on the first position, and its activation."""
    part = Linear(name="dense", d_in=stack.d_model, d_out=d_out or stack.d_model, bias=True, once=True, activation=activation)
    return Head(name="pooler", stack=stack.name, parts=(part,))


def dense(d_in: int, d_out: int, *, once: bool = False, bias: bool = True) -> Linear:
    """The linear layer before the last one of a head."""
    return Linear(name="dense", d_in=d_in, d_out=d_out, bias=bias, once=once)


def classifier(
    cfg: Config,
    stack: Stack,
    *,
    once: bool,
    before: tuple[Part, ...] = (),
    width: int | None = None,
    outputs: int | None = None,
    labels: int = 2,
    bias: bool = True,
) -> Head:
    """Logits of labels: once a sequence, or at every position; `outputs` where the file does not decide how many."""
    count = label_count(cfg, default=labels) if outputs is None else outputs
    if count < 1:
        raise cfg.refuse("a classifier needs at least one label; id2label is empty or num_labels 0")
    last = Linear(name="weight", d_in=width or stack.d_model, d_out=count, bias=bias, once=once)
    return Head(name="classifier", stack=stack.name, parts=(*before, last))


def masked_lm(stack: Stack, norm: Norm, *, tied: bool, width: int | None = None, bias: bool = True, second_bias: bool = False) -> Head:
    """Dense, norm and the output matrix, which is the token table's where tied; `width`: that table's row.

    `second_bias`: the library keeps a further bias of V beside an output matrix that is not tied.
    """
    table = next(leaf for leaf in stack.embeddings if isinstance(leaf, Embedding))
    wide = width or stack.d_model
    shares = f"{stack.name}/embedding/{table.name}" if tied else None
    parts: tuple[Part, ...] = (
        dense(stack.d_model, wide),
        norm if wide == stack.d_model else Norm(type=norm.type, eps=norm.eps, width=wide),
        Linear(name="weight", d_in=wide, d_out=table.rows, bias=bias, shares=shares),
    )
    further = (Parameter(name="bias", shape=(table.rows,)),) if second_bias and not tied else ()
    return Head(name="lm_head", stack=stack.name, parts=(*parts, *further))


def tied(cfg: Config) -> bool:
    """Encoders tie their output matrix unless the file says otherwise."""
    return cfg.flag("tie_word_embeddings", default=True)


def encoder_spec(cfg: Config, stack: Stack, *heads: Head) -> ModelSpec:
    """One stack and its heads; keys that only other classes read change nothing here."""
    cfg.ignore("tie_word_embeddings", "legacy", "pooler_hidden_size")
    absent = ("source",) if crosses(cfg) else ()
    return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(stack,), heads=heads, absent=absent)
