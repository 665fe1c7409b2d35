"""JSON from a stranger, read safely: bounded size, depth and numbers, no duplicate keys, one clear line otherwise."""

from __future__ import annotations

import json
import math
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from .config import ConfigError, shown

MOST_BYTES = 8 * 2**20  # the largest published configurations are below 1 MiB
MOST_DEPTH = 32
MOST_DIGITS = 30


def read_json(path: Path) -> tuple[dict[str, Any], str, str]:
    """(object, where it stands, name) of a file, or of the `config.json` in a folder.

    The name is the folder's for a `config.json`, else the file's without its ending.
    """
    file = find(path)
    text = read_text(file)
    name = file.absolute().parent.name if file.name == "config.json" else file.stem
    return parse(text, str(file)), str(file), name or "model"


def find(path: Path) -> Path:
    """The file that is meant."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISDIR(mode):
            return regular(path, mode)
        inner = path / "config.json"
        try:
            return regular(inner, inner.stat().st_mode)
        except FileNotFoundError:
            raise ConfigError(f"{path}: the folder holds no config.json; give a folder that does, or the file itself") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {shown(str(path))}: {reason(error)}") from None


def regular(path: Path, mode: int) -> Path:
    """The path, if it is a plain file: a pipe or a device may never end."""
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: not a plain file; give a config.json or a folder that holds one")
    return path


def reason(error: Exception) -> str:
    """What the system says, without the path."""
    return getattr(error, "strerror", None) or str(error)


def read_text(path: Path) -> str:
    """The file's text; at most MOST_BYTES."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path}: larger than {MOST_BYTES // 2**20} MiB, so it is no model configuration")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text, so it is no JSON") from None


def parse(text: str, where: str) -> dict[str, Any]:
    """The JSON object in `text`."""
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_int=whole, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested deeper than {MOST_DEPTH} levels") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be a JSON object with a model_type, got {kind_of(value)}")
    if depth(value) > MOST_DEPTH:
        raise ConfigError(f"{where}: nested deeper than {MOST_DEPTH} levels")
    return value


def unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ; ValueError otherwise."""
    made = dict(items)
    if len(made) != len(items):
        twice = next(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        raise ValueError(f"the key {shown(twice)} stands twice; which one is meant?")
    return made


def whole(digits: str) -> int:
    """An integer of a sane length; ValueError otherwise."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits is no size of a model")
    return int(digits)


def constant(word: str) -> float:
    """Python writes Infinity into files (Mamba's time_step_limit): passed on, refused where a size is read. NaN is not."""
    if word == "NaN":
        raise ValueError("NaN is no JSON number")
    return math.inf if word == "Infinity" else -math.inf


def kind_of(value: Any) -> str:
    """The JSON kind of a value, in words."""
    names = {list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), "something else")


def depth(value: Any) -> int:
    """Levels of nesting, counted without recursion; stops one past MOST_DEPTH."""
    level, found = [value], 0
    while level and found <= MOST_DEPTH:
        found += 1
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
    return found
