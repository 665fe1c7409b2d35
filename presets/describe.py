"""A description in words, one line a sublayer, so that a person can check how a model was understood."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from msgspec import to_builtins

from . import spec as s


def describe_layers(stack: s.Stack) -> Iterator[tuple[str, str, str, str]]:
    """(stack, which layers, sublayer, what) for every kind of layer, in the order they come."""
    kinds: dict[s.Layer, list[int]] = {}
    for index, layer in enumerate(stack.layers()):
        kinds.setdefault(layer, []).append(index)
    for layer, indices in kinds.items():
        name = f"{layer.name} " if layer.name else ""
        where = f"{name}x{len(indices)}: {spans(indices)}" + (" (parallel)" if layer.parallel else "")
        yield from ((stack.name, where, sub.name, describe_sublayer(sub)) for sub in layer.sublayers)


def spans(indices: list[int]) -> str:
    """Layer numbers, briefly: `0-31`, `0, 2, 4 ... 44`, `3, 7, 11`."""
    steps = {b - a for a, b in pairwise(indices)}
    if len(indices) == 1:
        return str(indices[0])
    if steps == {1}:
        return f"{indices[0]}-{indices[-1]}"
    if len(steps) == 1 and len(indices) > 4:
        return f"{indices[0]}, {indices[1]}, {indices[2]} ... {indices[-1]}"
    shown = ", ".join(map(str, indices[:8]))
    return shown if len(indices) <= 8 else f"{shown} ... {indices[-1]}"


def describe_sublayer(sub: s.Sublayer) -> str:
    """The mixer, its norms, and what it shares."""
    norms = [
        f"{where} {kind.type} norm"
        for where, kind in (("pre", sub.pre_norm), ("output", sub.output_norm), ("post", sub.residual_norm))
        if kind is not None
    ]
    shared = [f"weights shared as {sub.shared!r}"] if sub.shared else []
    extra = [describe_part(leaf) for leaf in sub.extra]
    return "; ".join([describe_mixer(sub.mixer), *norms, *shared, *extra])


def describe_mixer(mixer: s.Mixer) -> str:
    """One mixer or feed-forward in words."""
    match mixer:
        case s.Attention():
            return describe_attention(mixer)
        case s.LatentAttention():
            low = f"q rank {mixer.q_rank}, " if mixer.q_rank else ""
            sizes = f"{low}kv rank {mixer.kv_rank}, heads {mixer.nope_dim}+{mixer.rope_dim} wide, values {mixer.value_dim}"
            return ", ".join([f"MLA, {mixer.heads} heads, {sizes}", describe_mask(mixer.mask), *describe_indexer(mixer.indexer)])
        case s.FeedForward():
            return describe_feed_forward(mixer)
        case s.MoE():
            shared = f", shared expert: {describe_feed_forward(mixer.shared)}" if mixer.shared else ""
            latent = f", in a latent of {mixer.latent}" if mixer.latent else ""
            return (
                f"{mixer.top_k} of {mixer.experts} experts ({mixer.scoring}){latent}, each: {describe_feed_forward(mixer.expert)}{shared}"
            )
        case s.Chain():
            return " > ".join(describe_part(leaf) for leaf in mixer.parts)
        case _:
            return describe_data(mixer)


def describe_attention(mixer: s.Attention) -> str:
    """Heads, mask, positions and what is unusual."""
    value = f"/{mixer.value_dim}" if mixer.value_dim else ""
    said = [f"{mixer.heads} query / {mixer.kv_heads} KV heads x {mixer.head_dim}{value}"]
    said.append(f"cross-attention to {mixer.source}" if mixer.source else describe_mask(mixer.mask))
    said += [type(mixer.position).__name__] if mixer.position else []
    said += [f"bias on {', '.join(mixer.bias)}"] if mixer.bias else []
    said += [f"{mixer.head_norm.type} norm on q, k"] if mixer.head_norm else []
    said += (
        [{"values_are_keys": "values made from keys", "reused": "another layer's cache reused"}[mixer.keys]] if mixer.keys != "own" else []
    )
    said += [f"{mixer.gate} output gate"] if mixer.gate != "none" else []
    said += ["sinks"] if mixer.sinks else []
    said += [f"scores capped at {mixer.softcap:g}"] if mixer.softcap else []
    return ", ".join(said + describe_indexer(mixer.indexer))


def describe_indexer(indexer: s.Indexer | None) -> list[str]:
    """The keys that sparse attention picks."""
    if indexer is None:
        return []
    whose = "own indexer" if indexer.own else "an earlier layer's indexer"
    return [f"top {indexer.top_k} keys by {whose} ({indexer.heads} heads x {indexer.head_dim})"]


def describe_mask(mask: s.Mask) -> str:
    """What a query sees."""
    match mask:
        case s.Sliding(window=window):
            return f"causal, window {window}"
        case s.Chunked(chunk=chunk):
            return f"causal, chunks of {chunk}"
        case s.Local(reach=reach):
            return f"both ways, {reach} to either side"
        case s.Blocked(size=size):
            return f"both ways, blocks of {size}"
        case s.Causal():
            return "causal"
        case s.Full():
            return "both ways"


def describe_feed_forward(mixer: s.FeedForward) -> str:
    """Width and activation."""
    gated = "gated " if mixer.gated else ""
    return f"{gated}{mixer.activation}, d_ff {mixer.d_ff}" + (", bias" if mixer.bias else "")


def describe_part(leaf: s.Part) -> str:
    """One leaf with its shape."""
    match leaf:
        case s.Linear():
            tied = f" (uses {leaf.shares})" if leaf.shares else ""
            return f"{leaf.name} [{leaf.d_in} x {leaf.d_out}]" + (" + bias" if leaf.bias else "") + tied
        case s.Embedding():
            tied = f" (uses {leaf.shares})" if leaf.shares else ""
            return f"{leaf.name} table of {leaf.rows} rows{tied}"
        case s.Norm():
            return f"{leaf.type} norm"
        case _:
            return describe_data(leaf)


def describe_data(data: s.Data) -> str:
    """Any other type: its name and what it says beyond the defaults."""
    fields = ", ".join(f"{name} {value}" for name, value in to_builtins(data).items() if name not in ("kind", "name"))
    return f"{getattr(data, 'name', None) or data.__struct_config__.tag}: {fields}" if fields else str(data.__struct_config__.tag)


def describe_parts(spec: s.ModelSpec) -> Iterator[tuple[str, str]]:
    """Embeddings, final parts, connectors and heads."""
    for stack in spec.stacks:
        yield from ((f"{stack.name}/embedding", describe_part(leaf)) for leaf in stack.embeddings)
        yield from ((f"{stack.name}/final", describe_part(leaf)) for leaf in stack.final)
    for joint in spec.connectors:
        sources = " + ".join((*joint.beside, joint.source))
        yield from ((f"{joint.name}: {sources} -> {joint.target}", describe_part(leaf)) for leaf in joint.parts)
    for head in spec.heads:
        yield from ((head.name, describe_part(leaf)) for leaf in head.parts)
