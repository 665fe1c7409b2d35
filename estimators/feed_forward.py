"""Rows of feed-forward networks, dense and routed."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..presets.spec import FeedForward, MoE
from .counts import expected_distinct, matmul_flops
from .rows import BY_VALUE, Place, Row, activation, linear, norm, part, vector


def feed_forward(place: Place, spec: FeedForward, *, keeps_input: bool = True) -> Iterator[Row]:
    """x: [m, D] -> [m, F] -> [m, D]; gated: two up projections and a product. `keeps_input`: no row before it keeps x."""
    d_in, d_out, F = spec.d_in or place.width, spec.d_out or place.width, spec.d_ff
    if spec.gated:
        yield linear(place, "gate_proj", d_in, F, bias=spec.bias, keeps_input=keeps_input)
    yield linear(place, "up_proj", d_in, F, bias=spec.bias, keeps_input=keeps_input and not spec.gated)
    yield activation(place, spec.activation, F, operands=2 if spec.gated else 1, params=spec.act_params)
    if spec.inner_norm:
        yield norm(place, spec.inner_norm, width=F)
    yield linear(place, "down_proj", F, d_out, bias=spec.bias, dropped=True, keeps_input=bool(spec.inner_norm) or not kept_by_value(spec))


def kept_by_value(spec: FeedForward) -> bool:
    """Whether the activation keeps its value, which is what the next product reads."""
    return not spec.gated and spec.activation in BY_VALUE


def expert_linear(place: Place, name: str, moe: MoE, d_in: int, d_out: int, *, bias: bool, keeps_input: bool = True) -> Row:
    """One matrix of every expert: E x [k, n]; top_k of them run for a token, and the expected distinct ones are read.

    Distinct experts of m tokens: E·(1 - (1 - k/E)^m), each token choosing evenly and on its own.
    """
    m = place.positions
    one = d_in * d_out + (d_out if bias else 0)
    row = linear(place, name, d_in, d_out, positions=m * moe.top_k, keeps_input=keeps_input)
    distinct = expected_distinct(moe.experts, moe.top_k, m)
    return replace(
        row,
        op="experts",
        params=moe.experts * one,
        active=moe.top_k * one,
        flops=matmul_flops(m * moe.top_k, d_in, d_out),
        weight_reads=distinct * one,
        dims={"m": m * moe.top_k, "k": d_in, "n": d_out, "E": moe.experts, "top_k": moe.top_k, "distinct": distinct},
    )


def expert_rows(place: Place, spec: MoE, width: int) -> Iterator[Row]:
    """The routed experts."""
    one = spec.expert
    if one.gated:
        yield expert_linear(place, "gate_proj", spec, width, one.d_ff, bias=one.bias)
    yield expert_linear(place, "up_proj", spec, width, one.d_ff, bias=one.bias, keeps_input=not one.gated)
    chosen = place.positions * spec.top_k
    yield activation(place, one.activation, one.d_ff, operands=2 if one.gated else 1, positions=chosen)
    row = expert_linear(place, "down_proj", spec, one.d_ff, width, bias=one.bias, keeps_input=not kept_by_value(one))
    yield replace(row, saved=row.saved + row.writes)  # what an expert says is weighed by its gate, and that keeps it


def hash_table(place: Place, tokens: int, top_k: int) -> Row:
    """Which experts a token has: a fixed table, gathered from and not counted as parameters."""
    row = vector(place, "hash_table", tokens * top_k, buffer=True)
    return replace(row, op="embedding", fetches=0, weight_reads=0, dims={"rows": tokens, "n": top_k})


def moe(place: Place, spec: MoE) -> Iterator[Row]:
    """Router, routed experts, shared experts."""
    if spec.router:
        yield linear(place.at("router", component="router"), "weight", place.width, spec.experts, bias=spec.router_bias)
    if spec.hashed is not None:
        yield hash_table(place.at("router", component="router"), spec.hashed, spec.top_k)
    if spec.correction != "none":
        yield vector(place.at("router", component="router"), "correction", spec.experts, buffer=spec.correction == "buffer")
    width = spec.latent or place.width
    routed = place.at("experts", component="experts")
    if spec.latent:
        yield linear(routed, "latent_in", place.width, width, bias=spec.latent_bias)
    yield from expert_rows(routed, spec, width)
    if spec.latent:
        yield linear(routed, "latent_out", width, place.width, bias=spec.latent_bias)
    if spec.shared:
        yield from feed_forward(place.at("shared_expert", component="shared_expert"), spec.shared, keeps_input=not spec.router)
    if spec.shared_gate:
        yield linear(place, "shared_expert_gate", place.width, 1, keeps_input=False)
    for extra in spec.extra:
        yield part(place, extra)
