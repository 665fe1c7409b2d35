"""The roofline, operator by operator (Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785).

floor = sum over operators, one after another, of max(FLOPs / peak, compulsory bytes / bandwidth): what a program does
that runs them in turn. bound = max(total FLOPs / peak, total compulsory bytes / bandwidth): below it a measurement is
wrong. Compulsory are weights and cache, each byte once; activations are not counted.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from ..presets.device import Device
from ..presets.errors import UsageError
from ..presets.spec import ModelSpec
from .counts import Number, choose, each, larger
from .flops import row_flops
from .ledger import ledger
from .rows import Row
from .search import smallest
from .sizes import moved_bytes, weight_read_bytes
from .sweep import fits_int64
from .work import Pass

LARGEST_BATCH = 2**40


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """One pass on one device; times in seconds, None where the device's peak is not known (a decode step then has its
    bytes alone as floor and bound, which stay true).

    `compute_s`, `memory_s`: all FLOPs at peak, all bytes at full bandwidth. `compute_part_s`, `memory_part_s`: how
    the floor divides into operators that wait for arithmetic and for memory.
    """

    floor_s: Number | None
    bound_s: Number | None
    compute_s: Number | None
    memory_s: Number
    compute_part_s: Number | None
    memory_part_s: Number | None
    flops: Number
    weight_read_bytes: Number
    kv_read_bytes: Number
    state_read_bytes: Number
    distinct_experts: Number | None
    peak_flops_per_s: float | None
    work: Pass
    device: Device
    rows: tuple[Row, ...]


def row_bytes(row: Row, work: Pass) -> Number:
    """Compulsory bytes of all runs of a row."""
    return weight_read_bytes(row, work) + moved_bytes(row, work)


def row_times(row: Row, work: Pass, device: Device, peak: float) -> tuple[Number, Number]:
    """Seconds of all runs of a row: for its arithmetic, for its memory."""
    return row_flops(row, work) * row.repeat / peak, row_bytes(row, work) / device.memory_bytes_per_s


def row_seconds(row: Row, work: Pass, device: Device) -> Number | None:
    """Floor of one run of a row; None where the peak is not known."""
    peak = device.peak_for(work.activation_dtype.name)
    if peak is None or not row.repeat:
        return None
    compute, memory = row_times(row, work, device, peak)
    return larger(compute, memory) / row.repeat


def roofline(spec: ModelSpec, work: Pass, device: Device, *, cached: bool = True) -> Roofline:
    """Floor and bound of a pass; every field may be an array where batch or context is. `cached=False` leaves the cache
    out, for what the weights alone would take.
    """
    rows = ledger(spec, work)
    if not cached:
        rows = tuple(replace(row, store=None) for row in rows if row.op not in ("attention", "scan"))
    peak = device.peak_for(work.activation_dtype.name)
    flops = sum(row_flops(row, work) * row.repeat for row in rows)
    weights = sum(weight_read_bytes(row, work) for row in rows)
    cache = sum(moved_bytes(row, work) for row in rows if row.store and row.store.of in ("self", "cross"))
    state = sum(moved_bytes(row, work) for row in rows if row.store and row.store.of in ("state", "tail"))
    memory_s = (weights + cache + state) / device.memory_bytes_per_s
    floor = memory_s if work.decoding else None
    bound = floor
    compute_part = None
    if peak is not None:
        times = [row_times(row, work, device, peak) for row in rows]
        floor = sum(larger(compute, memory) for compute, memory in times)
        compute_part = sum(compute * (compute > memory) for compute, memory in times)
        bound = larger(flops / peak, memory_s)
    return Roofline(
        floor_s=floor,
        bound_s=bound,
        compute_s=None if peak is None else flops / peak,
        memory_s=memory_s,
        compute_part_s=compute_part,
        memory_part_s=None if compute_part is None else floor - compute_part,
        flops=flops,
        weight_read_bytes=weights,
        kv_read_bytes=cache,
        state_read_bytes=state,
        distinct_experts=next((row.dims["distinct"] for row in rows if row.op == "experts" and row.repeat), None),
        peak_flops_per_s=peak,
        work=work,
        device=device,
        rows=rows,
    )


def critical_batch(spec: ModelSpec, work: Pass, device: Device, *, cached: bool = True) -> int | None:
    """Smallest batch from which decode waits for arithmetic, None if there is none.

    FLOPs grow with the batch in proportion, bytes less than that (weights are read once, distinct experts saturate), so
    the difference changes its sign at most once and a bisection finds it. `cached=False`: for the weights alone.
    """
    if device.peak_for(work.activation_dtype.name) is None or not spec.decodes:
        return None

    def waits_for_arithmetic(batch: int) -> bool:
        line = roofline(spec, replace(work, phase="decode", new=None, batch=batch), device, cached=cached)
        return line.compute_s is not None and bool(line.compute_s > line.memory_s)

    return smallest(waits_for_arithmetic, LARGEST_BATCH)


def wall(line: Roofline) -> Number | None:
    """Which part of the floor is larger: "bandwidth" or "compute"; None where the peak is not known."""
    if line.compute_part_s is None:
        return None
    return choose(line.compute_part_s > line.memory_part_s, "compute", "bandwidth")


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Decode step and prefill of one model on one device; decode is None for a model without a decoder.

    `critical_batch_of_weights`: from which batch the weights alone, without a cache, would be compute-bound.
    """

    decode: Roofline | None
    prefill: Roofline
    critical_batch: Number | None
    critical_batch_of_weights: int | None


