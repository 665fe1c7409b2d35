"""Rows of attention: projections, scores, and what is kept between steps.

Scores: [B,N,T,H] @ [B,N,H,S] -> [B,N,T,S]; values: [B,N,T,S] @ [B,N,S,Hv] -> [B,N,T,Hv]. FLOPs: 2·B·N·pairs·(H + Hv)
(Kaplan et al. 2020, arXiv:2001.08361, table 1, with the pairs counted exactly); the softmax is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..presets.spec import NORM_VECTORS, Attention, Disentangled, HeadNorm, Indexer, LatentAttention, Mask, Sliding
from .counts import Number, attended_pairs, kept_tokens, matmul_flops, smaller
from .disentangled import position_rows
from .rows import Place, Row, Store, linear, part, vector

PAGE = 16  # tokens a block holds in a paged cache (Kwon et al. 2023, arXiv:2309.06180)


def in_pages(tokens: Number) -> Number:
    """Tokens rounded up to whole blocks."""
    return (tokens + PAGE - 1) // PAGE * PAGE


def core(
    place: Place, name: str, *, heads: int, qk: int, v: int, pairs: Number, keys: Number, store: Store | None, runs: bool = True
) -> Row:
    """Scores and weighted values: [m pairs] x (qk + v) for every head."""
    running = int(runs and place.tokens.runs)
    B, T, N = place.tokens.sequences, place.tokens.new, heads
    square = B * N * T * keys
    kept = square * (2 if place.work.dropout else 1)
    return Row(
        path=place / name,
        op="attention",
        share="attention",
        component=place.component,
        repeat=running,
        fetches=0,
        flops=matmul_flops(B * N * pairs, qk, 1) + matmul_flops(B * N * pairs, 1, v),
        store=store,
        reads=B * N * T * qk,
        writes=B * N * T * v,
        saved_square=kept,
        square_bytes=square if place.work.dropout else 0,
        dims={"B": B, "N": N, "pairs": pairs, "H": qk, "Hv": v},
    )


def growing_store(place: Place, mask: Mask, per_token: int, *, expanded: int | None = None, limit: int | None = None) -> Store:
    """A self-attention cache of `per_token` elements a token; `limit`: at most so many tokens are read (sparse attention)."""
    B, S = place.tokens.sequences, place.tokens.span
    kept = kept_tokens(mask, S)
    read = kept if limit is None else smaller(kept, limit)
    return Store(
        of="self",
        minimal=B * kept * per_token,
        full=B * S * per_token,
        decompressed=B * kept * (expanded or per_token),
        paged=B * in_pages(kept) * per_token,
        moved=B * read * per_token,
    )


def head_norms(place: Place, spec: HeadNorm, widths: dict[str, tuple[int, int]]) -> Iterator[Row]:
    """Norms on queries and keys: {name: (heads, head_dim)}."""
    for name, (heads, width) in widths.items():
        size = width if spec.over == "head" else heads * width
        row = vector(place, name, NORM_VECTORS[spec.type] * size, op="norm")
        yield replace(row, saved=place.positions * heads * width)


def indexer_rows(place: Place, spec: Indexer, mask: Mask) -> Iterator[Row]:
    """The small attention that chooses keys (DeepSeek-V3.2 report, section 2.1): queries, one key a token, head weights."""
    here = place.at("indexer")
    width = spec.heads * spec.head_dim
    yield linear(here, "q_proj", spec.q_in, width, keeps_input=False)
    yield linear(here, "k_proj", place.width, spec.key_heads * spec.head_dim, keeps_input=False)
    vectors = {"layer": 2, "rms": 1, "none": 0}
    if spec.query_norm != "none":
        yield vector(here, "q_norm", vectors[spec.query_norm] * spec.head_dim, op="norm")
    if spec.key_norm != "none":
        yield vector(here, "k_norm", vectors[spec.key_norm] * spec.head_dim, op="norm")
    if spec.head_weights:
        yield linear(here, "head_weights", place.width, spec.heads, keeps_input=False)
    T, S = place.tokens.new, place.tokens.span
    pairs = attended_pairs(mask, T, S, square=place.work.full_attention)
    store = growing_store(here, mask, spec.key_heads * spec.head_dim)
    # The heads' scores are summed with their weights, [1, heads] @ [heads, S].
    weighted = int(spec.head_weights)
    yield core(here, "scores", heads=spec.heads, qk=spec.head_dim, v=weighted, pairs=pairs, keys=S, store=store)


def sparse_pairs(mask: Mask, limit: int | None, place: Place) -> Number:
    """Pairs of the large attention: those of the mask, or at most `limit` a query where an indexer picks them."""
    T, S = place.tokens.new, place.tokens.span
    if place.work.full_attention:
        return attended_pairs(mask, T, S, square=True)
    if limit is None:
        return attended_pairs(mask, T, S)
    return attended_pairs(Sliding(window=limit), T, S)


def query_rows(place: Place, spec: Attention, d_in: int) -> Iterator[Row]:
    """Projections of the queries and their gate."""
    wide = 2 if spec.gate == "full" else 1
    yield linear(place, "q_proj", d_in, wide * spec.heads * spec.head_dim, bias="q" in spec.bias)
    if spec.gate == "head":
        yield linear(place, "gate_proj", d_in, spec.heads, keeps_input=False)


def key_rows(place: Place, spec: Attention, d_in: int) -> Iterator[Row]:
    """Projections of keys and values, from the stack itself or from another stack's output (once, before decoding)."""
    if spec.keys == "reused":
        return
    cross = spec.source is not None
    positions = place.tokens.sequences * place.sources[spec.source] if spec.source is not None else place.positions
    runs = not (cross and place.work.decoding)
    width = spec.source_width or d_in
    k_width, v_width = spec.kv_heads * spec.head_dim, spec.kv_heads * spec.v_dim
    row = linear(place, "k_proj", width, k_width, bias="k" in spec.bias, positions=positions, runs=runs, keeps_input=False)
    yield replace(row, saved_once=row.reads if cross else 0)
    if spec.keys == "own":
        yield linear(place, "v_proj", width, v_width, bias="v" in spec.bias, positions=positions, runs=runs, keeps_input=False)


