"""The rule of thumb 12·D²·L + V·D, and why it misses, term by term."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ..presets import spec as s
from .ledger import total
from .rows import Row

OUTPUT = ("lm_head/weight", "lm_head/bias")  # the output matrix, and the second bias that BERT's library class keeps beside it


class GapTerm(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why the rule of thumb misses: `params` is signed, truth minus rule."""

    name: str
    params: int
    why: str


def weights(rows: Iterable[Row]) -> int:
    """Distinct parameters of some rows."""
    return int(total(rows, "params", per="copies"))


def ruled_stacks(spec: s.ModelSpec) -> tuple[s.Stack, ...]:
    """The stacks that the rule is about: those that read text, else the one there is."""
    text = tuple(stack for stack in spec.stacks if stack.tokens not in ("image", "sound"))
    return text or spec.stacks[:1]


def vocabulary(spec: s.ModelSpec) -> int:
    """V: rows of the main stack's token table, 0 where there is none."""
    tables = [leaf for stack in spec.stacks for leaf in stack.embeddings if isinstance(leaf, s.Embedding) and leaf.role == "token"]
    return tables[0].rows if tables else 0


def rule_of_thumb(spec: s.ModelSpec) -> int:
    """12·D²·L + V·D: attention 4·D² and feed-forward 8·D² a layer, one embedding table (Kaplan et al. 2020, table 1).

    >>> 12 * 4096**2 * 32 + 32000 * 4096
    6573522944
    """
    blocks = sum(12 * stack.d_model**2 * stack.depth for stack in ruled_stacks(spec))
    return blocks + vocabulary(spec) * spec.main.d_model


def gap(spec: s.ModelSpec, rows: Iterable[Row]) -> Iterator[GapTerm]:
    """Truth minus rule, term by term; the terms sum to the gap."""
    rows = tuple(rows)
    ruled = {stack.name for stack in ruled_stacks(spec)}
    inside = tuple(row for row in rows if row.path.split("/")[0] in ruled)
    outside = tuple(row for row in rows if row.path.split("/")[0] not in ruled)
    squares = sum(stack.d_model**2 * stack.depth for stack in ruled_stacks(spec))
    terms = [*head_terms(outside), *layer_terms(inside, squares), *table_terms(spec, inside), *rest_terms(inside, outside)]
    return (term for term in terms if term.params)


def matrices(rows: Iterable[Row], names: tuple[str, ...]) -> int:
    """Weights of the linears (and experts) whose component is one of `names`."""
    return weights(row for row in rows if row.component in names and row.op in ("linear", "experts", "conv", "parameter", "activation"))


ATTENTION = ("attention", "cross_attention", "self_attention")
FEED_FORWARD = ("feed_forward", "moe", "experts", "router", "shared_expert")
KNOWN = (*ATTENTION, *FEED_FORWARD, "embedding", "norm")


def head_terms(outside: tuple[Row, ...]) -> Iterator[GapTerm]:
    """What stands on top."""
    yield GapTerm(
        name="output matrix",
        params=weights(row for row in outside if row.path in OUTPUT),
        why="the output head has weights of its own, not tied to the embedding",
    )
    yield GapTerm(
        name="other heads",
        params=weights(row for row in outside if row.share == "head" and row.path not in OUTPUT),
        why="pooler, classifier or prediction head",
    )


def layer_terms(inside: tuple[Row, ...], squares: int) -> Iterator[GapTerm]:
    """Attention against 4·D², feed-forward against 8·D², biases apart."""
    biases = sum(bias_params(row) for row in inside)
    attention_bias = sum(bias_params(row) for row in inside if row.component in ATTENTION)
    feed_forward_bias = sum(bias_params(row) for row in inside if row.component in FEED_FORWARD)
    yield GapTerm(
        name="attention matrices",
        params=matrices(inside, ATTENTION) - attention_bias - 4 * squares,
        why="grouped heads, heads wider or narrower than D/N, low-rank projections, cross-attention: 4·D² does not hold",
    )
    yield GapTerm(
        name="feed-forward matrices",
        params=matrices(inside, FEED_FORWARD) - feed_forward_bias - 8 * squares,
        why="a third (gate) matrix, a width that is not 4·D, or experts: 8·D² does not hold",
    )
    yield GapTerm(name="biases", params=biases, why="one vector a projection, where the architecture has them")


def bias_params(row: Row) -> int:
    """The bias vectors of a row's matrices."""
    if row.op not in ("linear", "experts") or row.copies == 0:
        return 0
    matrix = row.dims["k"] * row.dims["n"] * row.dims.get("E", 1)
    return int((row.params - matrix) * row.copies) if row.params >= matrix else 0


def table_terms(spec: s.ModelSpec, inside: tuple[Row, ...]) -> Iterator[GapTerm]:
    """Embedding tables beyond V·D."""
    count = weights(row for row in inside if row.component == "embedding") - sum(
        bias_params(row) for row in inside if row.component == "embedding"
    )
    yield GapTerm(
        name="further embeddings",
        params=count - vocabulary(spec) * spec.main.d_model,
        why="learned positions, token types, a stem, or a table narrower than D",
    )


def rest_terms(inside: tuple[Row, ...], outside: tuple[Row, ...]) -> Iterator[GapTerm]:
    """Norms, mixers of other kinds, other towers."""
    yield GapTerm(
        name="norms", params=weights(row for row in inside if row.component == "norm"), why="two or more vectors a layer and a final one"
    )
    others = tuple(row for row in inside if row.component not in KNOWN)
    yield GapTerm(
        name="other mixers",
        params=weights(others) - sum(bias_params(row) for row in others),
        why="state-space, convolution, recurrent or further parts",
    )
    yield GapTerm(
        name="other towers",
        params=weights(row for row in outside if row.share != "head"),
        why="a vision or audio tower and its projector",
    )
