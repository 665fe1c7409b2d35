"""Where a token stands: rotary embeddings and their stretchings, sinusoidal, learned, ALiBi, relative buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def rotary_frequencies(width: int, base: float = 10_000.0) -> Tensor:
    """Radians per position of each pair of `width` rotated channels: base^(-2i / width), fp64 [width / 2].

    Su et al. 2021 (RoFormer, arXiv:2104.09864), section 3.4.2. `width` below the head's means partial rotation (GPT-NeoX, Phi).
    """
    return torch.pow(base, -torch.arange(0, width, 2, dtype=torch.float64) / width)


def linear_scaled(frequencies: Tensor, factor: float) -> Tensor:
    """Position interpolation: `factor` times the positions in the angles seen in training (Chen et al. 2023, arXiv:2306.15595)."""
    return frequencies / factor


def ntk_base(base: float, width: int, factor: float) -> float:
    """The NTK-aware base: the slowest pair is stretched by `factor`, the fastest not at all (bloc97 2023; YaRN paper, definition 1).

    >>> round(ntk_base(10000.0, 128, 4.0))
    40890
    """
    return float(base * factor ** (width / (width - 2)))


def dynamic_ntk_base(base: float, width: int, factor: float, length: int, trained: int) -> float:
    """NTK-aware scaling that grows with the sequence: none up to `trained` tokens, then factor * length / trained - (factor - 1)."""
    return base if length <= trained else ntk_base(base, width, factor * length / trained - (factor - 1))


def llama3_scaled(frequencies: Tensor, *, factor: float, low: float, high: float, trained: int) -> Tensor:
    """Llama 3.1: a pair that turns fewer than `low` times in the trained context is stretched by `factor`, one of more than `high`
    turns is kept, one between is blended by its turns (Meta's reference code, `apply_scaling`).
    """
    turns = trained * frequencies / (2 * math.pi)
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * frequencies / factor + keep * frequencies


def yarn_scaled(
    width: int, base: float, *, factor: float, trained: int, beta_fast: float = 32.0, beta_slow: float = 1.0, truncate: bool = True
) -> Tensor:
    """YaRN: as NTK-by-parts, a ramp over the pairs between `beta_slow` and `beta_fast` turns (Peng et al. 2023, arXiv:2309.00071,
    section 3.2). The ends of the ramp are whole pairs, as in the authors' code, unless `truncate` is False (gpt-oss).
    """
    frequencies = rotary_frequencies(width, base)
    fast, slow = (_pair_turning(turns, width, base, trained) for turns in (beta_fast, beta_slow))
    if truncate:
        fast, slow = math.floor(fast), math.ceil(slow)
    first, last = max(fast, 0), min(slow, width - 1)
    pair = torch.arange(width // 2, dtype=torch.float64)
    stretch = ((pair - first) / max(last - first, 0.001)).clamp(0, 1)
    return stretch * frequencies / factor + (1 - stretch) * frequencies


def _pair_turning(turns: float, width: int, base: float, trained: int) -> float:
    """The pair (as a fraction) that turns so many times in the trained context: base^(-2i / width) * trained = 2 pi turns."""
    return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies cos and sin with: 0.1 m ln(factor) + 1 (arXiv:2309.00071, eq. 22); 1 if nothing is stretched.

    >>> round(yarn_attention_factor(40.0), 4)
    1.3689
    """
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1


def longrope_scaled(frequencies: Tensor, factors: Sequence[float]) -> Tensor:
    """One searched factor for each pair (Ding et al. 2024, LongRoPE, arXiv:2402.13753)."""
    return frequencies / torch.tensor(factors, dtype=frequencies.dtype)


def longrope_attention_factor(factor: float, trained: int) -> float:
    """What LongRoPE multiplies cos and sin with: sqrt(1 + ln(factor) / ln(trained)); 1 if nothing is stretched."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))


def rotation(positions: Tensor, frequencies: Tensor, *, dtype: torch.dtype, attention_factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle: positions [...,T], frequencies [R/2] -> two of [...,T,R/2]. The angles are fp64 until then."""
    angles = positions.to(torch.float64).unsqueeze(-1) * frequencies.to(torch.float64)
    return (angles.cos() * attention_factor).to(dtype), (angles.sin() * attention_factor).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Turn the first R channels of x [...,T,H] by their angles; cos and sin [...,T,R/2] broadcast over the heads.

    A pair is channels (i, i + R/2), as in GPT-NeoX and Hugging Face's Llama; `interleaved`: (2i, 2i + 1), as in the paper and GPT-J.
    """
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return turned if rest.shape[-1] == 0 else torch.cat([turned, rest], dim=-1)


def sinusoidal(positions: Tensor, width: int, *, halves: bool = False) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i / D)), PE(p, 2i + 1) = cos of it: positions [T] -> fp64 [T,D] (Vaswani et al. 2017, section 3.5).

    `halves` puts all sines before all cosines and spaces the frequencies over D/2 - 1 steps (tensor2tensor, Whisper's encoder).
    """
    pairs = width // 2
    if halves:
        frequencies = torch.exp(torch.arange(pairs, dtype=torch.float64) * (-math.log(10_000) / (pairs - 1)))
    else:
        frequencies = rotary_frequencies(width)
    angles = positions.to(torch.float64)[:, None] * frequencies.to(positions.device)
    parts = [angles.sin(), angles.cos()]
    return torch.cat(parts, dim=-1) if halves else torch.stack(parts, dim=-1).flatten(-2)


def learned(positions: Tensor, table: Tensor, *, offset: int = 0) -> Tensor:
    """Rows of a learned table [P,D]: positions [...,T] -> [...,T,D]. `offset` rows come first (2 in BART and OPT)."""
    return torch.nn.functional.embedding(positions + offset, table)


def alibi_slopes(heads: int) -> Tensor:
    """fp64 [N]: 2^(-8n / N) for n = 1..N; without a power of two the next lower one's, then every other one of twice as many.

    Press et al. 2021 (arXiv:2108.12409), section 3 and the authors' code.

    >>> alibi_slopes(8)[:3].tolist()
    [0.5, 0.25, 0.125]
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * n / power) for n in range(1, power + 1)]
    slopes += [2.0 ** (-8 * n / (2 * power)) for n in range(1, 2 * (heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float64)


def alibi_bias(heads: int, tokens: int, keys: int) -> Tensor:
    """fp64 [N,T,S]: minus the slope times the distance |position - key|, the query t standing at S - T + t."""
    return -alibi_slopes(heads)[:, None, None] * _offsets(tokens, keys).abs()


def relative_buckets(offsets: Tensor, *, bidirectional: bool, buckets: int = 32, furthest: int = 128) -> Tensor:
    """T5's bucket of each offset (key - query): exact up to half the buckets, then logarithmic up to `furthest`.

    Raffel et al. 2020 (arXiv:1910.10683), section 2.1 and the authors' code. A decoder has all buckets for the past, an
    encoder half of them for either side.
    """
    result = torch.zeros_like(offsets)
    if bidirectional:
        buckets //= 2
        result = (offsets > 0).to(offsets.dtype) * buckets
    distance = offsets.abs() if bidirectional else (-offsets).clamp(min=0)
    exact = buckets // 2
    steps = torch.log(distance.clamp(min=1).to(torch.float32) / exact) / math.log(furthest / exact) * (buckets - exact)
    far = (exact + steps.to(offsets.dtype)).clamp(max=buckets - 1)
    return result + torch.where(distance < exact, distance, far)


def relative_bias(table: Tensor, tokens: int, keys: int, *, bidirectional: bool, furthest: int = 128) -> Tensor:
    """[N,T,S] from a learned table [buckets,N], the query t standing at S - T + t."""
    offsets = -_offsets(tokens, keys).to(table.device)
    buckets = relative_buckets(offsets, bidirectional=bidirectional, buckets=table.shape[0], furthest=furthest)
    return table[buckets].permute(2, 0, 1)


def _offsets(tokens: int, keys: int) -> Tensor:
    """[T,S] position of the query minus position of the key, aligned bottom-right."""
    return torch.arange(keys - tokens, keys)[:, None] - torch.arange(keys)
