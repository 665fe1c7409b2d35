"""A configuration as read from JSON: typed access that notes which keys were understood.

Whatever a family reads through these methods counts as understood; `leftovers` are the keys that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from ..errors import UnreadableError
from ..spec import MOST_LAYERS

T = TypeVar("T")
LARGEST = 2**31 - 1  # no size in a configuration comes near; products of a few stay readable
LARGEST_REAL = 1e300


class ConfigError(UnreadableError):
    """A configuration that is not understood: names the file and the field."""


class _Required:
    """Marks a field without a default."""


REQUIRED: Final = _Required()


def shown(value: object) -> str:
    """A value for an error line: ASCII, short.

    >>> shown("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    text = ascii(value) if not isinstance(value, bool) and value is not None else {True: "true", False: "false", None: "null"}[value]
    return text if len(text) <= 60 else f"{text[:40]}..."


class Config:
    """One object of a configuration.

    Attributes:
        where: the path of this object, for messages (`config.json`, `config.json: text_config`).
        name: what the model is called. source: the line that says where its numbers come from.
        notes: assumptions gathered while reading, shared with the sections.
    """

    def __init__(self, data: Mapping[str, Any], where: str = "config.json", *, name: str = "model", notes: list[str] | None = None) -> None:
        self._data = dict(data)
        self._seen: set[str] = set()
        self._sections: dict[str, Config] = {}
        self.where = where
        self.name = name
        self.notes: list[str] = [] if notes is None else notes

    @property
    def source(self) -> str:
        """Where the numbers come from."""
        return f"config.json of {self.name}"

    def refuse(self, why: str) -> ConfigError:
        """The error to raise: `raise cfg.refuse("...")`."""
        return ConfigError(f"{self.where}: {why}")

    def assume(self, line: str) -> None:
        """Note what a reader of the numbers must know."""
        if line not in self.notes:
            self.notes.append(line)

    # --- presence -----------------------------------------------------------------------------------------------

    def has(self, key: str) -> bool:
        """Whether the key is there and not null; does not count as understanding it."""
        return self._data.get(key) is not None

    def given(self, key: str) -> bool:
        """Whether the key is there, null included; does not count as understanding it."""
        return key in self._data

    def ignore(self, *keys: str) -> None:
        """These keys change no number in this family."""
        self._seen.update(keys)

    def raw(self, *keys: str, default: Any = None) -> Any:
        """The JSON value under the first of several names that is given and not null; null if all are; else `default`."""
        self._seen.update(keys)
        given = [key for key in keys if key in self._data]
        if not given:
            return default
        filled = [key for key in given if self._data[key] is not None]
        for other in filled[1:]:
            if self._data[other] != self._data[filled[0]]:
                self.assume(f"{filled[0]} = {shown(self._data[filled[0]])} was used, not {other} = {shown(self._data[other])}")
        return self._data[filled[0]] if filled else None

    # --- numbers ------------------------------------------------------------------------------------------------

    def integer(self, *keys: str, default: int | _Required = REQUIRED, least: int = 1, most: int = LARGEST) -> int:
        """A whole number from `least` to `most`; null is refused, as the library does."""
        value = self.raw(*keys, default=default)
        if isinstance(value, _Required):
            raise self.refuse(f"{' or '.join(keys)} is missing")
        return self._whole(keys[0], value, least, most)

    def optional_integer(self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int | None:
        """A whole number, or None where the key is null; `default` where it is absent."""
        value = self.raw(*keys, default=default)
        return None if value is None else self._whole(keys[0], value, least, most)

    def layers(self, *keys: str, default: int | _Required = REQUIRED) -> int:
        """A number of layers."""
        return self.integer(*keys, default=default, most=MOST_LAYERS)

    def _whole(self, key: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(f"{key} must be a whole number, got {shown(value)}")
        if not least <= value <= most:
            raise self.refuse(f"{key} must be from {least} to {most}, got {shown(value)}")
        return value

    def number(self, *keys: str, default: float | _Required = REQUIRED) -> float:
        """A number; null counts as absent."""
        value = self.raw(*keys, default=default)
        if value is None:
            value = default
        if isinstance(value, _Required):
            raise self.refuse(f"{' or '.join(keys)} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST_REAL <= value <= LARGEST_REAL:
            raise self.refuse(f"{keys[0]} must be a finite number, got {shown(value)}")
        return float(value)

    def optional_number(self, *keys: str) -> float | None:
        """A number, or None where it is absent or null."""
        return None if self.raw(*keys) is None else self.number(*keys)

    def flag(self, *keys: str, default: bool) -> bool:
        """True or false; null is false, as it is in Python."""
        value = self.raw(*keys, default=default)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.refuse(f"{keys[0]} must be true or false, got {shown(value)}")
        return value

    # --- texts and lists ----------------------------------------------------------------------------------------

    def text(self, *keys: str, default: str | _Required = REQUIRED) -> str:
        """A string; null counts as absent."""
        value = self.raw(*keys, default=default)
        if value is None:
            value = default
        if isinstance(value, _Required):
            raise self.refuse(f"{' or '.join(keys)} is missing")
        if not isinstance(value, str):
            raise self.refuse(f"{keys[0]} must be a text, got {shown(value)}")
        return value

    def choice(self, *keys: str, allowed: Sequence[str], default: str | _Required = REQUIRED) -> str:
        """One of a few strings."""
        value = self.text(*keys, default=default)
        if value not in allowed:
            raise self.refuse(f"{keys[0]} is {shown(value)}; known are {', '.join(allowed)}")
        return value

    def _list(self, key: str) -> list[Any] | None:
        value = self.raw(key)
        if value is not None and not isinstance(value, list):
            raise self.refuse(f"{key} must be a list, got {shown(value)}")
        return value

    def integers(self, key: str, default: Sequence[int] | None = None, *, least: int = 0, most: int = LARGEST) -> tuple[int, ...] | None:
        """A list of whole numbers; null and absent give `default`."""
        value = self._list(key)
        if value is None:
            return None if default is None else tuple(default)
        return tuple(self._whole(key, item, least, most) for item in value)

    def texts(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...] | None:
        """A list of strings; null and absent give `default`."""
        value = self._list(key)
        if value is None:
            return None if default is None else tuple(default)
        for item in value:
            if not isinstance(item, str):
                raise self.refuse(f"{key} must list texts, got {shown(item)}")
        return tuple(value)

    # --- objects ------------------------------------------------------------------------------------------------

    def section(self, key: str) -> Config | None:
        """A nested object, None where it is absent or null; always the same object for a key."""
        if key in self._sections:
            return self._sections[key]
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(f"{key} must be an object, got {shown(value)}")
        made = Config(value, f"{self.where}: {key}", name=self.name, notes=self.notes)
        self._sections[key] = made
        return made

    def empty_section(self, key: str) -> Config:
        """The section of a key that is absent: every field at its default."""
        made = Config({}, f"{self.where}: {key}", name=self.name, notes=self.notes)
        self._seen.add(key)
        self._sections[key] = made
        return made

    def leftovers(self) -> Iterator[tuple[str, str, Any]]:
        """(where, key, value) of every key that nobody read, here and in the sections that were read."""
        for key, value in self._data.items():
            if key not in self._seen:
                yield self.where, key, value
        for child in self._sections.values():
            yield from child.leftovers()
