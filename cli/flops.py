"""`tfm flops`: the FLOPs of a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options as o

if TYPE_CHECKING:
    from ..estimators.flops import Flops
    from .output import Explanation
    from .question import Question
    from .request import Case
    from .tables import Table

Phase = Annotated[str | None, typer.Option("--phase", help="prefill (default), decode or train; a comma makes a table.")]


def flops(
    model: o.Model,
    phase: Phase = None,
    batch: o.Batch = "1",
    ctx: o.Ctx = None,
    tokenizer: o.Tokenizer = None,
    cached: o.Cached = None,
    src: o.Src = None,
    images: o.Images = None,
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
    """FLOPs of a pass: linear layers, attention, output head; one multiply-add is 2.

    \b
    Examples:
      tfm flops llama-2-7b --ctx 4k
      tfm flops llama-3-8b --phase decode --batch 64 --ctx 8k
      tfm flops gpt-2 --phase train --batch 8 --ctx 1k,2k --csv
    """
    from .question import print_answer
    from .request import Options

    asked = Options(
        model=model, phase=phase, batch=batch, ctx=ctx, tokenizer=tokenizer, cached=cached, src=src, images=images, gqa=gqa,
        full_attention=full_attention, last_logits=last_logits, presets=presets, lenient=lenient,
    )  # fmt: skip
    print_answer(question(), asked, explain=explain, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(flops)


def question() -> Question[Flops]:
    """How the command computes and shows."""
    from ..estimators.flops import flops as count
    from .question import Question

    return Question(
        name="flops",
        compute=lambda case: count(case.spec, case.work),
        figures=figures,
        terms=terms,
        tables=tables,
        explanations=explanations,
        assumptions=assumptions,
    )


def figures(_case: Case, got: Flops) -> dict[str, object]:
    """The keys of the contract."""
    names = ("total_flops", "linear_flops", "attention_flops", "head_flops", "flops_per_token", "rule_flops", "rule_error")
    return {name: getattr(got, name) for name in names}


def terms(case: Case, got: Flops) -> list[dict[str, object]]:
    """One entry a row that computes."""
    from ..estimators.flops import row_flops

    return [
        {"path": row.path, "op": row.op, "part": row.share, "flops": row_flops(row, case.work), "repeat": row.repeat, **row.dims}
        for row in got.rows
        if row.repeat and row.op in ("linear", "conv", "experts", "attention", "scan")
    ]


def tables(case: Case, got: Flops) -> tuple[Table, ...]:
    """The parts, and the rules beside them."""
    from .quantities import Kind, Quantity
    from .tables import Column, Table, card

    shares = [("linear layers", got.linear_flops), ("attention", got.attention_flops), ("output head", got.head_flops)]
    parts = Table(
        f"{case.spec.title or case.spec.name}: FLOPs of {case.work.phase}",
        (Column("part", Kind.TEXT), Column("flops", Kind.FLOPS), Column("exact", Kind.EXACT), Column("share", Kind.RATIO, bar=True)),
        tuple((name, count, count, count / got.total_flops) for name, count in [*shares, ("total", got.total_flops)]),
    )
    rule = "6·P·T" if case.work.phase == "train" else "2·P·T"
    pairs = [
        ("tokens (B·T)", Quantity(got.tokens, Kind.EXACT)),
        ("FLOPs a token", Quantity(got.flops_per_token, Kind.FLOPS)),
        (f"rule of thumb {rule}", Quantity(got.rule_flops, Kind.FLOPS)),
        ("the rule is off by", Quantity(got.rule_error, Kind.RATIO)),
    ]
    return (parts, card("", pairs))


def explanations(case: Case, got: Flops) -> tuple[Explanation, ...]:
    """Each part with its rows put in."""
    from ..estimators.flops import row_flops
    from .explain import explanation, sum_of
    from .quantities import Kind, Quantity

    found = []
    for share in ("linear", "attention", "head"):
        rows = [row for row in got.rows if row.share == share]
        value = Quantity(getattr(got, f"{share}_flops"), Kind.FLOPS)
        found.append(explanation(f"{share}_flops", sum_of(rows, lambda row: row_flops(row, case.work)), value))
    if case.work.phase == "train":
        forward = sum(row.flops * row.repeat for row in got.rows)
        numbers = f"forward {forward:,} + backward {got.total_flops - forward:,}"
        found.append(explanation("train_flops", numbers, Quantity(got.total_flops, Kind.FLOPS)))
    factor = 6 if case.work.phase == "train" else 2
    active = got.rule_flops // (factor * got.tokens)
    found.append(explanation("rule_flops", f"{factor}·{active:,}·{got.tokens:,}", Quantity(got.rule_flops, Kind.FLOPS)))
    return tuple(found)


def assumptions(case: Case) -> tuple[str, ...]:
    """The conventions of the count."""
    lines = ["one multiply-add is 2 FLOPs; look-ups, norms, softmax and activations are not counted"]
    lines.append(
        "attention counts the whole square, as PyTorch's counter does"
        if case.work.full_attention
        else "attention counts the pairs that the mask leaves"
    )
    lines.append("output head at the last position only" if case.work.last_logits else "output head at every position")
    if case.spec.uses_latent_attention:
        lines.append("MLA: prefill expanded, decode absorbed")
    return tuple(lines)
