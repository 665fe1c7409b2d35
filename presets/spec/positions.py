"""How attention knows positions."""

from __future__ import annotations

from typing import Literal

from .base import Data, Size


class RopeScaling(Data, frozen=True, tag="rope_scaling"):
    """How rotary frequencies are stretched beyond the trained context; changes no count.

    `type` is the recipe's published name; the other fields are its numbers, None where the recipe has none.
    """

    type: Literal["linear", "dynamic", "ntk", "yarn", "llama3", "longrope", "proportional"]
    factor: float = 1.0
    original_positions: Size | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


class Rope(Data, frozen=True, tag="rope"):
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) on the first `dims` of every head (all when not given).

    `sections`: widths that time, height and width take (Qwen2-VL). `interleaved`: pairs are
    neighbours (GPT-J, Cohere), not halves.
    """

    theta: float = 10000.0
    dims: Size | None = None
    interleaved: bool = False
    scaling: RopeScaling | None = None
    sections: tuple[Size, ...] | None = None


class Alibi(Data, frozen=True, tag="alibi"):
    """Linear biases on distance (Press et al. 2021, arXiv:2108.12409): no parameters."""


class RelativeBuckets(Data, frozen=True, tag="relative_buckets"):
    """T5's bucketed relative bias (Raffel et al. 2019, section 2.1).

    The table [buckets, heads] is one for all layers, a parameter of the stack.
    """

    buckets: Size
    max_distance: Size = 128
    bidirectional: bool = False


class Disentangled(Data, frozen=True, tag="disentangled"):
    """DeBERTa's content-to-position and position-to-content terms (He et al. 2020, arXiv:2006.03654).

    `span`: positions of the relative table on either side; `own_projections`: position keys and queries have weights
    of their own, else they use the content's (queries have a bias, keys with `key_bias`). `capped`: no more positions
    than tokens are projected (DeBERTa 1). The table [2 span, d_model] is one for all layers, a parameter of the stack.
    """

    span: Size
    terms: tuple[Literal["c2p", "p2c"], ...]
    own_projections: bool = False
    key_bias: bool = False
    capped: bool = False


Position = Rope | Alibi | RelativeBuckets | Disentangled
