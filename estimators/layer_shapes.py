"""Tensors of feed-forward networks, experts, chains and the mixers whose memory does not grow, in the order of their rows.

Letters: F the inner width, E experts, k chosen; I the inner width of a state space, n its state, R the rank of its step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..presets import spec as s
from .attention_shapes import attention, compressed_attention, latent_attention
from .tensors import Dim, Flow, Shape, number


def feed_forward(flow: Flow, spec: s.FeedForward, *, under: str = "") -> Shape:
    """[B,T,D] -> [B,T,F] -> [B,T,D]."""
    up = flow.linear(f"{under}gate_proj", flow.lead, n="F") if spec.gated else None
    inner = flow.linear(f"{under}up_proj", flow.lead, n="F")
    inner = flow.activation(f"{under}{spec.activation}", *((up, inner) if up else (inner,)))
    if spec.inner_norm:
        inner = flow.norm(f"{under}{spec.inner_norm.name}", inner)
    return flow.linear(f"{under}down_proj", flow.lead, inner[-1])


def experts(flow: Flow, name: str, x: Shape, n: str | None) -> Shape:
    """x [B·T·k, in] through each token's experts, W [E, in, out]."""
    row = flow.left.pop(name)
    inside, E = x[-1], Dim("E", int(row.dims["E"]))
    outside = flow.wide(int(row.dims["n"])) if n is None else Dim(n, int(row.dims["n"]))
    bias = ((E, outside),) if row.params > E.size * inside.size * outside.size else ()
    weight = (E, inside, outside)
    return flow.make(name, "experts", (x, weight, *bias), (x[0], outside), row=name, contracted=int(row.dims["k"]))


def moe(flow: Flow, spec: s.MoE) -> Shape:
    """Router over all tokens, k experts a token, their weighted sum, shared experts beside."""
    rows, k = flow.B * flow.T, Dim("k", spec.top_k)
    tokens = (rows, flow.stream[-1])
    logits = flow.linear("router/weight", (rows,), n="E") if flow.has("router/weight") else None
    if flow.has("router/hash_table"):
        table = (number(spec.hashed or 0), k)
        flow.left.pop("router/hash_table")
        flow.make("router/hash_table", "embedding", ((rows,), table), (rows, k), row="router/hash_table")
    if flow.has("router/correction"):
        flow.parameter("router/correction", spec.experts)
    flow.make("router/chosen", "top-k", (logits,) if logits else (), (rows, k))
    scoring = "softmax" if spec.scoring.startswith("softmax") else spec.scoring
    gates = flow.make("router/gates", scoring, (logits,) if logits else (), (rows, k))
    routed = flow.linear("experts/latent_in", (rows,), n="L") if spec.latent else tokens
    x = flow.make("experts/tokens", "gather", (routed, (rows, k)), (rows * k, routed[-1]))
    gate = experts(flow, "experts/gate_proj", x, "F") if spec.expert.gated else None
    inner = experts(flow, "experts/up_proj", x, "F")
    inner = flow.activation(f"experts/{spec.expert.activation}", *((gate, inner) if gate else (inner,)))
    out = experts(flow, "experts/down_proj", inner, "L" if spec.latent else None)
    total = flow.make("experts/sum", "weighted sum", (out, gates), (rows, out[-1]))
    if spec.latent:
        total = flow.linear("experts/latent_out", (rows,), total[-1])
    return shared_experts(flow, spec, total)


def shared_experts(flow: Flow, spec: s.MoE, routed: Shape) -> Shape:
    """The experts that always run, their gate, and the sum of both."""
    if spec.shared is None:
        return flow.make("output", "view", (routed,), flow.stream)
    shared = feed_forward(flow, spec.shared, under="shared_expert/")
    if flow.has("shared_expert_gate"):
        shared = flow.make("shared_expert/gated", "gate", (shared, flow.linear("shared_expert_gate", flow.lead)), shared)
    return flow.make("output", "add", (routed, shared), flow.stream)


def chain(flow: Flow, spec: s.Chain) -> Shape:
    """Parts one after another."""
    for leaf in spec.parts:
        if flow.has(leaf.name):
            flow.plain(leaf.name)
    if spec.activation and flow.has(spec.activation):
        flow.activation(spec.activation, flow.stream)
    return flow.stream


# --- recurrences ------------------------------------------------------------------------------------------------------


