"""A group whose commands are imported when they are asked for: `tfm params` pays for `params` alone."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

# In the order in which --help lists them; each is a module of this folder (hyphens are underscores) with a function `register`.
NAMES = (
    "params", "flops", "kvcache", "memory", "latency", "shapes", "layers", "bench", "calibrate", "validate", "check", "models", "hardware",
    "show", "doctor", "train-demo", "generate-demo",
)  # fmt: skip
HIDDEN = ("check-worker",)  # for programs, not for people


class Commands(MutableMapping[str, Any]):
    """Command name -> command, built at the first look-up."""

    def __init__(self) -> None:
        self.built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.built:
            if name not in NAMES + HIDDEN:
                raise KeyError(name)
            alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
            import_module(f".{name.replace('-', '_')}", __package__).register(alone)
            self.built |= get_group(alone).commands
        return self.built[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self.built[name] = command

    def __delitem__(self, name: str) -> None:
        del self.built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


class LazyGroup(TyperGroup):
    """The root of the command line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = Commands()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the parser's signature
        """All names, without building any command."""
        return list(NAMES)
