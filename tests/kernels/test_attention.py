"""Every attention kernel against the float64 numpy reference, over a grid and by property. No shape is square."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tfm.kernels import grouped as grouped_module
from tfm.kernels import reference, tiled
from tfm.kernels.attention import IMPLEMENTATIONS, attend, backend_that_ran
from tfm.kernels.masks import Rules, reach, shape_logits, visible
from tfm.kernels.positions import alibi_bias, relative_bias
from tfm.presets.errors import UnknownNameError, UsageError

Rule = Callable[[int, int, int, int], dict[str, Any]]
every_kernel = pytest.mark.parametrize("impl", IMPLEMENTATIONS)


def same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def inputs(B: int = 2, N: int = 6, K: int = 2, T: int = 3, S: int = 11, Dk: int = 8, Dv: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    return random(B, N, T, Dk), random(B, K, S, Dk, seed=1), random(B, K, S, Dv, seed=2)


def want(q: Tensor, k: Tensor, v: Tensor, **rules: Any) -> Tensor:
    plain: dict[str, Any] = {name: rule.numpy() if isinstance(rule, Tensor) else rule for name, rule in rules.items()}
    return torch.from_numpy(reference.attend(q.numpy(), k.numpy(), v.numpy(), **plain))


def padding(*real: int, S: int) -> Tensor:
    """bool [B,S]: the last `real` keys of each sequence are real (padded on the left)."""
    return torch.arange(S) >= S - torch.tensor(real)[:, None]


SHAPES = {
    "MHA": {"N": 4, "K": 4},
    "GQA": {"N": 6, "K": 2},
    "MQA": {"N": 5, "K": 1},
    "one query": {"T": 1, "S": 13},
    "T = S": {"T": 7, "S": 7},
    "narrow values": {"Dk": 12, "Dv": 5},
    "wide values": {"Dk": 4, "Dv": 9},
    "one sequence, one key": {"B": 1, "T": 1, "S": 1},
}
RULES: dict[str, Rule] = {
    "full": lambda B, N, T, S: {"causal": False},
    "causal": lambda B, N, T, S: {"causal": True},
    "window": lambda B, N, T, S: {"causal": True, "window": 4},
    "window of one": lambda B, N, T, S: {"causal": True, "window": 1},
    "window, both sides": lambda B, N, T, S: {"causal": False, "window": 4},
    "chunk": lambda B, N, T, S: {"causal": True, "chunk": 5},
    "chunk, both sides": lambda B, N, T, S: {"causal": False, "chunk": 5},
    "sinks": lambda B, N, T, S: {"causal": True, "sinks": random(N)},
    "soft cap": lambda B, N, T, S: {"causal": True, "softcap": 0.7},
    "padding": lambda B, N, T, S: {"causal": False, "padding": padding(S, S // 2, S=S)[:B]},
    "padding that leaves rows empty": lambda B, N, T, S: {"causal": True, "padding": padding(1, 0, S=S)[:B]},
    "ALiBi": lambda B, N, T, S: {"causal": True, "bias": alibi_bias(N, T, S)},
    "relative buckets": lambda B, N, T, S: {
        "causal": False, "bias": relative_bias(random(32, N), T, S, bidirectional=True), "scale": 1.0,
    },
    "bias of keys": lambda B, N, T, S: {"causal": True, "bias": random(B, 1, 1, S)},
    "bias of queries": lambda B, N, T, S: {"causal": True, "bias": random(N, T, 1)},
    "all together": lambda B, N, T, S: {
        "causal": True, "window": 6, "sinks": random(N), "softcap": 3.0, "padding": padding(S, S // 3, S=S)[:B],
        "bias": random(N, T, S), "scale": 0.3,
    },
    "sinks, window, padding, bias": lambda B, N, T, S: {
        "causal": True, "window": 6, "sinks": random(N), "padding": padding(S, S // 3, S=S)[:B], "bias": random(N, T, S),
    },
}  # fmt: skip


@every_kernel
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_equals_the_reference(impl: str, shape: dict[str, int], rule: Rule) -> None:
    q, k, v = inputs(**shape)
    rules = rule(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    same(attend(q, k, v, impl=impl, **rules), want(q, k, v, **rules))


@every_kernel
def test_cross_attention_may_have_more_queries_than_keys(impl: str) -> None:
    q, k, v = inputs(T=9, S=4)
    same(attend(q, k, v, impl=impl, causal=False), want(q, k, v, causal=False))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 3 queries and at most 4 keys, context parts from 2 tokens on: every seam is crossed many times."""
    for module in (tiled, grouped_module):
        monkeypatch.setattr(module, "QUERY_BLOCK", 3)
    monkeypatch.setattr(tiled, "TILE", 12)
    monkeypatch.setattr(grouped_module, "SHORTEST_PART", 2)


