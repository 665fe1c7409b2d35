"""Watching what really runs: bytes alive at once, and the longest and shortest chain of products from input to output."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "matmul", "linear"}


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Every tensor among arguments or results."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for member in tree:
            yield from tensors_in(member)


class Held(TorchDispatchMode):
    """Bytes of the memory that operators have made and that is still in use: now, and the most there was."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run, then note the memory of what came out, once however many views it has."""
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(args)}
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.known | given:
                self.note(storage)
        return out

    def note(self, storage: Any) -> None:
        """Count memory until it is given back."""
        place, size = storage.data_ptr(), storage.nbytes()
        self.known.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, place, size)

    def free(self, place: int, size: int) -> None:
        """Given back."""
        self.now -= size
        self.known.discard(place)


class Chain(TorchDispatchMode):
    """How many matrix products lie between some tensors and every later one: `longest` (they must run one after another) and
    `shortest` (the least a signal passes through). Every tensor is kept alive, so that none is mistaken for another.
    """

    def __init__(self, *starts: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.longest = {id(start): 0 for start in starts}
        self.shortest = dict(self.longest)
        self.kept: list[Tensor] = list(starts)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run, then give what came out its place behind what went in."""
        out = func(*args, **(kwargs or {}))
        step = func.overloadpacket.__name__ in PRODUCTS
        before = [id(tensor) for tensor in tensors_in(args) if id(tensor) in self.longest]
        for tensor in tensors_in(out) if before else ():
            self.kept.append(tensor)
            self.longest[id(tensor)] = step + max(self.longest[place] for place in before)
            self.shortest[id(tensor)] = step + min(self.shortest[place] for place in before)
        return out
