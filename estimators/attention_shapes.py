"""Tensors of attention, in the order of its ledger rows.

Letters: B sequences, T new tokens, S attended, N query heads, K key/value heads, H and Hv their widths; W or C what a window or
chunk leaves of S in a decode step; in MLA R the latent's rank, Q the queries', P and r a key's parts without and with positions.
"""

from __future__ import annotations

from ..presets import spec as s
from .tensors import ONE, Dim, Flow, Shape, number, value_dim, window_symbol


def attention(flow: Flow, spec: s.Attention) -> Shape:
    """Queries, keys and values by head, scores, weights, their sum of values, the heads joined and projected."""
    q, gate = queries(flow, spec)
    k, v = keys_values(flow, spec)
    if isinstance(spec.position, s.Rope):
        q = flow.make("q_rotary", "rotary", (q,), q)
        k = k if spec.keys == "reused" else flow.make("k_rotary", "rotary", (k,), k)
    relative(flow, spec)
    k, v = remembered(flow, spec, k, v)
    if spec.indexer:
        indexer(flow, spec.indexer)
    for name in [leaf.name for leaf in spec.extra]:
        if flow.has(name):
            flow.plain(name)
    sinks = flow.parameter("sinks", spec.heads) if flow.has("sinks") else None
    joined = join(flow, scored(flow, spec.mask, q, k, v, sinks=sinks))
    if gate is not None:
        joined = flow.make("gated", "gate", (joined, gate), joined)
    return flow.linear("o_proj", joined[:2], joined[2])


def queries(flow: Flow, spec: s.Attention) -> tuple[Shape, Shape | None]:
    """[B,N,T,H], and what gates the output: as wide as that, or one number a head."""
    N, H = Dim("N", spec.heads), Dim("H", spec.head_dim)
    out = (flow.B, N, flow.T, H)
    gate = None
    flat = flow.linear("q_proj", flow.lead, n="2·N·H" if spec.gate == "full" else "N·H")
    if spec.gate == "full":
        gate = flow.make("gate", "split", (flat,), (*flow.lead, N * H))
    elif flow.has("gate_proj"):
        gate = flow.linear("gate_proj", flow.lead, n="N")
    flat = head_norm(flow, spec, "q_norm", flat, (*flow.lead, N, H))
    return flow.make("q", "heads", (flat,), out), gate


def keys_values(flow: Flow, spec: s.Attention) -> tuple[Shape, Shape]:
    """[B,K,S,H] and [B,K,S,Hv]: of the new tokens, of another stack's output, or from a cache."""
    K, H, Hv = Dim("K", spec.kv_heads), Dim("H", spec.head_dim), value_dim(spec)
    source = flow.place.sources[spec.source] if spec.source is not None else None
    tokens = flow.T if source is None else Dim("S", int(source))
    k: Shape = (flow.B, K, tokens, H)
    v: Shape = (flow.B, K, tokens, Hv)
    if not flow.has("k_proj"):
        tokens = tokens if source is not None else attended(flow, spec.mask)
        op = "cache" if source is not None else "reused"
        return flow.make("k", op, (), (flow.B, K, tokens, H)), flow.make("v", op, (), (flow.B, K, tokens, Hv))
    width = None if spec.source_width is None else number(spec.source_width)
    flat = flow.linear("k_proj", (flow.B, tokens), width, n="K·H")
    values = flow.linear("v_proj", (flow.B, tokens), width, n=f"K·{Hv.symbol}") if flow.has("v_proj") else flat
    k = flow.make("k", "heads", (head_norm(flow, spec, "k_norm", flat, (flow.B, tokens, K, H)),), k)
    return k, flow.make("v", "heads", (values,), v)


def head_norm(flow: Flow, spec: s.Attention, name: str, flat: Shape, apart: Shape) -> Shape:
    """The norm of queries or keys: over all heads side by side, or over each of them, [B,T,N,H]."""
    if not flow.has(name):
        return flat
    return flow.norm(name, flat if spec.head_norm is not None and spec.head_norm.over == "all" else apart)


