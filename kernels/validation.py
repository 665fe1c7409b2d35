"""Predicted beside observed: the ledger's counts against PyTorch's own counters, its times against the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from ..estimators.kvcache import kvcache
from ..estimators.ledger import ledger
from ..estimators.rows import Row
from ..estimators.work import Pass, Phase
from ..presets.spec import ModelSpec
from .benchmarks.passes import bench_decode, bench_prefill
from .benchmarks.record import Record
from .benchmarks.setting import Setting
from .counting import counted_buffers, counted_cache_bytes, counted_flops, counted_parameters, meta_model
from .model import Model
from .timing import TOLERANCE

CONTEXT = 5000  # longer than the usual windows, and no round number
BATCH = 2


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row: what was predicted, what PyTorch or the clock says, and how far the prediction is off (predicted / observed - 1).

    `ok` is None where there is nothing to hold a time to. `counts`: whether it is a count, which must be equal.
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


def validate_counts(
    spec: ModelSpec, *, phases: Sequence[Phase] = ("prefill", "decode"), batch: int = BATCH, context: int | None = None
) -> Iterator[Finding]:
    """Parameters, buffers, FLOPs of each phase and bytes of the cache, of the whole model on `meta`: seconds, whatever its size.

    Where a total differs, the rows of the ledger that do follow it. Raises UnsupportedError for a part without a module.
    """
    model = meta_model(spec)
    context = context or min(CONTEXT, spec.main.max_positions or CONTEXT)
    work = Pass(batch=batch, context=context, full_attention=True)
    rows = ledger(spec, work)
    yield from compared("model", "params", of_rows(rows, "params", "copies"), counted_parameters(model))
    yield from compared("model", "buffers", of_rows(rows, "buffers", "copies"), counted_buffers(model))
    for phase in phases:
        if phase == "decode" and not spec.decodes:
            continue
        one = replace(work, phase=phase)
        counted = counted_flops(model, one)
        if phase == "train":
            yield equal("train", "flops", total_flops(ledger(spec, one), training=True), counted.total())
        else:
            yield from compared(f"{phase}, {batch} x {context} tokens", "flops", of_rows(ledger(spec, one), "flops", "repeat"), counted)
    if spec.decodes:
        yield from cache_findings(spec, model, replace(work, phase="decode", full_attention=False))


def cache_findings(spec: ModelSpec, model: Model, work: Pass) -> Iterator[Finding]:
    """Bytes of the cache's tensors under the policy `minimal`."""
    predicted = kvcache(spec, work)
    for quantity, observed in counted_cache_bytes(model, work).items():
        expected = int(getattr(predicted, quantity))
        if expected or observed:
            yield equal(f"cache, {work.batch} x {work.context} tokens", quantity, expected, observed)


def of_rows(rows: Sequence[Row], field: str, per: str) -> Counter[str]:
    """One field of the rows by path, as often as each runs or exists."""
    found: Counter[str] = Counter()
    for row in rows:
        found[row.path] += getattr(row, field) * getattr(row, per)
    return found


def total_flops(rows: Sequence[Row], *, training: bool) -> int:
    """FLOPs of all rows, the backward pass included where it is trained."""
    return int(sum(row.flops * row.repeat * (1 + row.backward if training else 1) for row in rows))


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


def validate_times(
    spec: ModelSpec,
    *,
    phases: Sequence[str] = ("prefill", "decode"),
    dtype: torch.dtype = torch.bfloat16,
    batch: int = 1,
    context: int | None = None,
    layers: str = "auto",
    setting: Setting | None = None,
) -> Iterator[Finding]:
    """Decode and prefill against the clock: the expected time where this machine is calibrated, and the floor of the same run."""
    limit = spec.main.max_positions
    for phase in phases:
        if phase == "train" or (phase == "decode" and not spec.decodes):
            continue
        length = context or min({"decode": 1024, "prefill": 256}[phase], limit or 1024)
        bench: Any = bench_decode if phase == "decode" else bench_prefill
        for record in bench(spec, dtype=dtype, points=[(batch, length)], layers=layers, setting=setting):
            yield from time_findings(f"{phase}, {batch} x {length} tokens", record)


def time_findings(name: str, record: Record) -> Iterator[Finding]:
    """A measured time beside the expected one (within its interval or not) and beside the floor (which it cannot beat)."""
    median = record.sample.median_s
    if record.expected is not None:
        inside = record.expected.low_s <= median <= record.expected.high_s
        yield Finding(name=name, quantity="expected_s", predicted=record.expected.seconds, observed=median, ok=inside, counts=False)
    floor = record.floor_s
    ok = None if floor is None else median * TOLERANCE >= floor
    yield Finding(name=name, quantity="floor_s", predicted=floor, observed=median, ok=ok, counts=False)
