"""What PyTorch itself counts: parameters of the modules, FLOPs by its own counter on `meta`, bytes of the cache's tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..estimators.counts import matmul_flops
from ..estimators.work import Pass
from ..presets import spec as s
from ..presets.dtypes import Dtype
from .inputs import cross_tokens, random_inputs
from .model import Model, build_model
from .modules import Leaf
from .paths import ledger_path
from .training.loss import loss_of

TORCH_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def counted_parameters(model: Model) -> Counter[str]:
    """Elements of the parameters by the ledger's path, a shared one once."""
    found: Counter[str] = Counter()
    for name, weight in model.named_parameters():
        found[ledger_path(model, name)] += weight.numel()
    return found


def counted_buffers(model: Model) -> Counter[str]:
    """Elements of the buffers by the ledger's path."""
    found: Counter[str] = Counter()
    for name, held in model.named_buffers():
        found[ledger_path(model, name)] += held.numel()
    return found


def counted_flops(model: Model, work: Pass) -> Counter[str]:
    """FLOPs of a pass over a model on `meta`, by the ledger's path, as PyTorch's counter has them.

    Prefill and training count the square T x S of every attention (`full_attention`). A decode step counts what it
    attends: with `full_attention` the cache keeps every token, else as many as are needed. Training counts the backward pass
    too, under the path whose forward pass it undoes (`Backward`).
    """
    inputs = random_inputs(model, work)
    if work.decoding:
        policy: Any = "full" if work.full_attention else "minimal"
        source = cross_tokens(model.spec, work)
        cache = model.cache(work.batch, work.context, source=source, policy=policy)
        cache.length = work.context - work.new_tokens
        inputs["cache"] = cache
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: convolution_backward_flops})
    training = work.phase == "train"
    with counter, torch.set_grad_enabled(training), tagged(model, counter) if training else nullcontext(Backward(counter)) as backward:
        outputs = model(**inputs, last=work.last_logits)
        found = by_path(model, counter)
        if training:
            backward.run(loss_of(model.spec, outputs))
    return found + backward.found


def by_path(model: Model, counter: FlopCounterMode) -> Counter[str]:
    """The counter's FLOPs of the leaves, by the ledger's path; what is not in a leaf stands under "other"."""
    found: Counter[str] = Counter()
    root = f"{type(model).__name__}."
    counts = counter.get_flop_counts()
    for name, module in model.named_modules():
        if isinstance(module, Leaf):
            found[ledger_path(model, name)] += sum(counts.get(root + name, {}).values())
    found["other"] = counter.get_total_flops() - found.total()
    return found


def convolution_backward_flops(grad: Any, _x: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """A product like the forward one for each gradient asked for. PyTorch's own formula forgets the groups in the weight's."""
    wanted = rest[-1]
    return matmul_flops(prod(grad), prod(weight[1:]), 1) * sum(wanted[:2])  # type: ignore[no-any-return]


class Backward:
    """FLOPs of a backward pass by path. PyTorch's counter gives them to whatever module ran last where an input needs no gradient
    or several modules share one, so here every node of autograd's graph says itself whose it is.
    """

    def __init__(self, counter: FlopCounterMode) -> None:
        self.counter, self.path, self.before, self.found = counter, "other", 0, Counter[str]()
        self.marked: set[Any] = {None}

    def turn(self, path: str) -> None:
        """What was counted since the last turn belongs to the path before."""
        now = self.counter.get_total_flops()
        self.found[self.path] += now - self.before
        self.before, self.path = now, path

    def run(self, total: Tensor) -> None:
        """The backward pass from a number."""
        self.before = self.counter.get_total_flops()
        total.backward()
        self.turn("other")

    def tag(self, path: str, args: Any, output: Any) -> None:
        """Mark the nodes between what a leaf was given and what it gave; those before are another's, or nobody's."""
        given = {tensor.grad_fn for tensor in tensors_in(args)}
        front: list[Any] = [tensor.grad_fn for tensor in tensors_in(output)]
        while front:
            node = front.pop()
            if node in given or node in self.marked:
                continue
            self.marked.add(node)
            node.register_prehook(lambda _, path=path: self.turn(path))
            node.register_hook(lambda *_: self.turn("other"))
            front += [earlier for earlier, _ in node.next_functions]


@contextmanager
def tagged(model: Model, counter: FlopCounterMode) -> Iterator[Backward]:
    """The leaves of a model mark the nodes that they make."""
    backward, hooks = Backward(counter), []
    for name, module in model.named_modules():
        if isinstance(module, Leaf):
            path = ledger_path(model, name)
            hooks.append(module.register_forward_hook(lambda _, args, output, path=path: backward.tag(path, args, output)))
    try:
        yield backward
    finally:
        for hook in hooks:
            hook.remove()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of arguments or of a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for member in value:
            yield from tensors_in(member)


def counted_cache_bytes(model: Model, work: Pass) -> dict[str, int]:
    """Bytes of the tensors that a cache of `work.context` tokens really holds: of self-attention, of cross-attention, of state."""
    cache = model.cache(work.batch, work.context, source=cross_tokens(model.spec, work), dtype=torch_dtype(work.kv_dtype))
    return {
        "kv_bytes": cache.bytes_of("self"),
        "cross_kv_bytes": cache.bytes_of("cross"),
        "state_bytes": cache.bytes_of("state", "tail"),
    }


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """PyTorch's number format of that name; raises KeyError where it has none."""
    return TORCH_DTYPES[dtype.name]


def meta_model(spec: s.ModelSpec) -> Model:
    """The whole model without numbers, for counting."""
    return build_model(spec, device="meta", dtype=torch.bfloat16)
