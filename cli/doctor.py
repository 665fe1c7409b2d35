"""`tfm doctor`: what this machine is, and what stands in the way of measuring on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from . import options as o

if TYPE_CHECKING:
    from ..kernels.doctor import Fact
    from .output import Answer


def doctor(as_json: o.Json = False, as_csv: o.Csv = False, as_markdown: o.Markdown = False) -> None:
    """Device, memory, threads, versions, attention backends; whether a datasheet preset matches and a calibration holds.

    \b
    Examples:
      tfm doctor
      tfm doctor --json
    """
    from .measuring import need_torch
    from .output import emit, one_format

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    need_torch()
    from ..kernels.doctor import examine

    emit(answer(list(examine())), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def answer(facts: list[Fact]) -> Answer:
    """Every fact; for people with its unit, and what to do where something is the matter."""
    from .output import Answer
    from .quantities import Kind, Quantity, format_quantity, header_of, kind_of
    from .tables import Column, Table

    def shown(fact: Fact) -> str:
        return format_quantity(Quantity(fact.value, kind_of(fact.name, [fact.value])))

    rows = tuple(
        (header_of(fact.name), shown(fact), f"{fact.state}: {fact.advice}" if fact.state != "ok" else fact.advice) for fact in facts
    )
    columns = (Column("what", Kind.TEXT), Column("value", Kind.TEXT), Column("note", Kind.TEXT))
    result: dict[str, object] = {fact.name: fact.value for fact in facts}
    result["rows"] = [{"name": fact.name, "value": fact.value, "state": fact.state, "advice": fact.advice} for fact in facts]
    notes = tuple(f"{fact.name}: {fact.advice}" for fact in facts if fact.state == "trouble")
    return Answer(command="doctor", inputs={}, result=result, tables=(Table("This machine", columns, rows),), notes=notes)
