"""BERT and what is built like it: post-norm layers, learned positions, heads by class."""

from __future__ import annotations

from collections.abc import Callable

from ...spec import Block, Embedding, Head, Linear, ModelSpec, Norm, Part, Stack
from ..blocks import activation, layer_norm, plain
from ..config import Config
from ..registry import family
from .encoder_shared import (
    class_ending,
    classifier,
    crosses,
    dense,
    encoder_spec,
    feed_forward,
    masked_lm,
    pooler,
    post_norm,
    self_attention,
    tables,
    text_encoder,
    tied,
)

ENDINGS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)


POOLER_KEYS = ("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head")  # of the first releases


def body(
    cfg: Config,
    *,
    vocab: int = 30522,
    d_model: int = 768,
    heads: int = 12,
    d_ff: int = 3072,
    offset: int = 0,
    factorised: int | None = None,
) -> tuple[Stack, Norm]:
    """The encoder and its kind of norm; `factorised`: default width of the tables where it is a key of its own."""
    width = cfg.integer("hidden_size", default=d_model)
    norm = layer_norm(cfg, default=1e-12)
    cfg.ignore(*POOLER_KEYS)
    if cfg.text("position_embedding_type", default="absolute").startswith("relative"):
        cfg.assume("positions are taken as absolute: the library no longer builds this family's relative ones")
    layer = post_norm(norm, self_attention(cfg, width, heads=heads), feed_forward(cfg, d_ff=d_ff), crosses=crosses(cfg))
    blocks = (Block(pattern=(layer,), repeat=cfg.layers("num_hidden_layers", default=12)),)
    table = width if factorised is None else cfg.integer("embedding_size", default=factorised)
    made = tables(cfg, vocab=vocab, width=None if table == width else table, offset=offset)
    return text_encoder(cfg, width, blocks, embedded(made, norm, table, width)), norm


def embedded(made: tuple[Embedding, ...], norm: Norm, table: int, width: int) -> tuple[Part, ...]:
    """Tables and a norm; where they are narrower than the stack, a projection to its width."""
    if table == width:
        return (*made, norm)
    project = Linear(name="projection", d_in=table, d_out=width, bias=True)
    return (*made, Norm(type=norm.type, eps=norm.eps, width=table), project)


@family("bert")
def bert(cfg: Config) -> ModelSpec:
    """BERT (Devlin et al. 2018, arXiv:1810.04805); the class with the masked-language head where none is named."""
    stack, norm = body(cfg)
    known = (*ENDINGS, "ForPreTraining", "ForNextSentencePrediction", "LMHeadModel")
    kind = class_ending(cfg, known, usual="ForMaskedLM")
    lm = masked_lm(stack, norm, tied=tied(cfg), second_bias=True)
    match kind:
        case "ForMaskedLM" | "LMHeadModel":
            return encoder_spec(cfg, stack, lm)
        case "ForPreTraining":
            return encoder_spec(cfg, stack, pooler(stack), lm, classifier(cfg, stack, once=True, outputs=2))
        case "ForNextSentencePrediction":
            return encoder_spec(cfg, stack, pooler(stack), classifier(cfg, stack, once=True, outputs=2))
        case "ForSequenceClassification":
            return encoder_spec(cfg, stack, pooler(stack), classifier(cfg, stack, once=True))
        case _:
            return encoder_spec(cfg, stack, *common_heads(cfg, stack, kind, pooled=True))


def common_heads(cfg: Config, stack: Stack, kind: str, *, pooled: bool) -> tuple[Head, ...]:
    """Heads that the families share: none but a pooler, labels at every position, one number a choice."""
    match kind:
        case "ForTokenClassification" | "ForQuestionAnswering":
            return (classifier(cfg, stack, once=False),)
        case "ForMultipleChoice":
            return (pooler(stack), classifier(cfg, stack, once=True, outputs=1))
        case _:
            return (pooler(stack),) if pooled else ()


def sequence_labels(cfg: Config, stack: Stack) -> Head:
    """RoBERTa's classifier: a dense layer and the labels, on the first position."""
    return classifier(cfg, stack, once=True, before=(dense(stack.d_model, stack.d_model, once=True),))


