"""What has to fit: weights, cache, activations; in training also gradients and the optimizer's state.

Activations kept for the backward pass follow Korthikanti et al. 2022 (arXiv:2205.05198, section 4): every operator
keeps its inputs, counted row by row; a GPT block with dropout gives their s·b·h·(34 + 5·a·s/h) bytes. `selective`
recomputation drops the tensors of size T x S (as fused attention does), `full` keeps only each layer's input.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Literal

import msgspec
from msgspec.structs import replace

from ..presets.dtypes import DTYPES, Dtype
from ..presets.spec import ModelSpec, Stack
from .counts import Number, each, larger
from .kvcache import sum_stored
from .ledger import layer_names, ledger, total
from .rows import Row
from .search import largest
from .sizes import bytes_of, weight_bytes
from .work import Pass, tokens_of

Recompute = Literal["none", "selective", "full"]
LARGEST_BATCH = 2**32
LARGEST_CONTEXT = 2**40

# Bytes of optimizer state a parameter: fp32 moments (Kingma & Ba 2014, arXiv:1412.6980), and the fp32 master copy of
# mixed precision apart (Micikevicius et al. 2017, arXiv:1710.03740).
OPTIMIZERS = {"adam": 8, "adam-8bit": 2, "sgd-momentum": 4, "sgd": 0}
MASTER_BYTES = 4


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is trained: what is stored a parameter beside the weight, and what is recomputed."""

    optimizer: str = "adam"
    gradient_dtype: Dtype = DTYPES["bf16"]
    master_weights: bool = True
    recompute: Recompute = "none"

    @property
    def state_bytes(self) -> int:
        """Optimizer bytes a parameter, the fp32 master copy included."""
        return OPTIMIZERS[self.optimizer] + (MASTER_BYTES if self.master_weights else 0)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of everything that has to be there at once; total is their sum."""

    weight_bytes: Number
    kv_bytes: Number
    cross_kv_bytes: Number
    state_bytes: Number
    activation_bytes: Number
    gradient_bytes: Number
    optimizer_bytes: Number
    total_bytes: Number
    rows: tuple[Row, ...]


def memory(spec: ModelSpec, work: Pass, recipe: Recipe | None = None) -> Memory:
    """Memory of a pass; `recipe` matters in training only."""
    rows = ledger(spec, work)
    count = total(rows, "params", per="copies")
    training = work.phase == "train"
    recipe = recipe or Recipe()
    parts = {
        "weight_bytes": weight_bytes(rows, work),
        "kv_bytes": 0 if training else sum_stored(rows, work, ("self",)),
        "cross_kv_bytes": 0 if training else sum_stored(rows, work, ("cross",)),
        "state_bytes": 0 if training else sum_stored(rows, work, ("state", "tail")),
        "activation_bytes": saved_bytes(spec, work, rows, recipe) if training else live_bytes(spec, work, rows),
        "gradient_bytes": bytes_of(count, recipe.gradient_dtype) if training else 0,
        "optimizer_bytes": recipe.state_bytes * count if training else 0,
    }
    return Memory(**parts, total_bytes=sum(parts.values()), rows=rows)


def live_bytes(spec: ModelSpec, work: Pass, rows: Iterable[Row]) -> Number:
    """Peak of an inference pass: the residual stream, and the largest operator's input and output beside it.

    Scores are not materialised (fused attention); norms, activations and additions work in place or chunk by chunk.
    """
    running = [row.reads + row.writes for row in rows if row.repeat and row.op in ("linear", "experts", "conv", "attention")]
    widest = reduce(larger, running, 0)
    return bytes_of(residual(spec, work) + widest, work.activation_dtype)


def residual(spec: ModelSpec, work: Pass) -> Number:
    """Elements of the largest hidden state."""
    seen = [(stack, tokens_of(spec, stack, work)) for stack in spec.stacks]
    return reduce(larger, (tokens.sequences * tokens.new * stack.d_model for stack, tokens in seen if tokens.runs), 0)


def saved_bytes(spec: ModelSpec, work: Pass, rows: tuple[Row, ...], recipe: Recipe) -> Number:
    """Activations kept for the backward pass."""
    if recipe.recompute == "full":
        inputs = sum(input_elements(spec, stack, work) * stack.depth for stack in spec.stacks)
        outside = tuple(row for row in rows if not in_layer(spec, row))
        return bytes_of(inputs, work.activation_dtype) + kept(outside, work, square=True) + one_layer_bytes(spec, work, rows)
    return kept(rows, work, square=recipe.recompute == "none")


def kept(rows: Iterable[Row], work: Pass, *, square: bool, once: bool = False) -> Number:
    """Saved bytes of some rows: all their runs, or one."""
    out: Number = 0
    for row in rows:
        runs = min(row.repeat, 1) if once else row.repeat
        out = out + runs * (bytes_of(row.saved, work.activation_dtype) + row.saved_bytes)
        out = out + min(runs, 1) * bytes_of(row.saved_once, work.activation_dtype)
        if square:
            out = out + runs * (bytes_of(row.saved_square, work.activation_dtype) + row.square_bytes)
    return out


def in_layer(spec: ModelSpec, row: Row) -> bool:
    """Whether a row belongs to a layer of a stack (not to embeddings, final norms or heads)."""
    steps = row.path.split("/")
    return steps[0] in {stack.name for stack in spec.stacks} and steps[1] not in ("embedding", "final")


def one_layer_bytes(spec: ModelSpec, work: Pass, rows: tuple[Row, ...]) -> Number:
    """The layer being recomputed, its input apart: one run of every row of the most expensive kind of layer."""
    worst: Number = 0
    for stack in spec.stacks:
        given = bytes_of(input_elements(spec, stack, work), work.activation_dtype)
        for label in dict.fromkeys(layer_names(stack).values()):
            start = f"{stack.name}/{label}/" if label else f"{stack.name}/"
            group = tuple(row for row in rows if in_layer(spec, row) and row.path.startswith(start))
            worst = larger(worst, kept(group, work, square=True, once=True) - given)
    return worst


def input_elements(spec: ModelSpec, stack: Stack, work: Pass) -> Number:
    """Elements of the hidden state that a layer of a stack is given."""
    tokens = tokens_of(spec, stack, work)
    return tokens.sequences * tokens.new * stack.d_model * int(tokens.runs)


# --- what fits ------------------------------------------------------------------------------------------------------


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a pass fits a capacity, what is left, and how far batch or context could go (0: not even one)."""

    capacity_bytes: int
    fits: Number
    left_bytes: Number
    largest_batch: Number
    largest_context: Number


def fit(spec: ModelSpec, work: Pass, capacity_bytes: int, recipe: Recipe | None = None) -> Fit:
    """Compare a pass with a capacity; the inverse in the context is piecewise where layers have windows, so searched."""
    needed = memory(spec, work, recipe).total_bytes

    def fits(batch: int, context: int, source: int | None) -> bool:
        point = replace(work, batch=batch, context=context, source=source)
        return bool(memory(spec, point, recipe).total_bytes <= capacity_bytes)

    return Fit(
        capacity_bytes=capacity_bytes,
        fits=needed <= capacity_bytes,
        left_bytes=capacity_bytes - needed,
        largest_batch=each(lambda context, source: largest(lambda n: fits(n, context, source), LARGEST_BATCH), work.context, work.source),
        largest_context=each(lambda batch, source: largest(lambda n: fits(batch, n, source), LARGEST_CONTEXT), work.batch, work.source),
    )
