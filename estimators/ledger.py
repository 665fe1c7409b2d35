"""The ledger: a model and a pass in, one list of rows out. Every number of tfm is a sum over these rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from ..presets import spec as s
from ..presets.errors import UsageError
from .attention import attention, latent_attention
from .compressed import compressed_attention
from .counts import Number, same
from .feed_forward import feed_forward, moe
from .recurrent import gated_delta, mamba, mamba2, rg_lru, short_conv
from .rows import Place, Row, activation, norm, part
from .work import Pass, Tokens, image_count, tokens_of

# How a sublayer's kind becomes rows: a new architecture is a new entry here and nothing else.
GENERATORS: dict[type[s.Data], Callable[..., Iterator[Row]]] = {
    s.LatentAttention: latent_attention,
    s.Attention: attention,
    s.CompressedAttention: compressed_attention,
    s.Mamba: mamba,
    s.Mamba2: mamba2,
    s.GatedDelta: gated_delta,
    s.RgLru: rg_lru,
    s.ShortConv: short_conv,
    s.FeedForward: feed_forward,
    s.MoE: moe,
}
TOKENWISE = (s.FeedForward, s.MoE, s.Chain)  # these see one position at a time
CACHING = (s.Attention, s.LatentAttention, s.CompressedAttention)


def ledger(spec: s.ModelSpec, work: Pass) -> tuple[Row, ...]:
    """All rows of a pass over a model, in the order they run; a part that rests has `repeat` 0 but keeps its weights."""
    seen: set[str] = set()
    rows: list[Row] = []
    for stack in spec.stacks:
        rows += stack_rows(spec, stack, work, seen)
        for joint in (c for c in spec.connectors if c.source == stack.name):
            place = joint_place(spec, joint, work)
            rows += (part(place, leaf) for leaf in joint.parts)
    for head in spec.heads:
        rows += head_rows(spec, head, work)
    if spec.extra:
        place = place_of(spec, spec.main, work, "model")
        rows += (part(place, leaf) for leaf in spec.extra)
    return tuple(rows)


def place_of(spec: s.ModelSpec, stack: s.Stack, work: Pass, path: str) -> Place:
    """The place where a stack's rows stand."""
    sources: dict[str, Number] = dict.fromkeys(spec.absent, 0)
    for other in spec.stacks:
        seen = tokens_of(spec, other, work)
        per_image = other.tokens == "image" and stack.tokens != "image"  # a stack over one image attends that image alone
        sources[other.name] = seen.new * image_count(spec, work) if per_image else seen.new
    return Place(
        work=work,
        path=path,
        width=stack.d_model,
        tokens=tokens_of(spec, stack, work),
        component=path,
        sources=sources,
        images=image_count(spec, work),
    )


def joint_place(spec: s.ModelSpec, joint: s.Connector, work: Pass) -> Place:
    """The place where a connector's rows stand: over the positions of its source that it carries."""
    place = place_of(spec, spec.stack(joint.source), work, joint.name)
    if joint.tokens is None:
        return place
    return replace(place, tokens=replace(place.tokens, new=joint.tokens, span=joint.tokens))


def stack_rows(spec: s.ModelSpec, stack: s.Stack, work: Pass, seen: set[str]) -> list[Row]:
    """Embeddings, layers, what follows the last layer."""
    place = place_of(spec, stack, work, stack.name)
    rows = list(embedding_rows(place.at("embedding", component="embedding"), stack))
    rows += layer_rows(place, stack, seen)
    final = place.at("final", component="final")
    rows += (part(final, leaf) for leaf in stack.final)
    return rows


def embedding_rows(place: Place, stack: s.Stack) -> Iterator[Row]:
    """What makes the first hidden state.

    Pixels, frames and ids have no gradient: a product over them has that of its weight alone, until something with weights of
    its own has run.
    """
    reached = False
    for leaf in stack.embeddings:
        row = part(place, leaf, backward=2 if reached else 1)
        reached = reached or row.params > 0
        yield row


def layer_rows(place: Place, stack: s.Stack, seen: set[str]) -> list[Row]:
    """Rows of all layers, equal layers together: `repeat` counts runs, `copies` distinct weights."""
    kinds = Counter(owned_layers(stack, seen))
    names = layer_names(stack)
    rows: dict[str, Row] = {}
    for (layer, owners), count in kinds.items():
        here = place.at(names[layer]) if names[layer] else place
        for row in one_layer(here, stack, layer, owners):
            merge(rows, times(row, count))
    return list(rows.values())


def owned_layers(stack: s.Stack, seen: set[str]) -> Iterator[tuple[s.Layer, tuple[bool, ...]]]:
    """Every layer with, for each sublayer, whether it owns its weights (the first of a shared name does)."""
    for layer in stack.layers():
        owners = []
        for sub in layer.sublayers:
            owners.append(sub.shared is None or sub.shared not in seen)
            if sub.shared is not None:
                seen.add(sub.shared)
        yield layer, tuple(owners)


