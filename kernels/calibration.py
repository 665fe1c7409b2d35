"""`tfm calibrate`: what this machine reaches, in under two minutes, for the estimators to expect times from.

Everything is measured as the models run it (the same calls, the same kernels) and with its bytes in memory: one pool of
several times the last-level cache is the weights and the cache of every point in turn. Each point is measured beside a beat, a
short plain call, and counted in beats: on a shared machine the two minutes of a calibration are not equally fast, and the last
point would otherwise not go with the first.
"""

from __future__ import annotations

import datetime
import gc
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F

from ..estimators.expected import expected
from ..estimators.pace import ATTENTION_OVERLAP, Pace
from ..estimators.work import Pass
from ..presets import spec as s
from ..presets.calibration import SCHEMA, Attended, Calibration, Check, Elementwise, Product, Stream
from ..presets.device import Device
from . import tuning
from .attention import Kernel, kernel_named
from .benchmarks.setting import Setting
from .benchmarks.whole import pass_of, subject
from .benchmarks.yardstick import measured_device
from .cold import cold, driving_out, overheads
from .machine import machine
from .masks import Rules
from .meter import MATRIX, STREAMING, Meter
from .model import build_model
from .modules import activation_named
from .orders import ORDERS
from .plan import Plan, standard_plan
from .probes import (
    Bandwidth,
    dtype_name,
    measured_bandwidth,
    op_launch_cost,
    random_tensor,
    require_memory,
)
from .timing import Call, rotated

FUNCTIONS = ("silu", "gelu", "gelu_tanh", "relu")
MOST_CACHES = 8  # that attention is tuned on
CALM = 0.2  # spread of a visit in which the machine did not change
LONGEST_CHECK_S = 1.5  # a machine on which a check would take longer does without it


Line = TypeVar("Line", Product, Attended)
Found = TypeVar("Found")


