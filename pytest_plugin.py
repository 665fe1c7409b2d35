"""The pytest plugin: a fixture `tfm_check`, with which a team writes gates as tests. Loaded by pytest wherever tfm is installed.

    def test_size(tfm_check):
        tfm_check.params("llama-7b").equals(6738415616)

    def test_decode(tfm_check):
        tfm_check.decode("llama-7b", layers=2).efficiency_at_least(0.6)

    def test_baseline(tfm_check):
        tfm_check.baseline("tfm.json")

It is light: what a test uses is imported when it does.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from os import PathLike

    from .presets.baseline import Gate

__all__ = ["Count", "Efficiency", "TfmCheck", "tfm_check"]


class Count:
    """An exact number, to be held to something."""

    def __init__(self, what: str, value: float) -> None:
        self.what, self.value = what, value

    def __repr__(self) -> str:
        return f"{self.what} = {self.value:,}"

    def equals(self, expected: float) -> None:
        """The number and no other."""
        __tracebackhide__ = True
        if self.value != expected:
            raise AssertionError(f"{self.what} is {self.value:,}, expected {expected:,} ({self.value - expected:+,})")

    def at_most(self, limit: float) -> None:
        """No more than a limit."""
        __tracebackhide__ = True
        if not self.value <= limit:
            raise AssertionError(f"{self.what} is {self.value:,}, expected at most {limit:,} ({self.value - limit:+,})")

    def at_least(self, limit: float) -> None:
        """No less than a limit."""
        __tracebackhide__ = True
        if not self.value >= limit:
            raise AssertionError(f"{self.what} is {self.value:,}, expected at least {limit:,} ({self.value - limit:+,})")


class Efficiency:
    """A measured step against the floor of the same moment; measured when it is asked for, and once more before it fails."""

    def __init__(self, gate: Gate, threads: int | None) -> None:
        self.gate, self.threads = gate, threads

    def measure(self) -> float:
        """Measure and give the median: 1 is the roofline."""
        from .kernels.gates import measure_gates

        found = measure_gates((self.gate,), threads=self.threads, tell=lambda _: None)
        return statistics.median(found.entries[0].efficiencies)

    def efficiency_at_least(self, limit: float) -> None:
        """The median efficiency reaches a limit, if not at once then in a second measurement."""
        __tracebackhide__ = True
        first = self.measure()
        if first >= limit:
            return
        second = self.measure()
        if not second >= limit:
            raise AssertionError(f"{self.gate.id}: efficiency {first:.3f}, measured again {second:.3f}, expected at least {limit:g}")


class TfmCheck:
    """Gates as methods; the arguments are those of the functions of the same name in `tfm`."""

    def params(self, model: str) -> Count:
        """How many parameters."""
        from . import api

        return Count(f"{model}: total_params", api.params(model).total_params)

    def active_params(self, model: str) -> Count:
        """How many parameters one token uses."""
        from . import api

        return Count(f"{model}: active_params", api.params(model).active_params)

    def flops(self, model: str, **fields: object) -> Count:
        """FLOPs of a pass: `phase`, `batch`, `context` ..."""
        from . import api

        return Count(f"{model}: total_flops{said(fields)}", api.flops(model, **fields).total_flops)  # type: ignore[arg-type]

    def kvcache(self, model: str, **fields: object) -> Count:
        """Bytes of the cache: `batch`, `context`, `kv_dtype` ..."""
        from . import api

        return Count(f"{model}: kv_bytes{said(fields)}", api.kvcache(model, **fields).kv_bytes)  # type: ignore[arg-type]

    def memory(self, model: str, **fields: object) -> Count:
        """Bytes of weights, cache and activations: `phase`, `batch`, `context` ..."""
        from . import api

        return Count(f"{model}: total_bytes{said(fields)}", api.memory(model, **fields).total_bytes)  # type: ignore[arg-type]

    def decode(
        self, model: str, *, layers: int = 2, dtype: str = "bf16", ctx: int = 512, batch: int = 1, threads: int | None = None
    ) -> Efficiency:
        """A decode step of the first layers of a model."""
        __tracebackhide__ = True
        return step_of("decode", model, layers=layers, dtype=dtype, ctx=ctx, batch=batch, threads=threads)

    def attention(self, model: str, *, dtype: str = "bf16", ctx: int = 4096, batch: int = 1, threads: int | None = None) -> Efficiency:
        """The attention of one layer of a model over its cache."""
        __tracebackhide__ = True
        return step_of("attention", model, layers=1, dtype=dtype, ctx=ctx, batch=batch, threads=threads)

    def baseline(self, path: str | PathLike[str], *, measured: bool = True, threshold: float = 0.05, threads: int | None = None) -> None:
        """A whole baseline file as one assertion; what cannot be compared or run fails as well (`measured=False` leaves it out)."""
        __tracebackhide__ = True
        from . import api

        found = api.check(path, measured=measured, threshold=threshold, threads=threads)
        if not found.ok:
            raise AssertionError(f"{path}: {found}")


def step_of(
    what: Literal["decode", "attention"], model: str, *, layers: int, dtype: str, ctx: int, batch: int, threads: int | None
) -> Efficiency:
    """A measured gate; without torch it fails with what to install, since a gate that is skipped is no gate."""
    __tracebackhide__ = True
    from importlib.util import find_spec

    if find_spec("torch") is None or find_spec("numpy") is None:
        raise AssertionError("measured gates need torch and numpy: pip install 'tfm-toolkit[bench]'")
    from msgspec import ValidationError, convert

    from .presets.baseline import Gate
    from .presets.errors import UsageError

    asked = {"what": what, "model": model, "layers": layers, "dtype": dtype, "batch": batch, "context": ctx}
    try:
        return Efficiency(convert(asked, Gate), threads)
    except ValidationError as error:
        raise UsageError(f"no gate: {error}") from error


def said(fields: dict[str, object]) -> str:
    """The arguments of a count, as in ` (context 4096)`."""
    return f" ({', '.join(f'{name} {value}' for name, value in fields.items())})" if fields else ""


@pytest.fixture
def tfm_check() -> TfmCheck:
    """Gates on the arithmetic and the speed of models: see the docs of tfm, check.md."""
    return TfmCheck()
