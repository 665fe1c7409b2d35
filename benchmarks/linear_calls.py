"""Which of PyTorch's calls for the same linear layer is fastest with few rows: `kernels/linear.py` is written from this table.

    python benchmarks/linear_calls.py
    python benchmarks/linear_calls.py --shapes 4096x4096 --rows 1,2,4,8,16,64 --dtype bf16
    python benchmarks/linear_calls.py --shapes 4096x8192,4096x11008,4096x14336,3584x18944 --rows 1,2,8 --dtype bf16 --wall

Each line begins with the rate of `sum` in fp32 over as many bytes of memory; each call has its own rate, its share of that, and its time.
`compiled` is the loop of `kernels/compiled.py` over a weight as it lies, `by torch.compile` the same through PyTorch's own door, for each
shape by itself, `panels` the loop of `kernels/panels.py` over a weight in that order. `packed` is a weight that was packed for oneDNN once.
int8 and int4 weights have a half and a quarter of the bytes of bf16, so `ms` tells whether they pay.
All calls of a line are measured in turn, over weights that rotate so that none is still in the last-level cache.
By default one thread and the processor's time, which another program on the machine hardly disturbs; `--wall` takes the clock and all
threads.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from tfm.kernels import compiled, panels
from tfm.kernels.compiling import OPTIONS
from tfm.kernels.linear import fast_linear, folded, linear_call
from tfm.kernels.probes import random_tensor
from tfm.kernels.timing import Stopping, buffers_needed, host_watch, in_rotation, interleave, last_level_cache_bytes, rotated

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
GROUP = 128
Weights = list[tuple[Tensor, ...]]


def copies(size_bytes: int) -> int:
    """Weights to rotate: four times the cache, at most 64."""
    return min(64, buffers_needed(size_bytes, last_level_cache_bytes()))


def repeated(make: Callable[[], tuple[Tensor, ...]]) -> Weights:
    """One weight and copies of it in other places."""
    first = make()
    count = copies(sum(x.nbytes for x in first))
    return [first, *(tuple(x.clone() for x in first) for _ in range(count - 1))]


def plain(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """A weight [O,I]."""
    return (random_tensor((outputs, inputs), dtype, CPU),)


def packed(outputs: int, inputs: int) -> tuple[Tensor, ...]:
    """A bf16 weight in the order of oneDNN's kernels, so that no call repacks it."""
    return (torch.ops.mkldnn._reorder_linear_weight(random_tensor((outputs, inputs), torch.bfloat16, CPU), 1),)


def in_panels(outputs: int, inputs: int, dtype: torch.dtype, rows: int) -> tuple[Tensor, ...]:
    """A weight in panels for so many rows."""
    return (panels.in_panels(random_tensor((outputs, inputs), dtype, CPU), rows),)


def int8(outputs: int, inputs: int) -> tuple[Tensor, ...]:
    """int8 values [O,I] and bf16 scales [O]."""
    return torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8), random_tensor((outputs,), torch.bfloat16, CPU)


