"""Mixers: what carries something from one token to another."""

from __future__ import annotations

from typing import Literal

from ..errors import UsageError
from .base import Data, Size
from .masks import Mask
from .parts import Part
from .positions import Position


class HeadNorm(Data, frozen=True, tag="head_norm"):
    """A norm on queries and keys (and values) before the scores.

    Attributes:
        over: `head` one weight of head_dim used by every head; `heads` one per head; `all` over heads x head_dim.
        values: it also normalises V (Gemma 3n and 4), without a weight.
    """

    type: Literal["layer", "layer_unbiased", "layer_plain", "rms", "rms_plain"] = "rms"
    over: Literal["head", "heads", "all"] = "head"
    values: bool = False
    eps: float = 1e-6
    unit_offset: bool = False


class Indexer(Data, frozen=True, tag="indexer"):
    """A small attention that picks the `top_k` keys the large one attends (DeepSeek sparse attention, V3.2 report).

    `q_in`: width of what its queries are projected from; `own`: this layer has the indexer, else it uses the choice
    of an earlier layer. `block`: keys are chosen in blocks of that many tokens.
    """

    heads: Size
    head_dim: Size
    top_k: Size
    q_in: Size
    key_norm: Literal["layer", "rms", "none"] = "layer"
    query_norm: Literal["rms", "none"] = "none"
    head_weights: bool = True
    key_heads: Size = 1
    block: Size = 1
    own: bool = True


class Attention(Data, frozen=True, tag="attention"):
    """Multi-head, grouped-query or multi-query attention (Vaswani et al. 2017; Ainslie et al. 2023).

    q_proj [d_in, heads * head_dim], k_proj [d_in, kv_heads * head_dim], v_proj [d_in, kv_heads * value_dim], o_proj
    [heads * value_dim, d_out].

    Attributes:
        bias: which projections have one.
        source: the stack whose output gives keys and values (cross-attention); None attends its own stack.
        source_width: width of that output, when it differs from d_in.
        keys: `own`; `values_are_keys`: no v_proj, V is made of the keys' projection (Gemma 4); `reused`: neither K
            nor V is computed or stored here, an earlier layer's cache is read (shared-KV layers).
        gate: a sigmoid on the output: `full` one value an element (q_proj is twice as wide), `head` one a head.
        sinks: one learned logit a head in the softmax's denominator.
        d_in, d_out: widths where they differ from the stack's d_model (Zamba's block sees 2 x d_model).
        extra: further weights of this layer, not multiplied in the scores.
    """

    heads: Size
    kv_heads: Size
    head_dim: Size
    mask: Mask
    value_dim: Size | None = None
    bias: tuple[Literal["q", "k", "v", "o"], ...] = ()
    position: Position | None = None
    head_norm: HeadNorm | None = None
    source: str | None = None
    source_width: Size | None = None
    keys: Literal["own", "values_are_keys", "reused"] = "own"
    gate: Literal["none", "full", "head"] = "none"
    sinks: bool = False
    softcap: float | None = None
    scale: float | None = None
    indexer: Indexer | None = None
    d_in: Size | None = None
    d_out: Size | None = None
    extra: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UsageError(f"kv_heads {self.kv_heads} does not divide heads {self.heads}; give one that does")

    @property
    def v_dim(self) -> int:
        """Width of a value head."""
        return self.value_dim or self.head_dim


class LatentAttention(Data, frozen=True, tag="latent_attention"):
    """Multi-head latent attention, MLA (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    q: d_model -> q_rank -> heads x (nope_dim + rope_dim), or straight when q_rank is None. kv: d_model -> kv_rank +
    rope_dim, kv_rank -> heads x (nope_dim + value_dim). The cache holds kv_rank + rope_dim a token.
    """

    heads: Size
    kv_rank: Size
    nope_dim: Size
    rope_dim: Size
    value_dim: Size
    mask: Mask
    q_rank: Size | None = None
    bias: bool = False
    norm_eps: float = 1e-6
    position: Position | None = None
    scale: float | None = None
    indexer: Indexer | None = None
    extra: tuple[Part, ...] = ()


class Mamba(Data, frozen=True, tag="mamba"):
    """Selective state space, Mamba-1 (Gu & Dao 2023, arXiv:2312.00752, section 3).

    in_proj d_model -> 2 d_inner, depthwise conv, x_proj d_inner -> dt_rank + 2 state, dt_proj dt_rank -> d_inner, A
    [d_inner, state], D [d_inner], out_proj. `heads` > 1 splits x_proj and dt_proj by head (Zamba). `inner_norms`: dt, B
    and C are normalised, with weights (Jamba).
    """

    d_inner: Size
    state: Size
    conv: Size
    dt_rank: Size
    heads: Size = 1
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False


class Mamba2(Data, frozen=True, tag="mamba2"):
    """State space duality, Mamba-2 (Dao & Gu 2024, arXiv:2405.21060, section 7).

    in_proj d_model -> 2 d_inner + 2 groups state + heads, depthwise conv over d_inner + 2 groups state, A, D and
    dt_bias one a head, gated norm over d_inner, out_proj.
    """

    heads: Size
    head_dim: Size
    groups: Size
    state: Size
    conv: Size
    conv_bias: bool = True
    proj_bias: bool = False
    gated_norm: bool = True
    chunk: Size = 256


class GatedDelta(Data, frozen=True, tag="gated_delta"):
    """Gated DeltaNet, a linear attention (Yang et al. 2024, arXiv:2412.06464; Qwen3-Next).

    State of value_heads x key_dim x value_dim. Projections q, k (key_heads x key_dim), v and output gate (value_heads x
    value_dim), beta and decay (value_heads), depthwise conv over q, k and v without bias, gated norm over value_dim.
    """

    key_heads: Size
    value_heads: Size
    key_dim: Size
    value_dim: Size
    conv: Size


class RgLru(Data, frozen=True, tag="rg_lru"):
    """Real-gated linear recurrent unit in Griffin's block (De et al. 2024, arXiv:2402.19427, section 2.4).

    Two branches d_model -> width with bias, depthwise conv with bias, two block-diagonal gates of `blocks` blocks with
    bias, one decay a channel, out width -> d_model with bias.
    """

    width: Size
    conv: Size
    blocks: Size


class ShortConv(Data, frozen=True, tag="short_conv"):
    """Gated short convolution (LFM2): in_proj d_model -> 3 width, depthwise conv, out_proj width -> d_model."""

    width: Size
    conv: Size
    bias: bool = False


class CompressedAttention(Data, frozen=True, tag="compressed_attention"):
    """DeepSeek-V4's attention: one head that is key and value at once, a window, and older tokens as compressed entries.

    q: d_model -> q_rank -> heads x head_dim; kv: d_model -> head_dim; one sink a head; output in `out_groups` groups of
    heads, each -> out_rank, all -> d_model.

    Attributes:
        ratio: tokens that become one entry, a mean weighted by a gate, channel by channel (None: the window only).
        overlap: an entry is made of its own tokens and of those of the entry before (both projections twice as wide).
        indexer: picks the entries that a query sees, by entries of its own made the same way.
        values_apart: the window's values are kept beside its keys, although they are the same.
    """

    heads: Size
    head_dim: Size
    q_rank: Size
    window: Size
    out_groups: Size
    out_rank: Size
    ratio: Size | None = None
    overlap: bool = False
    indexer: Indexer | None = None
    values_apart: bool = False
    position: Position | None = None
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.heads * self.head_dim % self.out_groups:
            raise UsageError(
                f"out_groups {self.out_groups} does not divide heads x head_dim {self.heads * self.head_dim}; give one that does"
            )
