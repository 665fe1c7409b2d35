"""Exact transformer arithmetic, explained and measured: the public Python API.

Every capability exists twice, as a function here and as a command of the same name. Names are imported when they are
first used, so that `import tfm` (and with it every command) stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # what a type checker and an editor see; the table below is what runs, a test holds them equal
    from .presets.errors import IncomparableError, MissingExtraError, TfmError, UnknownNameError, UnreadableError, UsageError

__all__ = [
    "IncomparableError",
    "MissingExtraError",
    "TfmError",
    "UnknownNameError",
    "UnreadableError",
    "UsageError",
    "__version__",
]

_HOME = {  # public name -> the module that defines it
    "IncomparableError": "presets.errors",
    "MissingExtraError": "presets.errors",
    "TfmError": "presets.errors",
    "UnknownNameError": "presets.errors",
    "UnreadableError": "presets.errors",
    "UsageError": "presets.errors",
}

if not TYPE_CHECKING:  # hidden from type checkers: they would take any misspelt name for an `object`

    def __getattr__(name: str) -> object:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{home}", __name__), name)
        globals()[name] = value  # the next look-up does not come here
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
