"""Attention over a cache, every implementation in turn: how much of the bandwidth (or of the matmul rate) each reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...estimators.counts import attended_pairs
from ...presets.errors import UsageError
from ...presets.spec import Causal
from ..attention import IMPLEMENTATIONS, Kernel, backend_that_ran, kernel_named
from ..machine import device_title
from ..masks import Rules
from ..probes import dtype_name, free_memory_bytes, random_tensor, require_memory
from ..timing import Call, Sample, in_rotation
from ..tuning import tune_attention
from .record import Record
from .setting import Setting
from .yardstick import Yardstick, beside, yardstick

Tensors = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`tokens` new queries of `batch` sequences, the last of `context` positions; heads N, kv_heads K, all of width head_dim."""

    batch: int = 1
    context: int = 4096
    tokens: int = 1
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UsageError(f"--kv-heads {self.kv_heads} does not divide --heads {self.heads}; give one that does")
        if self.tokens > self.context:
            raise UsageError(f"--tokens {self.tokens} is more than --ctx {self.context}, which counts them; give a larger --ctx")

    @property
    def flops(self) -> int:
        """Scores and weighted values of the pairs that a causal mask leaves."""
        pairs = attended_pairs(Causal(), self.tokens, self.context)
        return int(4 * self.batch * self.heads * pairs * self.head_dim)

    def cache_bytes(self, dtype: torch.dtype) -> int:
        """Keys and values, each byte once."""
        return 2 * self.batch * self.kv_heads * self.context * self.head_dim * dtype.itemsize

    def scratch_bytes(self, impl: str, dtype: torch.dtype) -> int:
        """What an implementation allocates beside: the logits and repeated keys of `eager`, else tiles."""
        queries = 2 * self.batch * self.heads * self.tokens * self.head_dim * dtype.itemsize
        if impl != "eager":
            return queries
        repeated = self.heads // self.kv_heads * self.cache_bytes(dtype) if self.heads != self.kv_heads else 0
        return queries + repeated + 3 * self.batch * self.heads * self.tokens * self.context * max(4, dtype.itemsize)


def implementations(names: Sequence[str]) -> tuple[str, ...]:
    """The implementations named; `all` is every one of them. Raises UnknownNameError."""
    chosen = [name for given in names for name in (IMPLEMENTATIONS if given == "all" else (given,))]
    for name in chosen:
        kernel_named(name)
    return tuple(dict.fromkeys(chosen))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A call an implementation over caches that rotate, the backend that each of them runs, and the bytes of all caches."""

    calls: dict[str, Call]
    backends: dict[str, str]
    held_bytes: int


def prepare(problem: Problem, impls: Sequence[str], dtype: torch.dtype, setting: Setting) -> Prepared:
    """Allocate, after a look at the memory. Raises UnreadableError with the context that would fit."""
    size = problem.cache_bytes(dtype)
    copies = setting.copies(size, free_memory_bytes(setting.device))
    needed = copies * size + max(problem.scratch_bytes(impl, dtype) for impl in impls)
    what = f"attention over {problem.batch} x {problem.context} tokens"
    require_memory(needed, setting.device, what=what, fits=what_fits(problem, needed))
    shape = (copies, problem.batch, problem.kv_heads, problem.context, problem.head_dim)
    keys, values = random_tensor(shape, dtype, setting.device), random_tensor(shape, dtype, setting.device)
    queries = random_tensor((problem.batch, problem.heads, problem.tokens, problem.head_dim), dtype, setting.device)
    rules = Rules(causal=True)
    calls = attention_calls(impls, queries, keys, values, rules)
    if "grouped" in calls:
        tune_attention(calls["grouped"], copies)
    return Prepared(
        calls=calls,
        backends={impl: backend_that_ran(queries, keys[0], values[0], impl=impl, rules=rules) for impl in impls},
        held_bytes=int(keys.nbytes + values.nbytes),
    )


def what_fits(problem: Problem, needed: int) -> Callable[[int], str]:
    """In words, the context that so many free bytes have room for."""
    return lambda free: f"about {int(problem.context * free / needed)} tokens of context"


def attention_calls(impls: Sequence[str], queries: Tensor, keys: Tensor, values: Tensor, rules: Rules) -> dict[str, Call]:
    """A call an implementation, all on one rotation of the caches: none finds warm what another has just read."""

    def over(kernel: Kernel) -> Callable[[int], Tensor]:
        return torch.inference_mode()(lambda index: kernel(queries, keys[index], values[index], rules))

    return in_rotation({impl: over(kernel_named(impl)) for impl in impls}, range(len(keys)))


def bench_attention(
    problems: Sequence[Problem],
    *,
    impls: Sequence[str] = ("all",),
    dtype: torch.dtype = torch.bfloat16,
    setting: Setting | None = None,
) -> Iterator[Record]:
    """A line an implementation and problem; the implementations of a problem are measured in turn, side by side."""
    setting, names = setting or Setting(), implementations(impls)
    yard = yardstick(setting, dtype)
    longer = replace(setting, stopping=replace(setting.stopping, max_seconds=setting.stopping.max_seconds * max(1, len(names) / 2)))
    for problem in problems:
        setting.tell(f"{', '.join(names)}: {problem.batch} x {problem.context} tokens in {dtype_name(dtype)}")
        ready = prepare(problem, names, dtype, setting)
        arithmetic = yard.arithmetic_counts(problem.flops, problem.cache_bytes(dtype))
        samples, yard = beside(longer, yard, ready.calls, arithmetic=arithmetic)
        for impl, sample in samples.items():
            yield line(problem, impl, dtype, ready, yard, setting, sample)
        if any(sample.interrupted for sample in samples.values()):
            raise KeyboardInterrupt


def line(problem: Problem, impl: str, dtype: torch.dtype, ready: Prepared, yard: Yardstick, setting: Setting, sample: Sample) -> Record:
    """The line of one implementation; floor and bound are one, attention being one operator."""
    size = problem.cache_bytes(dtype)
    limits = (size / yard.bytes_per_s, problem.flops / yard.flops_per_s)
    bound = None if setting.in_cache(ready.held_bytes) else max(limits)
    return Record(
        labels={
            "impl": impl, "batch": problem.batch, "ctx": problem.context, "tokens": problem.tokens, "heads": problem.heads,
            "kv_heads": problem.kv_heads, "head_dim": problem.head_dim,
        },
        device=device_title(setting.device),
        dtype=dtype_name(dtype),
        sample=sample,
        flops=problem.flops,
        bytes=size,
        bandwidth_bytes_per_s=yard.bytes_per_s,
        probe=yard.probe,
        peak_flops_per_s=yard.flops_per_s,
        floor_s=bound,
        bound_s=bound,
        backend=ready.backends[impl],
    )  # fmt: skip
