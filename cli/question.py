"""What the arithmetic commands have in common: compute, then one point in full or many points as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from .output import EXPLAINS_ONE, Answer, Explanation
from .request import Case, Options, cases, is_single, point_inputs, single, table_rows
from .tables import Table, table_of

R = TypeVar("R")


class Question(msgspec.Struct, Generic[R], frozen=True, kw_only=True):
    """One command: how it computes and how it shows what it found.

    Attributes:
        compute: one case, whose batch, context and source may be arrays.
        figures: the keys of the JSON contract.
        terms: one entry a row of the ledger. tables, explanations: for people. assumptions: the conventions used.
        hidden: figures that a table for people leaves out (JSON and CSV have all).
    """

    name: str
    compute: Callable[[Case], R]
    figures: Callable[[Case, R], Mapping[str, object]]
    terms: Callable[[Case, R], list[dict[str, object]]]
    tables: Callable[[Case, R], tuple[Table, ...]]
    explanations: Callable[[Case, R], tuple[Explanation, ...]]
    assumptions: Callable[[Case], tuple[str, ...]]
    hidden: tuple[str, ...] = ()

    def answer(self, options: Options, *, explain: bool = False) -> Answer:
        """The answer to what was asked: in full for one point, a table for many."""
        found = cases(options)
        if is_single(found):
            return self.one(single(found[0]), explain=explain)
        return replace(self.many(found), notes=(EXPLAINS_ONE,) if explain else ())

    def one(self, case: Case, *, explain: bool) -> Answer:
        """Everything about one point."""
        got = self.compute(case)
        return Answer(
            command=self.name,
            inputs=point_inputs(case),
            assumptions=(*self.assumptions(case), *case.assumptions),
            result=self.figures(case, got),
            terms=tuple(self.terms(case, got)),
            tables=self.tables(case, got),
            explanations=self.explanations(case, got) if explain else (),
        )

    def many(self, found: list[Case]) -> Answer:
        """A row a point."""
        rows = list(table_rows(found, lambda case: self.figures(case, self.compute(case))))
        inputs: dict[str, object] = {}
        for case in found:
            for name, value in point_inputs(case).items():
                known = inputs.setdefault(name, [])
                assert isinstance(known, list)
                known += [value] if value not in known else []
        said = dict.fromkeys(line for case in found for line in (*self.assumptions(case), *case.assumptions))
        return Answer(
            command=self.name,
            inputs={name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in inputs.items()},
            assumptions=tuple(said),
            result={"rows": rows},
            tables=(table_of(shown(rows, self.hidden)),),
        )


def shown(rows: list[dict[str, object]], hidden: tuple[str, ...]) -> list[dict[str, object]]:
    """The rows for people: without what is hidden, and without what is nothing in every row."""
    told = {name for row in rows for name, value in row.items() if value not in (0, None)} - {*hidden}
    return [{name: value for name, value in row.items() if name in told} for row in rows]


def print_answer(question: Question[R], options: Options, *, explain: bool, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """The body of an arithmetic command."""
    from .output import emit, one_format

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    emit(question.answer(options, explain=explain), as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