def attention_store(place: Place, spec: Attention) -> Store | None:
    """Keys and values kept: K·(H + Hv) a token; a cross-attention's are constant."""
    per_token = spec.kv_heads * (spec.head_dim + spec.v_dim)
    if spec.source is not None:
        elements = place.tokens.sequences * place.sources[spec.source] * per_token
        return Store(of="cross", minimal=elements, full=elements, decompressed=elements, paged=elements, moved=elements)
    if spec.keys == "reused":
        return None
    limit = spec.indexer.top_k if spec.indexer else None
    return growing_store(place, spec.mask, per_token, limit=limit)


def attention(place: Place, spec: Attention, *, caches: bool) -> Iterator[Row]:
    """Multi-head attention in every grouping: q, k, v, scores and values, output."""
    d_in, d_out = spec.d_in or place.width, spec.d_out or place.width
    yield from query_rows(place, spec, d_in)
    yield from key_rows(place, spec, d_in)
    if spec.head_norm:
        widths = {"q_norm": (spec.heads, spec.head_dim)}
        if spec.keys != "reused":
            widths["k_norm"] = (spec.kv_heads, spec.head_dim)
        yield from head_norms(place, spec.head_norm, widths)
    if isinstance(spec.position, Disentangled):
        yield from position_rows(place, spec, spec.position)
    if spec.indexer and spec.indexer.own:
        yield from indexer_rows(place, spec.indexer, spec.mask)
    for extra in spec.extra:
        yield part(place, extra)
    if spec.sinks:
        yield vector(place, "sinks", spec.heads)
    if spec.source is not None:
        keys, pairs = place.sources[spec.source], place.tokens.new * place.sources[spec.source]
    else:
        keys = place.tokens.span
        pairs = sparse_pairs(spec.mask, spec.indexer.top_k if spec.indexer else None, place)
    store = attention_store(place, spec) if caches else None
    row = core(place, "scores", heads=spec.heads, qk=spec.head_dim, v=spec.v_dim, pairs=pairs, keys=keys, store=store)
    B, T, N, K = place.tokens.sequences, place.tokens.new, spec.heads, spec.kv_heads
    capped = B * N * T * keys if spec.softcap is not None else 0  # the tanh of a soft cap is kept too
    yield replace(
        row, saved=B * T * N * spec.head_dim + B * keys * K * (spec.head_dim + spec.v_dim), saved_square=row.saved_square + capped
    )
    yield linear(place, "o_proj", spec.heads * spec.v_dim, d_out, bias="o" in spec.bias, dropped=True)


def latent_queries(place: Place, spec: LatentAttention) -> Iterator[Row]:
    """Queries of MLA: straight, or through a low rank with a norm."""
    width = spec.heads * (spec.nope_dim + spec.rope_dim)
    if spec.q_rank is None:
        yield linear(place, "q_proj", place.width, width)
        return
    yield linear(place, "q_a_proj", place.width, spec.q_rank, bias=spec.bias)
    yield replace(vector(place, "q_a_norm", spec.q_rank, op="norm"), saved=place.positions * spec.q_rank)
    yield linear(place, "q_b_proj", spec.q_rank, width)


def latent_attention(place: Place, spec: LatentAttention, *, caches: bool) -> Iterator[Row]:
    """MLA: prefill expands the latent to full heads; decode absorbs kv_b into query and output (DeepSeek-V2, section 2.1.2).

    Absorbed, a step multiplies kv_b once a new token (T·kv_rank·N·(nope + v), as the expansion would) and attends the
    latent itself, kv_rank + rope wide for scores and kv_rank wide for values.
    """
    latent, expanded = spec.kv_rank + spec.rope_dim, spec.heads * (spec.nope_dim + spec.rope_dim + spec.value_dim)
    yield from latent_queries(place, spec)
    yield linear(place, "kv_a_proj", place.width, latent, bias=spec.bias, keeps_input=False)
    yield replace(vector(place, "kv_a_norm", spec.kv_rank, op="norm"), saved=place.positions * latent)  # a view of all of it
    B, T, S, N = place.tokens.sequences, place.tokens.new, place.tokens.span, spec.heads
    absorbed = place.work.decoding
    # The expanded form turns every cached latent into keys and values; the absorbed one touches the new tokens only.
    yield linear(place, "kv_b_proj", spec.kv_rank, N * (spec.nope_dim + spec.value_dim), positions=B * (T if absorbed else S))
    if spec.indexer and spec.indexer.own:
        yield from indexer_rows(place, spec.indexer, spec.mask)
    for extra in spec.extra:
        yield part(place, extra)
    limit = spec.indexer.top_k if spec.indexer else None
    store = growing_store(place, spec.mask, latent, expanded=expanded, limit=limit) if caches else None
    qk, v = (latent, spec.kv_rank) if absorbed else (spec.nope_dim + spec.rope_dim, spec.value_dim)
    row = core(place, "scores", heads=N, qk=qk, v=v, pairs=sparse_pairs(spec.mask, limit, place), keys=S, store=store)
    yield replace(row, saved=B * T * N * (spec.nope_dim + spec.rope_dim) + B * S * expanded)
    yield linear(place, "o_proj", N * spec.value_dim, place.width, bias=spec.bias)
