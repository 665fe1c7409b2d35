"""`tfm validate claims`: what the articles say about transformers, looked at on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from .output import Answer, Explanation
from .quantities import Kind, Quantity
from .tables import Column, Table

if TYPE_CHECKING:
    from ..kernels.claims import Claim, Verdict

SIGNS = {"equals": "", "is": "", "at most": "≤ ", "at least": "≥ "}
MOST = 3  # numbers of a list that a table shows; JSON has all
MARKS = {True: "ok", False: "FAILS", None: "-"}


def validate_claims(only: str | None, *, listed: bool, explain: bool, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Look at the claims and print; exit 3 where one fails. `listed`: only say what there is."""
    from .measuring import need_torch
    from .output import emit

    need_torch()
    from ..kernels.claims import claims_named

    claims = claims_named(names_in(only))
    if listed:
        emit(listing(claims, only, explain=explain), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
        return
    verdicts, interrupted = looked_at(claims)
    emit(answer(verdicts, only, explain=explain), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    if interrupted:
        raise typer.Exit(130)
    if not holds(verdicts):
        raise typer.Exit(3)


def names_in(only: str | None) -> list[str] | None:
    """The names of --only; None for all."""
    return None if only is None else [name.strip() for name in only.split(",") if name.strip()]


def looked_at(claims: Sequence[Claim]) -> tuple[list[Verdict], bool]:
    """One verdict a claim, and whether an interrupt ended it early."""
    from ..kernels.claims import look
    from .measuring import Progress

    progress = Progress()
    found: list[Verdict] = []
    try:
        for number, claim in enumerate(claims, start=1):
            progress(f"{number} of {len(claims)}: {claim.name}")
            found.append(look(claim))
    except KeyboardInterrupt:
        return found, True
    finally:
        progress.done()
    return found, False


def holds(verdicts: Sequence[Verdict]) -> bool:
    """Whether none fails; what does not apply here neither holds nor fails."""
    return all(verdict.finding.ok is not False for verdict in verdicts)


def short(value: object) -> str:
    """A number with four digits, a list of them, words as they are.

    >>> short(2090.1158), short([1.0, 0.25]), short(17179869184), short(None), short([1.0, 2.0, 3.0, 4.0])
    ('2090', '[1,0.25]', '17,179,869,184', '-', '[1,..,4]')
    """
    if isinstance(value, list | tuple) and len(value) > MOST and not isinstance(value[0], list):
        return f"[{short(value[0])},..,{short(value[-1])}]"
    if isinstance(value, list | tuple):
        return "[" + ",".join(short(member) for member in value) + "]"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else str(value)


def listing(claims: Sequence[Claim], only: str | None, *, explain: bool) -> Answer:
    """What there is to look at."""
    names = ("name", "group", "quantity", "words", "formula", "source", "measured")
    return Answer(
        command="validate claims",
        inputs={"only": only, "list": True},
        result={"rows": [{name: getattr(claim, name) for name in names} for claim in claims]},
        tables=(Table("Claims", (Column("name", Kind.TEXT), Column("quantity", Kind.TEXT)), tuple((c.name, c.quantity) for c in claims)),),
        explanations=tuple(explained(claim, None) for claim in claims) if explain else (),
    )


def answer(verdicts: Sequence[Verdict], only: str | None, *, explain: bool) -> Answer:
    """A row a claim."""
    columns = ("name", "predicted", "seen", "error", "ok")
    failed = [verdict for verdict in verdicts if verdict.finding.ok is False]
    return Answer(
        command="validate claims",
        inputs={"only": only, "list": False},
        result={"rows": [verdict.figures() for verdict in verdicts], "ok": holds(verdicts)},
        tables=(Table(title(verdicts), tuple(Column(name, Kind.TEXT) for name in columns), tuple(map(cells, verdicts))),),
        explanations=tuple(explained(v.claim, v) for v in verdicts) if explain else (),
        notes=tuple(f"{v.claim.name}: {v.finding.note or v.claim.quantity}" for v in verdicts if v in failed or v.finding.ok is None),
    )


def title(verdicts: Sequence[Verdict]) -> str:
    """How many hold, fail, and do not apply."""
    marks = [verdict.finding.ok for verdict in verdicts]
    absent = f", {marks.count(None)} not applicable here" if None in marks else ""
    return f"Claims: {marks.count(True)} hold, {marks.count(False)} fail{absent}"


def cells(verdict: Verdict) -> tuple[str, ...]:
    """One row for people."""
    found = verdict.finding
    error = "-" if found.error is None else "0" if found.error == 0 else f"{found.error:.1e}"
    return verdict.claim.name, SIGNS[found.relation] + short(found.predicted), short(found.observed), error, MARKS[found.ok]


def explained(claim: Claim, verdict: Verdict | None) -> Explanation:
    """A claim in words, its formula, what was seen, and where it is from."""
    seen, notes = "", tuple[str, ...]()
    if verdict is not None:
        _, predicted, observed, _, mark = cells(verdict)
        seen, notes = f"{claim.quantity}: predicted {predicted}, seen {observed} ({mark})", (verdict.finding.note,)
    return Explanation(
        title=f"{claim.name}: {claim.words}", formula=claim.formula, substituted=seen, value=Quantity("", Kind.TEXT), source=claim.source,
        assumptions=notes,
    )  # fmt: skip
