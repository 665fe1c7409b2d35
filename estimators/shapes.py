"""The shape of every tensor of a pass, walked as the ledger walks: its places, its rows, in the order they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from msgspec.structs import replace

from ..presets import spec as s
from .layer_shapes import FLOWS
from .ledger import embedding_rows, head_rows, joint_place, layer_names, one_layer, place_of
from .raw_data import raw_shape
from .rows import Place, Row, part
from .tensors import Dim, Flow, Shape, Term, number
from .work import Pass


def shapes(spec: s.ModelSpec, work: Pass) -> tuple[Term, ...]:
    """Every tensor of a pass over a model; batch, context and source are plain integers.

    Equal layers stand once, with `repeat`. What rests in the pass (the encoder in a decode step) has no tensors.
    """
    terms: list[Term] = []
    for stack in spec.stacks:
        place = place_of(spec, stack, work, stack.name)
        if place.tokens.runs:
            terms += stack_terms(place, stack)
            for joint in (joint for joint in spec.connectors if joint.source == stack.name):
                here = joint_place(spec, joint, work)
                terms += beside_terms(spec, joint, here)
                terms += part_terms(here, joint.parts, [part(here, leaf) for leaf in joint.parts])
    for head in spec.heads:
        rows = list(head_rows(spec, head, work))
        if place_of(spec, spec.stack(head.stack), work, head.name).tokens.runs:
            terms += head_terms(spec, head, work, rows)
    return tuple(terms)


def beside_terms(spec: s.ModelSpec, joint: s.Connector, place: Place) -> Iterator[Term]:
    """The states of several towers put side by side, channel by channel."""
    if joint.beside:
        flow = Flow(place, ())
        widths = [spec.stack(name).d_model for name in (*joint.beside, joint.source)]
        flow.make("channels", "concat", [(*flow.lead, number(width)) for width in widths], (*flow.lead, number(sum(widths))))
        yield from flow.terms


def stack_terms(place: Place, stack: s.Stack) -> Iterator[Term]:
    """Ids or raw data, the first hidden state, the layers, what follows the last one, and the output."""
    yield from embedding_terms(place, stack)
    names = layer_names(stack)
    for layer, count in Counter(stack.layers()).items():
        here = place.at(names[layer]) if names[layer] else place
        yield from layer_terms(here, stack, layer, count)
    final = place.at("final")
    last = part_terms(final, stack.final, [part(final, leaf) for leaf in stack.final])
    yield from last
    flow = Flow(place, ())
    output = next((term.output for term in reversed(last) if term.op != "parameter"), flow.stream)
    flow.make("output", "view", (output,), output)
    yield from flow.terms


# --- embeddings -------------------------------------------------------------------------------------------------------


def embedding_terms(place: Place, stack: s.Stack) -> Iterator[Term]:
    """From ids [B,T], frames or pixels to [B,T,D]."""
    source = Flow(place, ())
    here = place.at("embedding")
    flow = Flow(here, embedding_rows(here, stack))
    convs = [leaf for leaf in stack.embeddings if isinstance(leaf, s.Conv)]
    if convs:
        raw = raw_shape(stack, place.tokens.new)
        x = source.make("pixels" if len(raw) > 2 else "frames", "input", (), (flow.B, *(number(size) for size in raw)))
    else:
        x = source.make("ids", "input", (), flow.lead)
    yield from source.terms
    for leaf in stack.embeddings:
        x = embedded(flow, leaf, x, last=bool(convs) and leaf is convs[-1])
    flow.rest()
    yield from flow.terms


def embedded(flow: Flow, leaf: s.Part, x: Shape, *, last: bool) -> Shape:
    """The stream after one more part; `last`: it is the stem's last convolution."""
    match leaf:
        case s.Conv():
            return convolved(flow, leaf, x, last=last)
        case s.Embedding(role="token"):
            return gathered(flow, leaf, x)
        case s.Embedding(role="position" | "type" as role):
            return added(flow, x, gathered(flow, leaf, x[1:2] if role == "position" else x[:2]))
        case s.Sinusoidal():
            flow.left.pop(leaf.name)
            return added(flow, x, flow.make(leaf.name, "sinusoidal", (x[1:2],), x[1:], row=leaf.name))
        case s.Norm():
            return flow.norm(leaf.name, x)
        case s.Linear() if leaf.d_in == x[-1].size:
            return flow.linear(leaf.name, x[:2], x[-1])
        case s.Parameter() if len(x) == 3:
            return bare(flow, leaf, x)
        case _:
            flow.plain(leaf.name)
            return x


