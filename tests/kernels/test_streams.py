"""Attention in streams: exact for every division of a context, and taken only where it is the faster way."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tfm.kernels import reference, streams
from tfm.kernels.attention import attend, backend_that_ran
from tfm.kernels.masks import Rules
from tfm.kernels.streams import STREAMS, fits, stream_length


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams from 80 tokens on, one or two heads at a time."""
    monkeypatch.setattr(streams, "FEWEST_TOKENS", 80)
    monkeypatch.setattr(streams, "HELD_LOGITS", 1000)
    monkeypatch.setattr(streams, "crowded", lambda: False)


def inputs(B: int, N: int, K: int, S: int, D: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(B + N + S)
    return torch.randn(B, N, 1, D), torch.randn(B, K, S, D), torch.randn(B, K, S, D)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("shape", "rules"),
    [
        ((2, 6, 2, 623, 8), {}),
        ((1, 3, 3, 144, 16), {}),
        ((1, 3, 3, 143, 16), {}),
        ((3, 4, 1, 400, 8), {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}),
        ((1, 4, 1, 300, 8), {"window": 120, "scale": 0.7}),
        ((1, 4, 2, 300, 8), {"chunk": 170}),
    ],
    ids=["GQA", "MHA, nothing left", "MHA, much left", "MQA, sinks", "window", "chunk"],
)
def test_streams_equal_the_reference(shape: tuple[int, ...], rules: dict[str, Any]) -> None:
    q, k, v = inputs(*shape)
    assert backend_that_ran(q, k, v, impl="grouped", rules=Rules(causal=True, **rules)) == "grouped: 48 streams (cpu)"
    got = attend(q, k, v, impl="grouped", causal=True, **rules)
    plain: dict[str, Any] = {name: rule.numpy() if isinstance(rule, Tensor) else rule for name, rule in rules.items()}
    want = reference.attend(q.numpy(), k.numpy(), v.numpy(), causal=True, **plain)
    torch.testing.assert_close(got.double(), torch.from_numpy(want), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("short")
def test_a_cache_with_room_or_with_heads_behind_tokens_is_read_in_place() -> None:
    q, k, v = inputs(2, 4, 2, 333, 8)
    want = attend(q, k, v, impl="tiled", causal=True)
    roomy = [torch.cat([x, torch.full_like(x, torch.nan)], dim=2)[:, :, :333] for x in (k, v)]
    behind = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    for keys, values in (roomy, behind):
        torch.testing.assert_close(attend(q, keys, values, impl="grouped", causal=True), want, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("short")
def test_large_logits_do_not_overflow() -> None:
    q, k, v = inputs(1, 2, 2, 200, 8)
    got = attend(100 * q, 100 * k, v, impl="grouped", causal=True)
    torch.testing.assert_close(got, attend(100 * q, 100 * k, v, impl="tiled", causal=True), rtol=1e-4, atol=1e-5)


@given(st.integers(80, 1 << 20))
def test_streams_leave_few_tokens_and_are_odd(tokens: int) -> None:
    length = stream_length(tokens)
    assert length % 2 == 1
    assert 0 <= tokens - STREAMS * length < 2 * STREAMS


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"rows": 5}, False),
        ({"tokens": 100}, False),
        ({"dtype": torch.bfloat16}, False),
        ({"grad": True}, False),
        ({"device": "meta"}, False),
        ({"load": 1e4}, False),
    ],
    ids=["few rows, many tokens", "many rows", "few tokens", "bf16", "to be differentiated", "no CPU", "a busy machine"],
)
def test_streams_are_taken_where_they_are_faster(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], expected: bool) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (change.get("load", 0.0), 0.0, 0.0))
    given: dict[str, Any] = {"rows": 4, "tokens": 1 << 15, "dtype": torch.float32, "grad": False, "device": "cpu"} | change
    q = torch.zeros(1, 2, given["rows"], 4, dtype=given["dtype"], device=given["device"], requires_grad=given["grad"])
    assert fits(q, torch.zeros(1, 2, given["tokens"], 4, dtype=given["dtype"], device=given["device"])) is expected


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("rules", [{"padding": torch.ones(1, 300, dtype=torch.bool)}, {"bias": torch.zeros(300)}], ids=["padding", "bias"])
def test_what_masks_a_key_goes_another_way(rules: dict[str, Tensor]) -> None:
    q, k, v = inputs(1, 4, 2, 300, 8)
    assert backend_that_ran(q, k, v, impl="grouped", rules=Rules(causal=True, **rules)) == "grouped: flash (cpu)"  # type: ignore[arg-type]
