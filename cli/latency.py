"""`tfm latency`: how fast at best, and which wall is hit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from . import options as o

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..estimators.latency import Generation, Latency, Roofline
    from ..estimators.policy import Control
    from ..estimators.speculative import Speculation
    from ..presets.calibration import Calibration
    from ..presets.device import Device
    from .output import Explanation
    from .quantities import Quantity
    from .question import Question
    from .request import Case
    from .speculation import Draft
    from .tables import Table

DraftModel = Annotated[str | None, typer.Option("--draft", help="A small model that proposes tokens (speculative decoding).")]
Acceptance = Annotated[str | None, typer.Option("--acceptance", help="Chance that a proposal is kept, as in 80% or 0.8; 80% if not given.")]
DraftTokens = Annotated[int | None, typer.Option("--draft-tokens", min=1, help="Proposals a round, at most 32; 4 if not given.")]
Chunk = Annotated[int | None, typer.Option("--chunk", min=1, max=1024, help="Actions from one look, of a vision-language-action model.")]
Parallel = Annotated[bool, typer.Option("--parallel", help="All tokens of the actions from one pass, in place of decode steps.")]
New = Annotated[str | None, typer.Option("--new", help="Tokens to generate after the prompt: the whole time, first and last step.")]


def latency(
    model: o.Model,
    hardware: o.Hardware = None,
    bandwidth: o.Bandwidth = None,
    peak: o.Peak = None,
    batch: o.Batch = "1",
    ctx: o.Ctx = None,
    tokenizer: o.Tokenizer = None,
    cached: o.Cached = None,
    new: New = None,
    draft: DraftModel = None,
    acceptance: Acceptance = None,
    draft_tokens: DraftTokens = None,
    chunk: Chunk = None,
    parallel: Parallel = False,
    src: o.Src = None,
    images: o.Images = None,
    weight_dtype: o.StoredWeightDtype = None,
    kv_dtype: o.KvDtype = "bf16",
    activation_dtype: o.ActivationDtype = "bf16",
    gqa: o.Gqa = None,
    full_attention: o.FullAttention = False,
    last_logits: o.LastLogits = False,
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    explain: o.Explain = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Roofline time of prefill and of a decode step, and the batch from which decode waits for arithmetic.

    \b
    Examples:
      tfm latency llama-7b --hardware a100-80gb-sxm
      tfm latency mixtral-8x7b --bandwidth 4TB/s --peak 624TFLOP/s --weight-dtype fp16
      tfm latency llama-3-8b --hardware rtx-4090 --batch 1,8,64 --ctx 1k,8k
    """
    from . import units
    from .question import print_answer
    from .request import Options
    from .speculation import asked_draft

    asked = Options(
        model=model, hardware=hardware, bandwidth=bandwidth, peak=peak, batch=batch, ctx=ctx, tokenizer=tokenizer,
        cached=cached, src=src, images=images,
        weight_dtype=weight_dtype, kv_dtype=kv_dtype, activation_dtype=activation_dtype, gqa=gqa, full_attention=full_attention,
        last_logits=last_logits, presets=presets, lenient=lenient, needs_device=True, both_phases=True,
    )  # fmt: skip
    further = Further(
        new=None if new is None else units.parse_tokens(new, name="--new"),
        draft=asked_draft(draft, acceptance, draft_tokens, presets, lenient=lenient),
        chunk=chunk,
        parallel=parallel,
    )
    print_answer(question(further), asked, explain=explain, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(latency)


class Further(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked beyond the two passes: tokens to generate, a draft that speculates, actions of a robot's policy."""

    new: int | None = None
    draft: Draft | None = None
    chunk: int | None = None
    parallel: bool = False

    def actions(self, case: Case) -> int | None:
        """Actions of one look; None of a model that is no policy."""
        from .control import chunk_of

        return chunk_of(case.spec, self.new, self.chunk, parallel=self.parallel)

    def generated(self, case: Case) -> int | None:
        """Tokens to generate one after another: what was asked for, of a policy its actions'. Raises UsageError for an encoder."""
        from ..presets.errors import UsageError

        if self.new is not None and not case.spec.decodes:
            raise UsageError(f"{case.spec.name} has no decoder and so generates nothing; leave --new out")
        chunk = self.actions(case)
        if chunk is None or case.spec.action is None:
            return self.new
        return None if self.parallel else chunk * case.spec.action.tokens


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The two passes, and what else was asked for."""

    latency: Latency
    generation: Generation | None
    control: Control | None
    speculation: Speculation | None
    further: Further
    expected: Mapping[str, object]


def question(further: Further) -> Question[Found]:
    """How the command computes and shows."""
    from ..estimators.latency import generation, latency
    from .control import control_of
    from .question import Question
    from .speculation import speculation_of

    def compute(case: Case) -> Found:
        assert case.device is not None
        new = further.generated(case)
        return Found(
            latency=latency(case.spec, case.work, case.device),
            generation=None if new is None else generation(case.spec, case.work, case.device, new),
            control=control_of(case, further.actions(case), parallel=further.parallel),
            speculation=speculation_of(case, further.draft),
            further=further,
            expected=expected_times(case),
        )

    return Question(
        name="latency",
        compute=compute,
        figures=figures,
        terms=terms,
        tables=tables,
        explanations=explanations,
        assumptions=lambda case: assumptions(case, further),
        hidden=(
            "decode_bound_s", "prefill_bound_s", "decode_compute_s", "decode_memory_s", "prefill_compute_s", "prefill_memory_s",
            "critical_batch_of_weights", "decode_tokens_per_s_per_sequence", "look_vision_s", "look_prompt_s", "look_decode_s",
            "action_tokens", "speculative_draft_s", "speculative_verify_s", "speculative_round_s", "speculative_equal_cost_speed_up",
        ),
    )  # fmt: skip


EXPECTED = tuple(f"{name}_expected{end}_s" for name in ("decode", "prefill") for end in ("", "_low", "_high"))


def expected_times(case: Case) -> Mapping[str, object]:
    """Expected times of both passes and their ends; None where the device was not calibrated."""
    assert case.device is not None
    measured = calibration_of(case.device)
    if measured is None:
        return dict.fromkeys(EXPECTED)
    from ..estimators.expected import expected_figures

    return expected_figures(case.spec, case.work, measured)


def calibration_of(device: Device) -> Calibration | None:
    """What was measured of the device: `local` has it, unless rates were given by hand."""
    from ..presets.device import LOCAL

    if device.name != LOCAL:
        return None
    from ..presets.calibration import load_calibration

    measured = load_calibration()
    return measured if measured is not None and measured.device == device else None


def basis(case: Case) -> str:
    """Where the expected time comes from, or why there is none."""
    assert case.device is not None
    measured = calibration_of(case.device)
    if measured is None:
        return "expected time: only for --hardware local, once `tfm calibrate` has measured this machine"
    from ..estimators.expected import knows

    if not knows(case.work, measured):
        return "expected time: weights, cache and arithmetic have to be in one format that was calibrated (fp32 or bf16)"
    machine = measured.machine
    return (
        f"expected time: products, attention and operators measured by `tfm calibrate` on {measured.day} ({machine.device}, "
        f"{machine.threads} threads, torch {machine.torch}), corrected by small whole models; its interval is how far those lay apart"
    )


def figures(case: Case, got: Found) -> dict[str, object]:
    """The keys of the contract."""
    from ..estimators.latency import wall
    from . import control, speculation

    prefill, decode = got.latency.prefill, got.latency.decode
    found: dict[str, object] = {}
    for name, line in (("decode", decode), ("prefill", prefill)):
        for figure in ("floor_s", "bound_s", "compute_s", "memory_s"):
            found[f"{name}_{figure}"] = getattr(line, figure, None)
        found |= {key: value for key, value in got.expected.items() if key.startswith(name)}
        found[f"{name}_bound"] = wall(line) if line else None
    for figure in ("weight_read_bytes", "kv_read_bytes", "state_read_bytes", "distinct_experts"):
        found[figure] = getattr(decode or prefill, figure)
    found["critical_batch"] = got.latency.critical_batch
    found["critical_batch_of_weights"] = got.latency.critical_batch_of_weights
    step = decode.floor_s if decode else None
    found["decode_tokens_per_s_per_sequence"] = None if step is None else 1 / step
    found["decode_tokens_per_s"] = None if step is None else case.work.batch / step
    if got.generation:
        found |= {f"generation_{name}": getattr(got.generation, name) for name in ("first_step_s", "last_step_s", "mean_step_s", "total_s")}
    return found | control.figures(got.control) | speculation.figures(got.speculation)


def terms(_case: Case, got: Found) -> list[dict[str, object]]:
    """One entry a row of the decode step (of the forward pass, where there is no decoder)."""
    from ..estimators.flops import row_flops
    from ..estimators.latency import row_seconds
    from ..estimators.sizes import moved_bytes, weight_read_bytes

    line = got.latency.decode or got.latency.prefill
    found = []
    for row in (row for row in line.rows if row.repeat):
        runs = row.repeat
        found.append(
            {
                "path": row.path,
                "op": row.op,
                "flops": row_flops(row, line.work),
                "weight_read_bytes": weight_read_bytes(row, line.work) / runs,
                "kv_read_bytes": moved_bytes(row, line.work) / runs,
                "seconds": row_seconds(row, line.work, line.device),
                "repeat": runs,
            }
        )
    return found


def lines_of(got: Found) -> list[tuple[str, Roofline]]:
    """The passes there are, by name."""
    return [(name, line) for name, line in (("decode", got.latency.decode), ("prefill", got.latency.prefill)) if line]


def tables(case: Case, got: Found) -> tuple[Table, ...]:
    """Both passes side by side, and what a decode step reads."""
    from ..estimators.latency import wall
    from . import control, speculation
    from .quantities import Kind, Quantity
    from .tables import Column, Table, card

    assert case.device is not None
    columns = (
        Column("pass", Kind.TEXT), Column("floor_s", Kind.MIXED, "floor"), Column("bound_s", Kind.MIXED, "bound"),
        Column("memory_s", Kind.MIXED, "bytes alone"), Column("compute_s", Kind.MIXED, "arithmetic alone"), Column("wall", Kind.TEXT),
    )  # fmt: skip
    figures = ("floor_s", "bound_s", "memory_s", "compute_s")
    rows = tuple(
        (name, *(Quantity(getattr(line, figure), Kind.SECONDS) for figure in figures), said(wall(line))) for name, line in lines_of(got)
    )
    title = f"{case.spec.title or case.spec.name} on {case.device.title}: {case.work.batch} x {case.work.context} tokens"
    cards = (
        [*expected_facts(got), *decode_facts(case, got), *generation_facts(got)],
        [*control.facts(got.control)],
        [*speculation.facts(got.speculation, got.further.draft)],
    )
    return (Table(title, columns, rows), *(card("", facts) for facts in cards if facts))


def said(bound: object) -> str:
    """The wall in words."""
    return "not known (no peak)" if bound is None else f"{bound}-bound"


def expected_facts(got: Found) -> Iterator[tuple[str, Quantity]]:
    """The expected times and between what they should lie, where there are any."""
    from .quantities import Kind, Quantity, format_quantity

    for name, line in lines_of(got):
        middle, low, high = (got.expected[f"{name}_expected{end}_s"] for end in ("", "_low", "_high"))
        if middle is not None:
            ends = [format_quantity(Quantity(end, Kind.SECONDS)) for end in (low, high)]
            yield f"expected {name} ({ends[0]} to {ends[1]})", Quantity(middle, Kind.SECONDS)
            yield f"floor over expected {name}", Quantity(None if line.floor_s is None else line.floor_s / middle, Kind.RATIO)


def decode_facts(case: Case, got: Found) -> Iterator[tuple[str, Quantity]]:
    """What a step reads, from which batch it would hit the other wall, and tokens per second."""
    from .quantities import Kind, Quantity

    step = got.latency.decode
    if step is None:
        return
    yield "weights read a step", Quantity(step.weight_read_bytes, Kind.BYTES)
    yield "cache read a step", Quantity(step.kv_read_bytes, Kind.BYTES)
    if step.state_read_bytes:
        yield "state read and written", Quantity(step.state_read_bytes, Kind.BYTES)
    if step.distinct_experts is not None:
        yield "distinct experts a layer", Quantity(step.distinct_experts, Kind.NUMBER)
    yield "compute-bound from batch", Quantity(got.latency.critical_batch or "none", Kind.EXACT)
    yield "without the cache from batch", Quantity(got.latency.critical_batch_of_weights or "none", Kind.EXACT)
    if step.floor_s:
        yield "tokens/s of one sequence at the floor", Quantity(1 / step.floor_s, Kind.NUMBER)
        yield "tokens/s of all sequences", Quantity(case.work.batch / step.floor_s, Kind.NUMBER)


def generation_facts(got: Found) -> Iterator[tuple[str, Quantity]]:
    """First, last and mean step, and the whole."""
    from .quantities import Kind, Quantity

    if got.generation:
        for name in ("first_step_s", "last_step_s", "mean_step_s", "total_s"):
            yield name.removesuffix("_s").replace("_", " "), Quantity(getattr(got.generation, name), Kind.SECONDS)


def explanations(case: Case, got: Found) -> tuple[Explanation, ...]:
    """Floor and bound with their numbers put in."""
    from . import control, speculation
    from .explain import explanation
    from .quantities import Kind, Quantity

    found = []
    for name, line in lines_of(got):
        moved = (
            f"({line.weight_read_bytes:,.0f} + {line.kv_read_bytes + line.state_read_bytes:,.0f}) / {line.device.memory_bytes_per_s:.4g}"
        )
        computed = f"{line.flops:,.0f} / {line.peak_flops_per_s:.4g}" if line.peak_flops_per_s else "peak not known"
        found.append(explanation("bound_s", f"{name}: max({computed}, {moved})", Quantity(line.bound_s, Kind.SECONDS)))
        parts = f"{name}: {len(line.rows)} rows"
        if line.compute_part_s is not None:
            parts += f", {line.memory_part_s:.4g} s waiting for memory + {line.compute_part_s:.4g} s for arithmetic"
        found.append(explanation("floor_s", parts, Quantity(line.floor_s, Kind.SECONDS)))
    step = got.latency.decode
    if step and step.distinct_experts is not None:
        dims = next(row.dims for row in step.rows if row.op == "experts")
        numbers = f"{dims['E']}·(1 - (1 - {dims['top_k']}/{dims['E']})^{case.work.batch})"
        found.append(explanation("distinct_experts", numbers, Quantity(step.distinct_experts, Kind.NUMBER)))
    found += [*control.explanations(got.control), *speculation.explanations(got.speculation, got.further.draft)]
    return tuple(found)


def assumptions(case: Case, further: Further) -> tuple[str, ...]:
    """What floor and bound rest on."""
    from . import control, speculation
    from .weights import stored_lines

    assert case.device is not None
    work = case.work
    weights = "as stored" if work.stored else f"in {work.weight_dtype.name}"
    lines = [
        *(stored_lines(work.stored) if work.stored else ()),
        f"weights {weights}, cache in {work.kv_dtype.name}, arithmetic in {work.activation_dtype.name}",
        "formats of weights and cache change bytes, not FLOPs",
        "a step reads every weight that runs and the cache once; input tables are gathered, not read; activations are not counted",
        basis(case),
    ]
    if case.device.peak_for(work.activation_dtype.name) is None:
        missing = f"{case.device.title}: no published peak in {work.activation_dtype.name}"
        lines.append(f"{missing}; prefill needs one (--peak), decode counts its bytes alone")
        if further.new is not None or case.spec.action is not None:
            lines.append("a generation and a look begin with a prefill: no time of either without a peak")
    if case.spec.uses_latent_attention:
        lines.append("MLA: prefill expanded, decode absorbed")
    lines.append("tokens/s are a decode step's at this context; --new adds first, last and mean step of a generation")
    if any(sub.shared for _, sub in case.spec.sublayers()):
        lines.append("weights that layers share are read once a pass")
    if case.device.peak_for(work.activation_dtype.name) is not None:
        lines += control.assumptions(case.spec, further.actions(case), further.new, parallel=further.parallel)
    lines += speculation.assumptions(case.spec, further.draft)
    return tuple(lines)
