"""Parts: leaves with weights of their own, as PyTorch's modules are."""

from __future__ import annotations

from typing import Literal

from .base import Count, Data, Name, Size


class Linear(Data, frozen=True, tag="linear"):
    """y = x W (+ b), x [positions, d_in], W [d_in, d_out].

    Attributes:
        shares: path of the weight it uses in place of one of its own (a head tied to the input embedding); a bias
            stays its own.
        expand, merge: it runs at `expand` positions for every `merge` tokens of its stack (a projector that merges
            2 x 2 patches has merge=4).
        once: it runs once per sequence (a pooler, a classifier).
        activation: elementwise function on its output (the tanh of BERT's pooler); changes no count.
    """

    name: Name
    d_in: Size
    d_out: Size
    bias: bool = False
    shares: str | None = None
    expand: Size = 1
    merge: Size = 1
    once: bool = False
    activation: str | None = None


class Conv(Data, frozen=True, tag="conv"):
    """A convolution over positions, weight [d_out, d_in / groups, *kernel]; positions are those of its output.

    `activation`: elementwise function on its output (the GELUs of Whisper's stem); changes no count.
    """

    name: Name
    d_in: Size
    d_out: Size
    kernel: tuple[Size, ...]
    stride: tuple[Size, ...] | None = None
    groups: Size = 1
    bias: bool = False
    expand: Size = 1
    merge: Size = 1
    once: bool = False
    activation: str | None = None


NORM_VECTORS = {"layer": 2, "layer_unbiased": 1, "layer_plain": 0, "rms": 1, "rms_plain": 0, "batch": 2}


class Norm(Data, frozen=True, tag="norm"):
    """A normalisation over `width` elements (the stack's d_model when not given).

    Kinds: `layer` (weight and bias), `layer_unbiased` (weight), `layer_plain` (neither), `rms` (weight), `rms_plain`
    (nothing), `batch` (weight and bias; running statistics are buffers). `unit_offset`: the weight multiplies as 1 + w.
    """

    type: Literal["layer", "layer_unbiased", "layer_plain", "rms", "rms_plain", "batch"]
    name: Name = "norm"
    width: Size | None = None
    eps: float = 1e-5
    unit_offset: bool = False


class Embedding(Data, frozen=True, tag="embedding"):
    """A table [rows, width] that is gathered from, never multiplied.

    Attributes:
        role: what indexes it.
        width: row width (the stack's d_model when not given).
        shares: path of the table it uses in place of one of its own (T5's decoder gathers from the encoder's).
        scale: factor on what is gathered (sqrt(d_model) in the original Transformer and in Gemma).
        offset: first usable row, where a table has rows before position 0 (OPT, RoBERTa).
    """

    name: Name
    rows: Size
    role: Literal["token", "position", "type", "other"] = "token"
    width: Size | None = None
    shares: str | None = None
    scale: float | None = None
    offset: Count = 0


class Parameter(Data, frozen=True, tag="parameter"):
    """A bare tensor without a matrix product: class token, layer scale, position table that is added, logit scale.

    `buffer`: PyTorch stores it but does not count it as a parameter (router correction biases); it is stated apart.
    `unused`: a weight that a checkpoint holds and no pass reads (the pooling head of a tower whose patches are taken).
    """

    name: Name
    shape: tuple[Size, ...]
    buffer: bool = False
    unused: bool = False


class Sinusoidal(Data, frozen=True, tag="sinusoidal"):
    """Fixed sine and cosine positions (Vaswani et al. 2017, section 3.5): no parameters."""

    name: Name = "position"
    base: float = 10000.0


class Similarity(Data, frozen=True, tag="similarity"):
    """Every text against every image: [B, width] @ [width, B x images] (CLIP, Radford et al. 2021, figure 3)."""

    name: Name
    width: Size


class StreamMix(Data, frozen=True, tag="stream_mix"):
    """Residual streams mixed by a matrix that the input itself makes, [streams, streams] @ [streams, width]: no weights.

    Hyper-connections (Zhu et al. 2024, arXiv:2409.19606) carry that many residuals in place of one.
    """

    name: Name
    streams: Size
    width: Size


Part = Linear | Conv | Norm | Embedding | Parameter | Sinusoidal | Similarity | StreamMix
