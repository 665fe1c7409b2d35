"""Copying and reversing strings: what is asked, what is answered, and which strings are kept from training.

A string is held out by a checksum of its own letters, so that training and test strings are disjoint by construction, whatever
the seed. Every batch is a function of seed and step alone: a resumed run sees what an uninterrupted one would have.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ...presets.errors import UnreadableError

PAD, BOS, EOS, SEPARATOR, COPY, REVERSE = range(6)
SPECIAL = ("<pad>", "<bos>", "<eos>", "<sep>", "<copy>", "<reverse>")
TASKS = ("copy", "reverse", "both")
TaskName = Literal["copy", "reverse", "both"]
HELD_OUT = 8  # one string in so many is never trained on
LONGEST = 2**16  # letters of a string: what a file may ask for
String = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Strings of `shortest` to `longest` letters of an alphabet, to be copied, reversed, or either as the first token says."""

    name: TaskName = "both"
    letters: str = "abcdefghijklmnop"
    shortest: int = 1
    longest: int = 8

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Token id -> token."""
        return (*SPECIAL, *self.letters)

    @property
    def orders(self) -> tuple[int, ...]:
        """The task tokens."""
        return {"copy": (COPY,), "reverse": (REVERSE,), "both": (COPY, REVERSE)}[self.name]

    def text(self, ids: String) -> str:
        """Ids in words."""
        return "".join(self.vocabulary[token] for token in ids)

    def extra(self) -> dict[str, Any]:
        """What a saved model says of its task."""
        return {
            "task": self.name,
            "letters": self.letters,
            "shortest": self.shortest,
            "longest": self.longest,
            "vocabulary": list(self.vocabulary),
        }


def task_of(extra: dict[str, Any]) -> Task:
    """The task in a saved model's extra; raises UnreadableError where there is none."""
    try:
        made = Task(name=extra["task"], letters=str(extra["letters"]), shortest=int(extra["shortest"]), longest=int(extra["longest"]))
        if made.name in TASKS and 1 <= made.shortest <= made.longest <= LONGEST and list(made.vocabulary) == extra["vocabulary"]:
            return made
    except (KeyError, TypeError, ValueError):
        pass
    raise UnreadableError("the saved model says nothing of the task that it was trained on; give one that `tfm train-demo` saved")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One string, the order given with it, and the answer."""

    order: int
    letters: String

    @property
    def answer(self) -> String:
        """What the model has to say, its end apart."""
        return self.letters if self.order == COPY else self.letters[::-1]


def held_out(letters: String) -> bool:
    """Whether a string is kept from training."""
    return zlib.crc32(bytes(letters)) % HELD_OUT == 0


def draw(task: Task, count: int, seed: int, *, unseen: bool) -> list[Example]:
    """`count` examples that are held out, or that are not; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    found: list[Example] = []
    while len(found) < count:
        found += (one for one in candidates(task, 2 * count, generator) if held_out(one.letters) is unseen)
    return found[:count]


def candidates(task: Task, count: int, generator: torch.Generator) -> Iterator[Example]:
    """Random examples: lengths, letters and orders evenly."""
    lengths = torch.randint(task.shortest, task.longest + 1, (count,), generator=generator).tolist()
    letters = torch.randint(len(SPECIAL), len(task.vocabulary), (count, task.longest), generator=generator).tolist()
    orders = torch.randint(len(task.orders), (count,), generator=generator).tolist()
    for length, row, order in zip(lengths, letters, orders, strict=True):
        yield Example(order=task.orders[order], letters=tuple(row[:length]))


def training_examples(task: Task, count: int, *, seed: int, step: int) -> list[Example]:
    """The examples of one step."""
    return draw(task, count, seed * 1_000_003 + step, unseen=False)


def unseen_examples(task: Task, count: int, *, seed: int) -> list[Example]:
    """Examples that no training has seen, every one different."""
    found: dict[Example, None] = {}
    for turn in range(64):
        found |= dict.fromkeys(draw(task, count, (seed + 1) * 7_368_787 + turn, unseen=True))
        if len(found) >= count:
            break
    return list(found)[:count]
