"""From a description's rotary positions to frequencies and angles."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from ..presets import spec as s
from .modules import UnsupportedError
from .positions import (
    dynamic_ntk_base,
    linear_scaled,
    llama3_scaled,
    longrope_attention_factor,
    longrope_scaled,
    ntk_base,
    rotary_frequencies,
    rotation,
    yarn_attention_factor,
    yarn_scaled,
)


def angles(rope: s.Rope, head_dim: int, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [T, R/2] of positions [T], R the rotated channels of a head."""
    length = int(positions[-1]) + 1 if needs_length(rope) and not positions.is_meta else 0
    frequencies, factor = there(rope, rope.dims or head_dim, length, positions.device)
    return rotation(positions, frequencies, dtype=dtype, attention_factor=factor)


@lru_cache(maxsize=64)
def there(rope: s.Rope, width: int, length: int, device: torch.device) -> tuple[Tensor, float]:
    """`stretched` on a device: copied once, not in every step."""
    frequencies, factor = stretched(rope, width, length)
    return frequencies.to(device), factor


def needs_length(rope: s.Rope) -> bool:
    """Whether the frequencies depend on how long the sequence is."""
    return rope.scaling is not None and rope.scaling.type in ("dynamic", "longrope")


@lru_cache(maxsize=64)
def stretched(rope: s.Rope, width: int, length: int) -> tuple[Tensor, float]:
    """Frequencies [width / 2] and the factor on cos and sin, for a sequence of `length` tokens."""
    scaling, plain = rope.scaling, rotary_frequencies(width, rope.theta)
    if scaling is None:
        return plain, 1.0
    factor, trained = scaling.factor, scaling.original_positions or 0
    match scaling.type:
        case "linear":
            return linear_scaled(plain, factor), 1.0
        case "ntk":
            return rotary_frequencies(width, ntk_base(rope.theta, width, factor)), 1.0
        case "dynamic":
            return rotary_frequencies(width, dynamic_ntk_base(rope.theta, width, factor, length, trained)), 1.0
        case "llama3":
            low, high = scaling.low_freq_factor or 1.0, scaling.high_freq_factor or 4.0
            return llama3_scaled(plain, factor=factor, low=low, high=high, trained=trained), 1.0
        case "yarn":
            fast, slow = scaling.beta_fast, scaling.beta_slow
            ramp = yarn_scaled(width, rope.theta, factor=factor, trained=trained, beta_fast=fast, beta_slow=slow, truncate=scaling.truncate)
            return ramp, yarn_factor(scaling)
        case "longrope":
            factors = scaling.long_factor if length > trained else scaling.short_factor
            known = scaling.attention_factor
            return longrope_scaled(plain, factors), longrope_attention_factor(factor, trained) if known is None else known
        case _:
            raise UnsupportedError(f"rotary positions stretched by {scaling.type!r} have no module here")


def yarn_factor(scaling: s.RopeScaling) -> float:
    """What cos and sin are multiplied with: stated, or the recipe's; DeepSeek's two `mscale` numbers make it a ratio."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        above, below = (yarn_attention_factor(scaling.factor, number) for number in (scaling.mscale, scaling.mscale_all_dim))
        return above / below
    return yarn_attention_factor(scaling.factor)
