"""What a person sees: no number is ever cut, no cell is read as markup, and no escape sequence gets through."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.cli.output import Answer, Column, Explanation, Table
from tfm.cli.quantities import Kind, Quantity
from tfm.cli.render import bar, render_answer

NAME = "decoder/self_attention/a_very_long_name_of_a_projection_that_does_not_end/q_proj/weight"
NUMBER = 123_456_789_012_345


def answer(*tables: Table, **parts: object) -> Answer:
    return Answer(command="x", inputs={}, result={}, tables=tables, **parts)  # type: ignore[arg-type]


def table(columns: dict[str, Kind], *rows: tuple[object, ...], title: str = "") -> Table:
    return Table(title, tuple(Column(name, kind) for name, kind in columns.items()), rows)


def test_a_whole_table() -> None:
    drawn = render_answer(
        answer(
            Table(
                "Parameters",
                (Column("path", Kind.TEXT), Column("params", Kind.EXACT), Column("share", Kind.RATIO, bar=True)),
                (("embedding", 131072000, 0.0195), ("layers", 6476271616, 0.961), ("unknown", None, None)),
            )
        )
    )
    assert drawn == (
        "Parameters\n"
        "                          share\n"
        "path              params    (%)\n"
        "─────────────────────────────────────────────\n"
        "embedding    131,072,000   1.95  ▎\n"
        "layers     6,476,271,616  96.10  ███████████▌\n"
        "unknown                -      -\n"
    )


@pytest.mark.parametrize("columns", [1, 3, 5, 8], ids=lambda count: f"{count} numbers")
def test_no_number_is_cut_at_80_columns(columns: int) -> None:
    kinds = {"path": Kind.TEXT, **{f"number_{index}": Kind.EXACT for index in range(columns)}}
    drawn = render_answer(answer(table(kinds, (NAME, *[NUMBER + index for index in range(columns)]))))
    for index in range(columns):
        assert f"{NUMBER + index:,}" in drawn
    assert "…" not in drawn
    if columns <= 3:
        assert max(map(len, drawn.splitlines())) <= 80
    folded = "".join(line.split("  ")[0].strip() for line in drawn.splitlines()[2:])
    assert NAME in folded.replace(" ", "")


def test_numbers_are_right_justified() -> None:
    lines = render_answer(answer(table({"a": Kind.EXACT, "b": Kind.EXACT}, (1, 22), (333, 4)))).splitlines()
    assert lines[-2:] == ["  1  22", "333   4"]


@pytest.mark.parametrize("text", ["[tokens/s]", "[bold]x[/bold]", "[/]", ":smile:", "[link=x]y", "a\\[b]", "https://a.b/c"])
def test_markup_is_not_read(text: str) -> None:
    explanation = Explanation(title=text, formula=text, substituted=text, value=Quantity(text, Kind.TEXT), source=text, not_counted=(text,))
    drawn = render_answer(answer(table({text: Kind.TEXT}, (text,), title=text), explanations=(explanation,), assumptions=(text,)))
    assert drawn.count(text) == 3 + 6 + 1


def test_an_escape_sequence_in_a_name_does_not_reach_the_terminal() -> None:
    assert "\x1b" not in render_answer(answer(table({"a": Kind.TEXT}, ("\x1b]0;title\x07",), title="\x1b[31m")))


def test_explanation() -> None:
    explanation = Explanation(
        title="KV cache per token",
        formula="2 · L · K · H · bytes per element",
        substituted="2 × 32 × 8 × 128 × 2 B",
        value=Quantity(131072, Kind.BYTES),
        source="Shazeer 2019, arXiv:1911.02150",
        assumptions=("bf16", "all layers alike"),
        not_counted=("the block table of a paged cache, a text that is much too long for one line of eighty columns",),
    )
    assert render_answer(answer(explanations=(explanation,))) == (
        "KV cache per token\n"
        "  formula      2 · L · K · H · bytes per element\n"
        "  numbers      2 × 32 × 8 × 128 × 2 B\n"
        "  value        128 KiB (131,072 B)\n"
        "  source       Shazeer 2019, arXiv:1911.02150\n"
        "  assumes      bf16\n"
        "               all layers alike\n"
        "  not counted  the block table of a paged cache, a text that is much too long\n"
        "               for one line of eighty columns\n"
    )


def test_blocks_stand_apart() -> None:
    small = table({"a": Kind.TEXT}, ("x",))
    assert render_answer(answer(small, small, assumptions=("one", "two"))) == "a\n─\nx\n\na\n─\nx\n\n  assumes  one\n           two\n"


def test_an_empty_table_and_an_empty_answer() -> None:
    assert render_answer(answer(table({"a": Kind.TEXT, "b": Kind.BYTES}))) == "a  b\n────\n"
    assert render_answer(answer()).strip() == ""


@pytest.mark.parametrize(
    ("share", "unicode", "expected"),
    [
        pytest.param(0.5, True, "██████", id="half"),
        pytest.param(1 / 96, True, "▏", id="an eighth of a character"),
        pytest.param(7, True, "█" * 12, id="more than all"),
        pytest.param(-1.0, True, "", id="less than nothing"),
        pytest.param(None, True, "", id="unknown"),
        pytest.param(0.5, False, "######", id="ASCII"),
    ],
)
def test_bar(share: float | None, unicode: bool, expected: str) -> None:
    assert bar(share, unicode=unicode) == expected


@pytest.mark.parametrize("columns", ["0", "1", "19"])
def test_a_width_that_holds_nothing_loses_nothing(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS=0 is what programs say that do not know."""
    monkeypatch.setenv("COLUMNS", columns)
    drawn = render_answer(answer(Table("a title", (Column("path", Kind.TEXT), Column("params", Kind.EXACT)), (("decoder", NUMBER),))))
    assert f"{NUMBER:,}" in drawn and "a title" in drawn and "decoder" in drawn


