"""`tfm kvcache`: bytes of the cache, under each policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from . import options as o

if TYPE_CHECKING:
    from ..estimators.kvcache import KvCache
    from .output import Explanation
    from .question import Question
    from .request import Case
    from .tables import Table

DEFAULT_MODEL = "llama-7b"


def kvcache(
    model: o.OptionalModel = None,
    batch: o.Batch = "1",
    ctx: o.Ctx = None,
    tokenizer: o.Tokenizer = None,
    cached: o.Cached = None,
    src: o.Src = None,
    images: o.Images = None,
    kv_dtype: o.KvDtype = "bf16",
    gqa: o.Gqa = None,
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    explain: o.Explain = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Bytes of the cache: per token and in all, self- and cross-attention, under each policy.

    \b
    Examples:
      tfm kvcache --ctx 32k --gqa 8
      tfm kvcache gemma-2-27b --ctx 8k
      tfm kvcache llama-3-70b --ctx 8k,32k,128k --kv-dtype bf16,q8_0
    """
    from .question import print_answer
    from .request import Options

    notes = () if model else (f"no model given: {DEFAULT_MODEL}",)
    asked = Options(
        model=model or DEFAULT_MODEL, batch=batch, ctx=ctx, tokenizer=tokenizer,
        cached=cached, src=src, images=images, kv_dtype=kv_dtype, gqa=gqa,
        presets=presets, lenient=lenient, notes=notes, caches=True,
    )  # fmt: skip
    print_answer(question(), asked, explain=explain, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(kvcache)


def question() -> Question[KvCache]:
    """How the command computes and shows."""
    from ..estimators.kvcache import kvcache as count
    from .question import Question

    return Question(
        name="kvcache",
        compute=lambda case: count(case.spec, case.work),
        figures=figures,
        terms=terms,
        tables=tables,
        explanations=explanations,
        assumptions=assumptions,
    )


def figures(_case: Case, got: KvCache) -> dict[str, object]:
    """The keys of the contract."""
    names = ("kv_bytes", "kv_bytes_per_token", "cross_kv_bytes", "state_bytes", "policies")
    return {name: getattr(got, name) for name in names}


def terms(case: Case, got: KvCache) -> list[dict[str, object]]:
    """One entry a row that keeps something."""
    from ..estimators.sizes import run_bytes

    return [
        {"path": row.path, "of": row.store.of, "bytes": run_bytes(row, case.work), "repeat": row.repeat}
        for row in got.rows
        if row.store is not None and row.repeat
    ]


def tables(case: Case, got: KvCache) -> tuple[Table, ...]:
    """The cache, and the policies where they differ."""
    from ..estimators.kvcache import POLICIES
    from .quantities import Kind, Quantity
    from .tables import Column, Table, card

    pairs = [("cache", got.kv_bytes), ("per token and sequence", got.kv_bytes_per_token)]
    pairs += [("cross-attention cache", got.cross_kv_bytes)] * bool(got.cross_kv_bytes)
    pairs += [("recurrent state", got.state_bytes)] * bool(got.state_bytes)
    title = f"{case.spec.title or case.spec.name}: cache of {case.work.batch} x {case.work.context} tokens in {case.work.kv_dtype.name}"
    first = card(title, [(name, Quantity(count, Kind.BYTES)) for name, count in pairs])
    if len(set(got.policies.values())) == 1:
        return (first,)
    rows = tuple((name, count, count, POLICIES[name]) for name, count in got.policies.items())
    columns = (Column("policy", Kind.TEXT), Column("bytes", Kind.BYTES), Column("exact", Kind.EXACT), Column("what", Kind.TEXT))
    return (first, Table("Under each policy", columns, rows))


def explanations(case: Case, got: KvCache) -> tuple[Explanation, ...]:
    """Each kind of cache with its rows put in."""
    from ..estimators.sizes import run_bytes
    from .explain import explanation, sum_of
    from .quantities import Kind, Quantity

    kinds = {"kv_bytes": ("self",), "cross_kv_bytes": ("cross",), "state_bytes": ("state", "tail")}
    found = []
    for key, stores in kinds.items():
        rows = [row for row in got.rows if row.store is not None and row.store.of in stores]
        if rows:
            found.append(explanation(key, sum_of(rows, lambda row: run_bytes(row, case.work)), Quantity(getattr(got, key), Kind.BYTES)))
    return tuple(found)


def assumptions(case: Case) -> tuple[str, ...]:
    """What the figures rest on."""
    if not case.spec.decodes:
        return (f"{case.spec.name} has no decoder: it sees all tokens at once and keeps no cache",)
    dtype = case.work.kv_dtype
    return (f"{dtype.name}: {dtype.block_bytes} bytes per {dtype.block_elements} element(s)" + (f", {dtype.note}" if dtype.note else ""),)
