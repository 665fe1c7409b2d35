"""T5 and its relatives: an encoder and a decoder with bucketed relative positions, RMS norms, no bias anywhere."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    RelativeBuckets,
    Stack,
)
from ..blocks import ACT_PARAMS, ACTIVATIONS, rms, sublayer
from ..config import Config, shown
from ..registry import family
from .encoder_shared import class_ending, classifier, dense

ENDINGS = (
    "ForConditionalGeneration",
    "WithLMHeadModel",
    "Model",
    "EncoderModel",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
)


@dataclass(frozen=True, kw_only=True)
class T5:
    """What both stacks have in common; `bias_a_layer`: every layer has a table of its own (UMT5)."""

    vocab: int
    d_model: int
    heads: int
    head_dim: int
    buckets: int
    distance: int
    feed_forward: FeedForward
    norm: Norm
    encoder_layers: int
    decoder_layers: int
    bias_a_layer: bool = False

    def attention(self, *, decodes: bool) -> Attention:
        """Attention of a stack to itself."""
        position = RelativeBuckets(buckets=self.buckets, max_distance=self.distance, bidirectional=not decodes)
        return Attention(
            heads=self.heads,
            kv_heads=self.heads,
            head_dim=self.head_dim,
            mask=Causal() if decodes else Full(),
            position=position,
            scale=1.0,
            extra=(self.table(),) if self.bias_a_layer else (),
        )

    def cross(self) -> Attention:
        """Attention of the decoder to the encoder."""
        return Attention(heads=self.heads, kv_heads=self.heads, head_dim=self.head_dim, mask=Full(), source="encoder", scale=1.0)

    def table(self) -> Parameter:
        """One number a bucket and head."""
        return Parameter(name="relative_bias", shape=(self.buckets, self.heads))

    def stack(self, name: str, *, token: Embedding, alone: bool = False) -> Stack:
        """The encoder or the decoder; an encoder that stands alone reads the context itself."""
        decodes = name == "decoder"
        subs = [sublayer("attention", self.attention(decodes=decodes), self.norm)]
        if decodes:
            subs.append(sublayer("cross_attention", self.cross(), self.norm))
        subs.append(sublayer("feed_forward", self.feed_forward, self.norm))
        return Stack(
            name=name,
            d_model=self.d_model,
            role="decoder" if decodes else "encoder",
            tokens="context" if decodes or alone else "source",
            blocks=(Block(pattern=(Layer(sublayers=tuple(subs)),), repeat=self.decoder_layers if decodes else self.encoder_layers),),
            embeddings=(token,) if self.bias_a_layer else (token, self.table()),
            final=(self.norm,),
        )


def read(cfg: Config, *, vocab: int, d_ff: int, depth: int, heads: int, projection: str) -> T5:
    """The sizes, with a family's defaults."""
    layers = cfg.layers("num_layers", "num_hidden_layers", default=depth)
    decoder_layers = layers if cfg.raw("num_decoder_layers") is None else cfg.layers("num_decoder_layers")
    cfg.ignore(
        "n_positions", "output_past", "dropout_rate", "scale_decoder_outputs", "is_encoder_decoder", "tie_word_embeddings", "max_length"
    )
    return T5(
        vocab=cfg.integer("vocab_size", default=vocab),
        d_model=cfg.integer("d_model", "hidden_size", default=512),
        heads=cfg.integer("num_heads", "num_attention_heads", default=heads),
        head_dim=cfg.integer("d_kv", "head_dim", default=64),
        buckets=cfg.integer("relative_attention_num_buckets", default=32),
        distance=cfg.integer("relative_attention_max_distance", default=128),
        feed_forward=feed_forward(cfg, d_ff=d_ff, projection=projection),
        norm=rms(cfg, key="layer_norm_epsilon"),
        encoder_layers=layers,
        decoder_layers=decoder_layers,
    )


def feed_forward(cfg: Config, *, d_ff: int, projection: str) -> FeedForward:
    """`feed_forward_proj` names the function, with `gated-` before it where there are two input matrices.

    `is_gated_act` and `dense_act_fn`, which files carry beside it, win in the library where they differ.
    """
    named = cfg.text("feed_forward_proj", default=projection)
    gated = cfg.flag("is_gated_act", default=named.startswith("gated-"))
    act = cfg.text("dense_act_fn", default=named.removeprefix("gated-"))
    if act not in ACTIVATIONS:
        raise cfg.refuse(f"feed_forward_proj is {shown(act)}; known are a function or gated- and a function, as relu or gated-gelu")
    return FeedForward(d_ff=cfg.integer("d_ff", default=d_ff), activation=act, gated=gated, act_params=ACT_PARAMS.get(act, 0))


def spec(cfg: Config, model: T5) -> ModelSpec:
    """The class that is named; the one that writes text where none is."""
    kind = class_ending(cfg, ENDINGS, usual="ForConditionalGeneration")
    token = Embedding(name="token", rows=model.vocab)
    alone = kind in ("EncoderModel", "ForTokenClassification")
    encoder = model.stack("encoder", token=token, alone=alone)
    if alone:
        heads = (classifier(cfg, encoder, once=False),) if kind == "ForTokenClassification" else ()
        return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(encoder,), heads=heads)
    decoder = model.stack("decoder", token=msgspec.structs.replace(token, shares="encoder/embedding/token"))
    return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(encoder, decoder), heads=heads_of(cfg, decoder, model, kind))


def heads_of(cfg: Config, decoder: Stack, model: T5, kind: str) -> tuple[Head, ...]:
    """The output matrix (logits scaled where it is the table's), or a classifier."""
    D = model.d_model
    match kind:
        case "ForConditionalGeneration" | "WithLMHeadModel":
            tied = cfg.flag("tie_word_embeddings", default=True)
            shares = "encoder/embedding/token" if tied else None
            matrix = Linear(name="weight", d_in=D, d_out=model.vocab, shares=shares)
            return (Head(name="lm_head", stack="decoder", parts=(matrix,), scale=D**-0.5 if tied else None),)
        case "ForSequenceClassification":
            return (classifier(cfg, decoder, once=True, before=(dense(D, D, once=True),)),)
        case "ForQuestionAnswering":
            return (classifier(cfg, decoder, once=False),)
        case _:
            return ()


@family("t5")
def t5(cfg: Config) -> ModelSpec:
    """T5 and T5 1.1 (Raffel et al. 2019, arXiv:1910.10683), Flan-T5."""
    return spec(cfg, read(cfg, vocab=32128, d_ff=2048, depth=6, heads=8, projection="relu"))


@family("mt5")
def mt5(cfg: Config) -> ModelSpec:
    """mT5 (Xue et al. 2020, arXiv:2010.11934)."""
    return spec(cfg, read(cfg, vocab=250112, d_ff=1024, depth=8, heads=6, projection="gated-gelu"))


@family("umt5")
def umt5(cfg: Config) -> ModelSpec:
    """UMT5 (Chung et al. 2023, arXiv:2304.09151): relative biases of its own in every layer."""
    cfg.ignore("scalable_attention")
    return spec(cfg, replace(read(cfg, vocab=250112, d_ff=1024, depth=8, heads=6, projection="gated-gelu"), bias_a_layer=True))