def layer_names(stack: s.Stack) -> dict[s.Layer, str]:
    """A name for every kind of layer; none is needed where all are alike."""
    kinds = list(dict.fromkeys(layer for block in stack.blocks for layer in block.pattern))
    if len(kinds) == 1:
        return {kinds[0]: ""}
    taken = Counter(layer.name for layer in kinds)
    return {
        layer: layer.name if layer.name and taken[layer.name] == 1 else f"{layer.name or 'layer'}_{index}"
        for index, layer in enumerate(kinds)
    }


def resting(place: Place, layer: s.Layer) -> tuple[bool, ...]:
    """Which sublayers are left out in this pass: attention to a stack that has nothing.

    A layer that mixes tokens in no other way rests as a whole (Llama 3.2 without an image).
    """
    alone = [attends_nothing(place, sub.mixer) for sub in layer.sublayers]
    mixes = [rests for sub, rests in zip(layer.sublayers, alone, strict=True) if not isinstance(sub.mixer, TOKENWISE)]
    return tuple(rests or (any(alone) and all(mixes)) for rests in alone)


def attends_nothing(place: Place, mixer: s.Mixer) -> bool:
    """Whether a mixer is attention to a stack without positions."""
    if not isinstance(mixer, s.Attention) or mixer.source is None:
        return False
    found = place.sources[mixer.source]
    return isinstance(found, int) and found == 0


def one_layer(place: Place, stack: s.Stack, layer: s.Layer, owners: tuple[bool, ...]) -> Iterator[Row]:
    """Rows of one layer; a sublayer that does not own its weights brings none."""
    asleep = replace(place, tokens=replace(place.tokens, runs=False))
    for sub, owns, rests in zip(layer.sublayers, owners, resting(place, layer), strict=True):
        here = asleep if rests else place
        for row in sublayer_rows(here.at(sub.name, component=sub.name), stack, sub):
            yield row if owns else replace(row, copies=0, fetches=0)


def sublayer_rows(place: Place, stack: s.Stack, sub: s.Sublayer) -> Iterator[Row]:
    """Norms, the mixer, further weights."""
    if sub.pre_norm:
        yield norm(place, sub.pre_norm, name="norm")
    yield from mixer_rows(place, stack, sub.mixer)
    if sub.output_norm:
        yield norm(place, sub.output_norm, name="output_norm")
    if sub.residual_norm:
        yield norm(place, sub.residual_norm, name="residual_norm")
    for leaf in sub.extra:
        yield part(place, leaf)


def mixer_rows(place: Place, stack: s.Stack, mixer: s.Mixer) -> Iterator[Row]:
    """The rows of one mixer or feed-forward."""
    if isinstance(mixer, s.Chain):
        for leaf in mixer.parts:
            yield part(place, leaf)
        if mixer.activation:
            yield activation(place, mixer.activation, place.width)
    elif isinstance(mixer, CACHING):
        yield from GENERATORS[type(mixer)](place, mixer, caches=stack.role == "decoder")
    else:
        yield from GENERATORS[type(mixer)](place, mixer)


def head_rows(spec: s.ModelSpec, head: s.Head, work: Pass) -> Iterator[Row]:
    """A head over every position, or over the last one."""
    place = place_of(spec, spec.stack(head.stack), work, head.name)
    tokens = place.tokens
    if work.last_logits and work.phase != "train":
        tokens = Tokens(sequences=tokens.sequences, new=1, span=tokens.span, runs=tokens.runs)
    place = replace(place, share="head", component="head", tokens=tokens)
    rows = [part(place, leaf) for leaf in head.parts]
    if isinstance(head.parts[0], s.Linear) and head.parts[0].once:
        # One position is a view of all of them, and holds them.
        rows[0] = replace(rows[0], saved=rows[0].saved - rows[0].reads + place.positions * head.parts[0].d_in)
    yield from rows
    if head.name == "lm_head" and work.phase == "train":
        # Cross-entropy keeps its logits in fp32 (Korthikanti et al. 2022, section 4.3).
        # A soft cap keeps its tanh.
        capped = rows[-1].writes if head.softcap is not None else 0
        yield replace(activation(place, "cross_entropy", 0), saved=capped, saved_bytes=4 * rows[-1].writes)


def times(row: Row, count: int) -> Row:
    """The row of `count` equal layers."""
    return replace(row, copies=row.copies * count, repeat=row.repeat * count, fetches=row.fetches * count)


def merge(rows: dict[str, Row], row: Row) -> None:
    """Add a row to those of the same path: equal layers that differ only in who owns the weights."""
    if row.path not in rows:
        rows[row.path] = row
        return
    old = rows[row.path]
    alike = (old.op, old.params, [*old.dims]) == (row.op, row.params, [*row.dims])
    if not alike or not all(same(old.dims[name], row.dims[name]) for name in old.dims):
        raise UsageError(f"two different operators are called {row.path!r}; give the layers or sublayers different names")
    rows[row.path] = replace(old, copies=old.copies + row.copies, repeat=old.repeat + row.repeat, fetches=old.fetches + row.fetches)


def total(rows: Iterable[Row], field: str, *, per: str = "repeat") -> Number:
    """Sum of one field of the rows, each as often as it runs (`per="copies"`: as often as it exists)."""
    return sum(getattr(row, field) * getattr(row, per) for row in rows)
