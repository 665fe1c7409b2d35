"""Rows of the mixers whose memory does not grow: state spaces, linear attention, gated recurrences, short convolutions.

The recurrence itself is counted in its algebraic form, where that is a matrix product: a state space reads its state
by one a token. Elementwise updates of the state are not FLOPs here, as PyTorch's counter has it (the delta rule is made
of them); the chunked forms that libraries run do more.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..presets.spec import Conv, GatedDelta, Mamba, Mamba2, RgLru, ShortConv
from .counts import matmul_flops
from .rows import Place, Row, constant_store, conv, linear, vector


def scan(place: Place, *, products: int, heads: int, inner: int, outer: int, state: int) -> Row:
    """`products` products of a token with the state [inner, outer] of every head; the state is kept in fp32."""
    B = place.tokens.sequences
    return Row(
        path=place / "scan",
        op="scan",
        share="attention",
        component=place.component,
        repeat=int(place.tokens.runs),
        fetches=0,
        flops=products * matmul_flops(place.positions * heads, inner, outer),
        store=constant_store("state", B * state),
        dims={"m": place.positions, "N": heads, "k": inner, "n": outer, "products": products},
    )


def causal_conv(place: Place, channels: int, width: int, *, bias: bool, tail: int | None = None) -> Row:
    """Depthwise convolution over the last `width` positions; it keeps a tail of that many (or `tail`) for the next step."""
    spec = Conv(name="conv", d_in=channels, d_out=channels, kernel=(width,), groups=channels, bias=bias)
    row = conv(place, spec, place.positions)
    kept = place.tokens.sequences * channels * (width if tail is None else tail)
    return replace(row, store=constant_store("tail", kept))


def mamba(place: Place, spec: Mamba) -> Iterator[Row]:
    """Mamba-1: y = C h, h updated elementwise: one product [state, 1] a channel and token."""
    D, I, N, R = place.width, spec.d_inner, spec.state, spec.dt_rank
    yield linear(place, "in_proj", D, 2 * I, bias=spec.proj_bias)
    yield causal_conv(place, I, spec.conv, bias=spec.conv_bias)
    yield linear(place, "x_proj", I, R + 2 * N)
    if spec.inner_norms:
        yield vector(place, "dt_norm", R, op="norm")
        yield vector(place, "b_norm", N, op="norm")
        yield vector(place, "c_norm", N, op="norm")
    yield linear(place, "dt_proj", R, I, bias=True)
    yield vector(place, "A", I * N)
    yield vector(place, "D", I)
    yield scan(place, products=1, heads=I, inner=N, outer=1, state=I * N)
    yield linear(place, "out_proj", I, D, bias=spec.proj_bias)


def mamba2(place: Place, spec: Mamba2) -> Iterator[Row]:
    """Mamba-2: a scalar decay a head, y = C h with h [head_dim, state]."""
    D, N, inner = place.width, spec.heads, spec.heads * spec.head_dim
    mixed = inner + 2 * spec.groups * spec.state
    yield linear(place, "in_proj", D, inner + mixed + N, bias=spec.proj_bias)
    yield causal_conv(place, mixed, spec.conv, bias=spec.conv_bias)
    for name in ("A", "D", "dt_bias"):
        yield vector(place, name, N)
    yield scan(place, products=1, heads=N, inner=spec.state, outer=spec.head_dim, state=inner * spec.state)
    if spec.gated_norm:
        yield vector(place, "gated_norm", inner, op="norm")
    yield linear(place, "out_proj", inner, D, bias=spec.proj_bias)


def gated_delta(place: Place, spec: GatedDelta) -> Iterator[Row]:
    """Gated delta rule: S = a S (1 - b k k') + b v k', o = S q, a token after another.

    Its sums over the state are elementwise, 3 x key_dim x value_dim multiply-adds a head and token that are not counted,
    as PyTorch's counter has it; the chunked form that libraries run for long inputs does products of its own.
    """
    D, keys, values = place.width, spec.key_heads * spec.key_dim, spec.value_heads * spec.value_dim
    yield linear(place, "qkv_proj", D, 2 * keys + values)
    yield linear(place, "gate_proj", D, values, keeps_input=False)
    yield linear(place, "beta_proj", D, spec.value_heads, keeps_input=False)
    yield linear(place, "decay_proj", D, spec.value_heads, keeps_input=False)
    yield causal_conv(place, 2 * keys + values, spec.conv, bias=False)
    yield vector(place, "A", spec.value_heads)
    yield vector(place, "dt_bias", spec.value_heads)
    state = values * spec.key_dim
    yield scan(place, products=0, heads=spec.value_heads, inner=spec.key_dim, outer=spec.value_dim, state=state)
    yield vector(place, "gated_norm", spec.value_dim, op="norm")
    yield linear(place, "out_proj", values, D)


def rg_lru(place: Place, spec: RgLru) -> Iterator[Row]:
    """Griffin's recurrent block; its recurrence is elementwise, so no FLOPs beyond the gates."""
    D, W = place.width, spec.width
    block = W // spec.blocks
    yield linear(place, "y_proj", D, W, bias=True)
    yield linear(place, "x_proj", D, W, bias=True, keeps_input=False)
    yield causal_conv(place, W, spec.conv, bias=True, tail=spec.conv - 1)
    for name in ("input_gate", "recurrence_gate"):
        yield block_diagonal(place, name, spec.blocks, block)
    yield vector(place, "decay", W)
    yield scan(place, products=0, heads=W, inner=1, outer=1, state=W)
    yield linear(place, "out_proj", W, D, bias=True)


def block_diagonal(place: Place, name: str, blocks: int, width: int) -> Row:
    """`blocks` square matrices side by side, with bias: a grouped convolution of one tap."""
    total = blocks * width
    spec = Conv(name=name, d_in=total, d_out=total, kernel=(1,), groups=blocks, bias=True)
    return conv(place, spec, place.positions)


def short_conv(place: Place, spec: ShortConv) -> Iterator[Row]:
    """LFM2: B, C and x from one projection, B x convolved, times C."""
    yield linear(place, "in_proj", place.width, 3 * spec.width, bias=spec.bias)
    yield causal_conv(place, spec.width, spec.conv, bias=spec.bias)
    yield linear(place, "out_proj", spec.width, place.width, bias=spec.bias)
