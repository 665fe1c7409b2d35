"""What PyTorch itself counts: parameters of the modules, FLOPs by its own counter on `meta`, bytes of the cache's tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..estimators.work import Pass, image_count, source_tokens
from ..presets import spec as s
from ..presets.dtypes import Dtype
from .model import Model, build_model
from .modules import Leaf
from .paths import ledger_path

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
    attends: with `full_attention` the cache keeps every token, else as many as are needed. The backward pass goes to no
    path; it stands under "backward".
    """
    inputs = made_inputs(model.spec, work)
    if work.decoding:
        policy: Any = "full" if work.full_attention else "minimal"
        source = cross_tokens(model.spec, work)
        cache = model.cache(work.batch, work.context, source=source, policy=policy)
        cache.length = work.context - work.new_tokens
        inputs["cache"] = cache
    counter = FlopCounterMode(display=False)
    with counter, torch.set_grad_enabled(work.phase == "train"):
        outputs = model(**inputs, last=work.last_logits)
        forward = counter.get_total_flops()
        if work.phase == "train":
            loss(model.spec, outputs).backward()  # type: ignore[no-untyped-call]
    found = by_path(model, counter) if work.phase != "train" else Counter({"forward": forward})
    found["backward"] = counter.get_total_flops() - forward
    return found


def loss(spec: s.ModelSpec, outputs: dict[str, Tensor]) -> Tensor:
    """A number that depends on all that ran: every head's output, or the main stack's where there is no head."""
    found = [outputs[head.name].sum() for head in spec.heads if head.name in outputs] or [outputs[spec.main.name].sum()]
    return torch.stack(found).sum()


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


def made_inputs(spec: s.ModelSpec, work: Pass) -> dict[str, Any]:
    """Inputs on `meta` for every stack that a pass runs."""
    inputs: dict[str, Any] = {}
    for stack in spec.stacks:
        match stack.tokens:
            case "context":
                inputs["tokens"] = ids(work.batch, work.new_tokens)
            case "source" if not work.decoding:
                length = source_tokens(stack, work)
                inputs["source"] = raw_input(stack, work.batch, length) if has_stem(stack) else ids(work.batch, length)
            case "image" if not work.decoding and image_count(spec, work):
                inputs["images"] = raw_input(stack, work.batch * image_count(spec, work), stack.default_tokens or 1)
    return inputs


def ids(*shape: int) -> Tensor:
    """Token ids without numbers."""
    return torch.empty(shape, dtype=torch.int64, device="meta")


def has_stem(stack: s.Stack) -> bool:
    """Whether a stack reads raw data in place of token ids."""
    return bool(stack.embeddings) and isinstance(stack.embeddings[0], s.Conv)


def raw_input(stack: s.Stack, count: int, tokens: int, *, device: str = "meta", dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixels or frames from which a stem makes `tokens` positions: [count, channels, *size]."""
    return torch.empty(count, *raw_shape(stack, tokens), device=device, dtype=dtype)


def raw_shape(stack: s.Stack, tokens: int) -> tuple[int, ...]:
    """[channels, *size] of what a stem reads; patches stand as nearly in a square as their number allows."""
    convs = [leaf for leaf in stack.embeddings if isinstance(leaf, s.Conv)]
    first, last = convs[0], convs[-1]
    outputs = tokens * last.expand // last.merge
    sizes = grid(outputs, len(first.kernel))
    for conv in reversed(convs):
        sizes = tuple(size * step for size, step in zip(sizes, conv.stride or (1,) * len(sizes), strict=True))
    return (first.d_in, *sizes)


def grid(count: int, dimensions: int) -> tuple[int, ...]:
    """`count` as a product of so many factors, as nearly equal as they can be in two; further ones are 1."""
    if dimensions == 1:
        return (count,)
    side = next(size for size in range(int(count**0.5), 0, -1) if count % size == 0)
    return (*(1,) * (dimensions - 2), side, count // side)


def cross_tokens(spec: s.ModelSpec, work: Pass) -> int:
    """Tokens that cross-attention reads."""
    for stack, sub in spec.sublayers():
        if isinstance(sub.mixer, s.Attention) and sub.mixer.source is not None and stack.role == "decoder":
            other = spec.stack(sub.mixer.source)
            if other.tokens == "image":
                return (other.default_tokens or 1) * image_count(spec, work)
            return int(source_tokens(other, work))
    return 0


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


__all__ = ["counted_buffers", "counted_cache_bytes", "counted_flops", "counted_parameters", "meta_model", "replace"]
