"""Random inputs of the right shapes for every stack that a pass runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..estimators.raw_data import raw_shape
from ..estimators.work import Pass, image_count, source_tokens
from ..presets import spec as s
from .model import Model
from .modules import Make


def random_inputs(model: Model, work: Pass) -> dict[str, Any]:
    """What `Model.forward` takes for a pass: ids, frames, pixels, on the model's device (`meta`: shapes alone)."""
    inputs: dict[str, Any] = {}
    for stack in model.spec.stacks:
        match stack.tokens:
            case "context":
                inputs["tokens"] = ids(stack, work.batch, work.new_tokens, model.make)
            case "source" if not work.decoding:
                inputs["source"] = one_input(stack, work.batch, source_tokens(stack, work), model.make)
            case "image" if "images" not in inputs and not work.decoding and image_count(model.spec, work):
                inputs["images"] = one_input(stack, work.batch * image_count(model.spec, work), stack.default_tokens or 1, model.make)
    return inputs


def one_input(stack: s.Stack, sequences: int, tokens: int, make: Make) -> Tensor:
    """Ids, or raw data where the stack begins with a convolution."""
    if isinstance(stack.embeddings[0], s.Conv):
        return torch.randn(sequences, *raw_shape(stack, tokens), device=make.device, dtype=make.dtype)
    return ids(stack, sequences, tokens, make)


def ids(stack: s.Stack, sequences: int, tokens: int, make: Make) -> Tensor:
    """Token ids [B,T] that the stack's table has rows for."""
    rows = next((leaf.rows for leaf in stack.embeddings if isinstance(leaf, s.Embedding) and leaf.role == "token"), 1)
    return torch.randint(rows, (sequences, tokens), device=make.device)


def cross_tokens(spec: s.ModelSpec, work: Pass) -> int:
    """Tokens that cross-attention of a decoder reads; 0 without one."""
    for stack, sub in spec.sublayers():
        if isinstance(sub.mixer, s.Attention) and sub.mixer.source is not None and stack.role == "decoder":
            other = spec.stack(sub.mixer.source)
            if other.tokens == "image":
                return (other.default_tokens or 1) * image_count(spec, work)
            return int(source_tokens(other, work))
    return 0
