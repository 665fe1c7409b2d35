"""From a name or a path to a `ModelSpec`. A preset look-up opens one file, not all.

Order: a preset of ours, a preset in a folder of the user's, an alias, a path (a preset file, a `config.json`, a file of
weights, a folder that holds either), an id on the Hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .errors import TfmError, UnknownNameError, UnreadableError, UsageError
from .plain_yaml import parse_yaml, read_yaml
from .spec import ModelSpec

if TYPE_CHECKING:
    from .weights.stored import StoredWeights

FOLDER = Path(__file__).parent / "models"
ALIASES_FILE = "_aliases.yaml"
RESERVED = frozenset({"claims"})
FILE_ENDINGS = (".json", ".yaml", ".yml", ".gguf", ".safetensors")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*(@[^\s:@]+)?(:[^\s:]+)?", re.ASCII)


class Loaded:
    """A model with the weights that were found with it.

    Attributes:
        weights: what the files hold, None where a description is all there is.
        why: why there is no description.
    """

    def __init__(self, spec: ModelSpec | None, weights: StoredWeights | None = None, why: str = "") -> None:
        self.spec, self.weights, self.why = spec, weights, why

    def model(self) -> ModelSpec:
        """The description. Raises UnreadableError where there are weights alone."""
        if self.spec is None:
            raise UnreadableError(f"{self.why} (`tfm params` says what is stored)")
        return self.spec


def user_folder() -> Path:
    """Where a user's own model presets live, by the platform's convention."""
    import platformdirs

    return Path(platformdirs.user_config_dir("tfm")) / "models"


def preset_folders(further: Iterable[Path]) -> Iterator[Path]:
    """Where presets are looked for, in order; the user's folder is worked out only when it comes to that."""
    yield FOLDER
    yield from further
    yield user_folder()


def at_home(text: str) -> Path:
    """The path that was typed, `~` being the home folder where there is one."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user
        return Path(text)


def given_folders(text: str | None) -> tuple[Path, ...]:
    """The folder of presets that was asked for (`--presets`), if one was. Raises UnreadableError where there is none."""
    if text is None:
        return ()
    folder = at_home(text)
    if not text or not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises for some names
        raise UnreadableError(f"--presets {text}: no such folder; give one that holds NAME.yaml files (TFM_PRESETS sets it too)")
    return (folder,)


def load_model(name: str, folders: Iterable[Path] = (), *, lenient: bool = False) -> ModelSpec:
    """The model called `name`, or the one that the file, the folder or the Hub's repository `name` describes.

    Args:
        folders: further folders of presets, searched before the user's own.
        lenient: keys of a configuration that are not understood become assumptions instead of an error.

    Raises:
        UnknownNameError: with the names that look alike.
        UnreadableError: for a file that cannot be read or does not describe a model.
    """
    return load(name, folders, lenient=lenient, weights=False).model()


def load(name: str, folders: Iterable[Path] = (), *, lenient: bool = False, weights: bool = True) -> Loaded:
    """As `load_model`, with the weights where there are any; a description may then be missing.

    `weights=False`: they are not looked for where a configuration describes the model.
    """
    for root in preset_folders(folders):
        path = root / f"{name}.yaml"
        if _NAME.fullmatch(name) and os.path.lexists(path):
            return Loaded(load_preset(path))
    aliases = model_aliases()
    if name in aliases:
        return Loaded(load_preset(FOLDER / f"{aliases[name]}.yaml"))
    if looks_like_hub(name):
        from .weights.hub import read_hub

        return Loaded(*read_hub(name, lenient=lenient, weights=weights))
    if looks_like_path(name):
        return load_path(at_home(name), lenient=lenient, weights=weights)
    known = (*model_names(folders), *aliases)
    begin = [other for other in known if len(name) > 1 and other.startswith(name.lower())]
    hint = "`tfm models` lists what is known; a path to a config.json or to weights, or a Hub id (owner/name) works too."
    raise UnknownNameError("model", name if len(name) <= 80 else name[:77] + "...", begin or known, hint)


def looks_like_path(name: str) -> bool:
    """Whether `name` can only mean a file: it exists, or is written like one."""
    return name.startswith((".", "/", "~")) or name.endswith(FILE_ENDINGS) or os.path.lexists(name)


def looks_like_hub(name: str) -> bool:
    """Whether `name` is written like `owner/name`, `owner/name@revision` or `owner/name:file`, and no such path is here."""
    written = _HUB.fullmatch(name) is not None and (":" in name or not name.endswith(FILE_ENDINGS))
    return written and not os.path.lexists(name)


def load_path(path: Path, *, lenient: bool = False, weights: bool = True) -> Loaded:
    """The model that a preset file, a `config.json`, weights or a folder with them describes."""
    if path.suffix in (".yaml", ".yml") and not path.is_dir():
        return Loaded(load_preset(path))
    if path.name.endswith((".gguf", ".safetensors", ".safetensors.index.json")) or path.is_dir():
        from .weights.local import read_path

        return Loaded(*read_path(path, lenient=lenient, weights=weights))
    from .huggingface import read_config

    return Loaded(read_config(path, lenient=lenient))


def load_preset(path: Path) -> ModelSpec:
    """The model in a preset file, whose name is the file's."""
    spec = _from_data(read_yaml(path), str(path))
    if spec.name != path.stem:
        raise UnreadableError(f"{path}: name: is {spec.name!r}, expected {path.stem!r} as the file is called")
    if spec.name in RESERVED:
        raise UnreadableError(f"{path}: name: {spec.name!r} is reserved, choose another")
    return spec


def model_from_yaml(text: str, origin: str) -> ModelSpec:
    """The model that the YAML `text` describes; `origin` names it in messages. Raises UnreadableError."""
    return _from_data(parse_yaml(text, origin), origin)


def _from_data(data: object, origin: str) -> ModelSpec:
    if not isinstance(data, dict):
        found = "nothing" if data is None else type(data).__name__
        raise UnreadableError(f"{origin}: holds {found}, expected a mapping with the fields of a model")
    try:
        return msgspec.convert(data, ModelSpec)
    except msgspec.ValidationError as error:
        raise UnreadableError(f"{origin}: {' '.join(str(error).split())[:200]}") from error
    except UsageError as error:
        raise UnreadableError(f"{origin}: {error}") from error


def model_names(folders: Iterable[Path] = ()) -> tuple[str, ...]:
    """All model presets, ours and the user's, sorted; opens none of them."""
    stems: set[str] = set()
    for root in preset_folders(folders):
        try:
            entries = [entry.name for entry in root.iterdir()]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        stems |= {entry.removesuffix(".yaml") for entry in entries if entry.endswith(".yaml")}
    return tuple(sorted(stem for stem in stems if _NAME.fullmatch(stem)))


def model_aliases() -> dict[str, str]:
    """Alias to model name; names that mean one set of numbers only."""
    path = FOLDER / ALIASES_FILE
    if not path.exists():
        return {}
    try:
        return msgspec.convert(read_yaml(path), dict[str, str])
    except msgspec.ValidationError as error:
        raise TfmError(f"{path}: {error}") from error
