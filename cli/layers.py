"""`tfm layers`: recurrent layers and self-attention side by side."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from . import options as o

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..kernels.timing import Sample
    from .output import Answer, Explanation
    from .tables import Table

Length = Annotated[str, typer.Option("--n", help="Tokens of a sequence (4k = 4096); a comma makes a table.")]
Width = Annotated[str, typer.Option("--d", help="Width, inside and out; a comma makes a table.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Sequences.")]
Causal = Annotated[bool, typer.Option("--causal", help="Attention sees the past alone.")]
Measure = Annotated[bool, typer.Option("--measure", help="Time PyTorch's own layers, a forward pass in fp32 on the CPU.")]
Heads = Annotated[int, typer.Option("--heads", min=1, help="Heads of the attention that is timed; they change no count.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, max=1024, help="Threads of PyTorch's operators; its own choice if not given.")
]
Seconds = Annotated[str, typer.Option("--seconds", help="The longest that one pair of --n and --d is sampled, as in 30s.")]


def layers(
    n: Length = "512",
    d: Width = "512",
    batch: Batch = 1,
    causal: Causal = False,
    measure: Measure = False,
    heads: Heads = 8,
    threads: Threads = None,
    seconds: Seconds = "10s",
    explain: o.Explain = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """RNN, GRU, LSTM and self-attention: FLOPs, parameters, steps that must wait for one another, path length.

    \b
    Examples:
      tfm layers --n 512 --d 512
      tfm layers --n 64,512,4k --d 512 --causal
      tfm layers --n 128 --d 256 --measure --seconds 2s
    """
    from .output import emit, one_format
    from .units import parse_int, parse_list, parse_tokens

    one_format(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
    points = list(
        product(
            parse_list(n, lambda text: parse_tokens(text, name="--n"), name="--n"),
            parse_list(d, lambda text: parse_int(text, name="--d"), name="--d"),
        )
    )
    timed = {point: times(*point, batch=batch, heads=heads, causal=causal, threads=threads, seconds=seconds) for point in points if measure}
    rows = [row for point in points for row in entries(*point, batch=batch, causal=causal, timed=timed.get(point))]
    answer = answered(rows, points, {"n": n, "d": d, "batch": batch, "causal": causal}, measured=measure, explain=explain)
    emit(answer, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(layers)


def times(n: int, d: int, *, batch: int, heads: int, causal: bool, threads: int | None, seconds: str) -> Mapping[str, Sample]:
    """Torch's layers timed at one point. Raises MissingExtraError without torch."""
    from ..presets.errors import UsageError
    from .measuring import need_torch, stopping_for

    if d % heads:
        raise UsageError(f"--heads {heads} does not divide --d {d}; give one that does")
    need_torch()
    from ..kernels.benchmarks.setting import use_threads
    from ..kernels.layer_timing import Sizes, timed_layers

    use_threads(threads)
    return timed_layers(Sizes(n=n, d=d, batch=batch, heads=heads, causal=causal), stopping=stopping_for(seconds))


def entries(n: int, d: int, *, batch: int, causal: bool, timed: Mapping[str, Sample] | None) -> Iterator[dict[str, object]]:
    """The four layers at one point."""
    from msgspec.structs import asdict

    from ..estimators.recurrent_layers import layer_costs

    for cost in layer_costs(n, d, batch=batch, causal=causal):
        row: dict[str, object] = {"n": n, "d": d, **asdict(cost)}
        if timed is not None:
            sample = timed.get(cost.layer)
            row |= {name: getattr(sample, name, None) for name in ("median_s", "p20_s", "p80_s", "samples")}
            row["flops_per_s"] = None if sample is None else cost.flops / sample.median_s
        yield row


def answered(
    rows: list[dict[str, object]], points: list[tuple[int, int]], inputs: dict[str, object], *, measured: bool, explain: bool
) -> Answer:
    """A table a point, and where the lines cross."""
    from .output import Answer

    return Answer(
        command="layers",
        inputs=inputs,
        assumptions=tuple(assumptions(measured=measured)),
        result={"rows": rows},
        tables=tuple(table(rows, n, d) for n, d in points),
        explanations=tuple(explanations(rows)) if explain else (),
    )


def table(rows: list[dict[str, object]], n: int, d: int) -> Table:
    """The four layers at one point."""
    from .quantities import Kind
    from .tables import Column, Table

    here = [row for row in rows if (row["n"], row["d"]) == (n, d)]
    columns = [
        Column("layer", Kind.TEXT),
        Column("params", Kind.EXACT),
        Column("flops", Kind.FLOPS),
        Column("core_flops", Kind.FLOPS, "core"),
        Column("sequential_steps", Kind.EXACT, "steps in a row"),
        Column("path_length", Kind.EXACT, "longest path"),
        Column("equal_at_n", Kind.EXACT, "attention equal at n"),
        Column("core_equal_at_n", Kind.EXACT, "core equal at n"),
    ]
    if "median_s" in here[0]:
        columns += [Column("median_s", Kind.SECONDS, "median"), Column("flops_per_s", Kind.FLOPS_PER_S, "rate")]
        columns = [column for column in columns if not column.name.endswith("equal_at_n")]
    return Table(f"A layer over {n:,} tokens, {d:,} wide", tuple(columns), tuple(here))


def assumptions(*, measured: bool) -> Iterator[str]:
    """What is counted and what is not."""
    yield "one multiply-add is 2 FLOPs; biases, gates' elementwise work and softmax are not counted; width d in and out"
    yield "core: what table 1 of Vaswani et al. 2017 compares, attention without its projections: equal to an RNN at n = d"
    yield "equal at n: tokens from which on attention has more; - where it always has"
    if measured:
        yield "torch.nn's RNN, GRU, LSTM and MultiheadAttention, forward, fp32; one of each a round"


def explanations(rows: list[dict[str, object]]) -> Iterator[Explanation]:
    """The formula of each layer with the numbers put in."""
    from .output import Explanation
    from .quantities import Kind, Quantity

    source = "Vaswani et al. 2017, arXiv:1706.03762, table 1, projections counted too"
    for row in rows:
        n, d = row["n"], row["d"]
        gates = {"rnn": 1, "gru": 3, "lstm": 4}.get(str(row["layer"]))
        formula = "B·(8·n·d² + 4·pairs·d), pairs = n² or causal n(n+1)/2" if gates is None else f"B·4·{gates}·n·d²"
        yield Explanation(
            title=f"{row['layer']}, n = {n}, d = {d}",
            formula=formula,
            substituted=f"params {row['params']:,}; core {row['core_flops']:,}; steps in a row {row['sequential_steps']}",
            value=Quantity(row["flops"], Kind.FLOPS),
            source=source,
            not_counted=("biases, elementwise work of gates, softmax",),
        )
