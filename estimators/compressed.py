"""Rows of DeepSeek-V4's attention: a window of single tokens, and older ones compressed into entries.

Every `ratio` tokens become one entry: E = sum_j softmax_j(Z_j + P_j) * C_j, channel by channel, with C and Z projected
from the tokens and P learned (DeepSeek-V4 report, section 2.3). The sum is elementwise: not FLOPs, as PyTorch's counter
has it. A query attends its window and the finished entries, or those that an indexer picks.

What is kept between steps: the finished entries, which grow; the tokens of the unfinished one (C and Z); and, of
constant size, the window's past tokens and, where entries overlap, the last full group's C and Z (Z in fp32).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..presets.spec import CompressedAttention, Indexer, Sliding
from .attention import core, in_pages
from .counts import Number, attended_pairs, entry_pairs, smaller
from .rows import Place, Row, Store, constant_store, linear, vector


def compressed_attention(place: Place, spec: CompressedAttention, *, caches: bool) -> Iterator[Row]:
    """Queries through a low rank, one shared key-value head, the compressor, scores and values, grouped output."""
    N, H = spec.heads, spec.head_dim
    yield linear(place, "q_a_proj", place.width, spec.q_rank)
    yield vector(place, "q_a_norm", spec.q_rank, op="norm")
    yield linear(place, "q_b_proj", spec.q_rank, N * H)
    yield linear(place, "kv_proj", place.width, H, keeps_input=False)
    yield vector(place, "kv_norm", H, op="norm")
    yield vector(place, "sinks", N)
    if spec.ratio is not None:
        limit = spec.indexer.top_k if spec.indexer else None
        yield from compressor(place.at("compressor"), spec, H, caches=caches, read=limit)
        if spec.indexer:
            yield from entry_indexer(place.at("indexer"), spec, spec.indexer, caches=caches)
    yield scores(place, spec, caches=caches)
    yield from grouped_output(place, spec)


def scores(place: Place, spec: CompressedAttention, *, caches: bool) -> Row:
    """The window's pairs and those of the entries; the window is what this row keeps."""
    B, T, S, N, H = place.tokens.sequences, place.tokens.new, place.tokens.span, spec.heads, spec.head_dim
    square = place.work.full_attention
    pairs, keys = attended_pairs(Sliding(window=spec.window), T, S, square=square), S
    if spec.ratio is not None:
        limit = spec.indexer.top_k if spec.indexer else None
        pairs = pairs + entry_pairs(spec.ratio, T, S, limit=limit, square=square)
        keys = S + S // spec.ratio
    row = core(place, "scores", heads=N, qk=H, v=H, pairs=pairs, keys=keys, store=window_store(place, spec) if caches else None)
    return replace(row, saved=B * T * N * H + B * keys * H)


def window_store(place: Place, spec: CompressedAttention) -> Store:
    """The window's past tokens, window - 1 of them: a buffer that rolls, kept whole from the start."""
    B, S = place.tokens.sequences, place.tokens.span
    width = spec.head_dim * (2 if spec.values_apart else 1)
    return replace(constant_store("tail", B * (spec.window - 1) * width), moved=B * smaller(S, spec.window) * width)


def compressor(place: Place, spec: CompressedAttention, width: int, *, caches: bool, read: int | None) -> Iterator[Row]:
    """C and Z of every token, and the entries made of them; at most `read` entries are read in a step."""
    B, S, ratio = place.tokens.sequences, place.tokens.span, spec.ratio or 1
    wide = (2 if spec.overlap else 1) * width
    before, keeps = B * ratio * width, spec.overlap and caches
    content, gate = linear(place, "kv_proj", place.width, wide, keeps_input=False), linear(place, "gate_proj", place.width, wide)
    yield replace(content, store=constant_store("tail", before)) if keeps else content
    yield replace(gate, store=constant_store("state", before)) if keeps else gate
    yield vector(place, "position_bias", ratio * wide)
    norm = vector(place, "kv_norm", width, op="norm")
    yield replace(norm, store=entry_store(B, S, ratio, width, wide, read)) if caches else norm


def entry_store(B: Number, S: Number, ratio: int, width: int, wide: int, read: int | None) -> Store:
    """Finished entries, floor(S / ratio) of them, and C and Z of the S mod ratio tokens of the next."""
    entries, open_tokens = S // ratio, S % ratio * 2 * wide
    kept = B * (entries * width + open_tokens)
    return Store(
        of="self",
        minimal=kept,
        full=kept,
        decompressed=kept,
        paged=B * (in_pages(entries) * width + open_tokens),
        moved=B * ((entries if read is None else smaller(entries, read)) * width + open_tokens),
    )


def entry_indexer(place: Place, spec: CompressedAttention, indexer: Indexer, *, caches: bool) -> Iterator[Row]:
    """The small attention over entries of its own width that picks `top_k` of them; its heads are summed elementwise."""
    T, S, ratio = place.tokens.new, place.tokens.span, spec.ratio or 1
    yield from compressor(place, spec, indexer.head_dim, caches=caches, read=None)
    yield linear(place, "q_proj", indexer.q_in, indexer.heads * indexer.head_dim, keeps_input=False)
    yield linear(place, "head_weights", place.width, indexer.heads, keeps_input=False)
    pairs = entry_pairs(ratio, T, S, square=place.work.full_attention)
    yield core(place, "scores", heads=indexer.heads, qk=indexer.head_dim, v=0, pairs=pairs, keys=S // ratio, store=None)


def grouped_output(place: Place, spec: CompressedAttention) -> Iterator[Row]:
    """[m, groups, heads x head_dim / groups] @ [.., out_rank] a group, then groups x out_rank -> d_model."""
    inside, middle = spec.heads * spec.head_dim, spec.out_groups * spec.out_rank
    # One matrix a group: every output needs its own group's inputs only.
    row = linear(place, "o_a_proj", inside // spec.out_groups, middle)
    yield replace(row, reads=place.positions * inside, saved=place.positions * inside)
    yield linear(place, "o_b_proj", middle, place.width)
