"""`tfm models`: which models are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from . import options as o

if TYPE_CHECKING:
    from .output import Answer


def models(presets: o.Presets = None, as_json: o.Json = False, as_csv: o.Csv = False, as_markdown: o.Markdown = False) -> None:
    """The model presets, with their sizes.

    \b
    Examples:
      tfm models
      tfm models --json
    """
    from .output import emit, one_format

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    emit(listed(presets), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(models)


def listed(presets: str | None) -> Answer:
    """Every preset with its parameters and aliases."""
    from ..estimators.params import params
    from ..presets.errors import TfmError
    from ..presets.loader import given_folders, load_model, model_aliases, model_names
    from .output import Answer
    from .quantities import Kind
    from .tables import Column, Table

    folders = given_folders(presets)
    aliases = model_aliases()
    rows, notes = [], []
    for name in model_names(folders):
        try:
            spec = load_model(name, folders)
        except TfmError as error:  # one bad file of a user's hides no other
            notes.append(f"left out: {error}")
            continue
        count = params(spec)
        also = ", ".join(alias for alias, target in aliases.items() if target == name)
        rows.append(
            {
                "model": name,
                "total_params": count.total_params,
                "active_params": count.active_params,
                "aliases": also,
                "source": spec.source[0],
            }
        )
    columns = (
        Column("model", Kind.TEXT),
        Column("total_params", Kind.EXACT),
        Column("active_params", Kind.EXACT),
        Column("aliases", Kind.TEXT),
    )
    table = Table("Models", columns, tuple(rows))
    return Answer(command="models", inputs={}, result={"rows": rows}, tables=(table,), notes=tuple(notes))
