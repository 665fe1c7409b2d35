"""Weights in files here: which reader a path has, and the configuration beside it."""

from __future__ import annotations

from pathlib import Path

from ..errors import UnreadableError
from ..huggingface import read_config
from ..spec import ModelSpec
from .gguf_file import SHARD, read_gguf
from .gguf_model import model_of_gguf
from .safetensors_file import INDEX_ENDING, read_safetensors, weights_in
from .stored import StoredWeights

ENDINGS = (".gguf", ".safetensors", INDEX_ENDING)
Found = tuple[ModelSpec | None, StoredWeights | None, str]


def read_path(path: Path, *, lenient: bool = False, weights: bool = True) -> Found:
    """(model, weights, why there is no model) of a file of weights, or of a folder that may hold a configuration too.

    `weights=False`: a folder with a configuration is read for that alone.

    Raises UnreadableError and MissingExtraError.
    """
    if path.is_dir():
        if not weights and (path / "config.json").exists():
            return read_config(path, lenient=lenient), None, ""
        return read_folder(path, lenient=lenient)
    if path.name.endswith(".gguf"):
        return read_gguf_model(path)
    held = read_safetensors(path)
    if (path.parent / "config.json").exists():
        return read_config(path.parent, lenient=lenient), held, ""
    return None, held, f"{path} holds weights and no description; put its config.json beside it"


def read_gguf_model(path: Path) -> Found:
    """A GGUF file; one whose architecture is not known still has weights."""
    weights = read_gguf(path)
    try:
        return model_of_gguf(weights), weights, ""
    except UnreadableError as error:
        return None, weights, str(error)


def read_folder(folder: Path, *, lenient: bool) -> Found:
    """A folder with a configuration, safetensors files, both, or one GGUF model."""
    described = (folder / "config.json").exists()
    try:
        weights = weights_in(folder)
        quantised = [] if weights or described else sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".gguf"))
    except OSError as error:
        raise UnreadableError(f"cannot read {folder}: {error.strerror or error}") from None
    if described or (weights is None and not quantised):
        return read_config(folder, lenient=lenient), weights, ""
    if weights is not None:
        return None, weights, f"{folder} holds weights and no config.json; put it there"
    first = [name for name in quantised if not (found := SHARD.fullmatch(name)) or found["number"] == "00001"]
    if len(first) != 1:
        raise UnreadableError(f"{folder} holds {len(first)} GGUF models; give one of them: {', '.join(first[:5])}")
    return read_gguf_model(folder / first[0])