@pytest.fixture(params=[1, 3, 5], ids=lambda n: f"{n} threads")
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernels believe to have: it decides into how many parts a context is cut."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)


@pytest.mark.usefixtures("small_tiles", "threads")
@pytest.mark.parametrize("impl", ["tiled", "grouped"])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_blocks_and_parts_are_exact(impl: str, rule: Rule) -> None:
    q, k, v = inputs(T=8, S=23)
    rules = rule(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    same(attend(q, k, v, impl=impl, **rules), want(q, k, v, **rules))


@pytest.mark.usefixtures("small_tiles", "threads")
def test_parts_of_a_cache_that_is_a_view() -> None:
    """The cache is longer than what is filled, or has its heads behind its tokens."""
    q, k, v = inputs(T=1, S=17)
    longer = [torch.cat([x, torch.full_like(x, torch.nan)], dim=2)[:, :, :17] for x in (k, v)]
    behind = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    for keys, values in (longer, behind):
        same(attend(q, keys, values, impl="grouped", causal=True), want(q, k, v, causal=True))


@pytest.mark.parametrize(("heads", "threads", "parts"), [(25, 2, 1), (8, 2, 1), (1, 2, 2), (3, 2, 2), (5, 4, 4), (32, 5, 1)])
def test_a_context_is_cut_where_threads_would_idle(heads: int, threads: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert grouped_module._parts(torch.empty(1, heads, 8192, 16, device="meta")) == parts


@every_kernel
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03), (torch.float16, 0.004)], ids=str)
def test_narrow_formats_stay_near_the_reference(impl: str, dtype: torch.dtype, error: float) -> None:
    q, k, v = (x.to(dtype) for x in inputs(T=2, S=600))
    sinks = random(6)
    got = attend(q, k, v, impl=impl, causal=True, sinks=sinks)
    assert got.dtype == dtype
    expected = want(q.double(), k.double(), v.double(), causal=True, sinks=sinks)
    torch.testing.assert_close(got.double(), expected, rtol=error, atol=error * float(expected.abs().max()))


# --- properties -----------------------------------------------------------------------------------------------------

lengths = st.tuples(st.integers(1, 6), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair)))  # T <= S


