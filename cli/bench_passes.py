"""`tfm bench decode | prefill | train | allreduce`: whole models, and several processes."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from . import options as o
from .bench import Ctx, Dtype, Seconds, Threads, dtype_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..kernels.benchmarks.record import Record
    from ..kernels.benchmarks.setting import Setting
    from ..presets.spec import ModelSpec

DEFAULT_MODEL = "llama-7b"
DEFAULT_TRAINED = "gpt-2"  # its gradients and its optimizer fit most machines
DEFAULT_CONTEXT = {"decode": "1k", "prefill": "512", "train": "256"}

Layers = Annotated[str, typer.Option("--layers", help="auto (as many as fit time and memory, scaled), all, or a number.")]
WeightOnly = Annotated[str | None, typer.Option("--weight-dtype", help="int8 or int4: the weights alone in this format (CPU, bf16).")]
TrainOptimizer = Annotated[str, typer.Option("--optimizer", help="adam, sgd-momentum or sgd; its state in the weights' format.")]
Message = Annotated[str, typer.Option("--size", help="Bytes that every process has, as in 64MiB; a comma makes a table.")]


def add(group: typer.Typer) -> None:
    """Add the commands to the group."""
    for command in (decode, prefill, train, allreduce):
        group.command()(command)


def decode(
    model: o.OptionalModel = None,
    batch: o.Batch = "1",
    ctx: Ctx = None,
    dtype: Dtype = "bf16",
    weight_dtype: WeightOnly = None,
    gqa: o.Gqa = None,
    layers: Layers = "auto",
    threads: Threads = None,
    seconds: Seconds = "12s",
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """A decode step of a real model with random weights, against the bandwidth of the same run.

    \b
    Examples:
      tfm bench decode
      tfm bench decode llama-7b --layers all --dtype bf16
      tfm bench decode llama-3-8b --ctx 1k,4k,16k --weight-dtype int8
    """
    from .measuring import Bench, need_torch, run_bench

    need_torch()
    spec = chosen(model, gqa, presets, lenient=lenient)
    points, dtypes = points_of(spec, "decode", batch, ctx), dtype_list(dtype)

    def lines(setting: Setting) -> Iterator[Record]:
        from ..kernels.benchmarks.passes import bench_decode
        from ..kernels.benchmarks.setting import torch_dtype

        for name in dtypes:
            kind = torch_dtype(name)
            yield from bench_decode(spec, dtype=kind, points=points, layers=layers, weight_dtype=weight_dtype, setting=setting)

    bench = Bench(
        name="bench decode", inputs=inputs(spec, points, dtype, layers) | {"weight_dtype": weight_dtype or dtype, "gqa": gqa}, lines=lines,
        single=len(points) == len(dtypes) == 1, labels=("model", "dtype", "batch", "ctx"), y="median_s",
    )  # fmt: skip
    run_bench(bench, threads=threads, seconds=seconds, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def prefill(
    model: o.OptionalModel = None,
    batch: o.Batch = "1",
    ctx: Ctx = None,
    dtype: Dtype = "bf16",
    gqa: o.Gqa = None,
    layers: Layers = "auto",
    last_logits: o.LastLogits = False,
    threads: Threads = None,
    seconds: Seconds = "12s",
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """A forward pass of a real model with random weights, against the matmul rate of the same run.

    \b
    Examples:
      tfm bench prefill
      tfm bench prefill gpt-2 --ctx 128,256,512 --dtype fp32 --layers all
      tfm bench prefill vit-b-16 --batch 4
    """
    from .measuring import Bench, need_torch, run_bench

    need_torch()
    spec = chosen(model, gqa, presets, lenient=lenient)
    points, dtypes = points_of(spec, "prefill", batch, ctx), dtype_list(dtype)

    def lines(setting: Setting) -> Iterator[Record]:
        from ..kernels.benchmarks.passes import bench_prefill
        from ..kernels.benchmarks.setting import torch_dtype

        for name in dtypes:
            kind = torch_dtype(name)
            yield from bench_prefill(spec, dtype=kind, points=points, layers=layers, last_logits=last_logits, setting=setting)

    bench = Bench(
        name="bench prefill", inputs=inputs(spec, points, dtype, layers) | {"gqa": gqa, "last_logits": last_logits}, lines=lines,
        single=len(points) == len(dtypes) == 1, labels=("model", "dtype", "batch", "ctx"), y="median_s",
    )  # fmt: skip
    run_bench(bench, threads=threads, seconds=seconds, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def train(
    model: o.OptionalModel = None,
    batch: o.Batch = "1",
    ctx: Ctx = None,
    dtype: Dtype = "bf16",
    optimizer: TrainOptimizer = "adam",
    gqa: o.Gqa = None,
    layers: Layers = "auto",
    threads: Threads = None,
    seconds: Seconds = "12s",
    presets: o.Presets = None,
    lenient: o.Lenient = False,
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """A training step (forward, backward, optimizer) of a real model, gpt-2 if none is given, against the rates of the same run.

    \b
    Examples:
      tfm bench train
      tfm bench train gpt-2 --batch 1,4 --ctx 128 --dtype fp32
      tfm bench train bert-base --optimizer sgd --layers all
    """
    from .measuring import Bench, need_torch, run_bench

    need_torch()
    spec = chosen(model or DEFAULT_TRAINED, gqa, presets, lenient=lenient)
    points, dtypes = points_of(spec, "train", batch, ctx), dtype_list(dtype)
    check_optimizer(optimizer)

    def lines(setting: Setting) -> Iterator[Record]:
        from ..kernels.benchmarks.setting import torch_dtype
        from ..kernels.benchmarks.training import bench_train

        for name in dtypes:
            yield from bench_train(spec, dtype=torch_dtype(name), points=points, layers=layers, optimizer=optimizer, setting=setting)

    bench = Bench(
        name="bench train", inputs=inputs(spec, points, dtype, layers) | {"gqa": gqa, "optimizer": optimizer}, lines=lines,
        single=len(points) == len(dtypes) == 1, labels=("model", "dtype", "batch", "ctx"), y="median_s",
    )  # fmt: skip
    run_bench(bench, threads=threads, seconds=seconds, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def check_optimizer(name: str) -> None:
    """Raise UnknownNameError for an optimizer that there is no step of."""
    from ..estimators.training_step import MOMENTS
    from ..presets.errors import UnknownNameError

    if name not in MOMENTS:
        raise UnknownNameError("optimizer", name, MOMENTS, f"Allowed: {', '.join(MOMENTS)}.")


def chosen(model: str | None, gqa: str | None, presets: str | None, *, lenient: bool) -> ModelSpec:
    """The model to run."""
    from pathlib import Path

    from ..presets.loader import load_model
    from ..presets.variants import with_kv_heads
    from .units import parse_int

    folders = (Path(presets).expanduser(),) if presets else ()
    spec = load_model(model or DEFAULT_MODEL, folders, lenient=lenient)
    return spec if gqa is None else with_kv_heads(spec, parse_int(gqa, name="--gqa"))


def points_of(spec: ModelSpec, phase: str, batch: str, ctx: str | None) -> list[tuple[int, int]]:
    """(batch, context) of every line; a context that was not given suits the model."""
    from .units import parse_int, parse_list, parse_tokens

    batches = parse_list(batch, lambda text: parse_int(text, name="--batch"), name="--batch")
    contexts = parse_list(ctx or DEFAULT_CONTEXT[phase], lambda text: parse_tokens(text, name="--ctx"), name="--ctx")
    if ctx is None:
        contexts = tuple(min(length, spec.main.max_positions or length) for length in contexts)
    return list(product(batches, contexts))


def inputs(spec: ModelSpec, points: list[tuple[int, int]], dtype: str, layers: str) -> dict[str, object]:
    """What is repeated to the user."""
    batches, contexts = (sorted({point[axis] for point in points}) for axis in (0, 1))
    return {"model": spec.name, "batch": batches, "ctx": contexts, "dtype": dtype, "layers": layers}


def allreduce(
    size: Message = "1MiB,16MiB,64MiB",
    dtype: Dtype = "fp32",
    threads: Threads = None,
    seconds: Seconds = "5s",
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """All-reduce over several processes (gloo on a CPU, NCCL on CUDA), against the ring's 2(n-1)/n bytes a link.

    \b
    Start it with torchrun, a process a device:
      torchrun --nproc-per-node 2 -m tfm bench allreduce --size 1MiB,64MiB

    \b
    Examples:
      tfm bench allreduce --help
    """
    from .measuring import Bench, need_torch, run_bench, stopping_for
    from .units import parse_bytes, parse_list

    need_torch()
    from ..kernels.benchmarks import allreduce as module
    from ..kernels.benchmarks.setting import Setting

    sizes, dtypes = parse_list(size, lambda text: parse_bytes(text, name="--size"), name="--size"), dtype_list(dtype)

    def lines(setting: Setting) -> Iterator[Record]:
        return module.bench_allreduce(sizes, dtypes, setting=setting)

    bench = Bench(
        name="bench allreduce", inputs={"size": list(sizes), "dtype": dtype}, lines=lines, single=len(sizes) == len(dtypes) == 1,
        labels=("processes", "dtype", "size_bytes"),
    )  # fmt: skip
    with module.group() as rank:
        if rank:  # the others measure along and print nothing
            list(lines(Setting(stopping=stopping_for(seconds))))
            return
        run_bench(bench, threads=threads, seconds=seconds, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
