"""What works on each token alone: dense and routed feed-forward layers, and chains of parts."""

from __future__ import annotations

from typing import Literal

from ..errors import UsageError
from .base import Count, Data, Size
from .parts import Norm, Part


class FeedForward(Data, frozen=True, tag="feed_forward"):
    """d_model -> d_ff -> d_model; `gated` has a third matrix (GLU, Shazeer 2020, arXiv:2002.05202).

    `act_params`: learned numbers of the activation itself (Apertus' xIELU has two). `inner_norm`: a norm over d_ff.
    """

    d_ff: Size
    activation: str
    gated: bool = False
    bias: bool = False
    act_params: Count = 0
    inner_norm: Norm | None = None
    d_in: Size | None = None
    d_out: Size | None = None


class MoE(Data, frozen=True, tag="moe"):
    """Routed experts, `top_k` of `experts` for every token, beside `shared` ones that always run.

    Attributes:
        shared_gate: one sigmoid gate on the shared expert (Qwen2-MoE).
        router_bias: the router's matrix has a bias; `correction`: PyTorch buffer of one value an expert (DeepSeek-V3),
            or `correction_param`, the same as a counted parameter.
        latent: width the routed experts work in, with a projection in and out (Nemotron 3 Ultra).
        hashed: experts are not chosen but looked up by token, in a fixed table [hashed, top_k] that PyTorch holds as a
            buffer (Roller et al. 2021, arXiv:2106.04426); the router still weighs them.
        extra: further weights.
    """

    experts: Size
    top_k: Size
    expert: FeedForward
    shared: FeedForward | None = None
    shared_gate: bool = False
    router: bool = True
    router_bias: bool = False
    correction: Literal["none", "buffer", "parameter"] = "none"
    scoring: Literal["softmax", "sigmoid", "softmax_topk", "sqrtsoftplus"] = "softmax"
    normalize: bool = True
    routed_scale: float = 1.0
    groups: Size = 1
    top_groups: Size = 1
    latent: Size | None = None
    latent_bias: bool = False
    hashed: Size | None = None
    extra: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if self.top_k > self.experts:
            raise UsageError(f"top_k {self.top_k} is larger than experts {self.experts}; a token can only use as many as there are")


class Chain(Data, frozen=True, tag="chain"):
    """Parts one after another, as a sublayer of its own (Gemma 4's per-layer input, Zamba's linear)."""

    parts: tuple[Part, ...]
    activation: str | None = None
