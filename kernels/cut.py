"""A description with fewer layers: what is timed when the whole does not fit the time or the memory."""

from __future__ import annotations

from collections import Counter

import msgspec

from ..presets import spec as s
from ..presets.errors import UsageError

replace = msgspec.structs.replace


def cut(spec: s.ModelSpec, layers: int) -> s.ModelSpec:
    """The same model with at most `layers` layers a stack: of each kind in proportion, one at least where there is room."""
    if layers < 1:
        raise UsageError(f"a model needs at least 1 layer; got {layers}")
    return replace(spec, stacks=tuple(cut_stack(stack, layers) for stack in spec.stacks), total_params=None)


def cut_stack(stack: s.Stack, layers: int) -> s.Stack:
    """The first layers of each kind, in their order."""
    if layers >= stack.depth:
        return stack
    every = list(stack.layers())
    left = shares(Counter(every), layers)
    kept = []
    for layer in every:
        if left[layer]:
            left[layer] -= 1
            kept.append(layer)
    return replace(stack, blocks=tuple(s.Block(pattern=(layer,)) for layer in kept))


def shares(kinds: Counter[s.Layer], layers: int) -> Counter[s.Layer]:
    """How many layers of each kind: the largest remainders, every kind at least once while there is room."""
    depth = kinds.total()
    exact = {kind: count * layers / depth for kind, count in kinds.items()}
    given = Counter({kind: int(share) for kind, share in exact.items()})
    order = sorted(kinds, key=lambda kind: (given[kind] > 0, given[kind] - exact[kind]))
    for kind in order[: layers - given.total()]:
        given[kind] += 1
    return given


def kinds_of(stack: s.Stack) -> int:
    """How many kinds of layers a stack has."""
    return len(set(stack.layers()))
