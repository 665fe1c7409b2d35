"""What is kept once for many: key/value heads of a group, and a prefix that several sequences begin with."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ...presets import spec as s
from ...presets.loader import load_model
from ..attention import IMPLEMENTATIONS, Kernel, eager
from ..cache import KeyValue
from ..counting import by_path
from ..masks import Rules
from ..model import Model, build_model
from .claim import Finding, at_most, claim, difference, equal
from .specs import build, one_stack, random_ids

GQA = "Ainslie et al. 2023, arXiv:2305.13245, section 2"
PREFIX = "Zheng et al. 2023 (RadixAttention), arXiv:2312.07104, section 3"

replace = msgspec.structs.replace
Kernels = dict[str, Kernel]
SEQUENCES, SHARED, OWN = 5, 24, 4


def cache_bytes(spec: s.ModelSpec) -> int:
    """Bytes of the tensors that PyTorch holds for a cache of 1024 tokens in bf16."""
    return build_model(spec, device="meta", dtype=torch.bfloat16).cache(1, 1024).bytes


def with_kv_heads(spec: s.ModelSpec, kv_heads: int) -> s.ModelSpec:
    """The same decoder with other key/value heads."""

    def changed(sub: s.Sublayer) -> s.Sublayer:
        return replace(sub, mixer=replace(sub.mixer, kv_heads=kv_heads)) if isinstance(sub.mixer, s.Attention) else sub

    def layer(old: s.Layer) -> s.Layer:
        return replace(old, sublayers=tuple(changed(sub) for sub in old.sublayers))

    stack = spec.stacks[0]
    blocks = tuple(replace(block, pattern=tuple(layer(old) for old in block.pattern)) for block in stack.blocks)
    return replace(spec, stacks=(replace(stack, blocks=blocks),), total_params=None)


Bytes = Callable[[s.ModelSpec], int]


@claim(quantity="cache of llama-2-70b with 64 K/V heads / with its 8", formula="N / K = 64 / 8", source=GQA)
def eight_groups_shrink_64_heads_8x(cache_bytes: Bytes = cache_bytes) -> Finding:
    """GQA with 8 groups shrinks the cache 8x where there are 64 query heads (bytes of PyTorch's tensors)."""
    spec = load_model("llama-2-70b")
    return equal(8.0, cache_bytes(with_kv_heads(spec, 64)) / cache_bytes(spec))


@claim(quantity="cache of llama-7b with its 32 K/V heads / with 8, / with 4", formula="N / K = 32 / 8, 32 / 4", source=GQA)
def eight_groups_shrink_32_heads_4x(cache_bytes: Bytes = cache_bytes) -> Finding:
    """With 32 query heads 8 groups shrink it 4x; 8x there are 8 heads a group, which are 4 groups. "8 groups, 8x" needs 64 heads."""
    spec = load_model("llama-7b")
    return equal([4.0, 8.0], [cache_bytes(spec) / cache_bytes(with_kv_heads(spec, heads)) for heads in (8, 4)])


@claim(quantity="grouped heads - eager heads with repeated K and V, all kernels", formula="head n reads K/V head n // (N / K)", source=GQA)
def grouped_equals_repeated(kernels: Kernels = IMPLEMENTATIONS) -> Finding:
    """Grouped attention is multi-head attention in which a group's heads have the same keys and values."""
    q, k, v = torch.randn(2, 6, 3, 8).double(), torch.randn(2, 2, 5, 8).double(), torch.randn(2, 2, 5, 8).double()
    rules, (keys, values) = Rules(causal=True), (x.repeat_interleave(3, dim=1) for x in (k, v))
    wanted = eager(q, keys, values, rules)
    return at_most(1e-12, max(difference(wanted, kernel(q, k, v, rules)) for kernel in kernels.values()))


def continued(model: Model, prefix: Tensor, own: Tensor) -> Tensor:
    """Logits of own [B,T] behind a prefix [1,P] that is computed once, its keys and values copied for every sequence."""
    first = model.cache(1, SHARED)
    model(prefix, cache=first, last=True)
    cache = model.cache(own.shape[0], SHARED + own.shape[1])
    for kept, target in zip(first.each(), cache.each(), strict=True):
        assert isinstance(kept, KeyValue)
        assert isinstance(target, KeyValue)
        target.keys.buffer[:, :, :SHARED] = kept.keys.buffer
        target.values.buffer[:, :, :SHARED] = kept.values.buffer
    cache.length = SHARED
    logits: Tensor = model(own, cache=cache)["lm_head"]
    return logits


def apart(model: Model, prefix: Tensor, own: Tensor) -> Tensor:
    """The same, every sequence whole."""
    logits: Tensor = model(torch.cat([prefix.expand(own.shape[0], -1), own], dim=1))["lm_head"]
    return logits[:, SHARED:]


Run = Callable[[Model, Tensor, Tensor], Tensor]


@claim(quantity="logits behind a shared prefix - each sequence whole", formula="K and V of a prefix depend on it alone", source=PREFIX)
def shared_prefix_is_exact(continued: Run = continued) -> Finding:
    """Sequences that begin alike can take the keys and values of that beginning from one computation: the logits are the same."""
    model, prefix, own = build(one_stack(position=s.Rope())), random_ids(1, SHARED), random_ids(SEQUENCES, OWN)
    with torch.no_grad():
        return at_most(1e-12, difference(apart(model, prefix, own), continued(model, prefix, own)))


def layer_flops(run: Run) -> int:
    """FLOPs of the matrices of the layers as PyTorch's counter has them."""
    model = build_model(one_stack(position=s.Rope()), device="meta")
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        run(model, *(torch.zeros(shape, dtype=torch.long, device="meta") for shape in ((1, SHARED), (SEQUENCES, OWN))))
    return sum(count for path, count in by_path(model, counter).items() if "proj" in path)


@claim(quantity="FLOPs of the matrices that 5 sequences save", formula="(B - 1) · P · 2 · weights, P = 24", source=PREFIX)
def shared_prefix_saves_its_repeats(continued: Run = continued) -> Finding:
    """A shared prefix is computed once in place of B times: what that saves is (B - 1) prefixes (counted by PyTorch)."""
    weights = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 2 * 32 * 128)  # 2 layers: q and o, k and v of half the heads, the feed-forward
    return equal((SEQUENCES - 1) * SHARED * 2 * weights, layer_flops(apart) - layer_flops(continued))
