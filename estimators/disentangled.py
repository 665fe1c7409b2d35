"""Rows of DeBERTa's relative positions: content is compared with positions as it is with content.

c2p: [B,N,T,H] @ [N,H,2r] -> [B,N,T,2r], p2c: [B,N,S,H] @ [N,H,2r] -> [B,N,S,2r], then gathered into the scores (He et al.
2020, arXiv:2006.03654, equation 4). The 2r positions are projected once a layer, not once a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..presets.spec import Attention, Disentangled
from .counts import Number, matmul_flops, smaller
from .rows import Place, Row, linear


def position_rows(place: Place, spec: Attention, position: Disentangled) -> Iterator[Row]:
    """Projection and product of each term: keys made of positions (c2p), queries made of positions (p2c)."""
    reach = 2 * (smaller(place.tokens.span, position.span) if position.capped else position.span)
    if "c2p" in position.terms:
        yield projection(place, spec, position, "position_key", reach, bias=position.key_bias)
        yield product(place, spec, "c2p", place.tokens.new, reach)
    if "p2c" in position.terms:
        yield projection(place, spec, position, "position_query", reach, bias=True)
        yield product(place, spec, "p2c", place.tokens.span, reach)


def projection(place: Place, spec: Attention, position: Disentangled, name: str, reach: Number, *, bias: bool) -> Row:
    """[2r, D] @ [D, N·H]; without weights of its own it runs on those of the content, which are there already."""
    row = linear(place, name, place.width, spec.heads * spec.head_dim, bias=bias, positions=reach)
    return row if position.own_projections else replace(row, params=0, active=0, weight_reads=0)


def product(place: Place, spec: Attention, name: str, tokens: Number, reach: Number) -> Row:
    """Every token of every head against all positions."""
    B, N, H = place.tokens.sequences, spec.heads, spec.head_dim
    return Row(
        path=place / name,
        op="attention",
        share="attention",
        component=place.component,
        repeat=int(place.tokens.runs),
        fetches=0,
        flops=matmul_flops(B * N * tokens, H, reach),
        reads=B * N * tokens * H,
        writes=B * N * tokens * reach,
        dims={"B": B, "N": N, "T": tokens, "H": H, "positions": reach},
    )
