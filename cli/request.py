"""From options to work: every combination of what was asked for, batches and contexts in one vectorised call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import msgspec
from msgspec.structs import replace

from ..estimators.stored import stored
from ..estimators.sweep import at_point, sweep
from ..estimators.work import DEFAULT_SOURCE_TOKENS, Pass, Phase
from ..presets.device import Device, load_device
from ..presets.dtypes import ACTIVATION_DTYPES, CACHE_DTYPES, get_dtype
from ..presets.errors import UsageError
from ..presets.loader import at_home, given_folders, load
from ..presets.spec import ModelSpec
from ..presets.variants import with_kv_heads
from . import units

DEFAULT_CONTEXT = 4096
DEFAULT_DTYPE = "bf16"
PHASES: tuple[Phase, ...] = ("prefill", "decode", "train")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One model in one setting; batch, context and source may still be lists, swept at once."""

    spec: ModelSpec
    work: Pass
    device: Device | None
    axes: Mapping[str, Sequence[int]]
    labels: Mapping[str, object]
    inputs: Mapping[str, object]
    assumptions: tuple[str, ...]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, shared by the arithmetic commands; None is what was not said or does not apply."""

    model: str
    batch: str = "1"
    ctx: str | None = None
    tokenizer: str | None = None
    cached: str | None = None
    src: str | None = None
    images: int | None = None
    phase: str | None = None
    weight_dtype: str | None = "bf16"  # None: not said, so what a file of weights holds counts
    kv_dtype: str = "bf16"
    activation_dtype: str = "bf16"
    gqa: str | None = None
    hardware: str | None = None
    bandwidth: str | None = None
    peak: str | None = None
    full_attention: bool = False
    last_logits: bool = False
    dropout: bool = False
    presets: str | None = None
    lenient: bool = False
    needs_device: bool = False
    caches: bool = False
    both_phases: bool = False
    notes: tuple[str, ...] = msgspec.field(default=())


def split(text: str | None, name: str) -> list[str | None]:
    """The members of a list; None is a list of nothing said."""
    if text is None:
        return [None]
    return list(units.parse_list(text, str.strip, name=name))


def option_name(name: str) -> str:
    """The option that a field comes from, as it is typed."""
    return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"


def cases(options: Options) -> list[Case]:
    """Every combination of models, phases, formats, KV heads and devices."""
    axes = [
        split(getattr(options, name), option_name(name))
        for name in ("model", "phase", "weight_dtype", "kv_dtype", "activation_dtype", "gqa", "hardware")
    ]
    return [one_case(options, *chosen) for chosen in product(*axes)]


def one_case(
    options: Options,
    model: str | None,
    phase: str | None,
    weight_dtype: str | None,
    kv_dtype: str | None,
    activation_dtype: str | None,
    gqa: str | None,
    hardware: str | None,
) -> Case:
    """One combination, read and checked."""
    loaded = load(str(model), given_folders(options.presets), lenient=options.lenient, weights=weight_dtype is None)
    spec, weights = loaded.model(), loaded.weights
    heads = None if gqa is None else units.parse_int(gqa, name="--gqa")
    if heads is not None:
        spec, weights = with_kv_heads(spec, heads), None
    device = find_device(options, hardware)
    work = Pass(
        phase=checked_phase(options, spec, phase),
        images=options.images,
        weight_dtype=get_dtype(weight_dtype or DEFAULT_DTYPE),
        kv_dtype=get_dtype(str(kv_dtype), CACHE_DTYPES),
        activation_dtype=get_dtype(str(activation_dtype), ACTIVATION_DTYPES),
        full_attention=options.full_attention,
        last_logits=options.last_logits,
        dropout=options.dropout,
        stored=stored(spec, weights) if weights is not None and weight_dtype is None else None,
    )
    axes, said = token_axes(options, spec)
    settings: dict[str, object] = {"phase": None if options.caches or options.both_phases else work.phase}
    settings |= {"weight_dtype": "stored" if work.stored else work.weight_dtype.name}
    settings |= {"kv_dtype": work.kv_dtype.name, "activation_dtype": work.activation_dtype.name}
    settings |= {"gqa": heads, "hardware": device.name if device else None, "images": options.images}
    labels = {"model": spec.name, **{name: value for name, value in settings.items() if varies(options, name)}}
    return Case(
        spec=spec,
        work=work,
        device=device,
        axes=axes,
        labels=labels if varies(options, "model") else {name: value for name, value in labels.items() if name != "model"},
        inputs={"model": spec.name, **{name: value for name, value in settings.items() if value is not None}},
        assumptions=(*options.notes, *said, *spec.assumptions),
    )


def varies(options: Options, name: str) -> bool:
    """Whether an option was given as a list."""
    value = getattr(options, name, None)
    return isinstance(value, str) and "," in value


def checked_phase(options: Options, spec: ModelSpec, phase: str | None) -> Phase:
    """The phase asked for; --cached means decode; an encoder has no decode."""
    if options.both_phases:
        if options.cached is not None and not spec.decodes:
            raise UsageError(f"{spec.name} has no decoder and so no cache that a step could find: give --ctx in place of --cached")
        return "prefill"
    chosen = phase or ("decode" if options.cached is not None else "prefill")
    if chosen not in PHASES:
        raise UsageError(f"unknown phase {chosen!r}; allowed: {', '.join(PHASES)}")
    if options.cached is not None and chosen != "decode":
        raise UsageError(f"--cached says how many tokens a decode step finds, got --phase {chosen}; leave one of them out")
    if options.caches:  # the question of what a cache holds has an answer, 0, for a model without one
        return "decode"
    if chosen == "decode" and not spec.decodes:
        raise UsageError(f"{spec.name} has no decoder and so no decode phase; use --phase prefill for its forward pass")
    return chosen


def token_axes(options: Options, spec: ModelSpec) -> tuple[dict[str, Sequence[int]], tuple[str, ...]]:
    """Batches, contexts and source lengths, and what was assumed for those not given."""
    said: list[str] = []
    axes: dict[str, Sequence[int]] = {"batch": numbers("--batch", options.batch, units.parse_int)}
    axes["context"] = contexts(options, spec, said)
    sourced = [stack for stack in spec.stacks if stack.tokens == "source"]
    if options.src is not None:
        axes["source"] = numbers("--src", options.src, units.parse_tokens)
        if not sourced:
            said.append(f"--src changes nothing: {spec.name} has no encoder that reads a source")
    elif sourced:
        length = sourced[0].default_tokens or DEFAULT_SOURCE_TOKENS
        fixed = "fixed by the model" if sourced[0].default_tokens else "not given"
        said.append(f"source of {length} tokens ({fixed}; --src sets it)")
    check_images(options.images, spec, said)
    return axes, tuple(said)


def check_images(given: int | None, spec: ModelSpec, said: list[str]) -> None:
    """Refuse a number of images that leaves nothing to run or that no figure can hold."""
    images = spec.images if given is None else given
    if images > units.MAX_BATCH:
        raise UsageError(f"--images: too large, got {images}; allowed: a whole number from 0 to {units.MAX_BATCH}")
    if not images and spec.main.tokens == "image":
        raise UsageError(f"--images 0 leaves {spec.name} nothing to run, it sees images alone; give at least 1")
    if given and not any(stack.tokens == "image" for stack in spec.stacks):
        said.append(f"--images changes nothing: {spec.name} sees no images")


def numbers(name: str, text: str, parse: Callable[..., int], *, allow_zero: bool = False) -> tuple[int, ...]:
    """A list of whole numbers from the option `name`."""
    return units.parse_list(text, partial(parse, name=name, allow_zero=allow_zero), name=name)


def contexts(options: Options, spec: ModelSpec, said: list[str]) -> Sequence[int]:
    """The contexts asked for, or a default that is stated."""
    if options.ctx is not None and options.cached is not None:
        raise UsageError("--ctx and --cached both set the context; give one (--cached t is --ctx t+1)")
    if options.cached is not None:
        return tuple(
            n + 1
            for n in units.parse_list(
                options.cached, lambda text: units.parse_tokens(text, allow_zero=True, name="--cached"), name="--cached"
            )
        )
    limit = spec.main.max_positions
    if options.ctx is None and spec.action is not None:
        return (prompt_of_policy(options, spec, said),)
    if options.ctx is None:
        length = min(DEFAULT_CONTEXT, limit or DEFAULT_CONTEXT)
        if spec.main.tokens != "image":
            said.append(f"context of {length} tokens (not given; --ctx sets it)")
        return (length,)
    lengths = [length for text in split(options.ctx, "--ctx") for length in context(str(text), options.tokenizer, said)]
    if limit is not None and max(lengths) > limit:
        said.append(f"{max(lengths)} tokens is beyond the {limit} positions the model was made for")
    return lengths


def prompt_of_policy(options: Options, spec: ModelSpec, said: list[str]) -> int:
    """The context of a robot's policy where none is given: the image's tokens and a usual instruction."""
    from ..estimators.policy import image_tokens

    assert spec.action is not None
    images = spec.images if options.images is None else options.images
    brought = image_tokens(spec, images)
    said.append(
        f"context of {brought + spec.action.prompt} tokens: {brought} of {images} image{'' if images == 1 else 's'} and "
        f"{spec.action.prompt} of a usual instruction (not given; --ctx sets the sum)"
    )
    return brought + spec.action.prompt


def context(text: str, tokenizer: str | None, said: list[str]) -> tuple[int, ...]:
    """One context: a number of tokens, or `@file`, whose tokens are counted."""
    if not text.startswith("@"):
        return (units.parse_tokens(text, name="--ctx"),)
    if tokenizer is None:
        raise UsageError(f"--ctx {text} counts the tokens of a prompt and needs --tokenizer, the model's tokenizer.json")
    from ..presets.prompt import count_tokens

    count = count_tokens(at_home(text[1:]), at_home(tokenizer))
    said.append(f"{text[1:]} is {count} tokens by {tokenizer}")
    return (count,)


def find_device(options: Options, hardware: str | None) -> Device | None:
    """The device asked for, with bandwidth and peak by hand where given."""
    if hardware is None and (options.bandwidth or options.peak):
        device = by_hand(options)
    elif hardware is None:
        if options.needs_device:
            raise UsageError("which device? give --hardware NAME (`tfm hardware` lists them), or --bandwidth and --peak")
        return None
    else:
        device = load_device(hardware)
    return with_rates(device, options)


def by_hand(options: Options) -> Device:
    """A device that is only numbers."""
    if options.bandwidth is None:
        raise UsageError("--peak needs --bandwidth (or --hardware) beside it, as in --bandwidth 2.04TB/s")
    return Device(
        name="by-hand", title="given by hand", vendor="-", kind="gpu", form=None, capacity_bytes=2**63,
        memory_bytes_per_s=units.parse_bandwidth(options.bandwidth, name="--bandwidth"), peak_flops_per_s={},
        link_bytes_per_s=None, cache_bytes=None, tdp_w=None, source=("the command line",), retrieved="2026-01-01",
    )  # fmt: skip


def with_rates(device: Device, options: Options) -> Device:
    """Bandwidth and peak by hand take the place of the device's own."""
    from msgspec.structs import replace as changed

    if options.bandwidth is not None:
        device = changed(device, memory_bytes_per_s=units.parse_bandwidth(options.bandwidth, name="--bandwidth"))
    if options.peak is not None:
        rate = units.parse_flops_rate(options.peak, name="--peak")
        device = changed(device, peak_flops_per_s=dict.fromkeys(ACTIVATION_DTYPES, rate))
    return device


