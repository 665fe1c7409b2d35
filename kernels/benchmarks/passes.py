"""Decode steps and prefills of whole models, timed side by side with the bandwidth probe."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from ...estimators.latency import roofline
from ...estimators.work import Pass
from ...presets.dtypes import DTYPES
from ...presets.errors import UsageError
from ...presets.spec import Embedding, ModelSpec
from ..machine import device_title
from ..model import Model, build_model
from ..packed import held_bytes, quantize
from ..probes import dtype_name, free_memory_bytes
from ..timing import Call, Sample, graphed, rotated
from .backends import backend_of
from .record import Record
from .setting import Setting, expected_here
from .whole import Scale, Subject, depth, layers_for, pass_of, scale_of, subject
from .yardstick import Yardstick, beside, yardstick

OUTSIDE = "outside the layers"


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be measured of one model.

    Attributes:
        works: passes of one phase, each a line. dtype: of weights, cache and arithmetic.
        layers: auto, all or a number. weight_dtype: int8 or int4 for weight-only formats, else None.
    """

    spec: ModelSpec
    works: Sequence[Pass]
    dtype: torch.dtype
    layers: str = "auto"
    weight_dtype: str | None = None


def bench_decode(
    spec: ModelSpec,
    *,
    dtype: torch.dtype = torch.bfloat16,
    points: Sequence[tuple[int, int]] = ((1, 1024),),
    layers: str = "auto",
    weight_dtype: str | None = None,
    setting: Setting | None = None,
) -> Iterator[Record]:
    """A decode step for each (batch, context), the new token included in the context. Raises TfmError."""
    if not spec.decodes:
        raise UsageError(f"{spec.name} has no decoder and so no decode step; `tfm bench prefill` runs its forward pass")
    works = [pass_of("decode", dtype, batch=batch, context=context) for batch, context in points]
    return measured(Question(spec=spec, works=works, dtype=dtype, layers=layers, weight_dtype=weight_dtype), setting or Setting())


def bench_prefill(
    spec: ModelSpec,
    *,
    dtype: torch.dtype = torch.bfloat16,
    points: Sequence[tuple[int, int]] = ((1, 512),),
    layers: str = "auto",
    last_logits: bool = False,
    setting: Setting | None = None,
) -> Iterator[Record]:
    """A forward pass over each (batch, context). Raises TfmError."""
    works = [pass_of("prefill", dtype, batch=batch, context=context, last_logits=last_logits) for batch, context in points]
    return measured(Question(spec=spec, works=works, dtype=dtype, layers=layers), setting or Setting())


def measured(asked: Question, setting: Setting) -> Iterator[Record]:
    """The lines of one model: the yardstick, the model built once, then one pass after another."""
    for work in asked.works:
        refuse_context(asked.spec, work)
    yard = yardstick(setting, asked.dtype)
    device = yard.device(dtype_name(asked.dtype), setting.device)
    layers = layers_for(asked.layers, asked.spec, list(asked.works), setting, device)
    setting.tell(f"building {asked.spec.name} in {dtype_name(asked.dtype)}: {layers} of {depth(asked.spec)} layers")
    built = Built.of(asked, layers, setting)
    for work in asked.works:
        scale = scale_of(asked.spec, layers, work, device)
        setting.tell(f"{work.phase} of {asked.spec.name}, {work.batch} x {work.context} tokens: {scale.said}")
        ready = [subject(model, work, outside=scale.timed < scale.whole) for model in built.models]
        line_of = roofline(asked.spec, work, device)
        arithmetic = yard.arithmetic_counts(float(line_of.flops), float(line_of.memory_s) * device.memory_bytes_per_s)
        samples, yard = timed(ready, scale, setting, yard, arithmetic=arithmetic)
        sample = scale.apply(samples[""], samples.get(OUTSIDE))
        yield line(asked, work, scale, built, sample, yard, setting, backend=backend_of(ready[0].step))
        if sample.interrupted:
            raise KeyboardInterrupt
        del ready
        gc.collect()


