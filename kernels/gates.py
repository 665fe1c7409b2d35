"""Measured gates: how near a decode step or its attention comes to the roofline, in a way that a busy machine does not move much.

What is gated is no time but an efficiency: the seconds in which the probe of the same moment would stream the step's bytes, over the
seconds of the step. Three things keep it still where neighbours come and go:

- probe and step alternate call by call, so both see the same machine; a pair is a step and the probes right before and after it. The
  probe streams as many bytes as the step: a short one would slip between the bursts of a neighbour that a long step cannot avoid;
- on a processor it runs on half of the cores. A step on all of them waits at every operator for the core that a neighbour took, and
  with one thread the processor's time of that thread can be read in place of the clock's: time in which it was not run does not count;
- models and caches are built anew for every few blocks: where pages happened to lie is noise of a run as well, and is resampled with it.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from msgspec.structs import replace

from ..estimators.latency import roofline
from ..estimators.significance import Judgement, compare, sure
from ..estimators.work import Pass
from ..presets import spec as s
from ..presets.baseline import Gate, Measured, Measurements
from ..presets.calibration import Machine
from ..presets.errors import IncomparableError, UnknownNameError, UsageError
from ..presets.loader import load_model
from ..presets.spec import ModelSpec
from .beats import POOL_BYTES, multiplying, streaming
from .benchmarks.attention import Problem, prepare
from .benchmarks.setting import Setting, torch_dtype
from .benchmarks.whole import depth, needed_bytes, pass_of, subject
from .benchmarks.yardstick import measured_device
from .linear import as_usual
from .machine import machine
from .model import build_model, cut
from .probes import dtype_name, free_memory_bytes, pick_device, require_memory
from .timing import Call, Watch, quiet_watch, refuse_impossible, rotated, watch_for

Tell = Callable[[str], None]
KINDS = ("decode", "attention")
DEFAULT_MODEL = "llama-7b"
MOST_RUNS = 3  # what is too noisy to judge, as a baseline or compared with one, is measured so many times at most
# The probe is a product of the step's own kind, slowed by what slows that, and so no bound: where a processor has slow kernels for the
# format, larger matrices than the probe's are a little faster. What stays in a cache, or is left out, is many times as fast.
MOST_EFFICIENT = 1.25
STEP_BYTES = 640 << 20  # what `default_gates` aims at: streamed in a tenth of a second on a slow processor


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a gate measures: `builds` times a new model, `blocks` blocks on each, and at least `pairs` pairs and `seconds` a block."""

    builds: int = 3
    blocks: int = 5
    pairs: int = 5
    seconds: float = 0.6


PLAN = Plan()


# --- what is gated --------------------------------------------------------------------------------------------------


def default_gates(kinds: Sequence[str], models: Sequence[str] | None = None) -> tuple[Gate, ...]:
    """Gates of some kinds for some models (llama-7b where none is named) that stream about STEP_BYTES a step, in bf16 at batch 1.

    Raises UnknownNameError for a kind or model that there is not, UsageError for a model that does not decode.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownNameError("measured gate", kind, KINDS, f"Allowed: {', '.join(KINDS)}.")
    return tuple(gate_of(kind, model) for model in dict.fromkeys(models or (DEFAULT_MODEL,)) for kind in dict.fromkeys(kinds))


def gate_of(kind: str, model: str) -> Gate:
    """One gate of a sensible size: fewer layers or a shorter context where the model is large."""
    spec = decoder(model)
    if kind == "decode":
        step = Gate(what="decode", model=model, layers=1, dtype="bf16", batch=1, context=512)
        deeper = (replace(step, layers=layers) for layers in range(2, depth(spec) + 1))
        return max((gate for gate in deeper if weight_bytes(spec, gate) <= STEP_BYTES), key=lambda gate: gate.layers, default=step)
    per_token = problem_of(spec, batch=1, context=1).cache_bytes(torch.bfloat16)
    context = max(1024, 1 << (STEP_BYTES // 4 // per_token).bit_length() - 1)
    return Gate(what="attention", model=model, layers=1, dtype="bf16", batch=1, context=context)


def weight_bytes(spec: ModelSpec, gate: Gate) -> int:
    """What a model of so many layers takes."""
    return needed_bytes(cut(spec, gate.layers), work_of(gate))


def decoder(model: str) -> ModelSpec:
    """A model that has a decode step."""
    spec = load_model(model)
    if not spec.decodes:
        raise UsageError(f"{model} has no decoder, and so no decode step to gate; choose another model")
    return spec


def problem_of(spec: ModelSpec, *, batch: int, context: int) -> Problem:
    """The attention of the first layer of a model's decoder that has one over its own tokens. Raises UsageError."""
    mixers = (sub.mixer for layer in spec.main.layers() for sub in layer.sublayers)
    found = next((mixer for mixer in mixers if isinstance(mixer, s.Attention) and mixer.source is None), None)
    if found is None:
        raise UsageError(f"{spec.name} has no plain attention to gate; gate its decode step")
    return Problem(batch=batch, context=context, heads=found.heads, kv_heads=found.kv_heads, head_dim=found.head_dim)


