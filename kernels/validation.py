"""Predicted beside observed: the ledger's counts against PyTorch's own counters, its times against the clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from msgspec.structs import replace

from ..estimators.flops import row_flops
from ..estimators.kvcache import kvcache
from ..estimators.ledger import ledger
from ..estimators.rows import Row
from ..estimators.work import Pass, Phase, image_count
from ..presets.spec import ModelSpec
from .benchmarks.passes import bench_decode, bench_prefill
from .benchmarks.record import Record
from .benchmarks.setting import Setting
from .counting import counted_buffers, counted_cache_bytes, counted_flops, counted_parameters, meta_model
from .findings import Finding, compared, equal
from .model import Model
from .timing import TOLERANCE
from .training_validation import validate_training

__all__ = ["Finding", "validate_counts", "validate_times"]

CONTEXT = 5000  # longer than the usual windows, and no round number
BATCH = 2


def validate_counts(
    spec: ModelSpec, *, phases: Sequence[Phase] = ("prefill", "decode"), batch: int = BATCH, context: int | None = None
) -> Iterator[Finding]:
    """Parameters, buffers, FLOPs of each phase, bytes of the cache and of training, of the whole model on `meta`: seconds, whatever
    its size.

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
        if phase == "train":
            one = with_images(spec, one)
        yield from compared(f"{phase}, {batch} x {context} tokens", "flops", flops_of_rows(spec, one), counted_flops(model, one))
        if phase == "train":
            yield from validate_training(spec, model, one)
    if spec.decodes:
        yield from cache_findings(spec, model, replace(work, phase="decode", full_attention=False))


def with_images(spec: ModelSpec, work: Pass) -> Pass:
    """At least one image a sequence where there is a tower: weights that do not run have no gradient."""
    towers = any(stack.tokens == "image" for stack in spec.stacks)
    return replace(work, images=max(1, image_count(spec, work))) if towers else work


def flops_of_rows(spec: ModelSpec, work: Pass) -> Counter[str]:
    """FLOPs of the rows by path, those of the backward pass among them in training."""
    found: Counter[str] = Counter()
    for row in ledger(spec, work):
        found[row.path] += row_flops(row, work) * row.repeat
    return found


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
