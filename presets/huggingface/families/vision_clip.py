"""CLIP and SigLIP: a tower over text, one over images, and every text compared with every image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
    Similarity,
    Stack,
    Sublayer,
)
from ..blocks import activation, layer_norm, plain
from ..classes import label_count
from ..config import Config
from ..registry import family
from .encoder_shared import class_ending
from .vision_shared import attention, grid, plain_layer, tower

Towers = tuple[Stack, ...]


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What every layer of a tower is made of: biases everywhere."""

    norm: Norm
    mixer: Attention
    mlp: FeedForward
    depth: int

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Equal layers."""
        return (Block(pattern=(plain_layer(self.norm, self.mixer, self.mlp),), repeat=self.depth),)


def inside(cfg: Config, width: int, *, heads: int, d_ff: int, act: str, eps: float, causal: bool = False) -> Inside:
    """The layers of a tower, with its defaults."""
    return Inside(
        norm=layer_norm(cfg, default=eps),
        mixer=attention(cfg, width, cfg.integer("num_attention_heads", default=heads), mask=Causal() if causal else Full()),
        mlp=plain(cfg.integer("intermediate_size", default=d_ff), activation=activation(cfg, default=act)),
        depth=cfg.layers("num_hidden_layers", default=12),
    )


def text_tower(cfg: Config, width: int, made: Inside, *, vocab: int, positions: int) -> Stack:
    """Tokens and learned positions."""
    rows = cfg.integer("max_position_embeddings", default=positions)
    return Stack(
        name="text",
        d_model=width,
        role="encoder",
        embeddings=(
            Embedding(name="token", rows=cfg.integer("vocab_size", default=vocab)),
            Embedding(name="position", rows=rows, role="position"),
        ),
        blocks=made.blocks,
        final=(made.norm,),
        max_positions=rows,
    )


def once(name: str, stack: Stack, d_out: int, *, bias: bool = False) -> Head:
    """A projection of what is pooled."""
    return Head(name=name, stack=stack.name, parts=(Linear(name="weight", d_in=stack.d_model, d_out=d_out, bias=bias, once=True),))


def labels(cfg: Config, vision: Stack) -> tuple[Head, ...]:
    """A classifier on the image; none with 0 labels."""
    count = label_count(cfg)
    return (once("classifier", vision, count, bias=True),) if count else ()


def contrast(width: int, *scalars: str) -> Head:
    """Every text against every image, and the learned numbers of the logits."""
    parts: tuple[Part, ...] = (Similarity(name="logits", width=width), *(Parameter(name=name, shape=(1,)) for name in scalars))
    return Head(name="similarity", stack="text", parts=parts)


def spec(cfg: Config, stacks: Towers, *heads: Head) -> ModelSpec:
    """One tower or two; an image a sequence where there is a tower for it."""
    cfg.ignore("projection_dim", "projection_size", "logit_scale_init_value", "tie_word_embeddings")
    images = int(any(stack.tokens == "image" for stack in stacks))
    return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=stacks, heads=heads, images=images)


# --- CLIP -----------------------------------------------------------------------------------------------------------


def clip_text(cfg: Config) -> Stack:
    """CLIP's text tower; a token sees those before it."""
    width = cfg.integer("hidden_size", default=512)
    cfg.ignore("projection_dim")
    made = inside(cfg, width, heads=8, d_ff=2048, act="quick_gelu", eps=1e-5, causal=True)
    return text_tower(cfg, width, made, vocab=49408, positions=77)


def clip_vision(cfg: Config) -> Stack:
    """CLIP's image tower: a class token, a table of positions, a norm before the layers; the last norm is on the class token."""
    width = cfg.integer("hidden_size", default=768)
    made = inside(cfg, width, heads=12, d_ff=3072, act="quick_gelu", eps=1e-5)
    cut = grid(cfg, image=224, patch=32)
    cfg.ignore("projection_dim", "vocab_size")
    embeddings: tuple[Part, ...] = (
        cut.conv(width, bias=False, others=1),
        Parameter(name="class_token", shape=(width,)),
        Embedding(name="position", rows=cut.patches + 1, role="position"),
        made.norm,
    )
    return tower(width, made.blocks, embeddings, tokens=cut.patches + 1, final=(made.norm,))


def section(cfg: Config, key: str) -> Config:
    """A tower's section; where an older file has `<key>_dict` beside it, that one counts alone."""
    older = cfg.section(f"{key}_dict")
    if older is not None:
        cfg.ignore(key)
        return older
    return cfg.section(key) or cfg.empty_section(key)


@family("clip")
def clip(cfg: Config) -> ModelSpec:
    """CLIP (Radford et al. 2021, arXiv:2103.00020), or one of its towers."""
    known = ("Model", "TextModel", "TextModelWithProjection", "VisionModel", "VisionModelWithProjection", "ForImageClassification")
    kind = class_ending(cfg, known, usual="Model")
    if kind.startswith("Text"):
        cfg.ignore("vision_config", "vision_config_dict")
        return clip_tower(cfg, section(cfg, "text_config"), clip_text, kind)
    if kind.startswith("Vision"):
        cfg.ignore("text_config", "text_config_dict")
        return clip_tower(cfg, section(cfg, "vision_config"), clip_vision, kind)
    vision = clip_vision(section(cfg, "vision_config"))
    if kind == "ForImageClassification":
        cfg.ignore("text_config", "text_config_dict")
        return spec(cfg, (vision,), *labels(cfg, vision))
    text = clip_text(section(cfg, "text_config"))
    width = cfg.integer("projection_dim", default=512)
    heads = (once("visual_projection", vision, width), once("text_projection", text, width), contrast(width, "logit_scale"))
    return spec(cfg, (text, vision), *heads)