def work_of(gate: Gate) -> Pass:
    """The pass of a gate."""
    return pass_of("decode", torch_dtype(gate.dtype), batch=gate.batch, context=gate.context)


# --- measuring ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A step and the probe that its floor comes from; `ratio`: the step's bytes (or FLOPs) over those of a call of the probe."""

    step: Call
    probe: Call
    ratio: float
    watch: Watch


@dataclass(frozen=True, kw_only=True)
class Blocked:
    """What one block of pairs gives: the median efficiency, and the median seconds of the step."""

    efficiency: float
    seconds: float


def measure_gates(
    gates: Sequence[Gate], *, threshold: float | None = None, threads: int | None = None, tell: Tell = lambda _: None, plan: Plan = PLAN
) -> Measurements:
    """Measure gates on this machine, one after another. `threads`: of a processor, `quiet_threads` if not given.

    `threshold`: of the checks that will be made against them; what is not sure enough for it is measured longer.
    Raises UnreadableError where memory does not allow it, before anything is allocated.
    """
    with threads_set(threads):
        entries = tuple(Measured(gate=gate, efficiencies=until_sure(gate, threshold, plan, tell)) for gate in gates)
        return Measurements(machine=machine(pick_device()), entries=entries)


def until_sure(gate: Gate, threshold: float | None, plan: Plan, tell: Tell) -> tuple[float, ...]:
    """One number a block, of as many runs as make them sure enough, MOST_RUNS at most: every later check is held against them."""
    found = efficiencies(gate, plan, tell)
    for _ in range(MOST_RUNS - 1):
        if threshold is None or sure(found, threshold):
            break
        tell(f"{gate.id}: its blocks lie too far apart for a threshold of {threshold:.1%}; measuring longer")
        found += efficiencies(gate, plan, tell)
    return found


def efficiencies(gate: Gate, plan: Plan, tell: Tell) -> tuple[float, ...]:
    """One number a block. Raises HarnessError where half of them are what cannot be."""
    found = tuple(block_by_block(gate, plan, tell))
    refuse_impossible(statistics.median(found), MOST_EFFICIENT, what=f"{gate.id}, efficiency")
    return found


def block_by_block(gate: Gate, plan: Plan, tell: Tell) -> Iterator[float]:
    """One number a block; the model is built anew every `plan.blocks` of them."""
    for build in range(plan.builds):
        tell(f"{gate.id}: {build + 1} of {plan.builds}")
        ready = prepared(gate, seed=build)
        for _ in range(plan.blocks):
            yield block(ready, plan).efficiency
        del ready
        gc.collect()


@as_usual()
def block(ready: Ready, plan: Plan) -> Blocked:
    """Probe, step, probe, step ... probe: each step against the mean of its two probes."""
    with torch.inference_mode():
        probes, steps, start = [ready.watch(ready.probe, 1)], list[float](), time.perf_counter()
        while len(steps) < plan.pairs or time.perf_counter() - start < plan.seconds:
            steps.append(ready.watch(ready.step, 1))
            probes.append(ready.watch(ready.probe, 1))
    floors = [ready.ratio * (before + after) / 2 for before, after in pairwise(probes)]
    shares = [floor / step for floor, step in zip(floors, steps, strict=True)]
    return Blocked(efficiency=statistics.median(shares), seconds=statistics.median(steps))


@as_usual()
def prepared(gate: Gate, *, seed: int = 0) -> Ready:
    """Build what a gate runs, warm it up, and choose its probe: memory's, or the matrix product's where arithmetic takes longer.

    Linear layers take the usual calls: what a busy machine finds the fastest may differ from what a quiet one does, and a gate would
    compare those.
    """
    device, dtype = pick_device(), torch_dtype(gate.dtype)
    setting = Setting(device=device)
    step, moved_bytes, flops = stepped(gate, setting, seed)
    watch = quiet_watch() if device.type == "cpu" else watch_for(device)
    beats = [(streaming(dtype, device), moved_bytes)]
    if flops > 8 * moved_bytes:  # a batch: the arithmetic may be the wall
        beats.append((multiplying(dtype, device), flops))
    with torch.inference_mode():
        step()
        long = [(beat.times(max(1, round(amount / beat.amount))), amount) for beat, amount in beats]
        made = [Ready(step=step, probe=beat.call, ratio=amount / beat.amount, watch=watch) for beat, amount in long]
        return max(made, key=lambda one: one.ratio * statistics.median(watch(one.probe, 1) for _ in range(3)))


