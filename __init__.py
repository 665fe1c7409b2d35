"""Exact transformer arithmetic, explained and measured: the public Python API.

Every capability exists twice, as a function here and as a command of the same name. Names are imported when they are
first used, so that `import tfm` (and with it every command) stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # what a type checker and an editor see; the table below is what runs, a test holds them equal
    from .api import (
        bench,
        calibrate,
        check,
        claims,
        control,
        device,
        dtype,
        flops,
        gates,
        generate,
        kvcache,
        latency,
        ledger,
        memory,
        model,
        params,
        save_gates,
        shapes,
        solve,
        speculation,
        train_demo,
        validate,
        weights,
    )
    from .estimators.memory import Recipe
    from .estimators.rows import Row
    from .estimators.work import Pass
    from .presets.device import Device
    from .presets.errors import IncomparableError, MissingExtraError, TfmError, UnknownNameError, UnreadableError, UsageError
    from .presets.spec import ModelSpec

__all__ = [
    "Device",
    "IncomparableError",
    "MissingExtraError",
    "ModelSpec",
    "Pass",
    "Recipe",
    "Row",
    "TfmError",
    "UnknownNameError",
    "UnreadableError",
    "UsageError",
    "__version__",
    "bench",
    "calibrate",
    "check",
    "claims",
    "control",
    "device",
    "dtype",
    "flops",
    "gates",
    "generate",
    "kvcache",
    "latency",
    "ledger",
    "memory",
    "model",
    "params",
    "save_gates",
    "shapes",
    "solve",
    "speculation",
    "train_demo",
    "validate",
    "weights",
]

_HOME = {  # public name -> the module that defines it
    "Device": "presets.device",
    "IncomparableError": "presets.errors",
    "MissingExtraError": "presets.errors",
    "ModelSpec": "presets.spec",
    "Pass": "estimators.work",
    "Recipe": "estimators.memory",
    "Row": "estimators.rows",
    "TfmError": "presets.errors",
    "UnknownNameError": "presets.errors",
    "UnreadableError": "presets.errors",
    "UsageError": "presets.errors",
    "bench": "api",
    "calibrate": "api",
    "check": "api",
    "claims": "api",
    "control": "api",
    "device": "api",
    "dtype": "api",
    "flops": "api",
    "gates": "api",
    "generate": "api",
    "kvcache": "api",
    "latency": "api",
    "ledger": "api",
    "memory": "api",
    "model": "api",
    "params": "api",
    "save_gates": "api",
    "shapes": "api",
    "solve": "api",
    "speculation": "api",
    "train_demo": "api",
    "validate": "api",
    "weights": "api",
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
