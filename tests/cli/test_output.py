"""The machine forms of an answer: envelope, CSV, Markdown, and what goes to which stream."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from importlib import metadata
from pathlib import PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import tfm
from tfm.cli import output
from tfm.cli.output import Answer, Column, Explanation, Table, emit, envelope, jsonable, to_csv, to_json, to_markdown, tool_version
from tfm.cli.quantities import Kind, Quantity, clean
from tfm.presets.errors import UsageError

ANSWER = Answer(
    command="kvcache",
    inputs={"model": "llama-7b", "ctx": 32768, "gqa": None},
    assumptions=("bf16 · 2 bytes",),
    result={"kv_bytes": 17179869184, "policies": {"minimal": 17179869184}, "ratio": math.nan},
    terms=(
        {"path": "decoder/attention", "bytes": 524288, "repeat": 32, "inputs": [2, 3]},
        {"path": 'a|b, "c"', "bytes": np.int64(7), "ok": True},
    ),
)
SWEPT = replace(
    ANSWER,
    terms=(),
    result={"rows": [{"ctx": 1024, "kv_bytes": 2**29, "floor_s": 0.1}, {"ctx": 4096, "kv_bytes": 2**31, "floor_s": None, "fits": False}]},
)
EXPLANATION = Explanation(
    title="cache",
    formula="2*L*K*H",
    substituted="2*32*32*128",
    value=Quantity(262144, Kind.EXACT),
    source="Shazeer 2019",
    not_counted=("blocks",),
)

GOLDEN = """\
{
  "schema": "tfm/1",
  "version": "1.2.3",
  "command": "kvcache",
  "inputs": {
    "model": "llama-7b",
    "ctx": 32768,
    "gqa": null
  },
  "assumptions": [
    "bf16 \\u00b7 2 bytes"
  ],
  "result": {
    "kv_bytes": 17179869184,
    "policies": {
      "minimal": 17179869184
    },
    "ratio": null
  },
  "terms": [
    {
      "path": "decoder/attention",
      "bytes": 524288,
      "repeat": 32,
      "inputs": [
        2,
        3
      ]
    },
    {
      "path": "a|b, \\"c\\"",
      "bytes": 7,
      "ok": true
    }
  ]
}"""


def test_json_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "tool_version", lambda: "1.2.3")
    assert to_json(ANSWER) == GOLDEN


def test_the_envelope_grows_only_by_explanations() -> None:
    keys = ["schema", "version", "command", "inputs", "assumptions", "result", "terms"]
    assert list(envelope(ANSWER)) == keys
    explained = envelope(replace(ANSWER, explanations=(EXPLANATION,)))
    assert list(explained) == [*keys, "explanations"]
    assert explained["explanations"] == [
        {
            "title": "cache",
            "formula": "2*L*K*H",
            "substituted": "2*32*32*128",
            "value": 262144,
            "source": "Shazeer 2019",
            "not_counted": ["blocks"],
            "assumptions": [],
        }
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(math.inf, None, id="inf"),
        pytest.param([math.nan, {"a": -math.inf}], [None, {"a": None}], id="deep"),
        pytest.param(np.float32(0.5), 0.5, id="numpy float"),
        pytest.param(np.float64("nan"), None, id="numpy nan"),
        pytest.param(np.bool_(False), False, id="numpy bool"),
        pytest.param(np.array([[1, 2]]), [[1, 2]], id="numpy array"),
        pytest.param(Quantity(3, Kind.BYTES), 3, id="quantity is raw"),
        pytest.param(Kind.BYTES, "bytes", id="enum"),
        pytest.param(PurePosixPath("a/b"), "a/b", id="path"),
        pytest.param((1, (2,)), [1, [2]], id="tuples"),
        pytest.param({1: None}, {"1": None}, id="keys are text"),
        pytest.param(2**80, 2**80, id="integers of any size"),
    ],
)
def test_jsonable(value: object, expected: object) -> None:
    assert jsonable(value) == expected
    json.dumps(jsonable(value), allow_nan=False)


def test_what_has_no_form_in_json() -> None:
    with pytest.raises(TypeError, match="object has no form in JSON"):
        jsonable(object())


def test_version_of_the_package_where_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert tool_version() == tfm.__version__


def test_version_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: f"{name} 9")
    assert tool_version() == "tfm-toolkit 9"


# --- CSV ---------------------------------------------------------------------------------------------------------


def parse(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_of_a_sweep() -> None:
    assert to_csv(SWEPT) == "ctx,kv_bytes,floor_s,fits\n1024,536870912,0.1,\n4096,2147483648,,false\n"


def test_csv_of_terms_reads_back() -> None:
    assert parse(to_csv(ANSWER)) == [
        {"path": "decoder/attention", "bytes": "524288", "repeat": "32", "inputs": "[2, 3]", "ok": ""},
        {"path": 'a|b, "c"', "bytes": "7", "repeat": "", "inputs": "", "ok": "true"},
    ]


TABLE = Table("main", (Column("name", Kind.TEXT), Column("kv_bytes", Kind.BYTES)), (("x", Quantity(2**30, Kind.BYTES)), {"name": "y"}))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(replace(ANSWER, terms=()), "kv_bytes,policies.minimal,ratio\n17179869184,17179869184,\n", id="the one result"),
        pytest.param(replace(ANSWER, terms=(), tables=(TABLE,)), "name,kv_bytes\nx,1073741824\ny,\n", id="the first table, raw"),
        pytest.param(replace(ANSWER, result={"rows": []}), "", id="an empty sweep"),
    ],
)
def test_csv_falls_back(answer: Answer, expected: str) -> None:
    assert to_csv(answer) == expected


FINITE = st.floats(allow_nan=False, allow_infinity=False)
ROW = st.fixed_dictionaries({"n": st.integers() | st.none(), "x": FINITE, "t": st.text()})


@given(st.lists(ROW, min_size=1))
def test_csv_reads_back(rows: list[dict[str, object]]) -> None:
    """Numbers come back exactly, and text with its control characters spelt out."""
    answer = replace(ANSWER, result={"rows": rows})
    back = list(csv.DictReader(io.StringIO(to_csv(answer), newline="")))
    assert [row["n"] for row in back] == ["" if row["n"] is None else str(row["n"]) for row in rows]
    assert [float(row["x"]) for row in back] == [row["x"] for row in rows]
    assert [row["t"] for row in back] == [clean(str(row["t"])) for row in rows]


# --- Markdown ----------------------------------------------------------------------------------------------------


def test_markdown_of_a_sweep() -> None:
    assert to_markdown(SWEPT) == (
        "| ctx | kv (GiB) | floor (ms) | fits |\n| ---: | ---: | ---: | :--- |\n| 1,024 | 0.50 | 100 | - |\n| 4,096 | 2.00 | - | no |\n"
    )


def test_markdown_of_tables_and_explanations() -> None:
    text = to_markdown(replace(ANSWER, tables=(TABLE, TABLE), explanations=(EXPLANATION,)))
    assert text.count("**main**\n\n| name | kv |\n| :--- | ---: |\n| x | 1.00 GiB |\n| y | - |\n") == 2
    lines = ("formula: 2\\*L\\*K\\*H", "numbers: 2\\*32\\*32\\*128", "value: 262,144", "source: Shazeer 2019", "not counted: blocks")
    assert text.endswith("\n**cache**\n\n" + "".join(f"- {line}\n" for line in lines))


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        pytest.param("a|b", "a\\|b", id="pipe"),
        pytest.param("a\\|b", "a\\\\\\|b", id="backslash before a pipe"),
        pytest.param("a\nb", "a b", id="line break"),
        pytest.param("<img>", "&lt;img>", id="tag"),
        pytest.param("q_proj [tokens/s]", "q_proj [tokens/s]", id="names stay readable"),
    ],
)
def test_markdown_cells(cell: str, expected: str) -> None:
    table = Table("", (Column("name", Kind.TEXT),), ((cell,),))
    assert to_markdown(replace(ANSWER, tables=(table,))).splitlines()[2] == f"| {expected} |"


# --- emit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["as_json", "as_csv", "as_markdown", None])
def test_data_on_stdout_and_notes_on_stderr(form: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    answer = replace(SWEPT, notes=("the machine is busy", "another\x1b[31m"), tables=(TABLE,))
    emit(answer, **({form: True} if form else {}))
    out, err = capsys.readouterr()
    assert err == "note: the machine is busy\nnote: another\\x1b[31m\n"
    assert "busy" not in out
    assert out.endswith("\n")
    assert not out.endswith("\n\n")
    if form == "as_json":
        assert json.loads(out)["result"]["rows"][0]["kv_bytes"] == 2**29


@pytest.mark.parametrize(
    "forms",
    [
        {"as_json": True, "as_csv": True},
        {"as_csv": True, "as_markdown": True},
        {"as_json": True, "as_csv": True, "as_markdown": True},
    ],
)
def test_two_forms_are_refused(forms: dict[str, bool], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="one form of output at a time, got --"):
        emit(ANSWER, **forms)
    assert capsys.readouterr() == ("", "")


def test_a_stream_without_the_signs_of_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    output.write("2 · D² × L ≤ 5 ✓")
    stream.seek(0)
    assert stream.read() == "2 * D^2 x L <= 5 ?\n"


def test_a_reader_that_has_gone_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            if text:  # Rich writes nothing, but it writes
                raise BrokenPipeError
            return 0

    monkeypatch.setattr(sys, "stdout", Closed())
    for form in ("as_json", "as_csv", "as_markdown", "human"):
        emit(replace(SWEPT, tables=(TABLE,)), **({form: True} if form != "human" else {}))
