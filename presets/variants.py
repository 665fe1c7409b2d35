"""Variations of a model: the same description with one thing changed."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from msgspec.structs import replace

from .errors import UsageError
from .spec import Attention, Mixer, ModelSpec, Stack


def map_mixers(stack: Stack, change: Callable[[Mixer], Mixer]) -> Stack:
    """The stack with every mixer changed."""
    blocks = []
    for block in stack.blocks:
        pattern = []
        for layer in block.pattern:
            sublayers = tuple(replace(sub, mixer=change(sub.mixer)) for sub in layer.sublayers)
            pattern.append(replace(layer, sublayers=sublayers))
        blocks.append(replace(block, pattern=tuple(pattern)))
    return replace(stack, blocks=tuple(blocks))


def divisors(n: int) -> str:
    """What divides `n`, for an error line.

    >>> divisors(12)
    '1, 2, 3, 4, 6, 12'
    """
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    found = sorted({*small, *(n // d for d in small)})
    return ", ".join(map(str, found[:32])) + (" ..." if len(found) > 32 else "")


def with_kv_heads(spec: ModelSpec, kv_heads: int) -> ModelSpec:
    """The model with `kv_heads` key/value heads in every self-attention of its decoder (of its one stack, if it has
    none).

    Raises UsageError where that does not divide the query heads, or where there is no such attention.
    """
    changed = 0

    def change(mixer: Mixer) -> Mixer:
        nonlocal changed
        if not isinstance(mixer, Attention) or mixer.source is not None:
            return mixer
        if mixer.heads % kv_heads:
            raise UsageError(
                f"{kv_heads} KV heads do not divide the {mixer.heads} query heads of {spec.name}; allowed: {divisors(mixer.heads)}"
            )
        changed += 1
        return replace(mixer, kv_heads=kv_heads)

    main = spec.main
    stacks = tuple(map_mixers(stack, change) if stack.name == main.name else stack for stack in spec.stacks)
    if not changed:
        raise UsageError(f"{spec.name} has no grouped attention to change the KV heads of")
    return replace(spec, stacks=stacks, total_params=None)