def roberta_like(cfg: Config, *, vocab: int) -> ModelSpec:
    """The heads of RoBERTa on BERT's body; rows of the position table before the padding's next are not used."""
    padding = cfg.raw("pad_token_id", default=1)
    offset = padding + 1 if isinstance(padding, int) and 0 <= padding < 8 else 2
    stack, norm = body(cfg, vocab=vocab, offset=offset)
    kind = class_ending(cfg, (*ENDINGS, "ForCausalLM"), usual="ForMaskedLM")
    match kind:
        case "ForMaskedLM" | "ForCausalLM":
            return encoder_spec(cfg, stack, masked_lm(stack, norm, tied=tied(cfg), second_bias=True))
        case "ForSequenceClassification":
            return encoder_spec(cfg, stack, sequence_labels(cfg, stack))
        case _:
            return encoder_spec(cfg, stack, *common_heads(cfg, stack, kind, pooled=True))


@family("roberta", "camembert", "data2vec-text")
def roberta(cfg: Config) -> ModelSpec:
    """RoBERTa (Liu et al. 2019, arXiv:1907.11692)."""
    return roberta_like(cfg, vocab=50265)


@family("xlm-roberta")
def xlm_roberta(cfg: Config) -> ModelSpec:
    """XLM-RoBERTa (Conneau et al. 2019, arXiv:1911.02116)."""
    return roberta_like(cfg, vocab=30522)


@family("electra")
def electra(cfg: Config) -> ModelSpec:
    """ELECTRA (Clark et al. 2020, arXiv:2003.10555): tables of a width of their own; no pooler; a discriminator by default."""
    stack, norm = body(cfg, d_model=256, heads=4, d_ff=1024, factorised=128)
    cfg.ignore("summary_use_proj", "summary_last_dropout")
    kind = class_ending(cfg, (*ENDINGS, "ForPreTraining", "ForCausalLM"), usual="ForPreTraining")
    table = cfg.integer("embedding_size", default=128)
    match kind:
        case "ForPreTraining":
            parts = (dense(stack.d_model, stack.d_model), Linear(name="weight", d_in=stack.d_model, d_out=1, bias=True))
            return encoder_spec(cfg, stack, Head(name="discriminator", stack=stack.name, parts=parts))
        case "ForMaskedLM" | "ForCausalLM":
            return encoder_spec(cfg, stack, masked_lm(stack, norm, tied=tied(cfg), width=table))
        case "ForSequenceClassification":
            return encoder_spec(cfg, stack, sequence_labels(cfg, stack))
        case _:
            return encoder_spec(cfg, stack, *common_heads(cfg, stack, kind, pooled=False))


@family("distilbert")
def distilbert(cfg: Config) -> ModelSpec:
    """DistilBERT (Sanh et al. 2019, arXiv:1910.01108): BERT without token types and pooler."""
    width = cfg.integer("dim", "hidden_size", default=768)
    norm = Norm(type="layer", eps=1e-12)
    mlp = plain(cfg.integer("hidden_dim", "intermediate_size", default=3072), activation=activation(cfg, "activation", default="gelu"))
    layer = post_norm(norm, self_attention(cfg, width, heads=12, key="n_heads"), mlp)
    depth = cfg.layers("n_layers", "num_hidden_layers", default=6)
    cfg.ignore("sinusoidal_pos_embds", "tie_weights_")  # positions are fixed at first and stored as a table either way
    stack = text_encoder(cfg, width, (Block(pattern=(layer,), repeat=depth),), (*tables(cfg, vocab=30522, types=0), norm))
    kind = class_ending(cfg, ENDINGS, usual="ForMaskedLM")
    heads: dict[str, Callable[[], tuple[Head, ...]]] = {
        "ForMaskedLM": lambda: (masked_lm(stack, norm, tied=tied(cfg)),),
        "ForSequenceClassification": lambda: (sequence_labels(cfg, stack),),
    }
    return encoder_spec(cfg, stack, *heads.get(kind, lambda: common_heads(cfg, stack, kind, pooled=False))())
