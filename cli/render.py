"""What a person sees: an answer drawn by Rich. Numbers are never cut; text folds; meaning is never in colour alone.

Rich is imported inside functions: commands that print JSON do not load it. It decides by itself about colour (NO_COLOR,
TERM=dumb, a pipe) and about box characters (encoding). No cell is read as Rich markup: `[tokens/s]` stays what it is.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .output import Answer, Explanation, Table, explanation_lines
from .quantities import Kind, as_number, clean

if TYPE_CHECKING:
    from rich.box import Box
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

__all__ = ["Explanation", "clean", "explanation_renderable", "make_console", "render_answer", "table_renderable"]

_TEXT_MIN = 12  # columns of text are not folded narrower than this
_HEADING_MIN = 8  # nor headings of numbers
_WIDTH_MIN = 20
_BETWEEN = 2  # blanks between two columns
_BAR_WIDTH = 12
_EIGHTHS = " ▏▎▍▌▋▊▉"


def make_console(*, stderr: bool = False) -> Console:
    """A console that takes text literally: no markup, no emoji codes, no highlighting."""
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if console.width < _WIDTH_MIN:  # COLUMNS=0 means not known
        console.width = _WIDTH_MIN if console.width else 80
    return console


def render_answer(answer: Answer) -> str:
    """Tables, explanations and assumptions as the text that stdout gets, colour codes included where it takes them."""
    console = make_console()
    with console.capture() as capture:
        for number, block in enumerate(_blocks(answer, console)):
            if number:
                console.print()
            # crop=False: a table wider than the terminal is wrapped by the terminal, not cut by Rich
            console.print(block, crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _blocks(answer: Answer, console: Console) -> list[RenderableType]:
    from rich.console import Group

    blocks: list[RenderableType] = []
    for table in answer.tables:
        drawn = table_renderable(table, width=console.width, unicode=_is_unicode(console))
        blocks.append(Group(_text(table.title, "bold"), drawn) if table.title else drawn)
    blocks += [explanation_renderable(explanation) for explanation in answer.explanations]
    if answer.assumptions:
        blocks.append(_labelled([("assumes", text) for text in answer.assumptions]))
    return blocks


def _is_unicode(console: Console) -> bool:
    return console.encoding.startswith("utf")


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(clean(text), style=style)


def table_renderable(table: Table, *, width: int, unicode: bool = True) -> RichTable:
    """`table` as a Rich table for a console of `width` columns; wider than it where the numbers need that."""
    from rich.table import Table as RichTable

    drawn = RichTable(box=_box(unicode=unicode), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    cells: list[list[Text]] = []
    needed = -_BETWEEN
    for index, (heading, texts) in enumerate(zip(*table.formatted(), strict=True)):
        column = table.columns[index]
        cells.append([_text(text) for text in texts])
        needed += _BETWEEN + _add_column(drawn, heading, cells[-1], is_text=column.is_text)
        if column.bar and column.kind is Kind.RATIO:
            bars = [bar(as_number(value), unicode=unicode) for value in table.values(index)]
            needed += _BETWEEN + max(map(len, bars), default=0)
            drawn.add_column("", no_wrap=True)
            cells.append([_text(text) for text in bars])
    for row in zip(*cells, strict=True):
        drawn.add_row(*row)
    if needed > width:
        drawn.width = needed
    return drawn


def _add_column(drawn: RichTable, heading: str, texts: Sequence[Text], *, is_text: bool) -> int:
    """Add one column and return the least width that loses nothing."""
    longest = max((text.cell_len for text in texts), default=0)
    if is_text:
        drawn.add_column(_text(heading), overflow="fold")
        return min(max(longest, len(heading)), _TEXT_MIN)
    lines = textwrap.wrap(clean(heading), max(longest, _HEADING_MIN), break_long_words=False, break_on_hyphens=False)
    head = _text("\n".join(lines))
    drawn.add_column(head, justify="right", no_wrap=True)
    return max(longest, *(line.cell_len for line in head.split()), 0)


def _box(*, unicode: bool) -> Box:
    """A rule under the headings and nothing else: easy on the eye, and on copying."""
    from rich import box

    if unicode:
        return box.SIMPLE_HEAD
    return box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def bar(share: float | None, *, unicode: bool = True, width: int = _BAR_WIDTH) -> str:
    """`share` of `width` characters, in eighths where there is Unicode; the number always stands beside it."""
    filled = 0.0 if share is None else min(max(share, 0.0), 1.0) * width
    if not unicode:
        return "#" * round(filled)
    whole, eighths = divmod(round(filled * 8), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()


def explanation_renderable(explanation: Explanation) -> RenderableType:
    """The title, and below it formula, numbers, value, source, and what was assumed and left out, by label."""
    from rich.console import Group

    return Group(_text(explanation.title, "bold"), _labelled(explanation_lines(explanation)))


def _labelled(lines: Sequence[tuple[str, str]]) -> RichTable:
    """Labels on the left (each once), text that wraps on the right."""
    from rich.table import Table as RichTable

    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    previous = ""
    for label, text in lines:
        grid.add_row(_text("" if label == previous else f"  {label}"), _text(text))
        previous = label
    return grid
