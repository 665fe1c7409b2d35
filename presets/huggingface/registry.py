"""From a file or a dictionary to a `ModelSpec`: which reader a `model_type` has, and what nobody understood."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import UsageError
from ..spec import ModelSpec
from .blocks import Text
from .classes import text_spec
from .config import Config, ConfigError, shown
from .jsonfile import read_json
from .keys import is_harmless

Reader = Callable[[Config], ModelSpec]
TextReader = Callable[[Config], Text]
READERS: dict[str, Reader] = {}
TEXTS: dict[str, TextReader] = {}
# Keys by which a file points at the model it belongs to instead of describing one.
POINTERS = ("base_model_name_or_path", "base_model", "base_model_id", "language_model", "_name_or_path")


def family(*types: str) -> Callable[[Reader], Reader]:
    """Register a reader for these values of `model_type`."""

    def register(reader: Reader) -> Reader:
        for name in types:
            if name in READERS and READERS[name] is not reader:
                raise ValueError(f"two readers for model_type {name!r}")
            READERS[name] = reader
        return reader

    return register


def text_family(*types: str, base_has_head: bool = False) -> Callable[[TextReader], TextReader]:
    """Register a reader of text models: on their own, and as the `text_config` of a multimodal one (`text_model`).

    `base_has_head`: files of this family name the class without a head and mean the one with it (ChatGLM).
    """

    def register(reader: TextReader) -> TextReader:
        family(*types)(lambda cfg: text_spec(cfg, reader(cfg), base_has_head=base_has_head))
        TEXTS.update(dict.fromkeys(types, reader))
        return reader

    return register


def text_model(cfg: Config, *, usual: str) -> Text:
    """The text model of a nested configuration: by its own `model_type`, else `usual`."""
    readers()
    kind = cfg.text("model_type", default=usual)
    if kind not in TEXTS:
        raise cfg.refuse(f"model_type {shown(kind)} is not known as a text model. Known are: {', '.join(sorted(TEXTS))}")
    return TEXTS[kind](cfg)


def readers() -> Mapping[str, Reader]:
    """Every reader, the family modules imported."""
    from .families import load_all

    load_all()
    return READERS


def supported_types() -> tuple[str, ...]:
    """Every `model_type` that is understood, sorted."""
    return tuple(sorted(readers()))


def read_config(source: str | Path | Mapping[str, Any], *, lenient: bool = False) -> ModelSpec:
    """The model that a configuration describes.

    Args:
        source: a `config.json`, a folder that holds one, or the object itself.
        lenient: pass over keys that are not understood, as an assumption, in place of refusing them.

    Raises:
        UnreadableError: the file cannot be read, or says something that is not understood.
    """
    data, where, name = (source, "configuration", "") if isinstance(source, Mapping) else read_json(Path(source))
    cfg = Config(data, where, name=name or own_name(data))
    reader = reader_of(cfg)
    try:
        spec = reader(cfg)
        spec = msgspec.convert(msgspec.to_builtins(spec), ModelSpec)  # sizes within the bounds of the description
    except (UsageError, msgspec.ValidationError) as error:
        raise cfg.refuse(str(error)) from None
    refuse_leftovers(cfg, lenient=lenient)
    note_quantization(cfg)
    return msgspec.structs.replace(spec, assumptions=(*spec.assumptions, *cfg.notes))


def own_name(data: Mapping[str, Any]) -> str:
    """What the configuration calls itself: the last step of `_name_or_path`, else its type."""
    for key in ("_name_or_path", "model_type"):
        value = data.get(key)
        if isinstance(value, str) and value.strip("/. "):
            return printable(value.rstrip("/").rsplit("/", 1)[-1])
    return "model"


def printable(text: str) -> str:
    """Text that every terminal can show, at most 80 characters."""
    return "".join(c if c.isprintable() and not 0xD800 <= ord(c) <= 0xDFFF else "?" for c in text[:80])


def reader_of(cfg: Config) -> Reader:
    """The reader of a configuration's `model_type`."""
    kind = cfg.raw("model_type")
    if kind is None:
        raise cfg.refuse(untyped(cfg))
    if not isinstance(kind, str):
        raise cfg.refuse(f"model_type must be a text, got {shown(kind)}")
    known = readers()
    if kind in known:
        return known[kind]
    close = difflib.get_close_matches(kind[:64].lower(), list(known), n=3, cutoff=0.6)
    guess = f" Did you mean {' or '.join(close)}?" if close else ""
    raise cfg.refuse(f"model_type {shown(kind)} is not known.{guess} Known are: {', '.join(sorted(known))}")


def untyped(cfg: Config) -> str:
    """Why a file without `model_type` cannot be read."""
    for key in POINTERS:
        other = cfg.raw(key)
        if isinstance(other, str) and other:
            return f"it has no model_type and only names another model ({key} = {shown(other)}); give that model's config.json"
    return "it has no model_type, so it is not a Hugging Face model configuration (another program's JSON?)"


def refuse_leftovers(cfg: Config, *, lenient: bool) -> None:
    """Refuse what could change a number and was not read; `lenient`: say so instead."""
    for place, key, value in cfg.leftovers():
        if is_harmless(key, value):
            continue
        if not lenient:
            kind = shown(cfg.raw("model_type")).strip("'")
            raise ConfigError(
                f"{place}: {printable(key)} = {shown(value)} is not understood for model_type {kind} and could change a number; "
                "remove it, or pass --lenient to leave it out of account"
            )
        cfg.assume(f"{place}: {printable(key)} = {shown(value)} was not understood and left out of account")


def note_quantization(cfg: Config) -> None:
    """Say that a checkpoint's quantisation does not decide the weight dtype here."""
    found = cfg.raw("quantization_config", "compression_config", "quantization")
    if isinstance(found, dict):
        method = found.get("quant_method")
        what = printable(method) if isinstance(method, str) else "unnamed"
        cfg.assume(
            f"quantization_config ({what}) is not used: counts are of the unquantised model, "
            "bytes follow its weights where they are at hand, else --weight-dtype"
        )
