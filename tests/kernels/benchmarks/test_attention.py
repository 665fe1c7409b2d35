"""Implementations side by side: none reads a cache that another has just warmed."""

from __future__ import annotations

import torch

from tfm.kernels.attention import kernel_named
from tfm.kernels.benchmarks.attention import attention_calls
from tfm.kernels.masks import Rules


def test_calls_of_a_round_take_different_caches() -> None:
    torch.manual_seed(0)
    queries, keys, values = torch.rand(1, 4, 1, 8), torch.rand(3, 1, 2, 5, 8), torch.rand(3, 1, 2, 5, 8)
    rules = Rules(causal=True)
    calls = attention_calls(("eager", "sdpa"), queries, keys, values, rules)
    eager = kernel_named("eager")
    for index, name in enumerate(["eager", "sdpa", "eager", "sdpa"]):
        expected = eager(queries, keys[index % 3], values[index % 3], rules)
        torch.testing.assert_close(calls[name](), expected)
