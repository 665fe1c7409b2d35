"""The answer of a command and its machine forms: the JSON envelope, CSV, Markdown; `emit` prints one of them.

An `Answer` holds raw values in base units and nothing formatted. JSON and CSV carry them as they are, with the unit in
the key; Markdown and the terminal (`render.py`) are for people and carry three significant digits.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from os import PathLike

import msgspec

from ..presets.errors import UsageError
from .quantities import Quantity, clean, format_with_exact, plain
from .tables import Column, Table, card, flatten, table_of

__all__ = [
    "Answer", "Column", "Explanation", "Table", "card", "emit", "envelope", "explanation_lines", "one_format", "table_of",
    "to_csv", "to_json", "to_markdown", "warn",
]  # fmt: skip

SCHEMA = "tfm/1"
DISTRIBUTION = "tfm-toolkit"
EXPLAINS_ONE = "--explain explains one point, this is a table of several; give one value of everything"


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Where one number comes from.

    Attributes:
        title: what is computed.
        formula: in symbols.
        substituted: the formula with the numbers put in.
        value: the outcome.
        source: paper, section or table.
        not_counted: what the formula leaves out, each with its size where that is known.
        assumptions: what was taken for granted.
    """

    title: str
    formula: str
    substituted: str
    value: Quantity
    source: str
    not_counted: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a command found: `result` and `terms` for machines, `tables` and `explanations` for people.

    `notes` are warnings; they go to stderr whatever the form. A swept answer has its flat results in `result["rows"]`.
    """

    command: str
    inputs: Mapping[str, object]
    result: Mapping[str, object]
    assumptions: tuple[str, ...] = ()
    terms: tuple[Mapping[str, object], ...] = ()
    tables: tuple[Table, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    notes: tuple[str, ...] = ()


# --- machine forms -----------------------------------------------------------------------------------------------


def tool_version() -> str:
    """The version of the installed distribution, else the package's own."""
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        package = sys.modules.get(__name__.partition(".")[0])
        return str(getattr(package, "__version__", "0+unknown"))


def jsonable(value: object) -> object:
    """`value` in JSON's own types: NaN and infinities as null, numpy scalars by their value, a Quantity raw."""
    value = plain(value)
    if isinstance(value, Quantity | Enum):
        return jsonable(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(member) for member in value]
    if isinstance(value, PathLike):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def envelope(answer: Answer) -> dict[str, object]:
    """The answer in the stable envelope `tfm/1`; `explanations` are there only where they were asked for."""
    body: dict[str, object] = {
        "schema": SCHEMA,
        "version": tool_version(),
        "command": answer.command,
        "inputs": jsonable(answer.inputs),
        "assumptions": list(answer.assumptions),
        "result": jsonable(answer.result),
        "terms": jsonable(answer.terms),
    }
    if answer.explanations:
        body["explanations"] = [_explanation(explanation) for explanation in answer.explanations]
    return body


def _explanation(explanation: Explanation) -> dict[str, object]:
    fields = ("title", "formula", "substituted", "value", "source", "not_counted", "assumptions")
    return {name: jsonable(getattr(explanation, name)) for name in fields}


def to_json(answer: Answer) -> str:
    """The envelope as text; keys in the order given, ASCII only, so that no stream's encoding can spoil it."""
    import json

    return json.dumps(envelope(answer), indent=2, allow_nan=False)


def _records(answer: Answer) -> list[Mapping[str, object]]:
    """What a CSV holds: the flat results, else the terms, else the first table, else the one result."""
    rows = answer.result.get("rows")
    if isinstance(rows, list | tuple):
        return [row for row in rows if isinstance(row, Mapping)]
    if answer.terms:
        return list(answer.terms)
    if answer.tables:
        names = [column.name for column in answer.tables[0].columns]
        return [row if isinstance(row, Mapping) else dict(zip(names, row, strict=True)) for row in answer.tables[0].rows]
    return [answer.result]


def to_csv(answer: Answer) -> str:
    """Raw base units under the JSON keys; what is not known is empty, a list is written as JSON."""
    import csv
    import io

    records = [flatten(record) for record in _records(answer)]
    names = list(dict.fromkeys(name for record in records for name in record))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    if names:
        writer.writerow(names)
    writer.writerows([_csv_cell(record.get(name)) for name in names] for record in records)
    return stream.getvalue()


