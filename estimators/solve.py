"""The rule of thumb backwards: plausible shapes for a number of parameters."""

from __future__ import annotations

from math import log

import msgspec

HEAD_DIM = 128
# GPT-3 and LLaMA 7B and 13B have D/L = 128; loss changes little within a factor of 2 (Kaplan et al. 2020, figure 5).
USUAL_ASPECT = 128


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A plausible shape for a number of parameters; `error` is relative."""

    d_model: int
    layers: int
    heads: int
    params: int
    error: float


def solve(target: int, *, vocabulary_size: int = 32000, count: int = 6) -> tuple[Shape, ...]:
    """Plausible (D, L) whose 12·D²·L + V·D is near `target`, the most usual first.

    D is a multiple of the usual head (from 4096 on of four heads, as published models have it), L is even, D/L within a
    factor of 2 of 128; the order weighs the distance from the target against that from the usual aspect.
    """
    shapes = []
    for d_model in range(HEAD_DIM, 2**17, HEAD_DIM):
        if d_model % (HEAD_DIM if d_model <= 1024 else 2 * HEAD_DIM if d_model <= 4096 else 4 * HEAD_DIM):
            continue
        layers = 2 * round((target - vocabulary_size * d_model) / (24 * d_model**2))
        for depth in (layers - 2, layers, layers + 2):
            if depth >= 1 and USUAL_ASPECT / 2 <= d_model / depth <= USUAL_ASPECT * 2:
                found = 12 * d_model**2 * depth + vocabulary_size * d_model
                shapes.append(Shape(d_model=d_model, layers=depth, heads=d_model // HEAD_DIM, params=found, error=found / target - 1))
    return tuple(sorted(shapes, key=unlikeliness)[:count])


def unlikeliness(shape: Shape) -> float:
    """Distance from the target plus a tenth of the distance from the usual aspect, both in logarithms."""
    return abs(log(1 + shape.error)) + abs(log(shape.d_model / shape.layers / USUAL_ASPECT)) / 10
