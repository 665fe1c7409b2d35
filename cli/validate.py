"""`tfm validate`: the counts against PyTorch's own counters, the times against the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..presets.errors import UnknownNameError, UsageError
from . import options as o
from .bench import OneDtype, Seconds, Threads
from .bench_passes import Layers

if TYPE_CHECKING:
    from ..estimators.work import Phase
    from ..kernels.validation import Finding
    from ..presets.spec import ModelSpec
    from .output import Answer

Only = Annotated[
    str | None, typer.Option("--only", help="counts (seconds, whatever the size of the model) or times; of claims: names, by comma.")
]
Phases = Annotated[
    str,
    typer.Option(
        "--phase",
        help="prefill, decode, train (counts only: FLOPs, what is kept, gradients, optimizer); a comma takes several.",
    ),
]
PHASES = ("prefill", "decode", "train")
PARTS = ("counts", "times")


def validate(
    model: o.Model,
    only: Only = None,
    phase: Phases = "prefill,decode",
    batch: Annotated[str | None, typer.Option("--batch", help="Sequences; 2 for counts, 1 for times.")] = None,
    ctx: Annotated[str | None, typer.Option("--ctx", "--tgt", help="Tokens attended; what suits the model if not given.")] = None,
    gqa: o.Gqa = None,
    dtype: OneDtype = "bf16",
    layers: Layers = "auto",
    threads: Threads = None,
    seconds: Seconds = "10s",
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    listed: Annotated[bool, typer.Option("--list", help="The claims there are, without looking at them.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Each claim in words, its formula and source.")] = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Predicted beside observed: parameters, FLOPs and cache bytes of real modules, decode and prefill on the clock.

    Exit 3 where a count differs at all or a time is below its floor; a time outside its expected interval is noted.
    In place of a model, `claims`: what articles say about transformers, each claim looked at here; exit 3 where one fails.

    \b
    Examples:
      tfm validate gpt-2 --only counts
      tfm validate llama-7b --only counts --phase decode --ctx 1k --json
      tfm validate gpt-2 --only counts --phase train --ctx 512
      tfm validate claims --only softmax-of-3-1-02,variance-is-d-k --explain
    """
    from .bench_passes import chosen
    from .measuring import Progress, need_torch, setting_for
    from .output import emit, one_format
    from .units import parse_int, parse_tokens

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    if model == "claims":
        from .claims import validate_claims

        validate_claims(only, listed=listed, explain=explain, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
        return
    if listed or explain:
        raise UsageError("--list and --explain belong to `tfm validate claims`; a model has neither")
    need_torch()
    phases, parts = read_phases(phase), read_parts(only)
    spec = chosen(model, gqa, presets, lenient=lenient)
    sizes = {"batch": batch and parse_int(batch, name="--batch"), "context": ctx and parse_tokens(ctx, name="--ctx")}
    given = {name: size for name, size in sizes.items() if size}
    progress = Progress()
    from ..kernels.benchmarks.setting import torch_dtype
    from ..kernels.validation import validate_counts, validate_times

    found: list[Finding] = []
    code = 0
    try:  # an interrupt leaves the rows that there are
        if "counts" in parts:
            found.extend(validate_counts(spec, phases=phases, **given))
        if "times" in parts:
            setting = setting_for(threads, seconds, progress)
            found.extend(validate_times(spec, phases=phases, dtype=torch_dtype(dtype), layers=layers, setting=setting, **given))
    except KeyboardInterrupt:
        code = 130
    progress.done()
    emit(answer(spec, found, only), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    if code or not passed(found):
        raise typer.Exit(code or 3)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)


def read_phases(text: str) -> tuple[Phase, ...]:
    """The phases asked for; raises UnknownNameError."""
    from .units import parse_list

    chosen = parse_list(text, str.strip, name="--phase")
    for name in chosen:
        if name not in PHASES:
            raise UnknownNameError("phase", name, PHASES, f"Allowed: {', '.join(PHASES)}.")
    return chosen  # type: ignore[return-value]


def read_parts(only: str | None) -> tuple[str, ...]:
    """What is to be validated; raises UnknownNameError."""
    if only is None:
        return PARTS
    if only not in PARTS:
        raise UnknownNameError("part", only, PARTS, f"--only takes {' or '.join(PARTS)}.")
    return (only,)


def passed(found: list[Finding]) -> bool:
    """Whether every count is equal and no time is below its floor; an expected time that is missed is a note, no failure."""
    return all(row.ok is not False for row in found if row.quantity != "expected_s")


def answer(spec: ModelSpec, found: list[Finding], only: str | None) -> Answer:
    """All rows."""
    from .output import Answer
    from .quantities import Kind, Quantity, kind_of
    from .tables import Column, Table

    rows = [row.figures() for row in found]

    def shown(row: Finding, value: float | None) -> Quantity:
        return Quantity(value, Kind.EXACT if row.counts else kind_of(row.quantity, [value]))

    cells = tuple(
        (
            row.name,
            row.quantity,
            shown(row, row.predicted),
            shown(row, row.observed),
            row.error,
            "-" if row.ok is None else "ok" if row.ok else "DIFFERS",
        )
        for row in found
    )
    columns = (
        Column("name", Kind.TEXT), Column("quantity", Kind.TEXT), Column("predicted", Kind.MIXED), Column("observed", Kind.MIXED),
        Column("error", Kind.RATIO), Column("ok", Kind.TEXT),
    )  # fmt: skip
    notes = tuple(
        f"{row.name}: {row.observed:.4g} s, expected {row.predicted:.4g} s: outside the interval; see docs/measuring.md, 'expected times'"
        for row in found
        if row.quantity == "expected_s" and row.ok is False
    )
    return Answer(
        command="validate",
        inputs={"model": spec.name, "only": only},
        assumptions=assumptions(found),
        result={"rows": rows, "ok": passed(found)},
        tables=(Table(f"{spec.title or spec.name}: predicted and observed", columns, cells),),
        notes=notes,
    )


def assumptions(found: list[Finding]) -> tuple[str, ...]:
    """What was compared with what."""
    lines = []
    if any(row.counts for row in found):
        lines += [
            "counts are of the whole model as PyTorch modules on the `meta` device; FLOPs by torch.utils.flop_counter",
            "PyTorch's counter takes the full square of attention, so the prediction does here too (--full-attention elsewhere)",
        ]
    if any(row.quantity == "activation_bytes" for row in found):
        lines += [
            "activation_bytes: distinct storages that autograd keeps, parameters apart; ok within 1 % and 32 bytes a token and sublayer:"
            " statistics of norms, ids, masks, rotary tables, router scores are not predicted (docs/training.md)",
            "recompute none keeps the T x S weights, selective forgets them, full keeps layer inputs and holds one layer beside them",
            "gradients in the model's format; optimizer_bytes: PyTorch's own moments over fp32 weights, without the master copy",
        ]
    if any(not row.counts for row in found):
        lines.append("times are of real modules with random weights; the floor is from the bandwidth measured in the same run")
        if not any(row.quantity == "expected_s" for row in found):
            lines.append("no expected time: run `tfm calibrate` once")
    return tuple(lines)
