"""`tfm memory`: what has to fit, and whether it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from . import options as o

if TYPE_CHECKING:
    from ..estimators.memory import Fit, Memory, Recipe
    from .output import Explanation
    from .question import Question
    from .request import Case
    from .tables import Table

Phase = Annotated[str | None, typer.Option("--phase", help="prefill (default), decode or train.")]
Optimizer = Annotated[str, typer.Option("--optimizer", help="adam, adam-8bit, sgd-momentum or sgd.")]
GradientDtype = Annotated[str, typer.Option("--gradient-dtype", help="Format of the gradients: bf16 or fp32.")]
Master = Annotated[bool, typer.Option("--master-weights/--no-master-weights", help="Keep an fp32 copy of the weights.")]
Recompute = Annotated[str, typer.Option("--recompute", help="none, selective (no tensor of size T x S) or full (layer inputs only).")]
Dropout = Annotated[bool, typer.Option("--dropout", help="Count dropout's masks.")]


def memory(
    model: o.Model,
    phase: Phase = None,
    batch: o.Batch = "1",
    ctx: o.Ctx = None,
    tokenizer: o.Tokenizer = None,
    cached: o.Cached = None,
    src: o.Src = None,
    images: o.Images = None,
    weight_dtype: o.StoredWeightDtype = None,
    kv_dtype: o.KvDtype = "bf16",
    activation_dtype: o.ActivationDtype = "bf16",
    gqa: o.Gqa = None,
    hardware: o.Hardware = None,
    last_logits: o.LastLogits = False,
    optimizer: Optimizer = "adam",
    gradient_dtype: GradientDtype = "bf16",
    master_weights: Master = True,
    recompute: Recompute = "none",
    dropout: Dropout = False,
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    explain: o.Explain = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Memory of a pass: weights, cache, activations; in training gradients and optimizer too.

    \b
    Examples:
      tfm memory llama-3-70b --ctx 32k --weight-dtype int4 --hardware h100-80gb-sxm
      tfm memory llama-7b --phase train --batch 4 --ctx 2k --recompute selective
      tfm memory mistral-7b --batch 1,8,32 --ctx 4k,32k --hardware rtx-4090
    """
    from .question import print_answer
    from .request import Options

    asked = Options(
        model=model, phase=phase, batch=batch, ctx=ctx, tokenizer=tokenizer,
        cached=cached, src=src, images=images, weight_dtype=weight_dtype,
        kv_dtype=kv_dtype, activation_dtype=activation_dtype, gqa=gqa, hardware=hardware, last_logits=last_logits,
        dropout=dropout, presets=presets, lenient=lenient,
    )  # fmt: skip
    recipe = read_recipe(optimizer, gradient_dtype, recompute, master_weights=master_weights)
    print_answer(question(recipe), asked, explain=explain, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(memory)


def read_recipe(optimizer: str, gradient_dtype: str, recompute: str, *, master_weights: bool) -> Recipe:
    """The training recipe, checked."""
    from typing import get_args

    from ..estimators.memory import OPTIMIZERS, Recipe
    from ..estimators.memory import Recompute as Choices
    from ..presets.dtypes import get_dtype
    from ..presets.errors import UnknownNameError

    for name, kind, allowed in (("optimizer", optimizer, tuple(OPTIMIZERS)), ("recompute", recompute, get_args(Choices))):
        if kind not in allowed:
            raise UnknownNameError(f"--{name}", kind, allowed, f"Allowed: {', '.join(allowed)}.")
    gradients = get_dtype(gradient_dtype, ("bf16", "fp16", "fp32", "fp8"))
    return Recipe(optimizer=optimizer, gradient_dtype=gradients, master_weights=master_weights, recompute=recompute)  # type: ignore[arg-type]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The memory, and how it compares with a device."""

    memory: Memory
    fit: Fit | None


def question(recipe: Recipe) -> Question[Found]:
    """How the command computes and shows."""
    from ..estimators.memory import fit, memory
    from .question import Question

    def compute(case: Case) -> Found:
        got = memory(case.spec, case.work, recipe)
        capacity = case.device.capacity_bytes if case.device else None
        return Found(memory=got, fit=fit(case.spec, case.work, capacity, recipe) if capacity else None)

    return Question(
        name="memory",
        compute=compute,
        figures=figures,
        terms=terms,
        tables=tables,
        explanations=lambda case, got: explanations(case, got, recipe),
        assumptions=lambda case: assumptions(case, recipe),
    )


PARTS = ("weight_bytes", "kv_bytes", "cross_kv_bytes", "state_bytes", "activation_bytes", "gradient_bytes", "optimizer_bytes")


def figures(_case: Case, got: Found) -> dict[str, object]:
    """The keys of the contract."""
    found: dict[str, object] = {name: getattr(got.memory, name) for name in (*PARTS, "total_bytes")}
    names = ("capacity_bytes", "fits", "left_bytes", "largest_batch", "largest_context")
    return found | {name: getattr(got.fit, name) if got.fit else None for name in names}


def terms(case: Case, got: Found) -> list[dict[str, object]]:
    """One entry a row with weights or a cache."""
    from ..estimators.sizes import bytes_of, run_bytes
    from .weights import stored_terms

    held = case.work.stored
    rest = stored_terms(held, {row.path for row in got.memory.rows if row.params or row.store}) if held else []
    return [
        {
            "path": row.path,
            "weight_bytes": held.owned_bytes(row.path) if held else bytes_of(row.params, case.work.weight_dtype),
            "copies": 1 if held else row.copies,
            "kept_bytes": 0 if case.work.phase == "train" else run_bytes(row, case.work),
            "repeat": row.repeat,
        }
        for row in got.memory.rows
        if row.params or row.store
    ] + rest


def tables(case: Case, got: Found) -> tuple[Table, ...]:
    """The parts with their share, and the verdict on a device."""
    from .quantities import Kind, Quantity
    from .tables import Column, Table, card

    whole = got.memory.total_bytes
    names = {name: name.removesuffix("_bytes").replace("_", " ") for name in PARTS}
    rows = [(names[name], getattr(got.memory, name), getattr(got.memory, name), getattr(got.memory, name) / whole) for name in PARTS]
    rows = [row for row in rows if row[1]] + [("total", whole, whole, 1.0)]
    columns = (Column("part", Kind.TEXT), Column("bytes", Kind.BYTES), Column("exact", Kind.EXACT), Column("share", Kind.RATIO, bar=True))
    title = f"{case.spec.title or case.spec.name}: memory of {case.work.phase}, {case.work.batch} x {case.work.context} tokens"
    parts = Table(title, columns, tuple(rows))
    if got.fit is None or case.device is None:
        return (parts,)
    pairs = [
        ("capacity", Quantity(got.fit.capacity_bytes, Kind.BYTES)),
        ("fits", Quantity("yes" if got.fit.fits else "no", Kind.TEXT)),
        ("left" if got.fit.fits else "missing", Quantity(abs(got.fit.left_bytes), Kind.BYTES)),
        ("largest batch at this context", Quantity(got.fit.largest_batch, Kind.EXACT)),
        ("largest context at this batch", Quantity(got.fit.largest_context, Kind.EXACT)),
    ]
    return (parts, card(f"On {case.device.title}", pairs))


def explanations(case: Case, got: Found, recipe: Recipe) -> tuple[Explanation, ...]:
    """Each part with its numbers."""
    from ..estimators.ledger import total
    from .explain import explanation
    from .quantities import Kind, Quantity

    count, dtype, training = total(got.memory.rows, "params", per="copies"), case.work.weight_dtype, case.work.phase == "train"
    shown = {"weight_bytes": f"{count:,}·{dtype.block_bytes}/{dtype.block_elements}"}
    if case.work.stored:
        shown["weight_bytes"] = " + ".join(f"{count:,} ({kind})" for kind, count in case.work.stored.by_dtype)
    if not training:
        shown["kv_bytes"] = f"{got.memory.kv_bytes:,} (see `tfm kvcache --explain`)"
        shown["activation_bytes"] = (
            f"{got.memory.activation_bytes:,} at {case.work.batch}·{case.work.context} tokens in {case.work.activation_dtype.name}"
        )
    else:
        shown["gradient_bytes"] = f"{count:,}·{recipe.gradient_dtype.block_bytes}"
        shown["optimizer_bytes"] = f"{count:,}·{recipe.state_bytes}"
    found = [explanation(key, text, Quantity(getattr(got.memory, key), Kind.BYTES)) for key, text in shown.items()]
    if training:
        found.append(explanation("saved_bytes", f"{got.memory.activation_bytes:,}", Quantity(got.memory.activation_bytes, Kind.BYTES)))
    return tuple(found)


def assumptions(case: Case, recipe: Recipe) -> tuple[str, ...]:
    """The recipe, in words."""
    from .weights import stored_lines

    dtype, held = case.work.weight_dtype, case.work.stored
    note = f": {dtype.note}" if dtype.note else ""
    lines = stored_lines(held) if held else [f"every parameter in {dtype.name} ({dtype.bits_per_element:g} bits{note})"]
    if dtype.block_elements > 1 and not held:
        lines.append("in files embeddings and norms often stay at 16 bits")
    if case.work.phase == "train":
        weight_bits = 8 * held.total_bytes / max(held.mean.elements, 1) if held else dtype.bits_per_element
        per = weight_bits / 8 + recipe.gradient_dtype.bits_per_element / 8 + recipe.state_bytes
        master = "with" if recipe.master_weights else "without"
        lines.append(
            f"{recipe.optimizer}, gradients in {recipe.gradient_dtype.name}, {master} fp32 master weights: {per:g} bytes a parameter"
        )
        lines.append(f"recomputation: {recipe.recompute}; {'with' if case.work.dropout else 'no'} dropout masks; logits kept in fp32")
    else:
        lines.append(
            "logits at the last position" if case.work.last_logits else "logits at every position (--last-logits: at one, as servers do)"
        )
        lines.append("no framework context, workspace or fragmentation")
    return tuple(lines)
