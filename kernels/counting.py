"""What PyTorch itself counts: parameters of the modules, FLOPs by its own counter on `meta`, bytes of the cache's tensors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..estimators.work import Pass
from ..presets import spec as s
from ..presets.dtypes import Dtype
from .inputs import cross_tokens, random_inputs
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
    inputs = random_inputs(model, work)
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
            loss(model.spec, outputs).backward()
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
