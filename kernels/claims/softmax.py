"""Scores and their softmax: why they are scaled, and what the weights are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..attention import IMPLEMENTATIONS, Kernel
from ..masks import Rules, scale_of
from .claim import Finding, at_least, at_most, claim, equal

SCALED = "Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1 and footnote 4"
EQUATION = "Vaswani et al. 2017, arXiv:1706.03762, eq. 1 and section 3.2.3"
DRAWS, KEYS, WIDE = 1 << 16, 32, 1024

Product = Callable[[Tensor, Tensor], Tensor]
Scale = Callable[[int], float]
Kernels = dict[str, Kernel]


def product(q: Tensor, k: Tensor) -> Tensor:
    """q [n,d] with k [n,d], row by row: [n]."""
    return (q * k).sum(dim=-1)


def scale(width: int) -> float:
    """What the kernels multiply scores of heads of this width with."""
    return scale_of(torch.empty(1, 1, 1, width), Rules(causal=False))


def no_scale(_width: int) -> float:
    """None."""
    return 1.0


def logits(width: int, scale: Scale) -> Tensor:
    """[rows, KEYS] scores of random queries and keys of variance 1."""
    q, k = torch.randn(256, 1, width), torch.randn(256, KEYS, width)
    return scale(width) * (q * k).sum(dim=-1)


@claim(quantity="var(q·k) / d_k, d_k = 16, 64, 256", formula="var(Σ_i q_i k_i) = d_k", source=SCALED)
def variance_is_d_k(product: Product = product) -> Finding:
    """The product of a query and a key whose components have mean 0 and variance 1 has variance d_k."""
    seen = [float(product(torch.randn(DRAWS, d), torch.randn(DRAWS, d)).var()) / d for d in (16, 64, 256)]
    return equal([1.0, 1.0, 1.0], seen, within=0.05)


@claim(quantity="var(q·k / sqrt(d_k)), d_k = 16, 64, 256", formula="var(q·k / sqrt(d_k)) = 1", source=SCALED)
def scale_restores_variance(scale: Scale = scale) -> Finding:
    """Divided by the square root of d_k, scores have variance 1 at any width."""
    seen = [float((scale(d) * product(torch.randn(DRAWS, d), torch.randn(DRAWS, d))).var()) for d in (16, 64, 256)]
    return equal([1.0, 1.0, 1.0], seen, within=0.05)


def largest_weight(width: int, scale: Scale) -> float:
    """Mean over queries of the largest of KEYS weights."""
    return float(logits(width, scale).softmax(dim=-1).amax(dim=-1).mean())


@claim(quantity="largest of 32 weights, no scale, d_k = 1024", formula="softmax(q·k)", source=SCALED)
def softmax_saturates_without_scale(scale: Scale = no_scale) -> Finding:
    """Without the scale one key takes nearly all the weight: softmax saturates."""
    return at_least(0.9, largest_weight(WIDE, scale))


@claim(quantity="largest of 32 weights, scaled, d_k = 1024", formula="softmax(q·k / sqrt(d_k))", source=SCALED)
def scaled_softmax_is_soft(scale: Scale = scale) -> Finding:
    """With the scale the largest of 32 weights is small, as wide as a head may be."""
    return at_most(0.3, largest_weight(WIDE, scale))


def slope(width: int, scale: Scale) -> float:
    """Median over queries of the size of softmax's Jacobian diag(a) - a a'."""
    weights = logits(width, scale).double().softmax(dim=-1)
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    return float(jacobian.flatten(1).norm(dim=1).median())


@claim(quantity="gradient with the scale / without it, d_k = 1024", formula="|diag(a) - a a'|", source=SCALED)
def gradient_vanishes_without_scale(scale: Scale = scale) -> Finding:
    """Where softmax saturates its gradient vanishes: without the scale the median gradient is less than a hundredth."""
    return at_least(100, slope(WIDE, scale) / slope(WIDE, no_scale))


def weights(kernel: Kernel, rules: Rules, tokens: int = 5, keys: int = 7) -> Tensor:
    """The weights [B,N,T,S] of a kernel, seen through values that are the unit matrix: B = 2, 4 heads of which 2 have keys."""
    q, k = torch.randn(2, 4, tokens, keys, dtype=torch.float64), torch.randn(2, 2, keys, keys, dtype=torch.float64)
    return kernel(q, k, torch.eye(keys, dtype=torch.float64).expand(2, 2, keys, keys), rules)


@claim(quantity="largest |sum of a row - 1|, all kernels", formula="Σ_s a_ts = 1, a ≥ 0", source=EQUATION)
def rows_sum_to_one(kernels: Kernels = IMPLEMENTATIONS) -> Finding:
    """Every row of attention weights sums to 1, with and without a mask, in every kernel."""
    found = [weights(kernel, Rules(causal=causal)) for kernel in kernels.values() for causal in (True, False)]
    return at_most(1e-12, max(float((rows.sum(dim=-1) - 1).abs().max()) for rows in found))


@claim(quantity="largest weight of a masked key, all kernels", formula="exp(-∞) = 0", source=EQUATION)
def masked_weights_are_zero(kernels: Kernels = IMPLEMENTATIONS) -> Finding:
    """A masked key has a weight of exactly 0, not a small one, in every kernel."""
    hidden = torch.ones(5, 7, dtype=torch.bool).triu(diagonal=3)  # the query t of 5 stands at position 2 + t of 7
    found = torch.stack([weights(kernel, Rules(causal=True))[..., hidden] for kernel in kernels.values()])
    return equal(0.0, float(found.abs().max()))