def gathered(flow: Flow, leaf: s.Embedding, index: Shape) -> Shape:
    """Rows of a table: index [...] -> [..., width]."""
    row = flow.left.pop(leaf.name)
    letter = {"token": "V"}.get(leaf.role, str(leaf.rows))
    width = flow.wide(int(row.dims["n"]))
    return flow.make(leaf.name, "embedding", (index, (Dim(letter, leaf.rows), width)), (*index, width), row=leaf.name)


def added(flow: Flow, x: Shape, y: Shape) -> Shape:
    """x + y, y broadcast over the sequences."""
    return flow.make("sum", "add", (x, y), x)


def bare(flow: Flow, leaf: s.Parameter, x: Shape) -> Shape:
    """A class token comes before the positions, a table as long as they are is added, anything else waits for the layers."""
    shape = flow.parameter(leaf.name, *leaf.shape)
    missing = flow.T.size - x[1].size
    more, rest = divmod(prod(leaf.shape), x[2].size)
    if leaf.shape[-1] == x[2].size and missing > 0 and not rest and more <= missing:
        tokens = flow.T if more == missing else number(x[1].size + more)
        return flow.make("joined", "concat", (shape, x), (x[0], tokens, x[2]))
    return added(flow, x, shape) if leaf.shape == (x[1].size, x[2].size) else x


