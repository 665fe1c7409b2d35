"""The Python API: what the commands do, as functions of a name or a `ModelSpec`.

>>> import tfm
>>> tfm.params("llama-7b").total_params
6738415616
>>> tfm.kvcache("llama-2-70b", context=4096).kv_bytes
1342177280
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from .presets.errors import UnknownNameError, UsageError
from .presets.loader import load, load_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from os import PathLike

    from .cli.checking import Checked
    from .estimators.flops import Flops
    from .estimators.kvcache import KvCache
    from .estimators.latency import Latency
    from .estimators.memory import Memory, Recipe
    from .estimators.params import Params
    from .estimators.policy import Control
    from .estimators.rows import Row
    from .estimators.solve import Shape as ShapeFor
    from .estimators.speculative import Speculation
    from .estimators.tensors import Term
    from .estimators.work import Pass, Phase
    from .kernels.benchmarks.record import Record
    from .kernels.claims import Verdict
    from .kernels.findings import Finding
    from .kernels.generation import Generated
    from .kernels.model import Model
    from .kernels.training.demo import Outcome
    from .presets.baseline import Exact
    from .presets.calibration import Calibration
    from .presets.device import Device
    from .presets.dtypes import Dtype
    from .presets.spec import ModelSpec
    from .presets.weights.stored import StoredWeights


LEAST = {"batch": 1, "context": 0, "source": 1, "new": 1, "images": 0}  # a pass over images alone has no context


def model(name: str | ModelSpec) -> ModelSpec:
    """The model called `name` (a preset, a path to a config.json or to weights, a Hub id), or the spec itself. Raises TfmError."""
    return load_model(name) if isinstance(name, str) else name


def device(name: str | Device) -> Device:
    """The device called `name`, or the device itself. Raises UnknownNameError."""
    from .presets.device import load_device

    return load_device(name) if isinstance(name, str) else name


def dtype(name: str) -> Dtype:
    """The number format called `name`: bf16, int4, q8_0 ... Raises UnknownNameError."""
    from .presets.dtypes import get_dtype

    return get_dtype(name)


def work(given: Pass | None, **fields: object) -> Pass:
    """A pass from fields: phase, batch, context, source, images, weight_dtype, kv_dtype, activation_dtype ...

    Formats may be names. batch, context and source may be numpy arrays of one shape: all points in one call. Raises UsageError.
    """
    from .estimators.work import Pass
    from .presets.dtypes import get_dtype

    named = {key: get_dtype(value) if key.endswith("_dtype") and isinstance(value, str) else value for key, value in fields.items()}
    for key, least in LEAST.items():
        value = named.get(key)
        if isinstance(value, float | str | list | tuple) or (isinstance(value, int) and value < least):
            raise UsageError(f"{key}: got {value!r}; allowed: a whole number from {least} on")
    return replace(given or Pass(), **named)


def weights(name: str) -> StoredWeights | None:
    """What the files of `name` (safetensors, GGUF, a folder, a Hub id) hold by their headers; None for a bare description."""
    return load(name).weights


def described(name: str | ModelSpec, given: Pass | None, fields: dict[str, object]) -> tuple[ModelSpec, Pass]:
    """A model and a pass over it; where weights are at hand and no format is said, with the bytes that they hold."""
    made = work(given, **fields)
    if not isinstance(name, str) or given is not None or "weight_dtype" in fields or "stored" in fields:
        return model(name), made
    from .estimators.stored import with_stored

    found = load(name)
    spec = found.model()
    return spec, made if found.weights is None else with_stored(made, spec, found.weights)


def ledger(name: str | ModelSpec, given: Pass | None = None, **fields: object) -> tuple[Row, ...]:
    """The rows that every figure is a sum over."""
    from .estimators.ledger import ledger as rows

    return rows(model(name), work(given, **fields))


def params(name: str | ModelSpec) -> Params:
    """Exact parameters, their breakdown, and the gap to the rule of thumb, term by term."""
    from .estimators.params import params as count

    return count(model(name))


def flops(name: str | ModelSpec, given: Pass | None = None, **fields: object) -> Flops:
    """FLOPs of a pass: `tfm.flops("llama-2-7b", context=4096)`."""
    from .estimators.flops import flops as count

    return count(model(name), work(given, **fields))


def kvcache(name: str | ModelSpec, given: Pass | None = None, **fields: object) -> KvCache:
    """Bytes of the cache under each policy."""
    from .estimators.kvcache import kvcache as count

    return count(model(name), work(given, **fields))


def memory(name: str | ModelSpec, given: Pass | None = None, recipe: Recipe | None = None, **fields: object) -> Memory:
    """What has to fit: weights, cache, activations; with phase="train" gradients and optimizer."""
    from .estimators.memory import memory as count

    return count(*described(name, given, fields), recipe)


def latency(name: str | ModelSpec, hardware: str | Device, given: Pass | None = None, **fields: object) -> Latency:
    """Roofline of prefill and of a decode step on a device."""
    from .estimators.latency import latency as count

    return count(*described(name, given, fields), device(hardware))


def speculation(
    target: str | ModelSpec,
    draft: str | ModelSpec,
    hardware: str | Device,
    given: Pass | None = None,
    *,
    acceptance: float = 0.8,
    draft_tokens: int = 4,
    **fields: object,
) -> Speculation:
    """What a draft saves a target: `tfm.speculation("llama-2-70b", "llama-7b", "h100-80gb-sxm", acceptance=0.7, context=4096)`."""
    from .estimators.speculative import speculation as count

    spec, step = described(target, given, fields)
    return count(spec, model(draft), step, device(hardware), acceptance=acceptance, draft_tokens=draft_tokens)


def control(
    name: str | ModelSpec, hardware: str | Device, given: Pass | None = None, *, chunk: int = 1, parallel: bool = False, **fields: object
) -> Control | None:
    """How often a robot's policy can act: `tfm.control("openvla-7b", "a100-80gb-sxm")`; without a context, a usual instruction's."""
    from .estimators.policy import control as count
    from .estimators.policy import usual_context
    from .estimators.work import image_count

    spec, look = described(name, given, fields)
    if given is None and "context" not in fields:
        look = replace(look, context=usual_context(spec, image_count(spec, look)) or look.context)
    return count(spec, look, device(hardware), chunk=chunk, parallel=parallel)


def generate(
    name: str | ModelSpec | Model, prompts: Sequence[Sequence[int]], *, new: int, beams: int | None = None, **options: Any
) -> Generated:
    """At most `new` tokens after each prompt of token ids, with a cache: `tfm.generate(model, [[1, 5, 3]], new=20)`.

    Args:
        name: a module of `kernels.model.build_model` or `kernels.saved.load_saved`; a name or a description gets random weights.
        beams: beam search with so many hypotheses, of each prompt the best; with `length_penalty`, `eos`.
        options: `sampler` (`kernels.generation.Sampler`), `eos`, `seed`, `source`, `images` ... as `kernels.generation.generate` takes.

    Raises TfmError.
    """
    from .cli.measuring import need_torch

    need_torch()
    from .kernels.generation import beam_generate
    from .kernels.generation import generate as run
    from .kernels.model import build_model
    from .presets.spec import ModelSpec

    made: Any = build_model(model(name)) if isinstance(name, str | ModelSpec) else name
    return run(made, prompts, new=new, **options) if beams is None else beam_generate(made, prompts, new=new, beams=beams, **options)


def train_demo(model: str, *, task: str = "both", steps: int | None = None, seed: int = 0, save: str | None = None) -> Outcome:
    """A tiny model trained to copy and reverse strings: `tfm.train_demo("decoder-only").score.share` is its exact match.

    Args:
        model: encoder-decoder or decoder-only. task: copy, reverse or both.
        steps: enough to learn it if not given. save: the file to write it to, for `kernels.saved.load_saved`.

    Raises TfmError.
    """
    from .kernels.training.demo import prepared, trained

    trainer, *others = prepared(model, task, seed, None)
    if others:
        raise UnknownNameError("model", model, ("encoder-decoder", "decoder-only"), "One at a time here.")
    return trained(trainer, steps, path=save)


def shapes(name: str | ModelSpec, given: Pass | None = None, **fields: object) -> tuple[Term, ...]:
    """The shape of every tensor on its way."""
    from .estimators.shapes import shapes as walk

    return walk(model(name), work(given, **fields))


def solve(target: int) -> tuple[ShapeFor, ...]:
    """Plausible (D, L) for a number of parameters, the most usual first."""
    from .estimators.solve import solve as search

    return search(target)


def gates(
    name: str,
    hardware: str | None = None,
    given: Pass | None = None,
    *,
    phases: Sequence[Phase] = ("prefill", "decode"),
    gqa: int | None = None,
    **fields: object,
) -> tuple[Exact, ...]:
    """What can be gated of a model in one setting, each number with its terms: parameters, FLOPs, bytes, on a device times.

    `phases`: whose FLOPs and times, of prefill, decode, train. `gqa`: KV heads in place of the model's own. Raises UsageError.
    """
    from msgspec import ValidationError, convert

    from .estimators.gates import entries_of
    from .estimators.work import Pass
    from .presets.baseline import Setting
    from .presets.variants import with_kv_heads

    if not isinstance(name, str):
        raise UsageError("a gate is of a model by its name or path, so that a check can read it again; got a description")
    made, plain = work(given, **fields), Pass()
    for field in ("phase", "new", "full_attention", "last_logits", "dropout", "stored"):
        if getattr(made, field) != getattr(plain, field):
            hint = "; phases=['train'] asks for the numbers of a phase" if field == "phase" else ""
            raise UsageError(f"a gate has no {field}{hint}")
    require_phases(phases)
    sizes = {field: getattr(made, field) for field in ("batch", "context", "source", "images")}
    formats = {field: getattr(made, field).name for field in ("weight_dtype", "kv_dtype", "activation_dtype")}
    try:
        setting = convert({**sizes, **formats, "hardware": hardware, "gqa": gqa}, Setting)
    except ValidationError as error:
        raise UsageError(f"no setting of a gate: {error}") from error
    spec = model(name) if gqa is None else with_kv_heads(model(name), gqa)
    return tuple(entries_of(spec, name, setting, phases, None if hardware is None else device(hardware)))


def require_phases(phases: Sequence[str]) -> None:
    """Names of phases, at least one, in a list. Raises UsageError."""
    known = ("prefill", "decode", "train")
    if isinstance(phases, str) or not phases or not {*phases} <= {*known}:
        raise UsageError(f"phases: got {phases!r}; allowed: a list of {', '.join(known)}")


def save_gates(path: str | PathLike[str], entries: Iterable[Exact]) -> None:
    """Write a baseline of exact gates, as `tfm check --update` does: `tfm.save_gates("tfm.json", tfm.gates("llama-7b"))`.

    Raises UnreadableError where the file is there and is no baseline.
    """
    from pathlib import Path

    from . import __version__
    from .presets.baseline import SCHEMA, Baseline, may_replace, save_baseline

    may_replace(Path(path))
    save_baseline(Baseline(schema=SCHEMA, version=__version__, exact=tuple(entries)), Path(path))


def check(path: str | PathLike[str], *, measured: bool = True, threshold: float = 0.05, threads: int | None = None) -> Checked:
    """Compare with a baseline: `.ok`, `.findings`, `.verdict`, and as text what changed. `measured=False` leaves the clock out."""
    from pathlib import Path

    from .cli.checking import PARTS, check_baseline

    parts = PARTS if measured else PARTS[:1]
    return check_baseline(Path(path), parts=parts, threshold=threshold, threads=threads)


# --- on the clock: these need torch (extra `bench`) -------------------------------------------------------------------


def bench(
    phase: str, name: str | ModelSpec, *, batch: int = 1, context: int | None = None, dtype: str = "bf16", layers: str | int = "auto"
) -> Record:
    """One pass of a model on this machine, timed beside its bandwidth: `tfm.bench("decode", "llama-7b", layers=4).sample.median_s`.

    `phase`: decode, prefill or train. `figures()` of the answer has every number of `tfm bench`. Raises TfmError.
    """
    from .cli.measuring import need_torch

    need_torch()
    from .kernels.benchmarks.passes import bench_decode, bench_prefill
    from .kernels.benchmarks.setting import torch_dtype
    from .kernels.benchmarks.training import bench_train

    kinds: dict[str, Any] = {"decode": (bench_decode, 1024), "prefill": (bench_prefill, 512), "train": (bench_train, 256)}
    if phase not in kinds:
        raise UnknownNameError("phase", phase, kinds, f"Allowed: {', '.join(kinds)}.")
    run, usual = kinds[phase]
    spec = model(name)
    point = (batch, min(usual, spec.main.max_positions or usual) if context is None else context)
    if min(point) < 1:
        raise UsageError(f"batch and context: got {point[0]} and {point[1]}; allowed: at least 1")
    (found,) = run(spec, dtype=torch_dtype(dtype), points=[point], layers=str(layers))
    return found  # type: ignore[no-any-return]


def calibrate() -> Calibration:
    """Measure this machine and store it as the hardware `local`, as `tfm calibrate` does: two minutes."""
    from . import __version__
    from .cli.measuring import need_torch

    need_torch()
    from .kernels.calibration import calibrate as measure
    from .presets.calibration import save_calibration

    found = measure(version=__version__)
    save_calibration(found)
    return found


def validate(name: str | ModelSpec, *, phases: Sequence[Phase] = ("prefill", "decode")) -> tuple[Finding, ...]:
    """The counts of a model against PyTorch's own counters, on `meta`: `all(one.ok for one in tfm.validate("gpt-2"))`."""
    from .cli.measuring import need_torch

    need_torch()
    from .kernels.validation import validate_counts

    require_phases(phases)
    return tuple(validate_counts(model(name), phases=phases))


def claims(names: Sequence[str] | None = None) -> tuple[Verdict, ...]:
    """What articles say about transformers, looked at here; all claims take about a minute. Raises UnknownNameError."""
    from .cli.measuring import need_torch

    need_torch()
    from .kernels.claims import claims_named, look

    return tuple(look(claim) for claim in claims_named(names))