def stepped(gate: Gate, setting: Setting, seed: int) -> tuple[Call, float, float]:
    """The call that is gated, over copies that rotate so that none is still in the cache; bytes and FLOPs of a call.

    Raises UsageError for more layers than there are.
    """
    spec, dtype = decoder(gate.model), torch_dtype(gate.dtype)
    if gate.layers > depth(spec):
        raise UsageError(f"{gate.model} has {depth(spec)} layers, a gate of {gate.layers} was asked for; --layers takes 1 to {depth(spec)}")
    if gate.what == "attention":
        problem = problem_of(spec, batch=gate.batch, context=gate.context)
        calls = prepare(problem, ("grouped",), dtype, setting).calls
        return calls["grouped"], float(problem.cache_bytes(dtype)), float(problem.flops)
    work, short = work_of(gate), cut(spec, gate.layers)
    size = needed_bytes(short, work)
    copies = setting.copies(size, free_memory_bytes(setting.device))
    require_memory(copies * size + POOL_BYTES, setting.device, what=gate.id)
    models = [build_model(short, device=setting.device, dtype=dtype, seed=copies * seed + copy) for copy in range(copies)]
    unit = measured_device(setting.device, bytes_per_s=1.0, peaks={dtype_name(dtype): 1.0}, source="one byte a second: counts")
    counts = roofline(short, work, unit)
    return rotated(lambda one: one.run(), [subject(model, work) for model in models]), float(counts.memory_s), float(counts.flops)


# --- the same machine -----------------------------------------------------------------------------------------------


def quiet_threads() -> int:
    """Threads of a measured gate where none are asked for: half of the cores, so that a neighbour finds one."""
    return max(1, (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) // 2)


@contextmanager
def threads_set(threads: int | None) -> Iterator[None]:
    """Run with so many threads, `quiet_threads` if None, and put them back. Raises UsageError below 1."""
    if threads is not None and threads < 1:
        raise UsageError(f"--threads: got {threads}; allowed: at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(threads or quiet_threads())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def current_machine(threads: int | None = None) -> Machine:
    """What a measurement made now would hold for."""
    with threads_set(threads):
        return machine(pick_device())


# --- the gate -------------------------------------------------------------------------------------------------------


def check_gates(
    baseline: Measurements, *, threshold: float, threads: int | None = None, tell: Tell = lambda _: None, plan: Plan = PLAN
) -> list[tuple[Measured, Judgement]]:
    """Measure what a baseline measured and compare; what looks slower is measured again before it is called so.

    `threads`: those of the baseline if not given. Raises IncomparableError where this is another machine, naming what differs.
    """
    threads = threads or baseline.machine.threads
    if apart := baseline.machine.differences(current_machine(threads)):
        raise IncomparableError(f"the baseline was measured elsewhere, times cannot be compared: {'; '.join(apart)}")
    with threads_set(threads):
        return [checked(entry, threshold, plan, tell) for entry in baseline.entries]


def checked(entry: Measured, threshold: float, plan: Plan, tell: Tell) -> tuple[Measured, Judgement]:
    """One gate. For a finding all runs together have to be slower, and the last of them by itself.

    What looks slower is measured again, and so is what is too noisy to say, until MOST_RUNS were made.
    """
    now = efficiencies(entry.gate, plan, tell)
    judgement = compare(entry.efficiencies, now, threshold=threshold)
    confirmed = False
    for _ in range(MOST_RUNS - 1):
        if confirmed or judgement.verdict not in ("slower", "noisy"):
            break
        tell(f"{entry.gate.id}: looks {judgement.verdict} ({judgement.slowdown:+.1%}); measuring again")
        again = efficiencies(entry.gate, plan, tell)
        now += again
        alone, judgement = (compare(entry.efficiencies, some, threshold=threshold) for some in (again, now))
        confirmed = alone.verdict == judgement.verdict == "slower"
    if judgement.verdict == "slower" and not confirmed:
        judgement = replace(judgement, verdict="noisy")
    return Measured(gate=entry.gate, efficiencies=now), judgement