# --- running --------------------------------------------------------------------------------------------------------

Figures = Mapping[str, object]
AXIS_NAMES = {"batch": "batch", "context": "ctx", "source": "src"}


def is_single(found: Sequence[Case]) -> bool:
    """Whether one point was asked for."""
    return len(found) == 1 and all(len(values) == 1 for values in found[0].axes.values())


def single(case: Case) -> Case:
    """The case at its one point, on plain integers."""
    point: dict[str, Any] = {name: values[0] for name, values in case.axes.items()}
    return replace(case, work=replace(case.work, **point))


def point_inputs(case: Case) -> dict[str, object]:
    """What is repeated to the user: all settings, lists as lists."""
    given = {AXIS_NAMES[name]: values[0] if len(values) == 1 else list(values) for name, values in case.axes.items()}
    return {**case.inputs, **given}


def table_rows(found: Sequence[Case], figures: Callable[[Case], Figures]) -> Iterator[dict[str, object]]:
    """The flat results of all points; every case is one vectorised call."""
    for case in found:
        swept, points = sweep(case.spec, case.work, case.axes)
        answer = figures(replace(case, work=swept))
        for index, point in enumerate(points):
            shown = {AXIS_NAMES[name]: value for name, value in point.items()}
            yield {**case.labels, **shown, **flatten_point(answer, index)}


def flatten_point(answer: Figures, index: int) -> dict[str, object]:
    """One point of swept figures; nested mappings stay nested."""
    out: dict[str, object] = {}
    for name, value in answer.items():
        out[name] = flatten_point(value, index) if isinstance(value, Mapping) else at_point(value, index)
    return out
