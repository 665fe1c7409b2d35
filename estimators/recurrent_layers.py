"""A layer over n tokens of width d, recurrent or self-attention: FLOPs, parameters, sequential steps, path length.

Vaswani et al. 2017 (arXiv:1706.03762), table 1: self-attention O(n²·d) a layer, 1 step, path 1; recurrent O(n·d²), n steps,
path n, and so the same work where n = d. The table leaves out attention's projections; here every matrix product counts, and
what the table counts stands beside. Layers as PyTorch has them, d in and d out, with both biases; elementwise work is not FLOPs.
"""

from __future__ import annotations

import msgspec

from ..presets.spec import Causal, Full
from .counts import attended_pairs, matmul_flops

# Gates of width d, each with a matrix on the input and one on the state (Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735;
# Cho et al. 2014, arXiv:1406.1078): what a recurrent layer has of each.
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
PROJECTIONS = 4  # of attention: queries, keys, values, output


class LayerCost(msgspec.Struct, frozen=True, kw_only=True):
    """One layer over a batch of sequences.

    Attributes:
        params: parameters, biases included.
        flops: of the forward pass. core_flops: of them what table 1 compares: all of a recurrent layer, attention's scores and
            values without its projections.
        sequential_steps: products that must wait for one another along the tokens.
        path_length: steps between the first token and the last one's output.
        equal_at_n: tokens at which self-attention has as many FLOPs as this layer; None where it always has more, and for
            attention itself. core_equal_at_n: the same of the cores (table 1: n = d for one gate).
    """

    layer: str
    params: int
    flops: int
    core_flops: int
    sequential_steps: int
    path_length: int
    equal_at_n: int | None
    core_equal_at_n: int | None


def layer_costs(n: int, d: int, *, batch: int = 1, causal: bool = False) -> tuple[LayerCost, ...]:
    """RNN, GRU, LSTM and self-attention over `batch` sequences of n tokens, d wide.

    >>> [cost.flops for cost in layer_costs(64, 64)]
    [1048576, 3145728, 4194304, 3145728]
    """
    return (*(recurrent(kind, n, d, batch=batch, causal=causal) for kind in GATES), attention(n, d, batch=batch, causal=causal))


def recurrent(kind: str, n: int, d: int, *, batch: int = 1, causal: bool = False) -> LayerCost:
    """g gates: x [n, d] @ [d, g·d] for all tokens at once, h [1, d] @ [d, g·d] a token after another: 4·g·n·d² in all."""
    g = GATES[kind]
    # x_t W and h_(t-1) U: the first for all tokens at once, the second in turn
    flops = matmul_flops(batch * n, d, g * d) + matmul_flops(batch * n, d, g * d)
    return LayerCost(
        layer=kind,
        params=2 * g * d * d + 2 * g * d,
        flops=flops,
        core_flops=flops,
        sequential_steps=n,
        path_length=n,
        equal_at_n=crossing(4 * g * d - 2 * PROJECTIONS * d, causal=causal),
        core_equal_at_n=crossing(4 * g * d, causal=causal),
    )


def attention(n: int, d: int, *, batch: int = 1, causal: bool = False) -> LayerCost:
    """Four projections and the pairs, whatever the heads: 8·n·d² + 4·n²·d, half the second where it is causal."""
    pairs = attended_pairs(Causal() if causal else Full(), n, n)
    projections = PROJECTIONS * matmul_flops(batch * n, d, d)
    core = 2 * matmul_flops(batch * pairs, d, 1)
    return LayerCost(
        layer="attention",
        params=PROJECTIONS * (d * d + d),
        flops=projections + core,
        core_flops=core,
        sequential_steps=1,
        path_length=1,
        equal_at_n=None,
        core_equal_at_n=None,
    )


def crossing(budget: int, *, causal: bool) -> int | None:
    """Tokens n at which scores and values, 4·n·d FLOPs a token (causal 2·(n + 1)·d), divided by d reach a budget; None if never.

    >>> crossing(4 * 512, causal=False), crossing(4 * 512, causal=True), crossing(-8, causal=False)
    (512, 1023, None)
    """
    if budget <= 0:
        return None
    return budget // 2 - 1 if causal else budget // 4
