"""`tfm shapes`: the shape of every tensor on its way through a model."""

from __future__ import annotations

from itertools import groupby, product
from typing import TYPE_CHECKING, Annotated

import typer

from . import options as o

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..estimators.tensors import Shape, Term
    from ..kernels.shape_hooks import Seen
    from .output import Answer
    from .request import Case, Options
    from .tables import Table

Phase = Annotated[str | None, typer.Option("--phase", help="prefill (default), decode or train; a comma makes a table.")]
Symbols = Annotated[bool, typer.Option("--symbols", help="Letters in place of numbers: [B,N,T,S].")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Run the real PyTorch modules, without numbers, and compare; exit 3 if they differ.")
]
Diagram = Annotated[bool, typer.Option("--diagram", help="Draw the way of the tensors as text in place of the tables.")]
Only = Annotated[str | None, typer.Option("--only", help="What stands under this path, as in decoder/cross_attention.")]


def shapes(
    model: o.Model,
    phase: Phase = None,
    batch: o.Batch = "1",
    ctx: o.Ctx = None,
    tokenizer: o.Tokenizer = None,
    cached: o.Cached = None,
    src: o.Src = None,
    images: o.Images = None,
    gqa: o.Gqa = None,
    last_logits: o.LastLogits = False,
    only: Only = None,
    symbols: Symbols = False,
    verify: Verify = False,
    diagram: Diagram = False,
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """The shape of every tensor on its way: ids, embeddings, queries, keys, values, scores, caches, logits, loss.

    \b
    Examples:
      tfm shapes transformer-toy --phase train --batch 2 --src 3 --tgt 4
      tfm shapes llama-3-8b --cached 100 --symbols
      tfm shapes gpt-2 --only decoder/attention --csv
      tfm shapes t5-small --src 9 --tgt 5 --diagram
    """
    from .output import emit, one_format, write
    from .request import Options

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    asked = Options(
        model=model, phase=phase, batch=batch, ctx=ctx, tokenizer=tokenizer, cached=cached, src=src, images=images, gqa=gqa,
        last_logits=last_logits, presets=presets, lenient=lenient,
    )  # fmt: skip
    if diagram:
        write(drawn(asked, symbols=symbols), end="")
        return
    answer = answered(asked, only=only, symbols=symbols, verify=verify)
    emit(answer, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    if answer.result.get("ok") is False:
        raise typer.Exit(3)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(shapes)


def answered(options: Options, *, only: str | None, symbols: bool, verify: bool) -> Answer:
    """One point in full, or the tensors of many in one list."""
    from ..presets.errors import UsageError
    from .request import cases, is_single, single

    found = cases(options)
    if is_single(found):
        return one(single(found[0]), only=only, symbols=symbols, verify=verify)
    if verify:
        raise UsageError("--verify compares one pass at a time; leave the commas out")
    return many(found, only=only, symbols=symbols)


def drawn(options: Options, *, symbols: bool) -> str:
    """One pass as a diagram."""
    from ..estimators.shapes import shapes as walk
    from ..presets.errors import UsageError
    from .diagram import diagram
    from .request import cases, is_single, single

    found = cases(options)
    if not is_single(found):
        raise UsageError("--diagram draws one pass at a time; leave the commas out")
    case = single(found[0])
    return diagram(case.spec, walk(case.spec, case.work), lambda shape: text(shape, symbols=symbols))


def one(case: Case, *, only: str | None, symbols: bool, verify: bool) -> Answer:
    """The tensors of one pass, by stack; with `verify` what the real modules had."""
    from ..estimators.shapes import shapes as walk
    from .output import Answer
    from .request import point_inputs

    terms = under(walk(case.spec, case.work), only)
    seen = [shape for shape in compared(case) if only is None or is_under(shape.path, only)] if verify else []
    result: dict[str, object] = {"tensors": len(terms), "compared": len(seen) if verify else None}
    result["ok"] = all(shape.ok for shape in seen) if verify else None
    if verify:
        result["differences"] = [difference(shape) for shape in seen if not shape.ok]
    return Answer(
        command="shapes",
        inputs=point_inputs(case),
        assumptions=(*assumptions(symbols=symbols, decoding=case.work.decoding), *case.assumptions),
        result=result,
        terms=tuple(entry(term, symbols=symbols) for term in terms),
        tables=(*tables(case, terms, symbols=symbols), *(verdict(seen) if verify else ())),
    )


def many(found: list[Case], *, only: str | None, symbols: bool) -> Answer:
    """The tensors of every point, one after another."""
    from msgspec.structs import replace

    from ..estimators.shapes import shapes as walk
    from .output import Answer
    from .request import AXIS_NAMES, single
    from .tables import table_of

    rows: list[dict[str, object]] = []
    for case in found:
        for values in product(*case.axes.values()):
            point = single(replace(case, axes={name: (value,) for name, value in zip(case.axes, values, strict=True)}))
            here = {AXIS_NAMES[name]: value for name, value in zip(case.axes, values, strict=True)}
            rows += ({**case.labels, **here, **entry(term, symbols=symbols)} for term in under(walk(point.spec, point.work), only))
    said = dict.fromkeys(line for case in found for line in (*assumptions(symbols=symbols, decoding=False), *case.assumptions))
    return Answer(command="shapes", inputs=dict(found[0].inputs), assumptions=tuple(said), result={"rows": rows}, tables=(table_of(rows),))


def under(terms: Iterable[Term], only: str | None) -> tuple[Term, ...]:
    """The terms at or below a path; a path without any is refused with those that there are."""
    from ..presets.errors import UnknownNameError

    every = tuple(terms)
    if only is None:
        return every
    kept = tuple(term for term in every if is_under(term.path, only))
    if not kept:
        known = dict.fromkeys(term.path.rpartition("/")[0] or term.path for term in every)
        raise UnknownNameError("part", only, known, f"Allowed: {', '.join(known)}.")
    return kept


def is_under(path: str, only: str) -> bool:
    """Whether a path is `only` or lies below it."""
    return path == only or path.startswith(f"{only.rstrip('/')}/")


def compared(case: Case) -> tuple[Seen, ...]:
    """What the real modules had. Raises MissingExtraError without torch."""
    from .measuring import need_torch

    need_torch()
    from ..kernels.shape_hooks import compare

    return compare(case.spec, case.work)


# --- what is shown ----------------------------------------------------------------------------------------------------


def entry(term: Term, *, symbols: bool) -> dict[str, object]:
    """A term of the JSON answer."""
    from ..estimators import tensors

    shown: dict[str, object] = {
        "path": term.path,
        "op": term.op,
        "inputs": [tensors.sizes(shape) for shape in term.inputs],
        "output": tensors.sizes(term.output),
        "repeat": term.repeat,
        "row": term.row or None,
    }
    if symbols:
        shown |= {
            "symbolic_inputs": [tensors.symbols(shape) for shape in term.inputs],
            "symbolic_output": tensors.symbols(term.output),
        }
    return shown


def text(shape: Shape, *, symbols: bool) -> str:
    """[2,3,8] or [B,T,D]; a scalar is []."""
    return f"[{','.join(dim.symbol if symbols else str(dim.size) for dim in shape)}]"


def tables(case: Case, terms: tuple[Term, ...], *, symbols: bool) -> Iterator[Table]:
    """A table for what runs once and for each kind of layer, its paths without what they have in common."""
    from .quantities import Kind
    from .tables import Column, Table

    columns = tuple(Column(name, Kind.TEXT) for name in ("tensor", "shape", "op", "of"))
    title = f"{case.spec.title or case.spec.name}: tensors of {case.work.phase}, "
    prefixes = layer_prefixes(case)
    for (prefix, repeat), group in groupby(terms, key=lambda term: (prefix_of(term.path, prefixes), term.repeat)):
        rows = []
        for term in group:
            inputs = " ".join(text(shape, symbols=symbols) for shape in term.inputs)
            rows.append((term.path.removeprefix(f"{prefix}/"), text(term.output, symbols=symbols), term.op, inputs))
        yield Table(f"{title}{prefix or 'output'}{f' ({repeat} times)' if repeat > 1 else ''}", columns, tuple(rows))
        title = ""


def layer_prefixes(case: Case) -> tuple[str, ...]:
    """Paths under which tensors are listed together: the stacks, and kinds of layers that have names; longest first."""
    from ..estimators.ledger import layer_names

    stacks = case.spec.stacks
    found = [f"{stack.name}/{name}" for stack in stacks for name in layer_names(stack).values() if name]
    return (*sorted(found, key=len, reverse=True), *(stack.name for stack in stacks))


def prefix_of(path: str, prefixes: tuple[str, ...]) -> str:
    """The first of the prefixes that a path lies under; "" for what stands on top of the stacks."""
    return next((prefix for prefix in prefixes if path.startswith(f"{prefix}/")), "")


def assumptions(*, symbols: bool, decoding: bool) -> Iterator[str]:
    """How to read the shapes."""
    yield "equal layers stand once; weights as [in, out], keys already turned in the product of the scores"
    if symbols:
        yield "B sequences, T new tokens, S tokens attended, N query heads, K key/value heads, H and Hv their widths"
        yield "D d_model, F d_ff, V vocabulary, E experts, k chosen, M images, W what a window leaves, t tokens cached before the step"
    if decoding:
        yield "encoder and cross-attention's K and V rest in a decode step: they are read from the cache"


def difference(shape: Seen) -> dict[str, object]:
    """A tensor that is not as predicted."""
    return {"path": shape.path, "what": shape.what, "predicted": [list(size) for size in shape.predicted], "observed": shape.observed}


def verdict(seen: list[Seen]) -> tuple[Table, ...]:
    """How many tensors of the real modules were compared, and those that differ."""
    from .quantities import Kind, Quantity
    from .tables import Column, Table, card

    wrong = [shape for shape in seen if not shape.ok]
    counts = card(
        "Against PyTorch's modules",
        [("tensors compared", Quantity(len(seen), Kind.EXACT)), ("as predicted", Quantity(len(seen) - len(wrong), Kind.EXACT))],
    )
    if not wrong:
        return (counts,)
    columns = tuple(Column(name, Kind.TEXT) for name in ("path", "what", "predicted", "observed"))
    rows = tuple((shape.path, shape.what, " or ".join(map(listed, shape.predicted)), listed(shape.observed)) for shape in wrong)
    return (counts, Table("Differences", columns, rows))


def listed(size: tuple[int, ...] | None) -> str:
    """[2,3,8], or that nothing ran."""
    return "nothing ran" if size is None else f"[{','.join(map(str, size))}]"