def convolved(flow: Flow, leaf: s.Conv, x: Shape, *, last: bool) -> Shape:
    """[B,d_in,*size] -> [B,d_out,*size / stride]; after the last one the positions stand in a row, [B,T,D]."""
    row = flow.left.pop(leaf.name)
    taps, width = int(row.dims["k"]), flow.wide(leaf.d_out)
    weight = (width, number(leaf.d_in // leaf.groups), *(number(size) for size in leaf.kernel))
    steps = leaf.stride or (1,) * len(leaf.kernel)
    size = tuple(number(old.size // step) for old, step in zip(x[2:], steps, strict=True))
    bias = ((width,),) if leaf.bias else ()
    out = flow.make(leaf.name, "conv", (x, weight, *bias), (x[0], width, *size), row=leaf.name, contracted=taps)
    if not last:
        return out
    count = prod(dim.size for dim in size)
    tokens = flow.T if count == flow.T.size else number(count)
    return flow.make("patches" if len(size) > 1 else "positions", "flatten", (out,), (x[0], tokens, width))


# --- layers -----------------------------------------------------------------------------------------------------------


def layer_terms(place: Place, stack: s.Stack, layer: s.Layer, count: int) -> Iterator[Term]:
    """The sublayers of one kind of layer; parallel ones are added together at the end."""
    rows = list(one_layer(place, stack, layer, (True,) * len(layer.sublayers)))
    branches: list[Shape] = []
    for sub in layer.sublayers:
        here = place.at(sub.name)
        flow = Flow(here, (row for row in rows if row.path.startswith(f"{here.path}/")), count)
        if not flow.left:
            continue
        y = sublayer(flow, sub)
        if layer.parallel:
            branches.append(y)
        else:
            residual(flow, sub, y)
        flow.rest()
        yield from flow.terms
    if branches:
        flow = Flow(place, (), count)
        flow.make("residual", "add", (flow.stream, *branches), flow.stream)
        yield from flow.terms


def sublayer(flow: Flow, sub: s.Sublayer) -> Shape:
    """One branch: norm, mixer, norm on its output, what scales it."""
    if sub.pre_norm:
        flow.norm("norm", (*flow.lead, flow.wide(sub.pre_norm.width or flow.place.width)))
    y = FLOWS[type(sub.mixer)](flow, sub.mixer)
    if sub.output_norm:
        y = flow.norm("output_norm", y)
    for leaf in sub.extra:
        flow.plain(leaf.name)
    return y


def residual(flow: Flow, sub: s.Sublayer, y: Shape) -> None:
    """The branch added to what went in, and the norm of post-norm."""
    x = flow.make("residual", "add", (flow.stream, y), flow.stream)
    if sub.residual_norm:
        flow.norm("residual_norm", x)


# --- parts on top -----------------------------------------------------------------------------------------------------


def part_terms(place: Place, parts: Sequence[s.Part], rows: Sequence[Row], *, letters: dict[str, str] | None = None) -> list[Term]:
    """Parts one after another over a stack's positions; `letters`: those of outputs."""
    flow = Flow(place, rows)
    for leaf in parts:
        if not flow.has(leaf.name):
            continue
        if isinstance(leaf, s.Linear):
            lead = flow.lead_of(int(flow.left[leaf.name].dims["m"]))
            y = flow.linear(leaf.name, lead[:1] if leaf.once else lead, n=(letters or {}).get(leaf.name))
            if leaf.activation:
                flow.make(f"{leaf.name}/{leaf.activation}", "activation", (y,), y)
        elif isinstance(leaf, s.Similarity):
            similarity(flow, leaf)
        elif isinstance(leaf, s.Parameter):
            flow.parameter(leaf.name, *leaf.shape)
        else:
            flow.plain(leaf.name)
    flow.rest()
    return flow.terms


def similarity(flow: Flow, leaf: s.Similarity) -> None:
    """Every text against every image."""
    row = flow.left.pop(leaf.name)
    texts, width, images = Dim("B", int(row.dims["m"])), number(leaf.width), number(int(row.dims["n"]))
    flow.make(leaf.name, "matmul", ((texts, width), (width, images)), (texts, images), row=leaf.name, contracted=leaf.width)


def head_terms(spec: s.ModelSpec, head: s.Head, work: Pass, rows: list[Row]) -> Iterator[Term]:
    """A head's parts; of a language model's, the logits, and in training labels and loss."""
    place = place_of(spec, spec.stack(head.stack), work, head.name)
    if work.last_logits and work.phase != "train":
        place = replace(place, tokens=replace(place.tokens, new=1))
    matrices = [leaf.name for leaf in head.parts if isinstance(leaf, s.Linear)]
    is_language = head.name == "lm_head" and bool(matrices)
    letters = {matrices[-1]: "V"} if is_language else {}
    counted = [row for row in rows if row.op != "activation"]
    terms = part_terms(place, head.parts, counted, letters=letters)
    yield from terms
    if not is_language:
        return
    top = Flow(replace(place, path="", width=spec.stack(head.stack).d_model), ())
    logits = next(term.output for term in reversed(terms) if term.op != "parameter")
    made = [finish(top, "logits", "view" if head.softcap is None and head.scale is None else "scale", (logits,), logits)]
    if work.phase == "train":
        loss = f"{head.name}/cross_entropy"
        labels = logits[:-1]
        made += [finish(top, "labels", "input", (), labels), finish(top, "loss", "cross_entropy", (logits, labels), (), row=loss)]
    yield from made


def finish(flow: Flow, name: str, op: str, inputs: tuple[Shape, ...], output: Shape, *, row: str = "") -> Term:
    """A tensor at the root of the paths."""
    return Term(path=name, op=op, inputs=inputs, output=output, row=row, repeat=flow.repeat)
