"""Attention in tiles: the same numbers in memory that grows with the length, not with its square."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention import IMPLEMENTATIONS, Kernel, eager
from ..masks import Rules
from ..tiled import tiled
from .claim import Finding, at_least, at_most, claim, difference
from .watching import Held

FLASH = "Dao et al. 2022, arXiv:2205.14135, theorem 1"
SHORT, LONG = 1024, 4096


def random_heads(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [1,1,T,32]."""
    q, k, v = torch.randn(3, 1, 1, tokens, 32)
    return q, k, v


@claim(
    quantity="tiled - eager, 700 tokens, and with 64 new of 700",
    formula="running maximum and sum over tiles",
    source=f"{FLASH}; Milakov and Gimelshein 2018, arXiv:1805.02867",
)
def tiled_attention_is_exact(tiled: Kernel = tiled) -> Finding:
    """Attention in tiles is no approximation: it is the same sum in another order."""
    q, k, v = torch.randn(2, 4, 700, 8).double(), torch.randn(2, 2, 700, 8).double(), torch.randn(2, 2, 700, 8).double()
    rules = Rules(causal=True)
    return at_most(1e-12, max(difference(eager(part, k, v, rules), tiled(part, k, v, rules)) for part in (q, q[:, :, -64:])))


def peak_bytes(kernel: Kernel, tokens: int) -> int:
    """The most memory that a kernel's own tensors hold at once."""
    q, k, v = random_heads(tokens)
    with Held() as held, torch.no_grad():
        kernel(q, k, v, Rules(causal=False))
    peak: int = held.peak
    return peak


def growth(kernel: Kernel) -> float:
    """How many times the memory for four times the tokens."""
    return peak_bytes(kernel, LONG) / peak_bytes(kernel, SHORT)


@claim(quantity="memory at 4096 tokens / at 1024, tiled", formula="O(n): at most 4", source=FLASH)
def tiled_memory_is_linear(kernel: Kernel = tiled) -> Finding:
    """The memory of tiled attention grows at most with the length (bytes of all tensors alive at once)."""
    return at_most(4.0, growth(kernel))


@claim(quantity="memory at 4096 tokens / at 1024, eager", formula="O(n²): about 16", source=FLASH)
def eager_memory_is_quadratic(kernel: Kernel = eager) -> Finding:
    """Attention that holds all scores grows with the square of the length."""
    return at_least(12.0, growth(kernel))


@claim(quantity="memory of eager / of tiled at 4096 tokens", formula="n² scores against one tile of 65,536", source=FLASH)
def tiles_save_memory(kernel: Kernel = tiled) -> Finding:
    """At 4096 tokens tiles need less than a tenth of the memory."""
    return at_least(10.0, peak_bytes(IMPLEMENTATIONS["eager"], LONG) / peak_bytes(kernel, LONG))