def latency(spec: ModelSpec, work: Pass, device: Device) -> Latency:
    """Prefill of `work.context` tokens, and the decode step that attends that many (the new one included)."""
    prefill = roofline(spec, replace(work, phase="prefill", new=None), device)
    if not spec.decodes:
        return Latency(decode=None, prefill=prefill, critical_batch=None, critical_batch_of_weights=None)
    step = roofline(spec, replace(work, phase="decode", new=None), device)

    def critical(context: int, source: int | None) -> int | None:
        return critical_batch(spec, replace(work, context=context, source=source), device)

    return Latency(
        decode=step,
        prefill=prefill,
        critical_batch=each(critical, work.context, work.source),
        # a step without a cache is the same at every length
        critical_batch_of_weights=critical_batch(spec, replace(work, context=1, source=1), device, cached=False),
    )


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """Floors of a generation of several tokens: the first step, the last, their mean, and all with the prefill."""

    first_step_s: Number
    last_step_s: Number
    mean_step_s: Number
    total_s: Number


LARGEST_GENERATION = 2**24
AT_ONCE = 2**16  # steps in one vectorised call: bounds the memory


def generation(spec: ModelSpec, work: Pass, device: Device, new: int) -> Generation | None:
    """`new` tokens after a prompt of `work.context`: the prefill gives the first, each later one is a decode step.

    The step's floor grows with the context, so it is summed over all of them, at every point of a sweep. Raises UsageError.
    """
    if new > LARGEST_GENERATION:
        raise UsageError(f"a generation is summed step by step, at most {LARGEST_GENERATION} tokens, got {new}; give fewer")
    if not spec.decodes or device.peak_for(work.activation_dtype.name) is None:
        return None

    def at_point(batch: int, context: int, source: int | None) -> Generation:
        point = replace(work, batch=batch, context=context, source=source)
        prompt: Number = roofline(spec, replace(point, phase="prefill", new=None), device).floor_s
        first, last, steps = step_floors(spec, replace(point, phase="decode", new=None), device, max(new - 1, 1))
        total = float(prompt + (steps if new > 1 else 0.0))
        return Generation(first_step_s=first, last_step_s=last, mean_step_s=steps / max(new - 1, 1), total_s=total)

    found = each(at_point, work.batch, work.context, work.source)
    return Generation(**{name: each(attrgetter(name), found) for name in Generation.__struct_fields__})


def step_floors(spec: ModelSpec, step: Pass, device: Device, count: int) -> tuple[float, float, float]:
    """Floors of the first, the last and all of `count` decode steps, the first at one token more than `step.context`."""
    import numpy as np

    last = step.context + count
    kind: Any = np.int64 if fits_int64(spec, replace(step, context=last)) else object
    floors: list[Any] = []
    for start in range(step.context + 1, last + 1, AT_ONCE):
        contexts = np.arange(start, min(start + AT_ONCE, last + 1), dtype=kind)
        floor: Number = roofline(spec, replace(step, context=contexts), device).floor_s
        floors.append(np.broadcast_to(floor, contexts.shape))
    return float(floors[0][0]), float(floors[-1][-1]), float(sum(part.sum() for part in floors))
