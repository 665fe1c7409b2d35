"""Pixtral's tower (arXiv:2410.07073), and the table of towers that a `vision_config` may name."""

from __future__ import annotations

from collections.abc import Callable

from ...spec import Block, ModelSpec, Norm, Rope, Stack
from ..blocks import activation, gated
from ..config import Config, shown
from ..registry import family
from .vision_clip import Towers, clip_vision, siglip_vision, spec
from .vision_shared import attention, grid, plain_layer, tower


def pixtral_vision(cfg: Config) -> Stack:
    """RMS norms, rotation in two dimensions, gated, no bias; images up to `image_size`."""
    width = cfg.integer("hidden_size", default=1024)
    cut = grid(cfg, image=1024, patch=16)
    norm = Norm(type="rms", eps=1e-5)
    mixer = attention(cfg, width, cfg.integer("num_attention_heads", default=16), bias=(), position=Rope())
    mlp = gated(cfg.integer("intermediate_size", default=4096), activation=activation(cfg, default="gelu"))
    cfg.ignore("head_dim", "is_composition", "vocab_size")  # a head is always width / heads wide
    block = Block(pattern=(plain_layer(norm, mixer, mlp),), repeat=cfg.layers("num_hidden_layers", default=24))
    high, wide = cut.rows * cut.patch[0], cut.columns * cut.patch[1]
    cfg.assume(f"one image is {high} x {wide} pixels, the largest that its tower takes whole; a smaller one has fewer patches")
    return tower(width, (block,), (cut.conv(width, bias=False), norm), tokens=cut.patches)


@family("pixtral")
def pixtral(cfg: Config) -> ModelSpec:
    """The tower alone."""
    return spec(cfg, (pixtral_vision(cfg),))


TOWERS: dict[str, Callable[[Config], Towers]] = {
    "clip_vision_model": lambda cfg: (clip_vision(cfg),),
    "siglip_vision_model": siglip_vision,
    "siglip2_vision_model": lambda cfg: siglip_vision(cfg, version=2),
    "pixtral": lambda cfg: (pixtral_vision(cfg),),
}


def towers(cfg: Config, *, usual: str) -> Towers:
    """The tower that a `vision_config` names (and, behind SigLIP, its pooling query)."""
    kind = cfg.text("model_type", default=usual)
    if kind not in TOWERS:
        raise cfg.refuse(f"model_type {shown(kind)} is not known as a vision tower. Known are: {', '.join(sorted(TOWERS))}")
    return TOWERS[kind](cfg)


def class_tokens(stack: Stack) -> int:
    """Learned tokens before the patches."""
    return sum(leaf.name == "class_token" for leaf in stack.embeddings)