def relative(flow: Flow, spec: s.Attention) -> None:
    """DeBERTa's positions: projected once a layer, and compared with keys and queries."""
    N, H = Dim("N", spec.heads), Dim("H", spec.head_dim)
    for name, term, tokens in (("position_key", "c2p", flow.T), ("position_query", "p2c", flow.S)):
        if flow.has(name):
            reach = Dim("2r", int(flow.left[name].dims["m"]))
            flow.linear(name, (reach,), n="N·H")
            flow.left.pop(term)
            content, positions = (flow.B, N, tokens, H), (N, H, reach)
            flow.make(term, "scores", (content, positions), (flow.B, N, tokens, reach), row=term, contracted=H.size)


def attended(flow: Flow, mask: s.Mask, *, row: str = "scores") -> Dim:
    """Keys that the scores' row compares a query with: in a decode step what a window leaves, else the whole square."""
    pairs, T, span = int(flow.left[row].dims["pairs"]), flow.T.size, flow.place.tokens.span
    if not flow.place.work.decoding or T != 1 or pairs >= span:
        return flow.S
    return Dim(window_symbol(mask), pairs)


def remembered(flow: Flow, spec: s.Attention, k: Shape, v: Shape) -> tuple[Shape, Shape]:
    """The cache after a decode step has appended its own keys and values, and what of it the scores see."""
    if not flow.place.work.decoding or spec.source is not None or spec.keys == "reused":
        return k, v
    kept, before = cached(flow, spec.mask, spec.kv_heads * (spec.head_dim + spec.v_dim))
    seen = attended(flow, spec.mask)
    found = []
    for name, new in (("k_cache", k), ("v_cache", v)):
        flow.make(name, "append", ((*new[:2], before, new[3]), new), (*new[:2], kept, new[3]))
        found.append((*new[:2], seen, new[3]))
    return found[0], found[1]


def cached(flow: Flow, mask: s.Mask, per_token: int) -> tuple[Dim, Dim]:
    """Tokens in the cache after the step, as the row's store has them, and before it: t."""
    store, span = flow.left["scores"].store, flow.place.tokens.span
    kept = span if store is None else int(store.minimal) // (flow.B.size * per_token)
    after = flow.S if kept == span else Dim(window_symbol(mask), kept)
    return after, Dim("t", span - flow.T.size) if kept == span else after


def indexer(flow: Flow, spec: s.Indexer) -> None:
    """The small attention that picks keys, its heads summed by their weights: [B,1,N'] @ [B,N',S] a token."""
    if not flow.has("indexer/q_proj"):
        return
    N, H = Dim("N'", spec.heads), Dim("H'", spec.head_dim)
    flow.linear("indexer/q_proj", flow.lead, n="N'·H'")
    flow.linear("indexer/k_proj", flow.lead, n="K'·H'" if spec.key_heads > 1 else "H'")
    for name, heads in (("q_norm", N), ("k_norm", Dim("K'", spec.key_heads))):
        if flow.has(f"indexer/{name}"):
            flow.norm(f"indexer/{name}", (*flow.lead, heads, H))
    if flow.has("indexer/head_weights"):
        flow.linear("indexer/head_weights", flow.lead, n="N'")
    name = "indexer/scores"
    flow.left.pop(name)
    shape = (flow.B, N, flow.T, flow.S)
    flow.make(name, "scores", ((flow.B, N, flow.T, H), (flow.B, Dim("K'", spec.key_heads), H, flow.S)), shape, row=name, contracted=H.size)
    if spec.head_weights:
        flow.make("indexer/sum", "matmul", ((*flow.lead, N), shape), (*flow.lead, flow.S), row=name, contracted=N.size)
    flow.make("indexer/chosen", "top-k", ((*flow.lead, flow.S),), (*flow.lead, Dim("k", min(spec.top_k, flow.place.tokens.span))))


def scored(flow: Flow, mask: s.Mask, q: Shape, k: Shape, v: Shape, *, sinks: Shape | None = None, row: str = "scores") -> Shape:
    """q [B,N,T,H], k [B,K,S,H], v [B,K,S,Hv] -> scores, weights, weights x V [B,N,T,Hv]."""
    keys = k[2] if flow.place.work.decoding or k[2] != flow.T else flow.S
    B, N, T, H = q
    v, turned = (*v[:2], keys, v[3]), (*k[:2], H, keys)
    scores = flow.make("scores", "scores", (q, turned), (B, N, T, keys), row=row, contracted=H.size)
    if not isinstance(mask, s.Full) and T.size > 1:
        scores = flow.make("masked_scores", "mask", (scores, (T, keys)), scores)
    weights = flow.make("weights", "softmax", (scores, sinks) if sinks else (scores,), scores)
    values = flow.make("values", "matmul", (weights, v), (B, N, T, v[3]), row=row, contracted=keys.size)
    flow.left.pop(row)
    return values


