"""One row of a validation: what was predicted, what PyTorch or the clock says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row: what was predicted, what PyTorch or the clock says, and how far the prediction is off (predicted / observed - 1).

    `ok` is None where there is nothing to hold it to. `counts`: whether it is a count, not a time.
    """

    name: str
    quantity: str
    predicted: float | None
    observed: float
    ok: bool | None
    counts: bool = True

    @property
    def error(self) -> float | None:
        """predicted / observed - 1; None where nothing was predicted, 0 where both are 0."""
        if self.predicted is None:
            return None
        if self.observed == 0:
            return 0.0 if self.predicted == 0 else None
        return self.predicted / self.observed - 1

    def figures(self) -> dict[str, object]:
        """The keys of the contract."""
        names = ("name", "quantity", "predicted", "observed", "error", "ok")
        return {name: getattr(self, name) for name in names}


def equal(name: str, quantity: str, predicted: int, observed: int) -> Finding:
    """A count that must be equal."""
    return Finding(name=name, quantity=quantity, predicted=predicted, observed=observed, ok=predicted == observed)


def compared(name: str, quantity: str, predicted: Counter[str], observed: Counter[str]) -> Iterator[Finding]:
    """The totals and, where they or their parts differ, the paths that do; nothing where there is nothing."""
    if predicted.total() or observed.total():
        yield equal(name, quantity, predicted.total(), observed.total())
    for path in dict.fromkeys((*predicted, *observed)):
        if predicted[path] != observed[path]:
            yield equal(f"{name}: {path}", quantity, predicted[path], observed[path])