@every_kernel
@given(lengths=lengths, seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_without_positions_the_order_of_keys_does_not_matter(impl: str, lengths: tuple[int, int], seed: int) -> None:
    T, S = lengths
    q, k, v = inputs(T=T, S=S)
    order = torch.randperm(S, generator=torch.Generator().manual_seed(seed))
    queries = torch.randperm(T, generator=torch.Generator().manual_seed(seed))
    plain = attend(q, k, v, impl=impl, causal=False)
    permuted = attend(q[:, :, queries], k[:, :, order], v[:, :, order], impl=impl, causal=False)
    same(permuted, plain[:, :, queries])


@every_kernel
@given(lengths=lengths, extra=st.integers(0, 9))
@settings(max_examples=10, deadline=None)
def test_a_window_as_long_as_the_context_is_none(impl: str, lengths: tuple[int, int], extra: int) -> None:
    q, k, v = inputs(T=lengths[0], S=lengths[1])
    full = attend(q, k, v, impl=impl, causal=True)
    same(attend(q, k, v, impl=impl, causal=True, window=lengths[1] + extra), full)
    same(attend(q, k, v, impl=impl, causal=True, chunk=lengths[1] + extra), full)


@every_kernel
@given(lengths=lengths, window=st.integers(1, 8))
@settings(max_examples=10, deadline=None)
def test_token_by_token_equals_all_at_once(impl: str, lengths: tuple[int, int], window: int) -> None:
    T, S = lengths
    q, k, v = inputs(T=T, S=S)
    whole = attend(q, k, v, impl=impl, causal=True, window=window)
    for t in range(T):
        seen = S - T + t + 1
        step = attend(q[:, :, t : t + 1], k[:, :, :seen], v[:, :, :seen], impl=impl, causal=True, window=window)
        same(step, whole[:, :, t : t + 1])


@every_kernel
@given(lengths=lengths, at=st.integers(0, 25))
@settings(max_examples=10, deadline=None)
def test_a_later_key_changes_no_earlier_query(impl: str, lengths: tuple[int, int], at: int) -> None:
    T, S = lengths
    at %= S
    q, k, v = inputs(T=T, S=S)
    before = attend(q, k, v, impl=impl, causal=True)
    k[:, :, at], v[:, :, at] = 9.0, -9.0
    after = attend(q, k, v, impl=impl, causal=True)
    blind = max(0, at - (S - T))  # queries before it stand before the key
    same(after[:, :, :blind], before[:, :, :blind])
    assert not torch.allclose(after[:, :, blind:], before[:, :, blind:])


@every_kernel
@given(constant=st.floats(-50, 50))
@settings(max_examples=10, deadline=None)
def test_a_constant_added_to_all_logits_changes_nothing(impl: str, constant: float) -> None:
    q, k, v = inputs()
    plain = attend(q, k, v, impl=impl, causal=True)
    same(attend(q, k, v, impl=impl, causal=True, bias=torch.full((3, 11), constant).double()), plain)


@every_kernel
def test_grouped_heads_are_repeated_keys(impl: str) -> None:
    q, k, v = inputs(N=6, K=2)
    repeated = [x.repeat_interleave(3, dim=1) for x in (k, v)]
    same(attend(q, k, v, impl=impl, causal=True), attend(q, *repeated, impl=impl, causal=True))


@every_kernel
def test_a_sink_of_minus_infinity_is_none_and_a_huge_one_takes_all(impl: str) -> None:
    q, k, v = inputs()
    none = attend(q, k, v, impl=impl, causal=True, sinks=torch.full((6,), -torch.inf).double())
    same(none, attend(q, k, v, impl=impl, causal=True))
    assert attend(q, k, v, impl=impl, causal=True, sinks=torch.full((6,), 1e4).double()).abs().max() == 0


@every_kernel
def test_large_logits_do_not_overflow(impl: str) -> None:
    q, k, v = inputs()
    got = attend(1e4 * q, 1e4 * k, v, impl=impl, causal=True)
    same(got, want(1e4 * q, 1e4 * k, v, causal=True))


@pytest.mark.usefixtures("small_tiles")
def test_tiles_hold_no_more_logits_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def noting(logits: Tensor, rules: Rules, bias: Tensor | None, mask: Tensor | None) -> Tensor:
        sizes.append(logits[0, 0].numel())
        return shape_logits(logits, rules, bias, mask)

    monkeypatch.setattr(tiled, "shape_logits", noting)
    q, k, v = inputs(T=8, S=23)
    attend(q, k, v, impl="tiled", causal=True)
    assert max(sizes) == 12
    assert sum(sizes) < 8 * 23  # tiles in the future are skipped


# --- masks ----------------------------------------------------------------------------------------------------------


@given(
    lengths=lengths,
    window=st.none() | st.integers(1, 9),
    chunk=st.none() | st.integers(1, 9),
    causal=st.booleans(),
    cut=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_masks_say_what_the_reference_sees(lengths: tuple[int, int], window: int | None, chunk: int | None, causal: bool, cut: int) -> None:
    T, S = lengths
    rules = Rules(causal=causal, window=window, chunk=chunk)
    rows, columns = range(S - T + min(cut, T - 1), S), range(min(cut, S - 1), S)
    wanted = np.array([[reference.sees(p, s, causal=causal, window=window, chunk=chunk) for s in range(S)] for p in rows])
    mask = visible(rules, rows, columns, torch.device("cpu"))
    block = wanted[:, columns.start :]
    assert block.all() if mask is None else np.array_equal(mask[0, 0].numpy(), block)
    start, stop = reach(rules, rows.start, rows.stop - 1, S)
    seen = np.flatnonzero(wanted.any(axis=0))
    assert (start, stop) == (seen[0], seen[-1] + 1)


# --- what ran, and what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("impl", "shape", "rules", "expected"),
    [
        ("eager", {}, Rules(causal=True), "eager"),
        ("tiled", {}, Rules(causal=True, softcap=2.0), "tiled"),
        ("sdpa", {}, Rules(causal=True), "sdpa: flash (cpu)"),
        ("sdpa", {"Dv": 5}, Rules(causal=True), "sdpa: math"),
        ("sdpa", {}, Rules(causal=True, softcap=2.0), "sdpa: tiled (SDPA has no soft cap)"),
        ("sdpa", {}, Rules(causal=True, sinks=torch.zeros(6)), "sdpa: tiled (SDPA has no sinks)"),
        ("grouped", {}, Rules(causal=True, sinks=torch.zeros(6)), "grouped: flash (cpu)"),
        ("grouped", {"Dv": 5}, Rules(causal=True), "grouped: tiled (keys and values differ in width)"),
    ],
    ids=["eager", "tiled", "sdpa", "sdpa, widths", "sdpa, cap", "sdpa, sinks", "grouped, sinks", "grouped, widths"],
)
def test_backend_that_ran(impl: str, shape: dict[str, int], rules: Rules, expected: str) -> None:
    q, k, v = inputs(**shape)
    assert backend_that_ran(q, k, v, impl=impl, rules=rules) == expected


@every_kernel
def test_kernels_run_on_meta(impl: str) -> None:
    q, k, v = (x.to("meta") for x in inputs(T=2, S=9))
    assert attend(q, k, v, impl=impl, causal=True, window=4).shape == q.shape


def test_unknown_kernels_are_named() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean tiled"):
        attend(*inputs(), impl="tilde", causal=True)


@pytest.mark.parametrize(
    ("shape", "rules", "message"),
    [
        ({"N": 5, "K": 2}, {}, "5 query heads cannot share 2 key/value heads"),
        ({"T": 9, "S": 4}, {}, "9 tokens needs at least as many keys; got 4"),
        ({}, {"window": 0}, "window has to be at least 1 token; got 0"),
        ({}, {"chunk": -3}, "chunk has to be at least 1 token; got -3"),
    ],
    ids=["heads", "more queries than keys", "window", "chunk"],
)
def test_nonsense_is_refused(shape: dict[str, int], rules: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        attend(*inputs(**shape), impl="eager", causal=True, **rules)


@pytest.mark.parametrize("change", ["rank", "width", "length"])
def test_tensors_that_do_not_fit_are_refused(change: str) -> None:
    q, k, v = inputs()
    bad = {"rank": (q[0], k, v), "width": (q[..., :5], k, v), "length": (q, k, v[:, :, :4])}[change]
    with pytest.raises(UsageError, match=r"got q|do not fit together"):
        attend(*bad, impl="eager", causal=True)


def test_the_reference_is_a_softmax() -> None:
    """By hand: two keys with logits 0 and ln 3, values 0 and 1; a sink of ln 4 takes half."""
    q, k, v = np.ones((1, 1, 1, 1)), np.array([0.0, np.log(3)]).reshape(1, 1, 2, 1), np.array([0.0, 1.0]).reshape(1, 1, 2, 1)
    assert reference.attend(q, k, v, causal=True).item() == pytest.approx(0.75)
    assert reference.attend(q, k, v, causal=True, sinks=np.array([np.log(4)])).item() == pytest.approx(0.375)
