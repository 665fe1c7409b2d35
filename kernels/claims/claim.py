"""A claim: a sentence about transformers, what it predicts, and a function that looks whether that is so.

A claim's function takes what it tests (a kernel, a formula, a way to build a model) as keyword arguments with defaults, so
that a test can hand it a wrong one and see it fail.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ...presets.errors import TfmError, UnknownNameError, UnreadableError

Value = int | float | str | list[float]
Relation = Literal["equals", "at most", "at least", "is"]
Test = Callable[..., "Finding"]

SEED = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What a claim predicted and what was seen.

    Attributes:
        relation: how `observed` has to stand to `predicted`.
        error: how far off it is, relative to what was predicted (absolute where that is 0); 0 on the right side of a
            limit, None where there is no number to compare.
        ok: None: not applicable on this machine, and `note` says why.
    """

    predicted: Value | None
    observed: Value | None
    relation: Relation
    error: float | None
    ok: bool | None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Claim:
    """One claim.

    Attributes:
        name: what --only takes. group: the module it stands in. quantity: what is compared.
        words: the claim as a sentence. formula: in symbols. source: where it is from.
        measured: it reads the clock, so it has a second try.
    """

    name: str
    group: str
    quantity: str
    words: str
    formula: str
    source: str
    measured: bool
    test: Test


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A claim that was looked at; `seconds` it took."""

    claim: Claim
    finding: Finding
    seconds: float

    def figures(self) -> dict[str, object]:
        """The row of the JSON contract."""
        claim, found = self.claim, self.finding
        return {
            "name": claim.name,
            "quantity": claim.quantity,
            "relation": found.relation,
            "predicted": found.predicted,
            "observed": found.observed,
            "error": found.error,
            "ok": found.ok,
            "note": found.note,
            "seconds": self.seconds,
        }


CLAIMS: dict[str, Claim] = {}


def claim(*, quantity: str, formula: str, source: str, measured: bool = False) -> Callable[[Test], Test]:
    """Register a function as a claim: its name is the claim's, its docstring the claim in words."""

    def register(test: Test) -> Test:
        name = test.__name__.replace("_", "-")
        words = " ".join(inspect.cleandoc(test.__doc__ or "").split())
        group = test.__module__.rpartition(".")[2]
        CLAIMS[name] = Claim(
            name=name, group=group, quantity=quantity, words=words, formula=formula, source=source, measured=measured, test=test
        )
        return test

    return register


def claims_named(names: Sequence[str] | None) -> list[Claim]:
    """The claims called so, or of a group called so, or all; raises UnknownNameError."""
    groups = {claim.group for claim in CLAIMS.values()}
    for name in names or ():
        if name not in CLAIMS and name not in groups:
            raise UnknownNameError("claim", name, (*CLAIMS, *groups), "List them with `tfm validate claims --list`.")
    return [claim for claim in CLAIMS.values() if names is None or claim.name in names or claim.group in names]


def look(claim: Claim, **replaced: Any) -> Verdict:
    """Look whether a claim holds; `replaced`: kernels or formulas in place of its own. What raises does not hold."""
    begin = time.perf_counter()
    found = once(claim, replaced)
    if claim.measured and found.ok is False:
        again = once(claim, replaced)
        found = replace(again, note="; ".join(filter(None, [again.note, "second try"])))
    return Verdict(claim=claim, finding=found, seconds=time.perf_counter() - begin)


def once(claim: Claim, replaced: dict[str, Any]) -> Finding:
    """One try, from the same random numbers each time; the caller's are left as they were."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), one_thread():
        torch.manual_seed(SEED)
        try:
            return claim.test(**replaced)
        except UnreadableError as error:
            return not_applicable(str(error))
        except (TfmError, RuntimeError, ValueError, ArithmeticError, LookupError, TypeError) as error:
            note = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return Finding(predicted=None, observed=None, relation="is", error=None, ok=False, note=note)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread: tensors here are small, and a busy machine makes several threads wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# --- comparing --------------------------------------------------------------------------------------------------------


def equal(predicted: Any, observed: Any, *, within: float = 0.0, note: str = "") -> Finding:
    """Numbers that have to be the same, `within` being the relative difference that is let pass."""
    error = difference(predicted, observed)
    return Finding(
        predicted=plain(predicted), observed=plain(observed), relation="equals", error=error, ok=error <= within, note=note
    )  # fmt: skip


def at_most(limit: float, observed: float, *, note: str = "") -> Finding:
    """A number that must not be larger. NaN is."""
    ok = observed <= limit
    return Finding(predicted=limit, observed=observed, relation="at most", error=beyond(limit, observed, ok=ok), ok=ok, note=note)


def at_least(limit: float, observed: float, *, note: str = "") -> Finding:
    """A number that must not be smaller. NaN is."""
    ok = observed >= limit
    return Finding(predicted=limit, observed=observed, relation="at least", error=beyond(limit, observed, ok=ok), ok=ok, note=note)


def same(predicted: str, observed: str, *, note: str = "") -> Finding:
    """Words that have to be the same."""
    return Finding(predicted=predicted, observed=observed, relation="is", error=None, ok=predicted == observed, note=note)


def not_applicable(why: str) -> Finding:
    """Nothing here to look at."""
    return Finding(predicted=None, observed=None, relation="is", error=None, ok=None, note=f"not applicable: {why}")


def beyond(limit: float, observed: float, *, ok: bool) -> float:
    """How far a number is on the wrong side of its limit, relative to the limit."""
    return 0.0 if ok else abs(observed - limit) / (abs(limit) or 1.0)


def difference(wanted: Any, got: Any) -> float:
    """Largest difference of two tensors or lists, relative to the largest number wanted; infinite for other shapes or NaN.

    >>> difference([1.0, 2.0], [1.0, 2.5])
    0.25
    """
    a, b = (x.detach().double() if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64) for x in (wanted, got))
    if a.shape != b.shape or bool(b.isnan().any()):
        return math.inf
    return float((a - b).abs().max() / (float(a.abs().max()) or 1.0))


def plain(value: Any) -> Value:
    """A number or a list of them."""
    if isinstance(value, Tensor):
        listed: Value = value.detach().to(torch.float64).tolist()
        return listed
    return list(value) if isinstance(value, tuple) else value