def _csv_cell(value: object) -> object:
    import json

    value = jsonable(value)
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return clean(value) if isinstance(value, str) else value


def to_markdown(answer: Answer) -> str:
    """Tables for people: of the flat results, else those of the answer, else of its terms or its one result."""
    rows = answer.result.get("rows")
    known = [column for table in answer.tables for column in table.columns]
    if not isinstance(rows, list | tuple) and answer.tables:
        tables: Sequence[Table] = answer.tables
    else:
        tables = (table_of(_records(answer), known=known),)
    blocks = [markdown_table(table) for table in tables]
    blocks += [_markdown_explanation(explanation) for explanation in answer.explanations]
    return "\n".join(blocks)


_MARKDOWN = {ord(mark): f"\\{mark}" for mark in "\\|*`"} | {ord("<"): "&lt;", ord("\n"): " "}


def markdown_text(text: str) -> str:
    """`text` with the marks of Markdown escaped, on one line."""
    return clean(text.translate(_MARKDOWN))


def markdown_table(table: Table) -> str:
    """A table, its title in bold above."""
    headings, columns = table.formatted()
    rules = [":---" if column.is_text else "---:" for column in table.columns]
    lines = [[markdown_text(heading) for heading in headings], rules]
    lines += [[markdown_text(cell) for cell in row] for row in zip(*columns, strict=True)]
    title = f"**{markdown_text(table.title)}**\n\n" if table.title else ""
    return title + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown_explanation(explanation: Explanation) -> str:
    lines = [f"**{markdown_text(explanation.title)}**\n"]
    for label, text in explanation_lines(explanation):
        lines.append(f"- {label}: {markdown_text(text)}")
    return "\n".join(lines) + "\n"


def explanation_lines(explanation: Explanation) -> list[tuple[str, str]]:
    """The parts of an explanation in reading order, each with its label."""
    lines = [
        ("formula", explanation.formula),
        ("numbers", explanation.substituted),
        ("value", format_with_exact(explanation.value)),
        ("source", explanation.source),
    ]
    lines += [("assumes", text) for text in explanation.assumptions]
    lines += [("not counted", text) for text in explanation.not_counted]
    return [(label, text) for label, text in lines if text]


# --- printing ----------------------------------------------------------------------------------------------------

# What a stream that is not Unicode (LANG=C, an old console) gets in place of the signs that formulas use.
_ASCII = str.maketrans(
    {"·": "*", "×": "x", "²": "^2", "³": "^3", "≤": "<=", "≥": ">=", "√": "sqrt", "→": "->", "–": "-", "—": "-", "…": "...", "µ": "u"}
)


def write(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print `text` on stdout or stderr, in what characters its encoding has.

    A reader that has gone (`| head`) is no trouble: what more there is goes nowhere, and the exit code stays what it is.
    """
    import typer

    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    # Colours were decided on by Rich already; the text of cells holds no escape sequences (`clean`).
    try:
        typer.echo(text + end, err=err, nl=False, color=True)
    except BrokenPipeError:
        if err:
            raise
        with suppress(io.UnsupportedOperation):  # a stand-in of a test has no descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(text: str) -> None:
    """One warning or note on stderr."""
    write(f"note: {clean(text)}", err=True)


def one_format(*, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Refuse more than one form of output; a command calls it before it computes. Raises UsageError."""
    asked = [name for name, on in (("--json", as_json), ("--csv", as_csv), ("--markdown", as_markdown)) if on]
    if len(asked) > 1:
        raise UsageError(f"one form of output at a time, got {' and '.join(asked)}; allowed: one of --json, --csv, --markdown, or none")


def emit(answer: Answer, *, as_json: bool = False, as_csv: bool = False, as_markdown: bool = False) -> None:
    """Print the answer in one form on stdout and its notes on stderr; raises UsageError if two forms are asked for."""
    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    for note in answer.notes:
        warn(note)
    if as_json:
        write(to_json(answer))
    elif as_csv:
        write(to_csv(answer), end="")
    elif as_markdown:
        write(to_markdown(answer), end="")
    else:
        from .render import render_answer

        write(render_answer(answer), end="")