def int4(outputs: int, inputs: int) -> tuple[Tensor, ...]:
    """Packed int4 values and a bf16 scale and offset for every 128 of them."""
    levels = torch.randint(0, 16, (outputs, inputs), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1)
    return packed, random_tensor((inputs // GROUP, outputs, 2), torch.bfloat16, CPU)


def plain_calls(x: Tensor, outputs: int) -> dict[str, Callable[[tuple[Tensor, ...]], object]]:
    """Every way to say x [R,I] times a weight [O,I] transposed."""
    calls: dict[str, Callable[[tuple[Tensor, ...]], object]] = {
        "F.linear": lambda w: F.linear(x, w[0]),
        "matmul": lambda w: x @ w[0].t(),
        "mm": lambda w: torch.mm(w[0], x.t()),
        "fast_linear": lambda w: fast_linear(x, w[0]),
    }
    if len(x) == 1:
        calls["mv"] = lambda w: torch.mv(w[0], x[0])
    if x.shape[1] % 2 == 0:
        calls["folded"] = lambda w: folded(x, w[0])
    if outputs % 16 == 0:
        calls["bmm, 16 a slice"] = lambda w: torch.bmm(x.expand(outputs // 16, -1, -1), w[0].view(outputs // 16, 16, -1).transpose(1, 2))
    if outputs % 8 == 0:
        calls["bmm, 8 slices"] = lambda w: torch.bmm(w[0].view(8, outputs // 8, -1), x.t().expand(8, -1, -1))
    if compiled.takes_weight(len(x), torch.empty(outputs, x.shape[1], dtype=x.dtype)):
        torch._dynamo.reset()  # it gives up after eight shapes
        usual = torch.compile(compiled.product_loop, dynamic=False, options=OPTIONS)
        calls["compiled"] = lambda w: compiled.product(x, w[0])
        calls["by torch.compile"] = lambda w: usual(x, w[0])
    return calls


def stored_calls(x: Tensor) -> dict[str, Callable[[tuple[Tensor, ...]], object]]:
    """Products with weights that are stored in another way: in panels, and for bf16 activations packed, int8 and int4."""
    return {
        "panels": lambda w: panels.by_panels(x, w[0]),
        "packed": lambda w: torch.ops.mkldnn._linear_pointwise(x, w[0], None, "none", [], ""),
        "int8": lambda w: torch._weight_int8pack_mm(x, *w),
        "int4": lambda w: torch._weight_int4pack_mm_for_cpu(x, w[0], GROUP, w[1]),
    }


def line(rows: int, inputs: int, dtype: torch.dtype, weights: dict[str, Weights], rounds: int, clock: Callable[[], float]) -> str:
    """One line of the table: rate, share of `sum` and milliseconds of every call."""
    x = random_tensor((rows, inputs), dtype, CPU)
    calls = in_rotation(plain_calls(x, weights["plain"][0][0].shape[0]), weights["plain"])
    calls |= {name: rotated(call, weights[name]) for name, call in stored_calls(x).items() if name in weights}
    calls["probe"] = rotated(lambda w: w[0].sum(), weights["probe"])
    stopping = Stopping(min_samples=rounds, min_seconds=0, max_seconds=60, target_spread=math.inf)
    with torch.inference_mode():
        found = interleave(calls, clock=clock, watch=host_watch(clock), stopping=stopping, warmup=1)
    best = weights["probe"][0][0].nbytes / found["probe"].median_s
    sizes = {name: sum(part.nbytes for part in weights.get(name, weights["plain"])[0]) for name in calls}
    rates = {name: sizes[name] / sample.median_s for name, sample in found.items() if name != "probe"}
    cells = [f"{name} {rate / 1e9:.1f} {rate / best:.2f} ({1e3 * found[name].median_s:.2f} ms)" for name, rate in rates.items()]
    return f"{best / 1e9:5.1f} GB/s  " + "  ".join(cells)


def main() -> None:
    """Read the options, print a line a shape, dtype and number of rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default="4096x4096,4096x11008,32000x4096,1024x3072", help="O x I of the weights")
    parser.add_argument("--rows", default="1,2,4,8")
    parser.add_argument("--dtype", default="fp32,bf16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--wall", action="store_true", help="the clock and all threads")
    given = parser.parse_args()
    if not given.wall:
        torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads, {'wall' if given.wall else 'processor'} time")
    for shape in given.shapes.split(","):
        outputs, inputs = (int(side) for side in shape.split("x"))
        for name in given.dtype.split(","):
            dtype = DTYPES[name]
            weights = {
                "plain": repeated(partial(plain, outputs, inputs, dtype)),
                "probe": repeated(partial(plain, outputs, inputs * dtype.itemsize // 4, torch.float32)),
            }
            if dtype == torch.bfloat16:
                weights |= {"packed": repeated(partial(packed, outputs, inputs))}
                weights |= {"int8": repeated(partial(int8, outputs, inputs))}
                if inputs % GROUP == 0 and outputs % 16 == 0:
                    weights |= {"int4": repeated(partial(int4, outputs, inputs))}
            for rows in (int(count) for count in given.rows.split(",")):
                weights.pop("panels", None)
                if panels.takes(rows, weights["plain"][0][0]):
                    weights |= {"panels": repeated(partial(in_panels, outputs, inputs, dtype, rows))}
                call = linear_call(rows, weights["plain"][0][0])
                text = line(rows, inputs, dtype, weights, given.rounds, time.perf_counter if given.wall else time.process_time)
                print(f"{shape:>11} {name} rows {rows:>3} -> {call:6} {text}", flush=True)


if __name__ == "__main__":
    main()
