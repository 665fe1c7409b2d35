"""`Pass`: what is run, once a model is given."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..presets.dtypes import DTYPES, Dtype
from ..presets.spec import ModelSpec, Stack
from .counts import Number
from .held import Stored

Phase = Literal["prefill", "decode", "train"]
DEFAULT_SOURCE_TOKENS = 512
BF16 = DTYPES["bf16"]


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One pass over a model.

    Attributes:
        phase: `prefill` and `train` run all tokens, `decode` one new token against the cache.
        batch: B, sequences. context: S, tokens attended at the end, the new ones included.
        new: T, new tokens a sequence; None: 1 in decode, all of the context otherwise.
        source: tokens of the encoder of an encoder-decoder; None: what the model fixes, else 512.
        images: per sequence; None: what the model is used with.
        full_attention: count the square T x S, as PyTorch's counter does, in place of the pairs a mask leaves.
        last_logits: the output head runs at the last position only.
        dropout: training keeps dropout masks.
        stored: the bytes of a checkpoint, row by row; they count in place of `weight_dtype`.
    """

    phase: Phase = "prefill"
    batch: Number = 1
    context: Number = 4096
    new: Number | None = None
    source: Number | None = None
    images: int | None = None
    weight_dtype: Dtype = BF16
    kv_dtype: Dtype = BF16
    activation_dtype: Dtype = BF16
    full_attention: bool = False
    last_logits: bool = False
    dropout: bool = False
    stored: Stored | None = None

    @property
    def new_tokens(self) -> Number:
        """T."""
        if self.new is not None:
            return self.new
        return 1 if self.phase == "decode" else self.context

    @property
    def decoding(self) -> bool:
        """Whether a cache is there to be read."""
        return self.phase == "decode"


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What one stack sees in a pass: `sequences` of `new` tokens, the last of `span`; `runs` is False where it rests."""

    sequences: Number
    new: Number
    span: Number
    runs: bool


def source_tokens(stack: Stack, work: Pass) -> Number:
    """Tokens of an encoder of an encoder-decoder, a sequence."""
    if work.source is not None:
        return work.source
    return stack.default_tokens or DEFAULT_SOURCE_TOKENS


def image_count(spec: ModelSpec, work: Pass) -> int:
    """Images a sequence."""
    return spec.images if work.images is None else work.images


def tokens_of(spec: ModelSpec, stack: Stack, work: Pass) -> Tokens:
    """What `stack` sees: an encoder rests in decode, an image tower runs per image."""
    if stack.tokens == "image":
        images = image_count(spec, work)
        patches = stack.default_tokens or 1
        return Tokens(sequences=work.batch * images, new=patches, span=patches, runs=images > 0 and not work.decoding)
    if stack.tokens == "sound":
        clip = stack.default_tokens or 1
        return Tokens(sequences=work.batch, new=clip, span=clip, runs=False)
    if stack.tokens == "source":
        length = source_tokens(stack, work)
        return Tokens(sequences=work.batch, new=length, span=length, runs=not work.decoding)
    runs = stack.role == "decoder" or not work.decoding
    return Tokens(sequences=work.batch, new=work.new_tokens, span=work.context, runs=runs)