def clip_tower(cfg: Config, own: Config, read: Callable[[Config], Stack], kind: str) -> ModelSpec:
    """One tower, perhaps with its projection."""
    stack = read(own)
    width = own.integer("projection_dim", default=512)
    heads = (once(f"{stack.name}_projection", stack, width),) if kind.endswith("WithProjection") else ()
    return spec(cfg, (stack,), *heads)


@family("clip_text_model")
def clip_text_model(cfg: Config) -> ModelSpec:
    """CLIP's text tower alone (as in diffusion models)."""
    return clip_tower(cfg, cfg, clip_text, class_ending(cfg, ("TextModel", "TextModelWithProjection"), usual="TextModel"))


@family("clip_vision_model")
def clip_vision_model(cfg: Config) -> ModelSpec:
    """CLIP's image tower alone."""
    return clip_tower(cfg, cfg, clip_vision, class_ending(cfg, ("VisionModel", "VisionModelWithProjection"), usual="VisionModel"))


# --- SigLIP ---------------------------------------------------------------------------------------------------------


def siglip_text(cfg: Config) -> tuple[Stack, Head]:
    """SigLIP's text tower, with the linear layer on its last position; tokens see each other both ways."""
    width = cfg.integer("hidden_size", default=768)
    made = inside(cfg, width, heads=12, d_ff=3072, act="gelu_pytorch_tanh", eps=1e-6)
    stack = text_tower(cfg, width, made, vocab=32000, positions=64)
    return stack, once("text_projection", stack, cfg.optional_integer("projection_size") or width, bias=True)


def siglip_vision(cfg: Config, *, version: Literal[1, 2] = 1) -> Towers:
    """SigLIP's image tower and, with `vision_use_head`, a learned query that pools it: a stack of one token an image.

    Version 2 reads images of any shape as up to `num_patches` patches.
    """
    width = cfg.integer("hidden_size", default=768)
    made = inside(cfg, width, heads=12, d_ff=3072, act="gelu_pytorch_tanh", eps=1e-6)
    cfg.ignore("projection_dim", "projector_hidden_act", "num_image_tokens", "num_positions", "vocab_size")
    first: Part
    if version == 1:
        cut = grid(cfg, image=224, patch=16)
        count, first = cut.patches, cut.conv(width, bias=True)
    else:
        count, first = cfg.integer("num_patches", default=256, most=2**20), flat_patches(cfg, width)
    embeddings: tuple[Part, ...] = (first, Embedding(name="position", rows=count, role="position"))
    stack = tower(width, made.blocks, embeddings, tokens=count, final=(made.norm,))
    return (stack, pooling(width, made)) if cfg.flag("vision_use_head", default=True) else (stack,)


def flat_patches(cfg: Config, width: int) -> Linear:
    """A matrix over patches that are already cut."""
    pixels = cfg.integer("num_channels", default=3) * cfg.integer("patch_size", default=16, most=2**12) ** 2
    return Linear(name="patches", d_in=pixels, d_out=width, bias=True)


def pooling(width: int, made: Inside) -> Stack:
    """One learned query attends the tower's output; then a feed-forward."""
    subs = (
        Sublayer(name="attention", mixer=msgspec.structs.replace(made.mixer, source="vision")),
        Sublayer(name="feed_forward", mixer=made.mlp, pre_norm=made.norm),
    )
    query = (Parameter(name="query", shape=(width,)),)
    return tower(width, (Block(pattern=(Layer(sublayers=subs),)),), query, tokens=1, name="pooler")


def siglip_like(cfg: Config, version: Literal[1, 2]) -> ModelSpec:
    """Two towers, or one of them."""
    kind = class_ending(cfg, ("Model", "TextModel", "VisionModel", "ForImageClassification"), usual="Model")
    if kind == "TextModel":
        cfg.ignore("vision_config")
        stack, head = siglip_text(cfg.section("text_config") or cfg.empty_section("text_config"))
        return spec(cfg, (stack,), head)
    vision = siglip_vision(cfg.section("vision_config") or cfg.empty_section("vision_config"), version=version)
    if kind != "Model":
        cfg.ignore("text_config")
        return spec(cfg, vision, *(labels(cfg, vision[0]) if kind == "ForImageClassification" else ()))
    text, head = siglip_text(cfg.section("text_config") or cfg.empty_section("text_config"))
    return spec(cfg, (text, *vision), head, contrast(vision[0].d_model, "logit_scale", "logit_bias"))


@family("siglip")
def siglip(cfg: Config) -> ModelSpec:
    """SigLIP (Zhai et al. 2023, arXiv:2303.15343)."""
    return siglip_like(cfg, 1)


@family("siglip2")
def siglip2(cfg: Config) -> ModelSpec:
    """SigLIP 2 (Tschannen et al. 2025, arXiv:2502.14786) with images of any shape."""
    return siglip_like(cfg, 2)


@family("siglip_text_model", "siglip2_text_model")
def siglip_text_model(cfg: Config) -> ModelSpec:
    """SigLIP's text tower alone."""
    class_ending(cfg, ("TextModel",), usual="TextModel")
    stack, head = siglip_text(cfg)
    return spec(cfg, (stack,), head)


@family("siglip_vision_model")
def siglip_vision_model(cfg: Config) -> ModelSpec:
    """SigLIP's image tower alone."""
    class_ending(cfg, ("VisionModel",), usual="VisionModel")
    return spec(cfg, siglip_vision(cfg))


@family("siglip2_vision_model")
def siglip2_vision_model(cfg: Config) -> ModelSpec:
    """SigLIP 2's image tower alone."""
    class_ending(cfg, ("VisionModel",), usual="VisionModel")
    return spec(cfg, siglip_vision(cfg, version=2))