@dataclass(frozen=True, kw_only=True)
class Built:
    """Copies of a model, as many as keep one from still being in the cache at its next turn, and the bytes each holds."""

    models: tuple[Model, ...]
    held_bytes: int

    @classmethod
    def of(cls, asked: Question, layers: int, setting: Setting) -> Built:
        """Build the copies, each with other weights."""
        models = [built(asked, layers, setting, seed=0)]
        held = held_bytes(models[0])
        copies = setting.copies(held, free_memory_bytes(setting.device))
        models += [built(asked, layers, setting, seed=seed) for seed in range(1, copies)]
        return cls(models=tuple(models), held_bytes=held)

    def in_cache(self, setting: Setting) -> bool:
        """Whether even all copies together may stay in the cache: then memory is no bound."""
        return setting.in_cache(len(self.models) * self.held_bytes)


@torch.no_grad()
def built(asked: Question, layers: int, setting: Setting, *, seed: int) -> Model:
    """One model with random weights, packed where a weight-only format is asked for."""
    model = build_model(asked.spec, device=setting.device, dtype=asked.dtype, layers=layers, seed=seed)
    if asked.weight_dtype is not None:
        quantize(model, asked.weight_dtype)
    return model


def timed(
    ready: Sequence[Subject], scale: Scale, setting: Setting, yard: Yardstick, *, arithmetic: bool
) -> tuple[dict[str, Sample], Yardstick]:
    """Seconds of the pass and, where layers are left out, of what is not in layers; each call takes the next copy."""
    cuda = setting.device.type == "cuda" and ready[0].work.decoding
    calls = {"": in_turn([graphed(one.run) if cuda else one.run for one in ready])}
    if scale.timed < scale.whole:
        calls[OUTSIDE] = in_turn([graphed(one.outside) if cuda else one.outside for one in ready])
    return beside(setting, yard, calls, arithmetic=arithmetic, warmup=max(2, len(ready)) if len(ready) < 8 else 2)


def in_turn(calls: Sequence[Call]) -> Call:
    """A call that makes the next of some calls each time."""
    return rotated(lambda call: call(), calls)


def line(
    asked: Question, work: Pass, scale: Scale, built: Built, sample: Sample, yard: Yardstick, setting: Setting, *, backend: str
) -> Record:
    """The record of one pass, for the whole model."""
    counted = work if asked.weight_dtype is None else replace(work, weight_dtype=DTYPES[asked.weight_dtype])
    predicted = roofline(asked.spec, counted, yard.device(dtype_name(asked.dtype), setting.device))
    cached = built.in_cache(setting)
    moved = float(predicted.weight_read_bytes + predicted.kv_read_bytes + predicted.state_read_bytes)
    in_turn = yard.in_turn_bytes_per_s
    return Record(
        labels={"model": asked.spec.name, "batch": work.batch, "ctx": work.context},
        device=device_title(setting.device),
        dtype=dtype_name(asked.dtype),
        sample=sample,
        flops=float(predicted.flops),
        bytes=moved,
        bandwidth_bytes_per_s=yard.bytes_per_s,
        probe=yard.probe,
        peak_flops_per_s=yard.flops_per_s,
        floor_s=None if cached else as_float(predicted.floor_s),
        bound_s=None if cached else as_float(predicted.bound_s),
        backend=backend,
        expected=expected_here(asked.spec, counted, setting.device, yard.pace),
        facts={
            "weight_dtype": asked.weight_dtype or dtype_name(asked.dtype),
            "layers_timed": scale.timed,
            "layers_total": scale.whole,
            "threads": torch.get_num_threads(),
            "held_bytes": built.held_bytes,
            "of_bandwidth_in_turn": None if in_turn is None else moved / sample.median_s / in_turn,
        },
    )


def as_float(value: object) -> float | None:
    """A figure of the estimators as a plain number."""
    return None if value is None else float(value)  # type: ignore[arg-type]


def refuse_context(spec: ModelSpec, work: Pass) -> None:
    """Learned positions end somewhere: raise UsageError beyond."""
    tables = [part for part in spec.main.embeddings if isinstance(part, Embedding) and part.role == "position"]
    last = min((table.rows - table.offset for table in tables), default=None)
    if last is not None and spec.main.tokens == "context" and work.context > last:
        raise UsageError(f"{spec.name} has learned positions for {last} tokens; got a context of {work.context}. Give --ctx {last} or less")