def test_a_stream_without_box_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    drawn = render_answer(answer(Table("", (Column("share", Kind.RATIO, bar=True),), ((0.5,),))))
    assert drawn.isascii()
    assert drawn.endswith("50.0  ######\n")


KINDS = st.sampled_from([kind for kind in Kind if kind is not Kind.TEXT])
NUMBERS = st.none() | st.integers(-(10**24), 10**24) | st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=40)
@given(data=st.data(), kinds=st.lists(KINDS, min_size=1, max_size=9), name=st.text(max_size=60), heading=st.text(max_size=40))
def test_every_cell_is_there(data: st.DataObject, kinds: list[Kind], name: str, heading: str) -> None:
    row = (name, *[data.draw(NUMBERS) for _ in kinds])
    drawn = table({"name": Kind.TEXT, **{f"{heading}{index}": kind for index, kind in enumerate(kinds)}}, row)
    text = render_answer(answer(drawn))
    for (cell,) in drawn.formatted()[1][1:]:
        assert cell in text


COLOUR = """
import sys
from tfm.cli.output import Answer, Column, Table, emit
from tfm.cli.quantities import Kind
emit(Answer(command="x", inputs={}, result={}, tables=(Table("t", (Column("a", Kind.TEXT),), (("x",),)),)))
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""


@pytest.mark.parametrize(
    ("env", "coloured"),
    [
        pytest.param({"NO_COLOR": "", "FORCE_COLOR": "1", "TERM": "xterm"}, True, id="asked for"),
        pytest.param({"NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param({"NO_COLOR": "", "TERM": "xterm"}, False, id="a pipe"),
    ],
)
def test_colour_is_for_rich_to_decide(run_python: Callable[..., CompletedProcess[str]], env: dict[str, str], coloured: bool) -> None:
    done = run_python("-c", COLOUR, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("\x1b[" in done.stdout) == coloured


LIGHT = "import sys, tfm.cli.output, tfm.cli.render, tfm.cli.plot; print([m for m in ('rich', 'typer', 'numpy') if m in sys.modules])"


def test_rich_is_loaded_only_where_it_draws(run_python: Callable[..., CompletedProcess[str]]) -> None:
    done = run_python("-c", LIGHT)
    assert done.stdout == "[]\n", done.stderr
