"""ALBERT (Lan et al. 2019, arXiv:1909.11942): narrow tables, and one set of layers that runs again and again."""

from __future__ import annotations

from ...spec import Head, Layer, Linear, ModelSpec, Norm, Part
from ..blocks import compress, layer_norm
from ..config import Config
from ..registry import family
from .encoder_bert import ENDINGS, common_heads
from .encoder_shared import (
    class_ending,
    classifier,
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


@family("albert")
def albert(cfg: Config) -> ModelSpec:
    """The class with the masked-language head where none is named."""
    width, table = cfg.integer("hidden_size", default=4096), cfg.integer("embedding_size", default=128)
    norm = layer_norm(cfg, default=1e-12)
    project = Linear(name="projection", d_in=table, d_out=width, bias=True)  # there even where both widths are the same
    narrow = Norm(type="layer", eps=norm.eps, width=table)
    embeddings: tuple[Part, ...] = (*tables(cfg, vocab=30000, width=table), narrow, project)
    stack = text_encoder(cfg, width, compress(layers(cfg, width, norm)), embeddings)
    cfg.ignore("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor")
    kind = class_ending(cfg, (*ENDINGS, "ForPreTraining"), usual="ForMaskedLM")
    lm = masked_lm(stack, norm, tied=tied(cfg), width=table, second_bias=True)
    heads: dict[str, tuple[Head, ...]] = {"ForMaskedLM": (lm,)}
    if kind == "ForPreTraining":
        heads[kind] = (pooler(stack), lm, classifier(cfg, stack, once=True))
    elif kind == "ForSequenceClassification":
        heads[kind] = (pooler(stack), classifier(cfg, stack, once=True))
    return encoder_spec(cfg, stack, *(heads[kind] if kind in heads else common_heads(cfg, stack, kind, pooled=True)))


def layers(cfg: Config, width: int, norm: Norm) -> list[Layer]:
    """Layer i is of group i / (layers / groups); a group is `inner_group_num` layers, each with weights of its own."""
    depth, groups = cfg.layers("num_hidden_layers", default=12), cfg.layers("num_hidden_groups", default=1)
    inner = cfg.layers("inner_group_num", default=1)
    if groups > depth or depth * inner > 4096:
        raise cfg.refuse(f"num_hidden_groups {groups} and inner_group_num {inner} do not fit {depth} layers")
    attention, mlp = self_attention(cfg, width, heads=64), feed_forward(cfg, d_ff=16384)

    def one(group: int, place: int) -> Layer:
        name = f"group{group}" + (f"_{place}" if inner > 1 else "")
        return post_norm(norm, attention, mlp, name=name, shared=name)

    return [one(int(index / (depth / groups)), place) for index in range(depth) for place in range(inner)]
