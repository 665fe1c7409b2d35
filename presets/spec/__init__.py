"""What a model *is*: frozen data, read from a preset or a configuration, that every number follows from.

A model is named **stacks** joined by **connectors**, with **heads** on top. A stack is a run of layers, a layer an
ordered list of **sublayers**, a sublayer one mixer (attention, state-space, convolution ...) or one feed-forward with
its norms. The leaves are **parts**: things with weights of their own, as PyTorch's modules are.

Nothing here computes a cost: `estimators/ledger.py` turns a description into rows. Sizes are counts of elements; no byte, no FLOP
stands here.

From the leaves up: `base`, `parts`, `masks`, `positions`, `mixers`, `feed_forward`, `stacks`.
"""

from __future__ import annotations

from .base import Count, Data, Name, Size
from .feed_forward import Chain, FeedForward, MoE
from .masks import Blocked, Causal, Chunked, Full, Local, Mask, Sliding
from .mixers import Attention, CompressedAttention, GatedDelta, HeadNorm, Indexer, LatentAttention, Mamba, Mamba2, RgLru, ShortConv
from .parts import NORM_VECTORS, Conv, Embedding, Linear, Norm, Parameter, Part, Similarity, Sinusoidal, StreamMix
from .positions import Alibi, Disentangled, Position, RelativeBuckets, Rope, RopeScaling
from .stacks import MOST_LAYERS, Action, Block, Connector, Head, Layer, Mixer, ModelSpec, Stack, Sublayer

__all__ = [
    "MOST_LAYERS",
    "NORM_VECTORS",
    "Action",
    "Alibi",
    "Attention",
    "Block",
    "Blocked",
    "Causal",
    "Chain",
    "Chunked",
    "CompressedAttention",
    "Connector",
    "Conv",
    "Count",
    "Data",
    "Disentangled",
    "Embedding",
    "FeedForward",
    "Full",
    "GatedDelta",
    "Head",
    "HeadNorm",
    "Indexer",
    "LatentAttention",
    "Layer",
    "Linear",
    "Local",
    "Mamba",
    "Mamba2",
    "Mask",
    "Mixer",
    "MoE",
    "ModelSpec",
    "Name",
    "Norm",
    "Parameter",
    "Part",
    "Position",
    "RelativeBuckets",
    "RgLru",
    "Rope",
    "RopeScaling",
    "ShortConv",
    "Similarity",
    "Sinusoidal",
    "Size",
    "Sliding",
    "Stack",
    "StreamMix",
    "Sublayer",
]