def join(flow: Flow, values: Shape) -> Shape:
    """The heads side by side: [B,N,T,Hv] -> [B,T,N·Hv]."""
    B, N, T, Hv = values
    return flow.make("joined", "join", (values,), (B, T, N * Hv))


# --- MLA --------------------------------------------------------------------------------------------------------------


def latent_attention(flow: Flow, spec: s.LatentAttention) -> Shape:
    """MLA: the latent becomes full heads, or (decode) queries and output go through kv_b and the latent is attended."""
    N, R, r = Dim("N", spec.heads), Dim("R", spec.kv_rank), Dim("r", spec.rope_dim)
    nope, v = Dim("P", spec.nope_dim), Dim("Hv", spec.value_dim)
    q = latent_queries(flow, spec)
    both = flow.linear("kv_a_proj", flow.lead, n="R+r")
    latent, k_rope = flow.make("latent", "split", (both,), (*flow.lead, R)), flow.make("k_rope", "split", (both,), (flow.B, ONE, flow.T, r))
    latent = flow.norm("kv_a_norm", latent)
    if isinstance(spec.position, s.Rope):
        flow.make("q_rotary", "rotary", ((flow.B, N, flow.T, r),), (flow.B, N, flow.T, r))
        k_rope = flow.make("k_rotary", "rotary", (k_rope,), k_rope)
    if flow.place.work.decoding:
        return absorbed(flow, spec, q, (flow.B, ONE, flow.T, R + r))
    for leaf in spec.extra:
        flow.plain(leaf.name)
    name = "kv_b_proj"
    wide = flow.linear(name, (flow.B, flow.S), R, n="N·(P+Hv)")
    both = flow.make("kv", "heads", (wide,), (flow.B, N, flow.S, nope + v))
    k_nope = flow.make("k_nope", "split", (both,), (flow.B, N, flow.S, nope))
    values = flow.make("v", "split", (both,), (flow.B, N, flow.S, v))
    k = flow.make("k", "concat", (k_nope, k_rope), (flow.B, N, flow.S, nope + r))
    if spec.indexer:
        indexer(flow, spec.indexer)
    joined = join(flow, scored(flow, spec.mask, q, k, values))
    return flow.linear("o_proj", flow.lead, joined[2])


def latent_queries(flow: Flow, spec: s.LatentAttention) -> Shape:
    """[B,N,T,P+r], straight or through a low rank."""
    wide = "N·(P+r)"
    if flow.has("q_proj"):
        flat = flow.linear("q_proj", flow.lead, n=wide)
    else:
        low = flow.norm("q_a_norm", flow.linear("q_a_proj", flow.lead, n="Q"))
        flat = flow.linear("q_b_proj", flow.lead, low[-1], n=wide)
    head = Dim("P", spec.nope_dim) + Dim("r", spec.rope_dim)
    return flow.make("q", "heads", (flat,), (flow.B, Dim("N", spec.heads), flow.T, head))


def absorbed(flow: Flow, spec: s.LatentAttention, q: Shape, new: Shape) -> Shape:
    """A decode step over the latents themselves (DeepSeek-V2, arXiv:2405.04434, section 2.1.2)."""
    N, R, nope, v = Dim("N", spec.heads), Dim("R", spec.kv_rank), Dim("P", spec.nope_dim), Dim("Hv", spec.value_dim)
    kept, before = cached(flow, spec.mask, new[3].size)
    flow.make("latent_cache", "append", ((*new[:2], before, new[3]), new), (*new[:2], kept, new[3]))
    for leaf in spec.extra:
        flow.plain(leaf.name)
    if spec.indexer:
        indexer(flow, spec.indexer)
    name = "kv_b_proj"
    flow.left.pop(name)
    lead = (flow.B, N, flow.T)
    inside = flow.make("q_latent", "absorbed", ((*lead, nope), (N, nope, R)), (*lead, R), row=name, contracted=nope.size)
    q = flow.make("q_absorbed", "concat", (inside, (*lead, Dim("r", spec.rope_dim))), (*lead, new[3]))
    seen = attended(flow, spec.mask)
    summed = scored(flow, spec.mask, q, (*new[:2], seen, new[3]), (*new[:2], seen, R))
    out = flow.make("v", "absorbed", (summed, (N, R, v)), (*lead, v), row=name, contracted=R.size)
    return flow.linear("o_proj", flow.lead, join(flow, out)[2])


