"""What a stem reads: frames or pixels of the size that gives so many positions."""

from __future__ import annotations

from ..presets import spec as s


def raw_shape(stack: s.Stack, tokens: int) -> tuple[int, ...]:
    """[channels, *size] from which a stem makes `tokens` positions; patches stand as nearly in a square as their number allows."""
    convs = [leaf for leaf in stack.embeddings if isinstance(leaf, s.Conv)]
    first, last = convs[0], convs[-1]
    sizes = grid(tokens * last.expand // last.merge, len(first.kernel))
    for conv in reversed(convs):
        sizes = strided(conv, sizes)
    return (first.d_in, *sizes)


def strided(conv: s.Conv, output: tuple[int, ...]) -> tuple[int, ...]:
    """The size that a convolution reads to make one of `output`."""
    return tuple(size * step for size, step in zip(output, conv.stride or (1,) * len(output), strict=True))


def grid(count: int, dimensions: int) -> tuple[int, ...]:
    """`count` as a product of so many factors: the last two as nearly equal as they can be, any before them 1.

    >>> grid(196, 2), grid(12, 3), grid(7, 1)
    ((14, 14), (1, 3, 4), (7,))
    """
    if dimensions == 1:
        return (count,)
    side = next(size for size in range(int(count**0.5), 0, -1) if count % size == 0)
    return (*(1,) * (dimensions - 2), side, count // side)
