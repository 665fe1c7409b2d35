"""A `ModelSpec` as YAML text that is pleasant to read and loads back to an equal spec: how every preset is written.

What holds something else is a block, what holds nothing (a norm, a mask, a table) is one line. Fields that have their
default are left out, but not the numbers that a paper or a configuration states: a preset must not change when a default
does. `kind` stands only where a field could hold several kinds, and the order never changes.
"""

from __future__ import annotations

import json
import re
import textwrap
from functools import cache
from typing import Any, get_args, get_type_hints

import msgspec

from .spec import Block, Data, HeadNorm, Layer, ModelSpec, Norm, RelativeBuckets, Rope, Sinusoidal, Stack, Sublayer

WIDTH = 120
STEP = "  "

# Reading order where it is not that of the declaration; fields not named here follow in that of the declaration.
ORDER: dict[type[Data], tuple[str, ...]] = {
    ModelSpec: ("name", "title", "source", "license", "total_params", "images", "action", "assumptions", "stacks", "connectors"),
    Stack: ("name", "role", "d_model", "tokens", "default_tokens", "max_positions", "embeddings"),
    Block: ("repeat",),
    Layer: ("name", "parallel"),
    Sublayer: ("name", "shared", "residual_scale", "pre_norm"),
}
# Published numbers, written even where they equal a default.
STATED: dict[type[Data], tuple[str, ...]] = {
    Norm: ("eps",),
    HeadNorm: ("type", "eps"),
    Rope: ("theta",),
    RelativeBuckets: ("max_distance",),
    Sinusoidal: ("base",),
}
# What a reader of YAML 1.1 or 1.2 takes for something else than text.
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")


def model_to_yaml(spec: ModelSpec) -> str:
    """`spec` as the text of a preset file; `loader.model_from_yaml` gives back an equal spec."""
    return "\n".join(_mapping(_tree(spec, tagged=False), "")) + "\n"


# --- from structs to plain data, in order and without defaults ------------------------------------------------------


def _tree(value: Any, *, tagged: bool) -> Any:
    if isinstance(value, Data):
        return ({"kind": value.__struct_config__.tag} if tagged else {}) | _fields(value)
    if isinstance(value, tuple):
        return [_tree(item, tagged=tagged) for item in value]
    return value


def _fields(value: Data) -> dict[str, Any]:
    known = {field.name: field for field in msgspec.structs.fields(value)}
    first, stated = ORDER.get(type(value), ()), STATED.get(type(value), ())
    kinds = _kinds_of_fields(type(value))
    tree = {}
    for name in (*first, *(name for name in known if name not in first)):
        held = getattr(value, name)
        if known[name].required or name in stated or held != known[name].default:
            tree[name] = _tree(held, tagged=kinds[name] > 1)
    return tree


@cache
def _kinds_of_fields(cls: type[Data]) -> dict[str, int]:
    """For each field, how many kinds of struct it may hold."""
    return {name: _kinds(hint) for name, hint in get_type_hints(cls).items()}


def _kinds(hint: Any) -> int:
    if isinstance(hint, type) and issubclass(hint, Data):
        return 1
    return sum(_kinds(inner) for inner in get_args(hint))


# --- from plain data to lines ---------------------------------------------------------------------------------------


def _mapping(tree: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for key, value in tree.items():
        lines += _entry(f"{indent}{key}:", value, indent + STEP)
    return lines


def _entry(head: str, value: Any, indent: str) -> list[str]:
    """`head` and the value behind it on one line, or the value below at `indent`."""
    short = _one_line(value)
    if short is not None and len(head) + 1 + len(short) <= WIDTH:
        return [f"{head} {short}"]
    if isinstance(value, dict):
        return [head, *_mapping(value, indent)]
    if isinstance(value, list):
        return [head, *(line for item in value for line in _item(item, indent))]
    return _wrapped(head, _scalar(value), indent)


def _item(value: Any, indent: str) -> list[str]:
    """One item of a list: `- ` and what it holds, the first line behind the dash."""
    lines = _entry(f"{indent}-", value, indent + STEP)
    if len(lines) > 1 and lines[0] == f"{indent}-":
        lines = [f"{indent}- {lines[1].lstrip()}", *lines[2:]]
    return lines


def _wrapped(head: str, text: str, indent: str) -> list[str]:
    """Text over several lines, which YAML joins by one space each, where no run of spaces would be lost by that."""
    if "  " in text:
        return [f"{head} {text}"]
    return textwrap.wrap(text, WIDTH, initial_indent=f"{head} ", subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _one_line(value: Any) -> str | None:
    """The value in one line, None for what is written as a block."""
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item, flow=True) for item in value) + "]" if _is_row(value) else None
    if not isinstance(value, dict):
        return _scalar(value)
    shown = {
        key: _one_line(held) if isinstance(held, list) else _scalar(held, flow=True)
        for key, held in value.items()
        if not isinstance(held, dict)
    }
    if len(shown) < len(value) or None in shown.values():
        return None
    return "{" + ", ".join(f"{key}: {text}" for key, text in shown.items()) + "}"


def _is_row(items: list[Any]) -> bool:
    """Numbers and single words stand in a row, structs and sentences below each other."""
    return all(not isinstance(item, dict | list) and (not isinstance(item, str) or _WORD.fullmatch(item)) for item in items)


def _scalar(value: Any, *, flow: bool = False) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    return _text(value, flow=flow) if isinstance(value, str) else str(value)


def _float(value: float) -> str:
    """Whole numbers without a point (they load as the same float), others with one, which YAML 1.1 insists on."""
    if value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    mantissa, exponent, power = repr(value).partition("e")
    return (mantissa if "." in mantissa else f"{mantissa}.0") + exponent + power


def _text(value: str, *, flow: bool) -> str:
    """Plain where that is safe, else in double quotes, which are those of JSON but for what cannot be printed."""
    if value.lower() not in _NOT_TEXT and (_WORD.fullmatch(value) or (not flow and _is_plain_sentence(value))):
        return value
    return "".join(char if char.isprintable() else _escape(char) for char in json.dumps(value, ensure_ascii=False))


def _is_plain_sentence(value: str) -> bool:
    begins = value[:1].isascii() and value[:1].isalpha()
    return begins and value.isprintable() and value == value.strip() and not re.search(r":( |$)| #", value)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"
