"""Grouped-query decode attention on this machine: every kernel of tfm, and what else was tried, against the measured bandwidth.

    python benchmarks/decode_attention.py
    python benchmarks/decode_attention.py --dtype bf16 --ctx 16384 --rounds 31

All lines are measured in turn in one run, over caches that rotate so that none is still in the last-level cache. `of best` is
the share of the best plain probe (PROBES over the same bytes), `x sdpa` how many times faster than SDPA with `enable_gqa`:
both are medians of the ratios of one round, so that a busy machine slows both sides alike. `cpu of mv` is the same share with one
thread and the processor's time in place of the clock's: what the kernel itself costs, whoever else is on the machine.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from tfm.kernels import compiled, compiling, grouped
from tfm.kernels.attention import attend, backend_that_ran
from tfm.kernels.masks import Rules
from tfm.kernels.panels import PANEL, by_panels
from tfm.kernels.probes import GIB, random_tensor, require_memory
from tfm.kernels.streams import STREAMS
from tfm.kernels.timing import Sample, Stopping, buffers_needed, host_watch, in_rotation, interleave, last_level_cache_bytes, paired_ratio

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Cache = tuple[Tensor, Tensor]
PROBES = ("mv", "sum", "copy", "loop")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One decode step: `heads` queries of one token over `context` keys of `kv_heads` heads."""

    batch: int
    heads: int
    kv_heads: int
    width: int
    context: int
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        """Query heads of a group."""
        return self.heads // self.kv_heads

    @property
    def cache_bytes(self) -> int:
        """Keys and values, each read once."""
        return 2 * self.batch * self.kv_heads * self.context * self.width * self.dtype.itemsize


def kernels(shape: Shape, q: Tensor) -> dict[str, Callable[[Cache], object]]:
    """The kernels of tfm and the other ways to read each byte once, all over keys and values [B,K,S,D]."""
    heads = q.view(shape.batch, shape.kv_heads, shape.rows, shape.width)
    found: dict[str, Callable[[Cache], object]] = {impl: partial(attend_cache, q, impl) for impl in ("sdpa", "eager", "tiled", "grouped")}
    found["grouped, cache [B,S,K,D]"] = lambda kv: attend_cache(q, "grouped", (as_tokens_first(kv[0]), as_tokens_first(kv[1])))
    found["SDPA on folded heads"] = lambda kv: F.scaled_dot_product_attention(heads, *kv)
    for parts in (2, 8):
        found[f"SDPA folded, {parts} parts of the context"] = partial(in_parts, heads, parts)
    if shape.dtype == torch.float32:  # what `grouped` takes on a machine that is not crowded
        found[f"{STREAMS} streams"] = lambda kv: grouped._streamed(heads, *kv, Rules(causal=True))[0]
    if compiling.gap() is None:
        found["compiled loops"] = lambda kv: compiled.attention(heads, *kv, scale=shape.width**-0.5)[0]
    found["two bmm"] = partial(products, q, shape)
    for block in (128, 1024):
        found[f"two bmm over blocks of {block}"] = partial(blocks, q, shape, block)
    return found


def attend_cache(q: Tensor, impl: str, kv: Cache) -> Tensor:
    """A kernel of tfm."""
    return attend(q, *kv, impl=impl, causal=True)


def in_parts(heads: Tensor, parts: int, kv: Cache) -> Tensor:
    """Flash-decoding: the context in parts, joined by their log-sum-exp."""
    return grouped._in_parts(heads, *kv, None, None, parts)[0]


def as_tokens_first(x: Tensor) -> Tensor:
    """The same bytes read as a cache [B,S,K,D] (other numbers at each place, the same work)."""
    B, K, S, D = x.shape
    return x.view(B, S, K, D).transpose(1, 2)


def products(q: Tensor, shape: Shape, kv: Cache) -> Tensor:
    """Scores, softmax and weighted values as whole tensors, one batched product each."""
    k, v = (x.flatten(0, 1) for x in kv)
    rows = q.view(-1, shape.rows, shape.width)
    scores = torch.bmm(rows * shape.width**-0.5, k.transpose(1, 2)).softmax(dim=-1, dtype=torch.float32)
    return torch.bmm(scores.to(q.dtype), v).view_as(q)


def blocks(q: Tensor, shape: Shape, block: int, kv: Cache) -> Tensor:
    """The same with `block` tokens a batch entry: small products that stay in the cache."""
    heads, count = shape.batch * shape.kv_heads, shape.context // block
    k, v = (x.view(heads * count, block, shape.width) for x in kv)
    rows = (q.view(heads, 1, shape.rows, shape.width) * shape.width**-0.5).expand(-1, count, -1, -1).flatten(0, 1)
    scores = torch.bmm(rows, k.transpose(1, 2)).view(heads, count, shape.rows, block).float()
    weights = torch.exp(scores - scores.amax(dim=(1, 3), keepdim=True))
    parts = torch.bmm(weights.to(q.dtype).view(heads * count, shape.rows, block), v).view(heads, count, shape.rows, -1)
    return (parts.sum(dim=1, dtype=torch.float32) / weights.sum(dim=(1, 3)).unsqueeze(-1)).to(q.dtype).view_as(q)


