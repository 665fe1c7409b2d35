"""YAML to plain data: what each scalar becomes, and what is refused, in one line and in bounded time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm.presets.errors import UnreadableError
from tfm.presets.plain_yaml import MAX_BYTES, MAX_DEPTH, MAX_VALUES, parse_yaml, read_yaml

SCALARS = [
    ("5", 5),
    ("-7", -7),
    ("+5", 5),
    ("6_738_415_616", 6738415616),
    ("010", "010"),
    ("0x10", "0x10"),
    ("1_", "1_"),
    ("1__0", "1__0"),
    ("1:30", "1:30"),
    ("1e12", 1e12),
    ("1e-5", 1e-5),
    ("2.", 2.0),
    (".5", 0.5),
    ("1.5E+3", 1500.0),
    ("e5", "e5"),
    (".", "."),
    ("true", True),
    ("False", False),
    ("yes", "yes"),
    ("no", "no"),
    ("null", None),
    ("~", None),
    ("", None),
    ("2025-01-31", "2025-01-31"),
    ("'5'", "5"),
    ('"null"', "null"),
    ("9" * 101, "9" * 101),
    ("two words", "two words"),
]


@pytest.mark.parametrize(("text", "value"), SCALARS, ids=[text[:20] or "empty" for text, _ in SCALARS])
def test_scalar(text: str, value: object) -> None:
    data = parse_yaml(f"key: {text}", "x")
    assert data == {"key": value}
    assert isinstance(data, dict)
    assert type(data["key"]) is type(value)


DOCUMENTS = [
    ("", None),
    ("# a comment", None),
    ("---\n...\n", None),
    ("- 1\n- {a: [2, x], b: {}}\n", [1, {"a": [2, "x"], "b": {}}]),
    ("a: |\n  one\n  two\nb: >-\n  one\n  two\n", {"a": "one\ntwo\n", "b": "one two"}),
    ("<<: {a: 1}", {"<<": {"a": 1}}),
]


@pytest.mark.parametrize(("text", "data"), DOCUMENTS, ids=["empty", "comment", "markers", "nested", "blocks", "no-merge"])
def test_document(text: str, data: object) -> None:
    assert parse_yaml(text, "x") == data


REFUSED = [
    ("a: 1\nb: 2\na: 3", "x:3: the key 'a' is written twice", "duplicate-key"),
    ("a:\n  - b: 1\n    b: 2", "x:3: the key 'b' is written twice", "duplicate-key-nested"),
    ("a: &n 1", "x:1: anchors and aliases", "anchor"),
    ("a: 1\nb: *n", "x:2: anchors and aliases", "alias"),
    ("a: &n [*n]", "x:1: anchors and aliases", "alias-of-itself"),
    ("a: !!python/object/apply:os.getcwd []", "x:1: the tag", "python-tag"),
    ("!!str 5", "x:1: the tag", "plain-tag"),
    ("a: !!binary aGk=", "x:1: the tag", "binary-tag"),
    ("a: .nan", "x:1: '.nan' is not a finite number", "nan"),
    ("a: -.inf", "x:1: '-.inf' is not a finite number", "infinity"),
    ("a: 1e400", "x:1: '1e400' is not a finite number", "overflow"),
    ("1: a", "x:1: keys must be text, got 1", "number-as-key"),
    ("? [a]\n: 1", "x:1: keys must be text", "list-as-key"),
    ("a: 1\n---\nb: 2", "x:2: a second document", "two-documents"),
    ("a: [1, 2", "x:1: invalid YAML", "unclosed"),
    ("a:\n\tb: 1", "x:2: invalid YAML", "tab"),
    ("a: b: c", "x:1: invalid YAML", "two-colons"),
    ("a: \x00", "x: invalid YAML", "control-character"),
    ("a: \ud800", "x: is not valid text", "lone-surrogate"),
    ("- " * (MAX_DEPTH + 2) + "1", "x:1: nested deeper than 64 levels", "deep-block"),
    ("[" * 100_000, "x:1: ", "deep-flow"),
    ("{a: " * 100_000, "x:1: ", "deep-mapping"),
    ("- \n" * (MAX_VALUES + 1), "more than 100000 values", "too-many-values"),
    ("a: " + "x" * MAX_BYTES, "x: is larger than 4 MiB", "too-large"),
]


@pytest.mark.parametrize(("text", "message"), [row[:2] for row in REFUSED], ids=[row[2] for row in REFUSED])
def test_refused(text: str, message: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        parse_yaml(text, "x")
    line = str(caught.value)
    # The C parser and the Python one count the end of the text differently by one line.
    assert message in line or (message == "x:1: invalid YAML" and "x:2: invalid YAML" in line)
    assert "\n" not in line
    assert len(line) < 200


def test_depth_limit_is_the_last_depth_accepted() -> None:
    parse_yaml("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1), "x")
    with pytest.raises(UnreadableError):
        parse_yaml("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "x")


def test_without_the_c_parser_the_same_data(monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    text = "a: 1\nb: [x, 2.5, null]\nc: |\n  text\n"
    with_c = parse_yaml(text, "x")
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert parse_yaml(text, "x") == with_c
    with pytest.raises(UnreadableError, match="written twice"):
        parse_yaml("a: 1\na: 2", "x")


def test_read_takes_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(path) == {"a": 1}


def test_read_errors(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: \xe9\n")
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(2**33)  # a sparse 8 GiB: it must not be read whole
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    for path, message in [
        (tmp_path, "is a folder, expected a YAML file"),
        (tmp_path / "none.yaml", "cannot be read (No such file or directory)"),
        (Path(os.devnull), "is not a regular file"),
        (latin, "is not UTF-8 text (byte 3)"),
        (huge, "is larger than 4 MiB"),
        (loop, "cannot be read"),
    ]:
        with pytest.raises(UnreadableError) as caught:
            read_yaml(path)
        assert str(caught.value).startswith(str(path))
        assert message in str(caught.value)
    with pytest.raises(UnreadableError, match="cannot be read"):
        read_yaml("nul\0.yaml")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(UnreadableError, match="is not a regular file"):
        read_yaml(pipe)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("a: 1\n")

    def deny(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(UnreadableError, match=r"cannot be read \(Permission denied\)"):
        read_yaml(path)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#,?% \n\t01.e~\\", max_size=60))
def test_any_text_gives_data_or_one_line(text: str) -> None:
    try:
        parse_yaml(text, "x")
    except UnreadableError as error:
        line = str(error)
    else:
        line = ""
    assert "\n" not in line
