"""`tfm bench`: real PyTorch kernels on the local device, predicted beside measured."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from . import options as o

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..kernels.benchmarks.record import Record
    from ..kernels.benchmarks.setting import Setting

Dtype = Annotated[str, typer.Option("--dtype", help="Format of weights, cache and arithmetic: fp32, bf16, fp16; a comma makes a table.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, max=1024, help="Threads of PyTorch's operators; its own choice if not given.")
]
Seconds = Annotated[str, typer.Option("--seconds", help="The longest that one line is sampled, as in 30s.")]
OneDtype = Annotated[str, typer.Option("--dtype", help="Beside fp32: bf16 or fp16.")]
Sizes = Annotated[str, typer.Option("--size", help="Bytes that a probe streams, as in 64MiB; a comma makes a table.")]
Impl = Annotated[str, typer.Option("--impl", help="eager, tiled, sdpa, grouped or all; a comma takes several.")]
Tokens = Annotated[str, typer.Option("--tokens", help="Query tokens, the last of the context; 1 is a decode step.")]
Heads = Annotated[str, typer.Option("--heads", help="Query heads.")]
KvHeads = Annotated[str, typer.Option("--kv-heads", help="Key/value heads; must divide the query heads.")]
HeadDim = Annotated[str, typer.Option("--head-dim", help="Width of a head.")]
Ctx = Annotated[
    str | None, typer.Option("--ctx", "--tgt", help="Tokens attended, the new one included (32k = 32768); a comma makes a table.")
]

bench_app = typer.Typer(
    name="bench",
    help="Measure the local device with real PyTorch kernels (CUDA, else MPS or XPU, else the CPU), predicted beside measured.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(app: typer.Typer) -> None:
    """Add the group."""
    from .bench_passes import add

    add(bench_app)
    app.add_typer(bench_app, name="bench")


@bench_app.command()
def bandwidth(
    dtype: OneDtype = "bf16",
    size: Sizes = "1GiB",
    threads: Threads = None,
    seconds: Seconds = "10s",
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Memory bandwidth: sum, matrix-vector product and copy, in fp32 and --dtype.

    \b
    Examples:
      tfm bench bandwidth
      tfm bench bandwidth --size 1MiB,16MiB,256MiB,1GiB --json
    """
    from .measuring import Bench, need_torch, run_bench
    from .units import parse_bytes, parse_list

    need_torch()
    sizes = parse_list(size, lambda text: parse_bytes(text, name="--size"), name="--size")

    def lines(setting: Setting) -> Iterator[Record]:
        from ..kernels.benchmarks.bandwidth import bench_bandwidth
        from ..kernels.benchmarks.setting import torch_dtype

        return bench_bandwidth(dtype=torch_dtype(dtype), sizes=sizes, setting=setting)

    bench = Bench(
        name="bench bandwidth", inputs={"dtype": dtype, "size": list(sizes)}, lines=lines, single=False,
        labels=("probe", "dtype", "size_bytes"),
    )  # fmt: skip
    run_bench(bench, threads=threads, seconds=seconds, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


@bench_app.command()
def gemm(
    m: Annotated[str, typer.Option("--m", help="Rows: tokens of all sequences.")] = "1,8,64,512",
    k: Annotated[str, typer.Option("--k", help="Width in.")] = "4096",
    n: Annotated[str, typer.Option("--n", help="Width out.")] = "4096",
    dtype: Dtype = "bf16",
    threads: Threads = None,
    seconds: Seconds = "8s",
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Matrix products [m, k] @ [k, n] as the models run them, the matrix read from memory.

    \b
    Examples:
      tfm bench gemm --m 1,16,256 --k 4096 --n 11008
      tfm bench gemm --m 512 --dtype fp32,bf16
    """
    from .measuring import Bench, need_torch, run_bench
    from .units import parse_int, parse_list

    need_torch()
    asked = {"m": m, "k": k, "n": n}
    sizes = [parse_list(text, partial(parse_int, name=f"--{name}"), name=f"--{name}") for name, text in asked.items()]
    dtypes = dtype_list(dtype)

    def lines(setting: Setting) -> Iterator[Record]:
        from ..kernels.benchmarks.gemm import Shape, bench_gemm
        from ..kernels.benchmarks.setting import torch_dtype

        shapes = [Shape(m=a, k=b, n=c) for a, b, c in product(*sizes)]
        for kind in [torch_dtype(name) for name in dtypes]:
            yield from bench_gemm(shapes, dtype=kind, setting=setting)

    bench = Bench(
        name="bench gemm", inputs={**asked, "dtype": dtype}, lines=lines, single=all(len(x) == 1 for x in (*sizes, dtypes)),
        labels=("dtype", "m", "k", "n"), y="flops_per_s",
    )  # fmt: skip
    run_bench(bench, threads=threads, seconds=seconds, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)


def dtype_list(text: str) -> tuple[str, ...]:
    """Formats by name, aliases read as everywhere."""
    from ..presets.dtypes import get_dtype
    from .units import parse_list

    return parse_list(text, lambda name: get_dtype(name, ("fp32", "bf16", "fp16")).name, name="--dtype")


@bench_app.command()
def attention(
    impl: Impl = "all",
    batch: o.Batch = "1",
    ctx: Ctx = "4k",
    tokens: Tokens = "1",
    heads: Heads = "32",
    kv_heads: KvHeads = "8",
    head_dim: HeadDim = "128",
    dtype: Dtype = "bf16",
    threads: Threads = None,
    seconds: Seconds = "8s",
    as_json: o.Json = False,
    as_csv: o.Csv = False,
    as_markdown: o.Markdown = False,
) -> None:
    """Attention over a cache, every implementation side by side.

    \b
    Examples:
      tfm bench attention --impl sdpa,grouped --ctx 1k,4k,16k
      tfm bench attention --ctx 512 --tokens 512 --dtype fp32
    """
    from .measuring import Bench, need_torch, run_bench
    from .units import parse_int, parse_list, parse_tokens

    need_torch()
    axes = {"batch": batch, "context": ctx or "4k", "tokens": tokens, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    options = {name: "--" + {"context": "ctx"}.get(name, name).replace("_", "-") for name in axes}
    points = [
        parse_list(text, partial(parse_tokens if name in ("context", "tokens") else parse_int, name=options[name]), name=options[name])
        for name, text in axes.items()
    ]
    dtypes = dtype_list(dtype)

    def lines(setting: Setting) -> Iterator[Record]:
        from ..kernels.benchmarks.attention import Problem, bench_attention
        from ..kernels.benchmarks.setting import torch_dtype

        problems = [Problem(**dict(zip(axes, values, strict=True))) for values in product(*points)]
        for name in dtypes:
            yield from bench_attention(problems, impls=impl.split(","), dtype=torch_dtype(name), setting=setting)

    single = impl != "all" and "," not in impl and all(len(x) == 1 for x in (*points, dtypes))
    bench = Bench(
        name="bench attention", inputs={"impl": impl, **axes, "dtype": dtype}, lines=lines, single=single,
        labels=("impl", "dtype", "batch", "ctx", "tokens", "heads", "kv_heads", "head_dim"),
    )  # fmt: skip
    run_bench(bench, threads=threads, seconds=seconds, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