def calibrate(setting: Setting | None = None, plan: Plan | None = None, *, version: str = "") -> Calibration:
    """Measure the device. Nothing is stored: `presets.calibration.save_calibration` does. Raises TfmError, KeyboardInterrupt."""
    setting, start = setting or Setting(), time.perf_counter()
    plan = plan or standard_plan(setting)
    widest = max(dtype.itemsize for dtype in plan.dtypes)
    pools_bytes = (1 + len(plan.dtypes)) * plan.pool_bytes + len(plan.dtypes) * plan.beat_bytes
    require_memory(pools_bytes + 3 * max(plan.sizes) * widest // 2, setting.device, what="the calibration")
    found = streams(setting, plan)
    best = found[0]  # smaller sizes stay in the cache
    meters = {
        dtype: Meter.of(dtype, setting.device, pool_bytes=plan.beat_bytes, start=plan.careful, usual=plan.stopping) for dtype in plan.dtypes
    }
    pools = {dtype: random_tensor((plan.pool_bytes // dtype.itemsize,), dtype, setting.device) for dtype in plan.dtypes}
    between = sorted(plan.between)[len(plan.between) // 2]
    drives = {dtype: driving_out(plan, meter, between) for dtype, meter in meters.items()}
    visits: list[Product | Attended] = []
    for turn in range(plan.rounds):
        setting.tell(f"round {turn + 1} of {plan.rounds}")
        ends = start + plan.visits_s if turn else math.inf
        # few rows first: what multiplies for long heats or tires a machine, and the next short calls are slower
        for few in (True,) if turn else (True, False):
            for dtype, meter in meters.items():
                visits += in_time(products(plan, meter, pools[dtype], few=few), ends)
                visits += in_time(attentions(plan, meter, pools[dtype], drives[dtype], few=few), ends)
    lines, attended = middle(visits, Product), middle(visits, Attended)
    pools.clear()
    drives.clear()
    gc.collect()
    setting.tell("operators around them")
    bare = Calibration(
        schema=SCHEMA,
        made=datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        version=version,
        machine=machine(setting.device),
        device=device_of(setting, best, lines),
        launch_s=op_launch_cost(setting.device, stopping=plan.stopping).median_s,
        streams=tuple(
            Stream(
                probe=probe.name,
                dtype=probe.dtype,
                size_bytes=probe.moved_bytes // (2 if probe.name == "copy" else 1),
                bytes_per_s=probe.bytes_per_s,
            )
            for bandwidth in found
            for probe in bandwidth.probes
        ),
        products=tuple(lines),
        attended=tuple(attended),
        elementwise=tuple(line for dtype, meter in meters.items() for line in elementwise(setting, plan, meter, dtype)),
        overheads=tuple(line for meter in meters.values() for line in overheads(plan, meter)),
        checks=(),
        yards=tuple(meter.yard for meter in meters.values()),
    )
    found_checks = tuple(in_time(checks(setting, plan, meters, bare), start + plan.checks_s))
    if not found_checks:
        setting.tell("no time was left for whole models; the next calibration, for which nothing has to be compiled, has more")
    return msgspec.structs.replace(bare, checks=found_checks)


def in_time(found: Iterable[Found], ends: float) -> Iterator[Found]:
    """What is found one after another, until some time; nothing after it."""
    if time.perf_counter() >= ends:
        return
    for one in found:
        yield one
        if time.perf_counter() >= ends:
            return


def middle(visits: Sequence[Product | Attended], kind: type[Line]) -> list[Line]:
    """Of several visits to a point the one with the median seconds, of two the faster; of those that were calm, if any was."""
    points: defaultdict[object, list[Line]] = defaultdict(list)
    for visit in visits:
        if isinstance(visit, kind):
            points[msgspec.structs.replace(visit, seconds=1.0, spread=0.0)].append(visit)
    calm = ([one for one in found if one.spread <= CALM] or found for found in points.values())
    return [sorted(found, key=lambda one: one.seconds)[(len(found) - 1) // 2] for found in calm]


def device_of(setting: Setting, best: Bandwidth, lines: Sequence[Product]) -> Device:
    """The device as estimators take it: bandwidth of the best probe, rates of the best products."""
    rates: dict[str, float | None] = {}
    for line in lines:
        rates[line.dtype] = max(rates.get(line.dtype) or 0.0, 2 * line.m * line.k * line.n / line.seconds)
    source = f"tfm calibrate: bandwidth by {best.winner.name} in {best.winner.dtype}, rates by matrix products"
    return measured_device(setting.device, bytes_per_s=best.bytes_per_s, peaks=rates, source=source)


def streams(setting: Setting, plan: Plan) -> list[Bandwidth]:
    """The probes at every size, the largest first: only that one counts as memory's."""
    found = []
    for size in plan.sizes:
        setting.tell(f"bandwidth over {size / 2**20:.4g} MiB")
        stopping = plan.careful if size == plan.sizes[0] else plan.stopping
        found.append(measured_bandwidth(plan.dtypes[-1], setting.device, size_bytes=size, stopping=stopping))
    return found


def products(plan: Plan, meter: Meter, pool: Tensor, *, few: bool) -> Iterator[Product]:
    """Matrix products by rows, width in and width out: those of few rows, which take no time, or the others."""
    for m, k, n in plan.products:
        size = k * n * pool.itemsize
        matrix = meter.multiplies(size, 2 * m * k * n)
        if k * n > pool.numel() or (m <= tuning.MOST_ROWS) is not few:
            continue
        name = dtype_name(pool.dtype)
        matrices = pool[: pool.numel() // (k * n) * k * n].view(-1, n, k)
        x = random_tensor((m, k), pool.dtype, meter.device)
        found = meter.timed(tuning.product(x, list(matrices)), by=MATRIX if matrix else STREAMING, moved_bytes=size)
        joins = tuning.choose(m, list(matrices)) in ORDERS
        yield Product(dtype=name, m=m, k=k, n=n, seconds=found.seconds, spread=found.spread, joins=joins)


def attentions(plan: Plan, meter: Meter, pool: Tensor, drive: Call | None, *, few: bool) -> Iterator[Attended]:
    """Attention of one new token over caches, after `drive` (`few`), or of many among themselves, by the kernels that models use."""
    for new, points, impl in ((1, plan.steps if few else (), "grouped"), (None, () if few else plan.flash, "sdpa")):
        for heads, kv_heads, width, context in points:
            each = 2 * kv_heads * context * width
            if each > pool.numel():
                continue
            tokens = new or context
            name = dtype_name(pool.dtype)
            caches = pool[: pool.numel() // each * each].view(-1, 2, 1, kv_heads, context, width)
            q = random_tensor((1, heads, tokens, width), pool.dtype, meter.device)
            call = rotated(partial(over, kernel_named(impl), q), [(keys, values) for keys, values in caches])
            timed = torch.inference_mode()(meter.timed)
            if new == 1:
                tuning.tune_attention(call, min(len(caches), MOST_CACHES))
                ready, pauses = (call, None) if drive is None else cold(call, drive)
                found = timed(ready, by=STREAMING, moved_bytes=each * pool.itemsize, overlap=ATTENTION_OVERLAP, pauses=pauses)
            else:
                found = timed(call, by=MATRIX)
            yield Attended(
                dtype=name, batch=1, heads=heads, kv_heads=kv_heads, head_dim=width, new=tokens, context=context,
                seconds=found.seconds, spread=found.spread,
            )  # fmt: skip


def over(kernel: Kernel, q: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
    """Attention of q [B,N,T,H] over keys and values [B,K,S,H], causal where there are several queries."""
    return kernel(q, *cache, Rules(causal=q.shape[2] > 1))


def elementwise(setting: Setting, plan: Plan, meter: Meter, dtype: torch.dtype) -> Iterator[Elementwise]:
    """Norm, addition, product and activations over many tokens: seconds an element written."""
    setting.tell(f"norms and activations in {dtype_name(dtype)}")
    x = random_tensor((plan.rows, plan.width), dtype, setting.device)
    wide = random_tensor((plan.rows, plan.inner), dtype, setting.device)
    calls: dict[str, tuple[Call, int]] = {
        "norm": (lambda: F.rms_norm(x, (plan.width,)), x.numel()),
        "add": (lambda: x + x, x.numel()),
        "mul": (lambda: wide * wide, wide.numel()),
        **{name: (partial(activation_named(name), wide), wide.numel()) for name in FUNCTIONS},
    }
    for name, (call, count) in calls.items():
        yield Elementwise(name=name, dtype=dtype_name(dtype), seconds_per_element=meter.timed(call).seconds / count)


def checks(setting: Setting, plan: Plan, meters: Mapping[torch.dtype, Meter], bare: Calibration) -> Iterator[Check]:
    """Small whole models, predicted from what was measured and measured themselves; every format has its first before any its second."""
    for (spec, phase, batch, context), (dtype, meter) in product(plan.checks, meters.items()):
        work = pass_of(phase, dtype, batch=batch, context=context)
        predicted = expected(spec, work, bare)
        if predicted is None or predicted.seconds > LONGEST_CHECK_S:
            continue
        setting.tell(f"whole models: {phase} of {batch} x {context}, {spec.name} in {dtype_name(dtype)}")
        ready = subject(build_model(spec, device=setting.device, dtype=dtype), work)
        start = partial(by_prediction, spec, work, bare)
        found = meter.timed(ready.run, by=STREAMING if work.decoding else MATRIX, start=start, stopping=plan.whole)
        yield Check(
            phase="decode" if work.decoding else "prefill", dtype=dtype_name(dtype), model=spec.name, batch=batch, context=context,
            predicted_s=predicted.seconds, measured_s=found.seconds,
        )  # fmt: skip
        del ready
        gc.collect()


def by_prediction(spec: s.ModelSpec, work: Pass, bare: Calibration, seconds: float, pace: Pace) -> float:
    """What a pass that takes `seconds` at a pace would have taken at the calibration's start: each part of it changes as predicted."""
    then, now = expected(spec, work, bare), expected(spec, work, bare, pace)
    assert then is not None
    assert now is not None
    return seconds * then.seconds / now.seconds
