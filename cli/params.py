"""`tfm params`: how many parameters, where they are, and why the rule of thumb is off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options as o

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..estimators.params import Params
    from ..presets.loader import Loaded
    from ..presets.spec import ModelSpec
    from .output import Answer, Explanation
    from .tables import Table

Solve = Annotated[str | None, typer.Option("--solve", help="Run the rule backwards: shapes for so many parameters, as in 7B.")]
MaybeModel = Annotated[str | None, typer.Argument(metavar="[MODEL]", help=o.MODEL_HELP, autocompletion=o.complete_model)]


def params(
    model: MaybeModel = None,
    solve: Solve = None,
    gqa: o.Gqa = None,
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    explain: o.Explain = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Parameters of a model: exact, by component, and against the rule 12·D²·L + V·D.

    \b
    Examples:
      tfm params llama-7b
      tfm params deepseek-v3 --json
      tfm params --solve 7B
    """
    from ..presets.errors import UsageError
    from .output import emit, one_format

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    if solve is not None and gqa is not None:
        raise UsageError("--gqa belongs to a model; --solve shapes one for a number of parameters. Give one of the two")
    answer = solved(solve, model) if solve is not None else counted(model, gqa, presets, lenient=lenient, explain=explain)
    emit(answer, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(params)


def counted(model: str | None, gqa: str | None, presets: str | None, *, lenient: bool, explain: bool) -> Answer:
    """Parameters of one model, or a table of several."""
    from ..estimators.params import params as count
    from ..presets.errors import UsageError
    from ..presets.loader import Loaded, given_folders, load
    from . import units
    from .output import EXPLAINS_ONE, Answer

    if model is None:
        raise UsageError("which model? give a name (`tfm models` lists them), a config.json, or --solve 7B")
    names = units.parse_list(model, str.strip, name="MODEL")
    if len(names) == 1 and gqa is None:
        return one(load(names[0], given_folders(presets), lenient=lenient), explain=explain)
    specs = variants(names, gqa, presets, lenient=lenient)
    if len(specs) > 1:
        rows = [{"model": spec.name, **({"gqa": heads} if heads else {}), **figures(count(spec))} for spec, heads in specs]
        notes = tuple(dict.fromkeys(line for spec, _ in specs for line in spec.assumptions))
        said = (EXPLAINS_ONE,) if explain else ()
        inputs: dict[str, object] = {"model": list(dict.fromkeys(spec.name for spec, _ in specs))}
        return Answer(command="params", inputs=inputs, assumptions=notes, result={"rows": rows}, tables=(many(rows),), notes=said)
    return one(Loaded(specs[0][0]), heads=specs[0][1], explain=explain)


def one(loaded: Loaded, *, heads: int | None = None, explain: bool) -> Answer:
    """Everything about one model; beside its weights, where they are at hand, what they hold."""
    from ..estimators.params import params as count
    from . import weights as w
    from .output import Answer

    if loaded.spec is None:
        return w.only_stored(loaded)
    spec, held = loaded.spec, loaded.weights
    answer = count(spec)
    found = w.differences_of(spec, held)
    return Answer(
        command="params",
        inputs={"model": spec.name, **({"gqa": heads} if heads else {})},
        assumptions=(*assumptions(spec, answer), *(w.agreement(held, found) if held else ())),
        result=figures(answer) | (w.stored_figures(held, found) if held else {}),
        terms=tuple(terms(answer)),
        tables=(
            summary(spec, answer),
            *(w.stored_tables(held, found, answer.total_params) if held else ()),
            breakdown(answer),
            gap_table(answer),
            *((ledger_table(answer),) if explain else ()),
        ),
        explanations=explanations(spec, answer) if explain else (),
    )


def variants(names: Sequence[str], gqa: str | None, presets: str | None, *, lenient: bool) -> list[tuple[ModelSpec, int | None]]:
    """Every model asked for with every number of KV heads asked for."""
    from ..presets.loader import given_folders, load_model
    from . import units

    specs = [load_model(name, given_folders(presets), lenient=lenient) for name in names]
    if gqa is None:
        return [(spec, None) for spec in specs]
    from ..presets.variants import with_kv_heads

    heads = units.parse_list(gqa, lambda text: units.parse_int(text, name="--gqa"), name="--gqa")
    return [(with_kv_heads(spec, n), n) for spec in specs for n in heads]


def figures(answer: Params) -> dict[str, object]:
    """The keys of the contract."""
    names = (
        "total_params",
        "active_params",
        "embedding_params",
        "lm_head_params",
        "non_embedding_params",
        "rule_of_thumb_params",
        "buffers",
    )
    return {name: getattr(answer, name) for name in names}


def terms(answer: Params) -> list[dict[str, object]]:
    """One entry a row that has weights."""
    return [
        {"path": row.path, "op": row.op, "component": row.component, "params": row.params, "copies": row.copies}
        for row in answer.rows
        if row.params
    ]


def assumptions(spec: ModelSpec, answer: Params) -> tuple[str, ...]:
    """What the counts rest on."""
    lines = ["unique weights as PyTorch counts them: a tied or shared weight once, buffers not at all"]
    if answer.buffers:
        lines.append(f"{answer.buffers:,} values are stored as buffers beside the parameters (router correction biases and the like)")
    if answer.active_params != answer.total_params:
        lines.append("active: router, shared experts and dense layers in full, k of E routed experts, the input table too")
    return (*lines, *spec.assumptions)


def summary(spec: ModelSpec, answer: Params) -> Table:
    """The totals."""
    from .quantities import Kind, Quantity
    from .tables import card

    pairs = [("total", answer.total_params)]
    if answer.active_params != answer.total_params:
        pairs.append(("active per token", answer.active_params))
    pairs += [("embedding", answer.embedding_params), ("output head (own weights)", answer.lm_head_params)]
    pairs += [("non-embedding", answer.non_embedding_params), ("rule of thumb 12·D²·L + V·D", answer.rule_of_thumb_params)]
    if answer.buffers:
        pairs.append(("buffers beside", answer.buffers))
    return card(f"{spec.title or spec.name}: parameters", [(name, Quantity(count, Kind.COUNT)) for name, count in pairs])


def breakdown(answer: Params) -> Table:
    """Parameters by component with their share."""
    from .quantities import Kind
    from .tables import Column, Table

    rows = tuple((part.name, part.params, part.params / answer.total_params) for part in answer.components)
    return Table(
        "Where they are", (Column("component", Kind.TEXT), Column("params", Kind.EXACT), Column("share", Kind.RATIO, bar=True)), rows
    )


def gap_table(answer: Params) -> Table:
    """Why the rule is off, term by term."""
    from .quantities import Kind
    from .tables import Column, Table

    gap = answer.total_params - answer.rule_of_thumb_params
    off = gap / answer.total_params
    title = f"Why 12·D²·L + V·D is off by {gap:,} ({off:.2%})"
    rows = tuple((term.name, term.params, term.params / gap if gap else None, term.why) for term in answer.gap)
    columns = (Column("term", Kind.TEXT), Column("params", Kind.EXACT), Column("share_of_gap", Kind.RATIO), Column("why", Kind.TEXT))
    return Table(title, columns, rows)


def many(rows: list[dict[str, object]]) -> Table:
    """Several models side by side."""
    from .tables import table_of

    return table_of(rows, title="Parameters")


def ledger_table(answer: Params) -> Table:
    """Every row with weights: the numbers put in."""
    from .explain import numbers
    from .quantities import Kind
    from .tables import Column, Table

    rows = tuple((row.path, numbers(row), row.params, row.copies, row.params * row.copies) for row in answer.rows if row.params)
    columns = (
        Column("path", Kind.TEXT), Column("numbers", Kind.TEXT), Column("params", Kind.EXACT, "of one"),
        Column("copies", Kind.EXACT), Column("total", Kind.EXACT),
    )  # fmt: skip
    return Table("The ledger", columns, rows)


def explanations(spec: ModelSpec, answer: Params) -> tuple[Explanation, ...]:
    """Total and rule of thumb."""
    from ..estimators.rule_of_thumb import ruled_stacks, vocabulary
    from .explain import explanation
    from .quantities import Kind, Quantity

    parts = " + ".join(f"{part.params:,}" for part in answer.components)
    rule = " + ".join(f"12·{stack.d_model}²·{stack.depth}" for stack in ruled_stacks(spec))
    return (
        explanation("total_params", parts, Quantity(answer.total_params, Kind.COUNT), sources=spec.source),
        explanation("rule_of_thumb", f"{rule} + {vocabulary(spec)}·{spec.main.d_model}", Quantity(answer.rule_of_thumb_params, Kind.COUNT)),
    )


def solved(text: str, model: str | None) -> Answer:
    """Shapes that the rule gives for a number of parameters."""
    from ..estimators.solve import solve as shapes
    from ..presets.errors import UsageError
    from . import units
    from .output import Answer
    from .quantities import Kind
    from .tables import Column, Table

    if model is not None:
        raise UsageError(f"--solve takes a number of parameters and no model, got {model!r} too")
    target = units.parse_count(text, name="--solve")
    found = shapes(target)
    rows = [{"d_model": s.d_model, "layers": s.layers, "heads": s.heads, "params": s.params, "error": s.error} for s in found]
    if not rows:
        raise UsageError(
            f"no plausible shape has {target:,} parameters: with 32,000 tokens, heads of 128, an even number of layers and D/L from 64 "
            "to 256; the smallest has about 5 million, the largest about 400 trillion"
        )
    columns = (
        Column("d_model", Kind.EXACT),
        Column("layers", Kind.EXACT),
        Column("heads", Kind.EXACT),
        Column("params", Kind.EXACT),
        Column("error", Kind.RATIO),
    )
    note = "12·D²·L + V·D with V = 32000, heads of 128 and D/L near 128 as in GPT-3 and LLaMA; most usual first"
    return Answer(
        command="params",
        inputs={"solve": target},
        assumptions=(note,),
        result={"rows": rows},
        tables=(Table(f"Shapes for {units.format_count(target)}", columns, tuple(rows)),),
    )
