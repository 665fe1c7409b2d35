"""A model in one safetensors file: its weights, and in the metadata its description and what belongs to its task.

The format is https://github.com/huggingface/safetensors; any reader of it sees the weights by their names in PyTorch. Our metadata:
`tfm` names this layout, `tfm_spec` is the description as a preset's YAML, `tfm_extra` is JSON (a vocabulary, a step). Tensors
called `state/...` are no weights (an optimizer's moments): they come back only where they are asked for (`read_saved`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..presets.dump import model_to_yaml
from ..presets.errors import TfmError, UnreadableError
from ..presets.files import whole_file
from ..presets.loader import model_from_yaml
from ..presets.spec import ModelSpec
from ..presets.weights.safetensors_file import decode, header_length, read_header
from ..presets.weights.source import FileSource, reason
from .model import Model, build_model

LAYOUT = "tfm-model/1"
STATE = "state/"
MOST_SPEC = 2**20  # characters of a description; the longest preset has 8,000
# The format's names of PyTorch's formats.
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
FORMATS = {name: dtype for dtype, name in NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a file holds: the description, the model with its weights, what was saved beside it, and tensors that are no weights."""

    spec: ModelSpec
    model: Model
    extra: dict[str, Any]
    state: dict[str, Tensor]


# --- writing --------------------------------------------------------------------------------------------------------


def save_model(
    path: str | Path, spec: ModelSpec, model: Model, extra: Mapping[str, Any] | None = None, *, state: Mapping[str, Tensor] | None = None
) -> Path:
    """Write `model` and its description to `path`, whole or not at all, and give the path.

    Args:
        extra: what JSON can hold: the task, its vocabulary, the step.
        state: tensors that are no weights, by name.

    Raises UnreadableError where it cannot be written.
    """
    path = Path(path)
    tensors = weights_of(model) | {STATE + name: tensor for name, tensor in (state or {}).items()}
    metadata = {"format": "pt", "tfm": LAYOUT, "tfm_spec": model_to_yaml(spec), "tfm_extra": json.dumps(dict(extra or {}))}
    try:
        write_whole(path, tensors, metadata)
    except OSError as error:
        raise UnreadableError(f"cannot write {path}: {reason(error)}") from None
    return path


def weights_of(model: Model) -> dict[str, Tensor]:
    """Parameters and buffers by their names in PyTorch, a shared one once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def write_whole(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """The file of safetensors, whole or not at all."""
    with whole_file(path) as file:
        # widest elements first, so that every tensor begins at a multiple of its element's size
        ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])))
        text = header(ordered, metadata)
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in ordered.values():
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The JSON of a safetensors header, padded to a multiple of 8 bytes."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    place = 0
    for name, tensor in tensors.items():
        end = place + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


# --- reading --------------------------------------------------------------------------------------------------------


def load_saved(path: str | Path, *, device: torch.device | str = "cpu") -> tuple[ModelSpec, Model, dict[str, Any]]:
    """The description, the model with its weights and the extra of a file that `save_model` wrote. Raises UnreadableError."""
    found = read_saved(path, device=device)
    return found.spec, found.model, found.extra


def read_saved(path: str | Path, *, device: torch.device | str = "cpu") -> Saved:
    """All of a file that `save_model` wrote. Raises UnreadableError for any other file, before memory is taken."""
    source = FileSource(Path(path))
    _, metadata = read_header(source)
    spec, extra = described(source, metadata)
    held = places(source)
    expected = {name: tuple(weight.shape) for name, weight in weights_of(skeleton(spec, source)).items()}
    found = {name: shape for name, (_, shape, _) in held.items() if not name.startswith(STATE)}
    if found != expected:
        wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise UnreadableError(f"{source.name}: its weights are not those of its description, as {wrong[0][:80]!a}; it was changed")
    kinds = [dtype for name, (dtype, _, _) in held.items() if name in expected and dtype.is_floating_point]
    model = build_model(spec, device=device, dtype=kinds[0] if kinds else torch.float32)
    with torch.no_grad():
        for name, weight in weights_of(model).items():
            weight.copy_(read_tensor(source, *held[name]))
    state = {name.removeprefix(STATE): read_tensor(source, *place) for name, place in held.items() if name.startswith(STATE)}
    return Saved(spec=spec, model=model, extra=extra, state=state)


def described(source: FileSource, metadata: Mapping[str, str]) -> tuple[ModelSpec, dict[str, Any]]:
    """The description and the extra in a file's metadata."""
    layout = metadata.get("tfm")
    if layout != LAYOUT:
        what = "holds weights and no description of ours" if layout is None else f"has the layout {layout[:40]!a}, expected {LAYOUT!r}"
        raise UnreadableError(f"{source.name}: {what}; give a file that `tfm train-demo --save` wrote")
    text = metadata.get("tfm_spec", "")
    if len(text) > MOST_SPEC:
        raise UnreadableError(f"{source.name}: its description has {len(text):,} characters, more than {MOST_SPEC:,}")
    try:
        extra = json.loads(metadata.get("tfm_extra", "{}"))
    except (ValueError, RecursionError):
        extra = None
    if not isinstance(extra, dict):
        raise UnreadableError(f"{source.name}: what it says beside its description is no JSON object; it was changed")
    return model_from_yaml(text, source.name), extra


def skeleton(spec: ModelSpec, source: FileSource) -> Model:
    """The described model without numbers: a description that cannot be, or is larger than its file, takes no memory."""
    try:
        return build_model(spec, device="meta")
    except (TfmError, RuntimeError) as error:
        raise UnreadableError(f"{source.name}: its description makes no model: {' '.join(str(error).split())[:200]}") from None


def places(source: FileSource) -> dict[str, tuple[torch.dtype, tuple[int, ...], int]]:
    """(format, shape, first byte) of every tensor of a file whose header was found sound."""
    length = header_length(source)
    entries, _ = decode(source, source.read(8, length))
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        dtype, shape, offsets = FORMATS.get(str(entry.dtype)), entry.shape, entry.data_offsets
        if dtype is None or not isinstance(shape, list) or not isinstance(offsets, list):
            raise UnreadableError(f"{source.name}: a tensor in the format {str(entry.dtype)[:20]!a}, which a saved model does not have")
        found[name] = (dtype, tuple(shape), 8 + length + offsets[0])
    return found


def read_tensor(source: FileSource, dtype: torch.dtype, shape: tuple[int, ...], start: int) -> Tensor:
    """One tensor of the file."""
    count = 1
    for size in shape:
        count *= size
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    raw = bytearray(source.read(start, count * dtype.itemsize))
    return torch.frombuffer(raw, dtype=dtype, count=count).reshape(shape)
