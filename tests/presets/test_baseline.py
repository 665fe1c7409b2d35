"""The baseline file: readable, written whole or not at all, refused in one line when it is not one."""

from __future__ import annotations

import json
import os
import random
import stat
from pathlib import Path
from typing import Any

import pytest

from tfm.presets import baseline as module
from tfm.presets.baseline import (
    SCHEMA,
    Baseline,
    Exact,
    Gate,
    Measured,
    Measurements,
    Setting,
    baseline_lines,
    entry_id,
    entry_lines,
    load_baseline,
    may_replace,
    save_baseline,
)  # fmt: skip
from tfm.presets.calibration import Machine
from tfm.presets.errors import UnreadableError

POINT = Setting(batch=1, context=4096, kv_dtype="bf16")


def entry(model: str = "a", value: int = 3, **terms: float) -> Exact:
    """A cache of so many bytes."""
    return Exact(id=entry_id(model, "kv_bytes", POINT), model=model, quantity="kv_bytes", setting=POINT, value=value, terms=terms)


def made(*entries: Exact) -> Baseline:
    """A baseline with a measured half."""
    machine = Machine(device="a", backend="cpu", threads=2, torch="2", driver=None)
    gates = [Gate(what="attention", model=model, layers=1, dtype="bf16", batch=1, context=512) for model in ("b", "a")]
    measured = Measurements(machine=machine, entries=tuple(Measured(gate=gate, efficiencies=(0.9, 0.8)) for gate in gates))
    return Baseline(schema=SCHEMA, version="0", exact=entries or (entry("b", x=1, y=2), entry("a", x=3)), measured=measured)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A baseline as it was written."""
    save_baseline(made(), tmp_path / "tfm.json")
    return tmp_path / "tfm.json"


def test_round_trip_in_order(path: Path) -> None:
    found = load_baseline(path)
    assert [one.model for one in found.exact] == ["a", "b"]
    assert [gate.model for gate in found.gates] == ["a", "b"]
    assert {one.id: one for one in found.exact} == {one.id: one for one in made().exact}
    save_baseline(found, path)
    assert "".join(baseline_lines(found)) == path.read_text(encoding="utf-8")


def test_one_entry_a_line(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [line for line in lines if line.startswith('{"id": ')]
    assert [json.loads(line.rstrip(","))["model"] for line in starts] == ["a", "b"]
    assert sum(line.startswith('{"gate": ') for line in lines) == 2
    assert entry_lines(path) == {one.id: lines.index(line) + 1 for one, line in zip(load_baseline(path).exact, starts, strict=True)}


@pytest.mark.parametrize("value", [0, 2**63 - 1, 2**64, 10**30], ids=str)
def test_integers_of_any_size_stay_exact(value: int, tmp_path: Path) -> None:
    save_baseline(made(entry(value=value, x=value)), tmp_path / "f")
    (found,) = load_baseline(tmp_path / "f").exact
    assert (found.value, found.terms) == (value, {"x": value})
    assert isinstance(found.value, int)


@pytest.mark.parametrize("name", ["ü/\u2028\x85", 'a"b\\c', "a\nb", "\x00\x1b[31m", "'; rm"], ids=ascii)
def test_any_name_round_trips(name: str, tmp_path: Path) -> None:
    save_baseline(made(entry(name)), tmp_path / "f")
    assert [one.model for one in load_baseline(tmp_path / "f").exact] == [name]
    assert list(entry_lines(tmp_path / "f")) == [entry(name).id]


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="has to be text"):
        save_baseline(made(entry("\udcff")), tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


# --- what is refused --------------------------------------------------------------------------------------------------


def edited(**fields: Any) -> str:
    """The file with other fields in its first entry."""
    data = json.loads("".join(baseline_lines(made(entry(x=3)))))
    data["exact"][0] |= fields
    return json.dumps(data)


def whole(**fields: Any) -> str:
    """The file with other fields of its own."""
    return json.dumps({**json.loads("".join(baseline_lines(made()))), **fields})


REFUSED = [
    pytest.param("", "is empty", id="empty"),
    pytest.param(" \n", "is empty", id="blank"),
    pytest.param("".join(baseline_lines(made())).replace("[0.9, 0.8]", "[]"), "efficiencies", id="measured without a number"),
    pytest.param("".join(baseline_lines(made())).replace("[0.9, 0.8]", "[1e308, 1e308]"), "efficiencies", id="beyond any efficiency"),
    pytest.param("[]", "object", id="a list"),
    pytest.param("{}", "no baseline", id="no schema"),
    pytest.param("\xff\xfe", "no baseline", id="no JSON"),
    pytest.param("[" * 100_000, "no baseline", id="deep"),
    pytest.param('{"schema": "tfm-baseline/1", "exact": ' + "[" * 100_000, "f: ", id="deep inside"),
    pytest.param(whole(schema="tfm-baseline/2"), "newer than 'tfm-baseline/1'.*upgrade tfm", id="newer"),
    pytest.param(whole(schema="tfm-calibration/1"), "no baseline", id="another file of ours"),
    pytest.param(whole(schema=3), "schema", id="schema a number"),
    pytest.param(whole(surprise=1), "surprise", id="unknown field"),
    pytest.param(whole(exact=None), "exact", id="no entries"),
    pytest.param("".join(baseline_lines(made()))[:-30], "truncated", id="cut off"),
    pytest.param("<<<<<<< HEAD\n" + "".join(baseline_lines(made())), "--update", id="a merge that failed"),
    pytest.param(edited(value=-1), "not negative", id="negative"),
    pytest.param(edited(value=float("nan")), "f: ", id="not a number"),
    pytest.param(edited(value=float("inf")), "f: ", id="infinite"),
    pytest.param(edited(value=0).replace('"value": 0', '"value": 1e999'), "f: ", id="beyond a float"),
    pytest.param(edited(value=10**400), "finite", id="an integer beyond a float"),
    pytest.param(edited(setting={"batch": 10**30, "context": 1, "kv_dtype": "bf16"}), "batch", id="too many sequences"),
    pytest.param(edited(value="3"), "value", id="text"),
    pytest.param(edited(value=True), "value", id="a flag"),
    pytest.param(edited(value=None), "value", id="nothing"),
    pytest.param(edited(terms={"x": -3}), "not negative", id="negative term"),
    pytest.param(edited(quantity="happiness"), "happiness", id="unknown quantity"),
    pytest.param(edited(id="another"), "id is 'another', by model, quantity and setting it is 'a kv_bytes", id="another id"),
    pytest.param(edited(model="b"), "by model, quantity and setting it is 'b kv_bytes", id="another model"),
    pytest.param(edited(setting={"batch": 1}), "takes gqa, batch", id="a setting missing"),
    pytest.param(edited(setting={"batch": 0, "context": 1, "kv_dtype": "bf16"}), "batch", id="no sequences"),
    pytest.param(edited(setting={"batch": 1, "context": 1, "kv_dtype": "bf16", "hardware": "l4"}), "hardware", id="a setting too many"),
    pytest.param(whole(exact=[json.loads(edited())["exact"][0]] * 2), "stands there twice", id="twice"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UnreadableError, match=said) as caught:
        load_baseline(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, said in ((tmp_path / "none", "no such file; `tfm check --update"), (tmp_path, "cannot be read"), (Path("a\0b"), "cannot be")):
        with pytest.raises(UnreadableError, match=said):
            load_baseline(path)
    save_baseline(made(), tmp_path / "f")
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(UnreadableError, match="larger than 100 bytes"):
        load_baseline(tmp_path / "f")


def test_mutations_are_read_or_refused(path: Path) -> None:
    """Bytes changed, cut, repeated or swapped: one line, never anything else."""
    raw, chance = path.read_bytes(), random.Random(6)
    refused = []
    for _ in range(600):
        data = bytearray(raw)
        for _ in range(chance.choice((1, 1, 3))):
            at, length = chance.randrange(len(data)), chance.randrange(1, 9)
            match chance.randrange(4):
                case 0:
                    data[at] = chance.choice(b'0123456789-eE.{}[]",:\\\x00\xff')
                case 1:
                    del data[at : at + length]
                case 2:
                    data[at:at] = data[at : at + length]
                case _:
                    data[at:at] = chance.choice((b"1e400", b"NaN", b'"id":', b"{}", b"\\ud800", b"-", b"9" * 5000))
        path.write_bytes(data)
        try:
            load_baseline(path)
        except UnreadableError as error:
            refused.append(str(error))
    assert len(refused) > 300
    assert not [line for line in refused if "\n" in line or len(line) > 700 + len(str(path))]


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(UnreadableError, match="No space left"):
        save_baseline(made(entry("c")), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_mode_stays_and_a_link_is_written_through(path: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.chmod(0o640)
    link = path.parent / "link"
    link.symlink_to(path)
    save_baseline(made(entry("c")), link)
    assert link.is_symlink()
    assert [one.model for one in load_baseline(path).exact] == ["c"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        pytest.param(None, True, id="no file"),
        pytest.param("", True, id="an empty one"),
        pytest.param(whole(), True, id="a baseline"),
        pytest.param(whole(schema="tfm-baseline/2"), True, id="a newer one"),
        pytest.param("<<<<<<< HEAD\n" + whole(), True, id="one that a merge has spoilt"),
        pytest.param("{}", False, id="JSON of somebody else"),
        pytest.param("# README\n", False, id="text"),
    ],
)
def test_what_is_no_baseline_is_not_written_over(text: str | None, allowed: bool, tmp_path: Path) -> None:
    path = tmp_path / "f"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    if allowed:
        may_replace(path)
    else:
        with pytest.raises(UnreadableError, match="is no baseline of tfm; it is not overwritten"):
            may_replace(path)


def test_the_id_says_formats_once_where_they_are_one() -> None:
    sizes = {"batch": 2, "context": 8, "hardware": "l4", "activation_dtype": "bf16", "kv_dtype": "bf16"}
    same, other = Setting(**sizes, weight_dtype="bf16"), Setting(**sizes, weight_dtype="int4", gqa=8, images=0)  # type: ignore[arg-type]
    assert entry_id("m", "decode_floor_s", same) == "m decode_floor_s (2 x 8, bf16, on l4)"
    said = "m decode_floor_s (gqa 8, 2 x 8, images 0, weight int4, kv bf16, activation bf16, on l4)"
    assert entry_id("m", "decode_floor_s", other) == said
    assert entry_id("m", "total_params", Setting()) == "m total_params"
