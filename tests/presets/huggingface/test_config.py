"""Typed access to a configuration, and JSON from strangers: a value or one clear line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import jsonfile
from tfm.presets.huggingface.config import LARGEST, Config
from tfm.presets.huggingface.jsonfile import MOST_DEPTH, read_json


def config(**data: Any) -> Config:
    return Config(data)


Read = Callable[[Config], Any]


@pytest.mark.parametrize(
    ("data", "read", "expected"),
    [
        pytest.param({"n": 3}, lambda c: c.integer("n"), 3, id="integer"),
        pytest.param({}, lambda c: c.integer("n", default=7), 7, id="integer absent"),
        pytest.param({"b": 4, "a": 3}, lambda c: c.integer("a", "b"), 3, id="the first name wins, whatever the order in the file"),
        pytest.param({"a": None, "b": 4}, lambda c: c.integer("a", "b"), 4, id="a null gives way to another name"),
        pytest.param({"n": None}, lambda c: c.optional_integer("n", default=7), None, id="null is not the default"),
        pytest.param({}, lambda c: c.optional_integer("n", default=7), 7, id="absent is the default"),
        pytest.param({"n": 0}, lambda c: c.integer("n", least=0), 0, id="zero where zero is allowed"),
        pytest.param({"x": 1}, lambda c: c.number("x"), 1.0, id="an integer is a number"),
        pytest.param({"x": None}, lambda c: c.number("x", default=0.5), 0.5, id="a null number is the default"),
        pytest.param({"f": None}, lambda c: c.flag("f", default=True), False, id="a null flag is false"),
        pytest.param({}, lambda c: c.flag("f", default=True), True, id="an absent flag is the default"),
        pytest.param({"t": "silu"}, lambda c: c.choice("t", allowed=("silu", "gelu")), "silu", id="choice"),
        pytest.param({"t": None}, lambda c: c.text("t", default="x"), "x", id="a null text is the default"),
        pytest.param({"l": [1, 0]}, lambda c: c.integers("l"), (1, 0), id="integers"),
        pytest.param({"l": None}, lambda c: c.integers("l", [2]), (2,), id="null list is the default"),
        pytest.param({"l": ["a"]}, lambda c: c.texts("l"), ("a",), id="texts"),
        pytest.param({"s": None}, lambda c: c.section("s"), None, id="null section"),
    ],
)
def test_a_field_is_read(data: dict[str, Any], read: Read, expected: object) -> None:
    assert read(Config(data)) == expected


@pytest.mark.parametrize(
    ("data", "read", "message"),
    [
        pytest.param({}, lambda c: c.integer("n"), "n is missing", id="missing"),
        pytest.param({"n": True}, lambda c: c.integer("n"), "whole number, got true", id="a boolean is no size"),
        pytest.param({"n": 4096.0}, lambda c: c.integer("n"), r"whole number, got 4096\.0", id="a float is no size"),
        pytest.param({"n": None}, lambda c: c.integer("n", default=1), "whole number, got null", id="null where a number must be"),
        pytest.param({"n": 0}, lambda c: c.integer("n"), "from 1 to", id="zero"),
        pytest.param({"n": -5}, lambda c: c.optional_integer("n"), "from 1 to", id="negative"),
        pytest.param({"n": LARGEST + 1}, lambda c: c.integer("n"), "from 1 to", id="absurd"),
        pytest.param({"n": 5000}, lambda c: c.layers("n"), "from 1 to 4096", id="too many layers"),
        pytest.param({"x": float("inf")}, lambda c: c.number("x"), "finite number", id="infinity"),
        pytest.param({"x": "1"}, lambda c: c.number("x"), "finite number, got '1'", id="a number in quotes"),
        pytest.param({"f": 1}, lambda c: c.flag("f", default=True), "true or false, got 1", id="1 is no flag"),
        pytest.param({"t": 1}, lambda c: c.text("t"), "a text, got 1", id="text"),
        pytest.param({"t": "x"}, lambda c: c.choice("t", allowed=("a", "b")), "t is 'x'; known are a, b", id="choice"),
        pytest.param({"l": 3}, lambda c: c.integers("l"), "a list, got 3", id="list"),
        pytest.param({"l": [1, "a"]}, lambda c: c.integers("l"), "whole number, got 'a'", id="item"),
        pytest.param({"l": ["a", 1]}, lambda c: c.texts("l"), "texts, got 1", id="text item"),
        pytest.param({"s": [1]}, lambda c: c.section("s"), "an object", id="section"),
    ],
)
def test_a_field_is_refused_by_name(data: dict[str, Any], read: Read, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        read(Config(data))


def test_what_nobody_read_is_left_over_sections_included() -> None:
    cfg = config(a=1, b=2, text={"c": 3, "d": 4}, vision={"e": 5})
    cfg.integer("a")
    section = cfg.section("text")
    assert section is not None and section is cfg.section("text")
    section.integer("c")
    assert [(place, key) for place, key, _ in cfg.leftovers()] == [
        ("config.json", "b"),
        ("config.json", "vision"),
        ("config.json: text", "d"),
    ]


def test_two_names_that_differ_are_noted() -> None:
    cfg = config(n_embd=64, hidden_size=128)
    assert cfg.integer("n_embd", "hidden_size") == 64
    assert cfg.notes == ["n_embd = 64 was used, not hidden_size = 128"]


# --- files ----------------------------------------------------------------------------------------------------------


def deep(levels: int) -> str:
    return '{"a": ' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "not JSON", id="empty"),
        pytest.param("{", "not JSON.*line 1", id="cut off"),
        pytest.param("hello", "not JSON", id="no JSON"),
        pytest.param("[1, 2]", "JSON object with a model_type, got a list", id="list"),
        pytest.param("null", "got null", id="null"),
        pytest.param('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice", id="duplicate key, nested"),
        pytest.param('{"a": NaN}', "NaN is no JSON number", id="NaN"),
        pytest.param('{"a": ' + "9" * 5000 + "}", "a number of 5000 digits", id="huge integer"),
        pytest.param(deep(MOST_DEPTH + 1), "nested deeper", id="deep"),
        pytest.param(deep(100_000), "nested deeper", id="deeper than the parser goes"),
    ],
)
def test_bad_json_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UnreadableError, match=message) as caught:
        read_json(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_infinity_is_passed_on_as_published_files_have_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"time_step_limit": [0.0, Infinity]}')
    assert read_json(path)[0] == {"time_step_limit": [0.0, float("inf")]}


def test_a_byte_order_mark_is_no_matter_and_other_encodings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": 1}).encode())
    assert read_json(path)[0] == {"a": 1}
    path.write_bytes(json.dumps({"a": 1}).encode("utf-16"))
    with pytest.raises(UnreadableError, match="not UTF-8"):
        read_json(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonfile, "MOST_BYTES", 2**20)
    path = tmp_path / "config.json"
    path.write_text('{"a": "' + "x" * 2**20 + '"}')
    with pytest.raises(UnreadableError, match="larger than 1 MiB"):
        read_json(path)


def test_the_name_is_the_folder_s_or_the_file_s(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    for path in (folder / "config.json", folder / "other.json"):
        path.write_text("{}")
    assert read_json(folder)[1:] == (str(folder / "config.json"), "my-model")
    assert read_json(folder / "config.json")[2] == "my-model"
    assert read_json(folder / "other.json")[2] == "other"


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    inner = tmp_path / "folder"
    inner.mkdir()
    (inner / "config.json").symlink_to(inner / "config.json")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, message in (
        (tmp_path / "nothing.json", "cannot read"),
        (tmp_path, "holds no config.json"),
        (loop, "cannot read"),
        (inner, "cannot read"),
        (pipe, "not a plain file"),
        (tmp_path / "a\0b", "cannot read"),
        (tmp_path / ("x" * 5000), "cannot read"),
    ):
        with pytest.raises(UnreadableError, match=message) as caught:
            read_json(path)
        assert "\n" not in str(caught.value)
