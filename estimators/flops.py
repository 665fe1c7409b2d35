"""FLOPs of a pass, and how far the rules 2·P and 6·P·T are off."""

from __future__ import annotations

import msgspec

from ..presets.errors import UsageError
from ..presets.spec import ModelSpec
from .counts import Number
from .ledger import ledger, total
from .rows import Row
from .work import Pass, tokens_of


class Flops(msgspec.Struct, frozen=True, kw_only=True):
    """FLOPs of one pass; total = linear + attention + head.

    `rule_flops`: 2·P a token (6·P in training), P the active parameters (Kaplan et al. 2020, section 2.1);
    `rule_error`: the rule over the truth, minus 1. `tokens`: new tokens of all sequences of the main stack.
    """

    total_flops: Number
    linear_flops: Number
    attention_flops: Number
    head_flops: Number
    flops_per_token: Number
    tokens: Number
    rule_flops: Number
    rule_error: Number
    rows: tuple[Row, ...]


def row_flops(row: Row, work: Pass) -> Number:
    """FLOPs of one run of a row; training adds a product for the input's gradient and one for the weight's."""
    return row.flops * (1 + row.backward) if work.phase == "train" else row.flops


def flops(spec: ModelSpec, work: Pass) -> Flops:
    """Count the FLOPs of a pass over a model: one multiply-add is 2; look-ups, norms, softmax, activations are 0.

    Raises UsageError for a pass of no token at all.
    """
    rows = ledger(spec, work)
    parts = {"linear": 0, "attention": 0, "head": 0}
    for row in rows:
        parts[row.share] += row_flops(row, work) * row.repeat
    count = sum(parts.values())
    seen = tokens_of(spec, spec.main, work)
    tokens = seen.sequences * seen.new
    if isinstance(tokens, int) and not tokens:
        raise UsageError(f"{spec.name}: no token and no image, nothing runs; images: at least 1")
    rule = (6 if work.phase == "train" else 2) * total(rows, "active", per="copies") * tokens
    return Flops(
        total_flops=count,
        linear_flops=parts["linear"],
        attention_flops=parts["attention"],
        head_flops=parts["head"],
        flops_per_token=count / tokens,
        tokens=tokens,
        rule_flops=rule,
        rule_error=rule / count - 1,
        rows=rows,
    )
