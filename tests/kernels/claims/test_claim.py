"""What a claim is: comparing, registering, a second try."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tfm.kernels.claims import CLAIMS, Finding, claims_named, look
from tfm.kernels.claims.claim import Claim, at_least, at_most, difference, equal, not_applicable
from tfm.presets.errors import UnknownNameError, UnreadableError


def made(test: Any, *, measured: bool = False) -> Claim:
    return Claim(name="x", group="g", quantity="q", words="w", formula="f", source="s", measured=measured, test=test)


@pytest.mark.parametrize(
    ("found", "ok", "error"),
    [
        pytest.param(equal(2, 2), True, 0.0, id="equal"),
        pytest.param(equal(2, 3), False, 0.5, id="relative to what was predicted"),
        pytest.param(equal(0.0, 1e-3), False, 1e-3, id="absolute where that is 0"),
        pytest.param(equal([1.0, 4.0], [1.0, 4.1], within=0.05), True, pytest.approx(0.025), id="list"),
        pytest.param(equal([1.0], [1.0, 1.0]), False, math.inf, id="another shape"),
        pytest.param(equal(1.0, math.nan, within=9.0), False, math.inf, id="NaN is not equal"),
        pytest.param(at_most(2.0, 2.0), True, 0.0, id="at its limit"),
        pytest.param(at_most(2.0, 3.0), False, 0.5, id="above its limit"),
        pytest.param(at_least(2.0, 1.0), False, 0.5, id="below its limit"),
        pytest.param(at_least(2.0, 9.0), True, 0.0, id="far above a lower limit"),
        pytest.param(not_applicable("no kernel"), None, None, id="neither"),
    ],
)
def test_comparing(found: Finding, ok: bool | None, error: float | None) -> None:
    assert (found.ok, found.error) == (ok, error)


@pytest.mark.parametrize("limit", [at_most, at_least])
def test_nan_is_beyond_every_limit(limit: Any) -> None:
    assert limit(1.0, math.nan).ok is False


def test_difference_is_of_numbers_not_of_formats() -> None:
    assert difference(torch.tensor([1.0, 2.0], dtype=torch.float64), [1.0, 2.0]) == 0


@pytest.mark.parametrize(("measured", "tries", "ok"), [(True, 2, True), (False, 1, False)], ids=["measured", "counted"])
def test_only_a_measurement_has_a_second_try(measured: bool, tries: int, ok: bool) -> None:
    seen: list[float] = []

    def test() -> Finding:
        seen.append(0)
        return at_least(2, len(seen))

    found = look(made(test, measured=measured)).finding
    assert (len(seen), found.ok, found.note) == (tries, ok, "second try" if ok else "")


def test_what_raises_does_not_hold() -> None:
    def test() -> Finding:
        raise IndexError("out of range\nand more")

    found = look(made(test)).finding
    assert (found.ok, found.note) == (False, "IndexError: out of range")


def test_what_does_not_fit_does_not_apply() -> None:
    def test() -> Finding:
        raise UnreadableError("needs 9 GiB")

    found = look(made(test)).finding
    assert (found.ok, found.note) == (None, "not applicable: needs 9 GiB")


def test_where_no_kernel_exists_it_is_said() -> None:
    found = look(CLAIMS["int8-weights-speed-decode"], gap=lambda: "no int8 kernel").finding
    assert (found.ok, found.note) == (None, "not applicable: no int8 kernel")


def test_the_same_numbers_every_time_and_nothing_left_behind() -> None:
    threads, before = torch.get_num_threads(), torch.random.get_rng_state()
    first, second = (look(CLAIMS["variance-is-d-k"]).finding for _ in range(2))
    assert first == second
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_every_claim_says_what_it_is() -> None:
    for claim in CLAIMS.values():
        assert all((claim.quantity, claim.formula, claim.source)), claim.name
        assert claim.words.endswith((".", "]", '"')) and len(claim.words) > 30, claim.name


def test_a_group_is_a_name_for_its_claims() -> None:
    assert [claim.name for claim in claims_named(["memory", "rnn-path-is-n"])] == [
        "tiled-attention-is-exact", "tiled-memory-is-linear", "eager-memory-is-quadratic", "tiles-save-memory", "rnn-path-is-n",
    ]  # fmt: skip
    assert len(claims_named(None)) == len(CLAIMS)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean sgd-step"):
        claims_named(["sgd-stop"])
