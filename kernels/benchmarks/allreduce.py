"""All-reduce over the processes that torchrun started, beside what a ring predicts for the link of the same run.

Ring all-reduce (Patarasuk & Yuan 2009, doi:10.1016/j.jpdc.2008.09.002): 2(n-1) rounds, in each of which every process sends 1/n of
the bytes to the next one; so 2(n-1)/n of the bytes cross each link, and no algorithm that sends between neighbours needs less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ...presets.errors import UsageError
from ..machine import device_title
from ..probes import GIB, random_tensor, require_memory
from ..timing import Sample
from .record import Record
from .setting import Setting, torch_dtype

WARMUP, FEWEST, MOST = 3, 10, 200


def ring_factor(processes: int) -> float:
    """Bytes that cross each link, over the bytes that every process has: 2(n-1)/n.

    >>> ring_factor(2), ring_factor(8)
    (1.0, 1.75)
    """
    return 2 * (processes - 1) / processes


def ring_seconds(size_bytes: float, processes: int, link_bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Seconds of a ring: its bytes at the link's rate, and 2(n-1) latencies."""
    return ring_factor(processes) * size_bytes / link_bytes_per_s + 2 * (processes - 1) * latency_s


@contextmanager
def group() -> Iterator[int]:
    """The process group that torchrun's environment describes; gives the rank. Raises UsageError without torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise UsageError("an all-reduce needs processes: start it as `torchrun --nproc-per-node 2 -m tfm bench allreduce`")
    backend = "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


def where() -> torch.device:
    """Where this process's tensors live."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Link:
    """What one link between neighbours does, all of them at once: rate of a large message, seconds of a tiny one."""

    bytes_per_s: float
    latency_s: float


def same_everywhere(value: float) -> float:
    """The largest of all processes' values, so that all of them decide alike."""
    held = torch.tensor([value], dtype=torch.float64, device=where() if where().type == "cuda" else None)
    dist.all_reduce(held, op=dist.ReduceOp.MAX)
    return float(held.item())


def sampled(call: Callable[[], object], seconds: float) -> Sample:
    """Seconds of a collective call: as many samples on every process, each the slowest process's."""
    once = [one(call) for _ in range(WARMUP)][-1]
    count = int(min(MOST, max(FEWEST, seconds / max(same_everywhere(once), 1e-6))))
    times = torch.tensor([one(call) for _ in range(count)], dtype=torch.float64, device=where())
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return Sample(times=tuple(times.tolist()), calls=1, stop="budget")


def one(call: Callable[[], object]) -> float:
    """One call, begun together."""
    dist.barrier()
    start = time.perf_counter()
    call()
    if where().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def exchange(elements: int, dtype: torch.dtype) -> Callable[[], None]:
    """A call in which every process sends to the next one and receives from the one before."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    out, into = random_tensor((elements,), dtype, where()), torch.empty(elements, dtype=dtype, device=where())

    def call() -> None:
        operations = [dist.P2POp(dist.isend, out, (rank + 1) % processes), dist.P2POp(dist.irecv, into, (rank - 1) % processes)]
        for request in dist.batch_isend_irecv(operations):
            request.wait()

    return call


def measured_link(size_bytes: int, dtype: torch.dtype, seconds: float) -> Link:
    """The link at the size that a ring sends a round, and its latency."""
    large = sampled(exchange(max(1, size_bytes // dtype.itemsize), dtype), seconds).median_s
    tiny = sampled(exchange(1, dtype), seconds / 4).median_s
    return Link(bytes_per_s=size_bytes / max(large - tiny, 0.05 * large), latency_s=tiny)


def bench_allreduce(sizes: Sequence[int], dtypes: Sequence[str], *, setting: Setting) -> Iterator[Record]:
    """A line a format and size, inside `group()`; every process yields the same lines."""
    processes = dist.get_world_size()
    for name in dtypes:
        dtype = torch_dtype(name)
        for size in sizes:
            require_memory(3 * size, where(), what=f"an all-reduce of {size / GIB:.3g} GiB")
            setting.tell(f"all-reduce of {size / 2**20:.4g} MiB in {name} over {processes} processes")
            link = measured_link(max(dtype.itemsize, size // processes), dtype, setting.stopping.max_seconds / 4)
            held = random_tensor((max(1, size // dtype.itemsize),), dtype, where())
            yield line(sampled(lambda held=held: dist.all_reduce(held), setting.stopping.max_seconds / 2), link, size, name)  # type: ignore[misc]


def line(sample: Sample, link: Link, size: int, dtype: str) -> Record:
    """One line: the ring is a prediction, no bound, since a switch or shared memory may reduce on the way."""
    processes = dist.get_world_size()
    floor = ring_seconds(size, processes, link.bytes_per_s)
    return Record(
        labels={"processes": processes, "dtype": dtype, "size_bytes": size},
        device=device_title(where()),
        dtype=dtype,
        sample=sample,
        flops=0,
        bytes=ring_factor(processes) * size,
        bandwidth_bytes_per_s=link.bytes_per_s,
        probe="send to the next, receive from the one before",
        peak_flops_per_s=None,
        floor_s=floor,
        bound_s=None,
        backend=str(dist.get_backend()),
        facts={
            "ring_s": ring_seconds(size, processes, link.bytes_per_s, link.latency_s),
            "latency_s": link.latency_s,
            "verdict": f"{floor / sample.median_s:.0%} of what a ring would reach on this link",
        },
    )