# --- compressed entries -----------------------------------------------------------------------------------------------


def compressed_attention(flow: Flow, spec: s.CompressedAttention) -> Shape:
    """DeepSeek-V4: a window of tokens and compressed entries E of older ones, one head of both keys and values."""
    N, H = Dim("N", spec.heads), Dim("H", spec.head_dim)
    low = flow.norm("q_a_norm", flow.linear("q_a_proj", flow.lead, n="Q"))
    q = flow.make("q", "heads", (flow.linear("q_b_proj", flow.lead, low[-1], n="N·H"),), (flow.B, N, flow.T, H))
    flow.norm("kv_norm", flow.linear("kv_proj", flow.lead, n="H"))
    sinks = flow.parameter("sinks", spec.heads)
    if spec.ratio is not None:
        compressor(flow, spec, "compressor", H)
        if spec.indexer:
            entry_indexer(flow, spec, spec.indexer)
    joined = join(flow, entry_scores(flow, spec, q, sinks))
    groups = Dim("G", spec.out_groups)
    inside = flow.make("grouped", "split", (joined,), (*flow.lead, groups, Dim("N·H/G", N.size * H.size // groups.size)))
    row = flow.left.pop("o_a_proj")
    rank = Dim("R", spec.out_rank)
    weight = (groups, inside[-1], rank)
    middle = flow.make(
        "o_a_proj", "grouped linear", (inside, weight), (*flow.lead, groups, rank), row="o_a_proj", contracted=int(row.dims["k"])
    )
    return flow.linear("o_b_proj", flow.lead, middle[2] * rank)


def compressor(flow: Flow, spec: s.CompressedAttention, name: str, width: Dim) -> None:
    """Content and gate of every token, and the entries made of `ratio` of them."""
    ratio = spec.ratio or 1
    wide = f"2·{width.symbol}" if spec.overlap else width.symbol
    content = flow.linear(f"{name}/kv_proj", flow.lead, n=wide)
    gate = flow.linear(f"{name}/gate_proj", flow.lead, n=wide)
    bias = flow.parameter(f"{name}/position_bias", ratio, content[-1].size)
    made = flow.make(f"{name}/entries", "compress", (content, gate, bias), (flow.B, Dim("E", flow.place.tokens.span // ratio), width))
    flow.norm(f"{name}/kv_norm", made)


def entry_indexer(flow: Flow, spec: s.CompressedAttention, picks: s.Indexer) -> None:
    """Entries of the indexer's own, and the scores that pick among them; heads are summed elementwise."""
    N, H, E = Dim("N'", picks.heads), Dim("H'", picks.head_dim), Dim("E", flow.place.tokens.span // (spec.ratio or 1))
    compressor(flow, spec, "indexer", H)
    flow.linear("indexer/q_proj", flow.lead, number(picks.q_in), n="N'·H'")
    flow.linear("indexer/head_weights", flow.lead, n="N'")
    flow.left.pop("indexer/scores")
    shape = (flow.B, N, flow.T, E)
    flow.make("indexer/scores", "scores", ((flow.B, N, flow.T, H), (flow.B, ONE, H, E)), shape, row="indexer/scores", contracted=H.size)
    flow.make("indexer/chosen", "top-k", (shape,), (*flow.lead, Dim("k", min(picks.top_k, E.size))))


def entry_scores(flow: Flow, spec: s.CompressedAttention, q: Shape, sinks: Shape) -> Shape:
    """Scores over the tokens of the window and the entries, side by side."""
    span, T = flow.place.tokens.span, flow.T.size
    pairs = int(flow.left["scores"].dims["pairs"])
    entries = span // spec.ratio if spec.ratio else 0
    decoding = flow.place.work.decoding and T == 1
    keys = number(pairs) if decoding else flow.S + Dim("E", entries) if entries else flow.S
    k = (flow.B, ONE, keys, q[3])
    return scored(flow, s.Sliding(window=spec.window), q, k, k, sinks=sinks)
