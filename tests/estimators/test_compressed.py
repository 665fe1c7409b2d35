"""Compressed attention: pairs counted one by one, what is kept, and what the window alone leaves."""

from __future__ import annotations

import numpy as np
import pytest

from tfm.estimators.counts import entry_pairs
from tfm.estimators.kvcache import kvcache
from tfm.estimators.ledger import ledger, total
from tfm.estimators.rows import Row
from tfm.estimators.work import Pass
from tfm.presets.spec import Block, CompressedAttention, Indexer, Layer, ModelSpec, Stack, Sublayer

SMALL = CompressedAttention(heads=6, head_dim=10, q_rank=14, window=5, out_groups=3, out_rank=7)
PICKED = CompressedAttention(
    heads=6,
    head_dim=10,
    q_rank=14,
    window=5,
    out_groups=3,
    out_rank=7,
    ratio=4,
    overlap=True,
    indexer=Indexer(heads=2, head_dim=8, top_k=3, q_in=14, key_norm="rms"),
)


def model(mixer: CompressedAttention, layers: int = 1) -> ModelSpec:
    """A stack of nothing but this attention, 24 wide."""
    layer = Layer(sublayers=(Sublayer(name="attention", mixer=mixer),))
    stack = Stack(name="decoder", d_model=24, role="decoder", blocks=(Block(pattern=(layer,), repeat=layers),))
    return ModelSpec(name="small", source=("made up",), stacks=(stack,))


def rows(mixer: CompressedAttention, work: Pass) -> dict[str, Row]:
    return {row.path.removeprefix("decoder/attention/"): row for row in ledger(model(mixer), work)}


@pytest.mark.parametrize("ratio", [1, 2, 4, 7])
@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize(("new", "span"), [(1, 1), (1, 29), (5, 13), (29, 29)])
def test_pairs_are_those_counted_one_by_one(ratio: int, limit: int | None, new: int, span: int) -> None:
    seen = [position // ratio for position in range(span - new + 1, span + 1)]
    expected = sum(seen if limit is None else (min(count, limit) for count in seen))
    assert entry_pairs(ratio, new, span, limit=limit) == expected
    spans = np.array([span, span + 1])
    assert entry_pairs(ratio, new, spans, limit=limit)[0] == expected


def test_a_query_sees_its_window_and_the_entries_that_are_picked() -> None:
    found = rows(PICKED, Pass(phase="decode", context=40))
    assert found["scores"].dims["pairs"] == 5 + 3
    assert found["indexer/scores"].dims["pairs"] == 40 // 4
    assert rows(PICKED, Pass(context=40, full_attention=True))["scores"].dims["pairs"] == 40 * (40 + 10)


@pytest.mark.parametrize(
    ("context", "entries", "unfinished"),
    [pytest.param(3, 0, 3, id="none yet"), pytest.param(40, 10, 0, id="all finished"), pytest.param(42, 10, 2, id="two tokens wait")],
)
def test_entries_are_kept_and_tokens_that_wait_for_one(context: int, entries: int, unfinished: int) -> None:
    cache = kvcache(model(PICKED, layers=2), Pass(batch=3, context=context))
    widths = 10 + 8  # of the attention and of its indexer
    assert cache.kv_bytes == 2 * 3 * 2 * widths * (entries + unfinished * 2 * 2)  # C and Z, each twice as wide
    assert cache.state_bytes == 2 * 3 * (4 * 10 * 2 + 4 * widths * (2 + 4))  # four past tokens; the last group's C, and Z in fp32


def test_the_window_alone_keeps_no_more_than_a_window() -> None:
    cache = kvcache(model(SMALL), Pass(context=400))
    assert (cache.kv_bytes, cache.kv_bytes_per_token, cache.state_bytes) == (0, 0, 4 * 10 * 2)
    assert rows(SMALL, Pass(phase="decode", context=400))["scores"].store is not None


def test_the_grouped_output_mixes_a_group_of_heads_only() -> None:
    found = rows(SMALL, Pass(batch=2, context=3))["o_a_proj"]
    assert (found.params, found.flops) == (3 * 20 * 7, 3 * (2 * 6 * 20 * 7))


def test_steps_of_decoding_cost_what_prefill_costs() -> None:
    prefill = rows(PICKED, Pass(context=23))["scores"].flops
    assert prefill == sum(rows(PICKED, Pass(phase="decode", context=context))["scores"].flops for context in range(1, 24))


def test_an_encoder_keeps_nothing() -> None:
    spec = model(PICKED)
    stack = Stack(name="decoder", d_model=24, role="encoder", blocks=spec.stacks[0].blocks)
    assert all(row.store is None for row in ledger(ModelSpec(name="small", source=("made up",), stacks=(stack,)), Pass(context=9)))
    assert total(ledger(spec, Pass(context=9)), "params", per="copies") == sum(row.params for row in rows(PICKED, Pass(context=9)).values())


@pytest.mark.parametrize("mixer", [SMALL, PICKED], ids=["window alone", "picked"])
def test_a_sweep_gives_what_single_points_give(mixer: CompressedAttention) -> None:
    batches, contexts = np.array([1, 3]), np.array([7, 42])
    swept = kvcache(model(mixer), Pass(batch=batches, context=contexts))
    for index, (batch, context) in enumerate(zip(batches.tolist(), contexts.tolist(), strict=True)):
        one = kvcache(model(mixer), Pass(batch=batch, context=context))
        found = (np.broadcast_to(value, (2,))[index] for value in (swept.kv_bytes, swept.state_bytes, swept.kv_bytes_per_token))
        assert tuple(found) == (one.kv_bytes, one.state_bytes, one.kv_bytes_per_token)