def probes(shape: Shape) -> dict[str, Callable[[Cache], object]]:
    """Plain operators over the same bytes, in fp32: keys and values of random bits would be no numbers, so they get their own buffers."""
    target = torch.empty(shape.cache_bytes // 4, dtype=torch.float32)
    vector = random_tensor((4096,), torch.float32, CPU)
    plain: dict[str, Callable[[Cache], object]] = {
        "mv": lambda kv: torch.mv(kv[0].view(-1, 4096), vector),
        "sum": lambda kv: kv[0].sum(),
        "copy": lambda kv: target.copy_(kv[0]),
    }
    if compiling.gap() is None:
        plain["loop"] = lambda kv: by_panels(vector[None], kv[0].view(-1, 4096, PANEL))
    return plain


def measured(shape: Shape, rounds: int, *, cpu_time: bool) -> dict[str, Sample]:
    """Every line in turn, `rounds` times."""
    copies = buffers_needed(shape.cache_bytes, last_level_cache_bytes())
    require_memory((2 * copies + 8) * shape.cache_bytes, CPU, what="the benchmark")
    size = (shape.batch, shape.kv_heads, shape.context, shape.width)
    caches = [(random_tensor(size, shape.dtype, CPU), random_tensor(size, shape.dtype, CPU)) for _ in range(copies)]
    plain = [(random_tensor((shape.cache_bytes // 4,), torch.float32, CPU),) * 2 for _ in range(copies)]
    q = random_tensor((shape.batch, shape.heads, 1, shape.width), shape.dtype, CPU)
    calls = in_rotation(probes(shape), plain) | in_rotation(kernels(shape, q), caches)
    clock = time.process_time if cpu_time else time.perf_counter
    stopping = Stopping(min_samples=rounds, min_seconds=0, max_seconds=120, target_spread=1e9)
    with torch.inference_mode():
        return interleave(calls, clock=clock, watch=host_watch(clock), stopping=stopping, warmup=1)


def rates(shape: Shape, samples: dict[str, Sample]) -> dict[str, float]:
    """Bytes per second of the probes."""
    return {name: (2 if name == "copy" else 1) * shape.cache_bytes / samples[name].median_s for name in PROBES if name in samples}


def report(shape: Shape, rounds: int) -> None:
    """Print the table."""
    samples = measured(shape, rounds, cpu_time=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = measured(shape, max(5, rounds // 3), cpu_time=True)
    torch.set_num_threads(threads)
    speed = rates(shape, samples)
    best = max(speed, key=lambda name: speed[name])
    moved = 2 if best == "copy" else 1
    print(f"{'':38}{'median ms':>10}{'p20':>8}{'p80':>8}{'GB/s':>7}{'of best':>9}{'x sdpa':>8}{'cpu of mv':>11}")
    for name, sample in samples.items():
        rate = speed.get(name, shape.cache_bytes / sample.median_s)
        share = (2 if name == "copy" else 1) / moved / paired_ratio(sample, samples[best])
        line = f"{name:38}{1e3 * sample.median_s:>10.2f}{1e3 * sample.p20_s:>8.2f}{1e3 * sample.p80_s:>8.2f}{rate / 1e9:>7.2f}{share:>9.2f}"
        faster = "" if name in PROBES else f"{paired_ratio(samples['sdpa'], sample):.2f}"
        print(f"{line}{faster:>8}{1 / paired_ratio(alone[name], alone['mv']):>11.2f}", flush=True)
    print(f"best probe: {best}, {speed[best] / 1e9:.1f} GB/s; spread of grouped {samples['grouped'].spread:.0%}, {rounds} rounds")


def backends(shape: Shape) -> list[str]:
    """What SDPA and the grouped kernel run for this shape."""
    q, k = (torch.zeros(1, n, t, shape.width, dtype=shape.dtype) for n, t in ((shape.heads, 1), (shape.kv_heads, shape.context)))
    return [backend_that_ran(q, k, k, impl=impl, rules=Rules(causal=True)) for impl in ("sdpa", "grouped")]


def main() -> None:
    """Read the options, say what runs where, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    for name, default in (("ctx", 65_536), ("batch", 1), ("heads", 32), ("kv-heads", 8), ("head-dim", 128), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    shape = Shape(
        batch=given.batch, heads=given.heads, kv_heads=given.kv_heads, width=given.head_dim, context=given.ctx, dtype=DTYPES[given.dtype]
    )
    heads = f"{shape.heads} query / {shape.kv_heads} KV heads x {shape.width}"
    print(f"decode attention {given.dtype}, batch {shape.batch}, {heads}, context {shape.context}")
    machine = f"{torch.get_num_threads()} threads, {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    sizes = f"cache {shape.cache_bytes / GIB:.3f} GiB, last-level cache {last_level_cache_bytes() / 2**20:.0f} MiB"
    print(f"PyTorch {torch.__version__}, {machine}, {sizes}")
    print("backends:", "; ".join(backends(shape)))
    report(shape, given.rounds)


if __name__ == "__main__":
    main()
