"""Llama 3.2 Vision, whose text model attends the image in layers of its own, and Llama 4, which reads it as tokens."""

from __future__ import annotations

import msgspec

from ...spec import Attention, Embedding, Full, HeadNorm, Layer, ModelSpec, Parameter, Sublayer
from ..blocks import Text, decoder, gated, grouped, rms
from ..config import Config
from ..registry import family
from ..rope import rope
from ..standard import self_attention, sizes
from .moe_windows import llama4
from .multimodal_shared import assemble, section, text_section
from .vision_llama import llama4_vision, mllama_projector, mllama_vision

IMAGE_ROWS = 8  # rows of Llama 3.2's token table beyond the vocabulary, for the image token


@family("mllama")
def mllama(cfg: Config) -> ModelSpec:
    """Llama 3.2 Vision (arXiv:2407.21783, section 7): the output matrix is never the token table."""
    own = section(cfg, "vision_config")
    vision = mllama_vision(own)
    text = mllama_text(text_section(cfg))
    own.ignore("tie_word_embeddings")
    cfg.assume(f"one image is as many tiles as fit, {vision.default_tokens} positions that the text's cross-attention reads")
    cfg.assume("without an image the layers with cross-attention are left out, as the library does")
    return assemble(cfg, text, (vision,), (mllama_projector(own, vision, text.stack.d_model),), tied=False)


def mllama_text(cfg: Config) -> Text:
    """Llama 3 with layers put in between that attend the image and nothing else."""
    size = sizes(cfg, vocab=128256, d_model=4096, d_ff=14336, depth=40, positions=131072)
    norm = rms(cfg, default=1e-5)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    attention = self_attention(shape, position=rope(cfg, shape.head_dim, theta=500000.0))
    crossing = frozenset(cfg.integers("cross_attention_layers", default=(3, 8, 13, 18, 23, 28, 33, 38)) or ())
    cfg.ignore("tie_word_embeddings")
    mlp = Sublayer(name="feed_forward", mixer=gated(size.d_ff, activation=size.act), pre_norm=norm)
    plain = Layer(name="self", sublayers=(Sublayer(name="attention", mixer=attention, pre_norm=norm), mlp))
    cross = cross_layer(attention, mlp)
    stack = decoder(
        size.d_model,
        size.vocab,
        [cross if index in crossing else plain for index in range(size.depth)],
        final=norm,
        max_positions=size.positions,
        embeddings=(Embedding(name="token", rows=size.vocab + IMAGE_ROWS),),
    )
    return Text(stack=stack, vocab=size.vocab, tied=False)


def cross_layer(attention: Attention, mlp: Sublayer) -> Layer:
    """Attention to the image with normed queries and keys; both branches behind a gate of one number."""
    gate = (Parameter(name="gate", shape=(1,)),)
    mixer = msgspec.structs.replace(attention, mask=Full(), source="vision", position=None, head_norm=HeadNorm())
    first = Sublayer(name="cross_attention", mixer=mixer, pre_norm=mlp.pre_norm, extra=gate)
    return Layer(name="cross", sublayers=(first, msgspec.structs.replace(mlp, extra=gate)))


@family("llama4")
def llama4_vl(cfg: Config) -> ModelSpec:
    """Llama 4: the text model's section decides on tying."""
    text = llama4(text_section(cfg))
    vision, joint, tokens = llama4_vision(section(cfg, "vision_config"), text.stack.d_model)
    cfg.assume(f"one image is one tile, {tokens} tokens of the text; a picture of several tiles counts as several images")
    return assemble(cfg, text, (vision,), (joint,), tied=text.tied)