def causal_conv(flow: Flow, letter: str, name: str = "conv") -> Shape:
    """A convolution that keeps the length; a weight for every channel (or block of them) alone. A step keeps its last inputs."""
    row = flow.left.pop(name)
    taps, width = int(row.dims["k"]), Dim(letter, int(row.dims["n"]))
    shape = (*flow.lead, width)
    if flow.place.work.decoding and row.store is not None:
        tail = (flow.B, width, number(int(row.store.minimal) // (flow.B.size * width.size)))
        flow.make(f"{name}_tail", "append", (tail, shape), tail)
    bias = ((width,),) if row.params > taps * width.size else ()
    return flow.make(name, "conv", (shape, (width, number(taps)), *bias), shape, row=name, contracted=taps)


def scan(flow: Flow, inputs: tuple[Shape, ...], state: Shape, out: Shape) -> Shape:
    """A token after another: the state [B, ...] is updated, and read by a product where the rows count one."""
    row = flow.left.pop("scan")
    state = flow.make("state", "state", inputs, (flow.B, *state))
    return flow.make("scan", "scan", (*inputs, state), out, row="scan", contracted=int(row.dims["k"] * row.dims["products"]))


def mamba(flow: Flow, spec: s.Mamba) -> Shape:
    """Mamba-1: x and gate, convolution, step and B and C of every token, the state [I, n]."""
    I, n, R = Dim("I", spec.d_inner), Dim("n", spec.state), Dim("R", spec.dt_rank)
    both = flow.linear("in_proj", flow.lead, n="2·I")
    gate = flow.make("gate", "split", (both,), (*flow.lead, I))
    x = causal_conv(flow, "I")
    flow.linear("x_proj", flow.lead, I, n="R+2·n")
    for name, width in (("dt_norm", R), ("b_norm", n), ("c_norm", n)):
        if flow.has(name):
            flow.norm(name, (*flow.lead, width))
    flow.linear("dt_proj", flow.lead, R, n="I")
    for name, shape in (("A", (I.size, n.size)), ("D", (I.size,))):
        flow.parameter(name, *shape)
    y = scan(flow, (x,), (I, n), (*flow.lead, I))
    y = flow.make("gated", "gate", (y, gate), y)
    return flow.linear("out_proj", flow.lead, I)


def mamba2(flow: Flow, spec: s.Mamba2) -> Shape:
    """Mamba-2: one decay a head, the state [N, H, n]."""
    N, H, n = Dim("N", spec.heads), Dim("H", spec.head_dim), Dim("n", spec.state)
    inner = N * H
    flow.linear("in_proj", flow.lead, n="2·N·H+2·G·n+N")
    x = causal_conv(flow, "N·H+2·G·n")
    for name in ("A", "D", "dt_bias"):
        flow.parameter(name, N.size)
    y = scan(flow, (x,), (N, H, n), (*flow.lead, N, H))
    if flow.has("gated_norm"):
        flow.norm("gated_norm", (*flow.lead, Dim("G", spec.groups), Dim("N·H/G", inner.size // spec.groups)))
    flow.make("joined", "join", (y,), (*flow.lead, inner))
    return flow.linear("out_proj", flow.lead, inner)


def gated_delta(flow: Flow, spec: s.GatedDelta) -> Shape:
    """Gated delta rule: queries and keys of K heads, values and gates of N, the state [N, H, Hv]."""
    N, H, Hv = Dim("N", spec.value_heads), Dim("H", spec.key_dim), Dim("Hv", spec.value_dim)
    wide = "2·K·H+N·Hv"
    for name, letter in (("qkv_proj", wide), ("gate_proj", "N·Hv"), ("beta_proj", "N"), ("decay_proj", "N")):
        flow.linear(name, flow.lead, n=letter)
    mixed = causal_conv(flow, wide)
    q, k, v = ((*flow.lead, N, width) for width in (H, H, Hv))
    for letter, shape in (("q", q), ("k", k), ("v", v)):
        flow.make(letter, "heads", (mixed,), shape)
    for name in ("A", "dt_bias"):
        flow.parameter(name, N.size)
    y = scan(flow, (q, k, v), (N, H, Hv), (*flow.lead, N, Hv))
    flow.norm("gated_norm", y)
    flow.make("joined", "join", (y,), (*flow.lead, N * Hv))
    return flow.linear("out_proj", flow.lead, N * Hv)


def rg_lru(flow: Flow, spec: s.RgLru) -> Shape:
    """Griffin: a branch and a gate of width I, block-diagonal gates, a state of one number a channel."""
    I = Dim("I", spec.width)
    gate = flow.linear("y_proj", flow.lead, n="I")
    flow.linear("x_proj", flow.lead, n="I")
    x = causal_conv(flow, "I")
    for name in ("input_gate", "recurrence_gate"):
        causal_conv(flow, "I", name)
    flow.parameter("decay", spec.width)
    y = scan(flow, (x,), (I,), (*flow.lead, I))
    y = flow.make("gated", "gate", (y, gate), y)
    return flow.linear("out_proj", flow.lead, I)


def short_conv(flow: Flow, spec: s.ShortConv) -> Shape:
    """LFM2: B, C and x side by side, B·x convolved, times C."""
    I = Dim("I", spec.width)
    both = flow.linear("in_proj", flow.lead, n="3·I")
    gate = flow.make("gate", "split", (both,), (*flow.lead, I))
    y = flow.make("gated", "gate", (causal_conv(flow, "I"), gate), (*flow.lead, I))
    return flow.linear("out_proj", flow.lead, y[-1])


# How a sublayer's kind becomes tensors: one entry for every entry of `ledger.GENERATORS` (a test holds them equal).
FLOWS: dict[type[s.Data], Callable[[Flow, Any], Shape]] = {
    s.Attention: attention,
    s.LatentAttention: latent_attention,
    s.CompressedAttention: compressed_attention,
    s.Mamba: mamba,
    s.Mamba2: mamba2,
    s.GatedDelta: gated_delta,
    s.RgLru: rg_lru,
    s.ShortConv: short_conv,
    s.FeedForward: feed_forward,
    s.MoE: moe,
    s.Chain: chain,
}
