"""The key/value cache: the same numbers for less work; what it holds, and what cross-attention holds."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ...presets import spec as s
from ..attention import IMPLEMENTATIONS, Kernel
from ..masks import Rules
from ..mixers import Scores
from ..model import Model, build_model
from ..modules import Linear
from .claim import Finding, at_least, at_most, claim, difference, equal
from .specs import Build, attended, build, one_stack, outputs_of, random_ids, stack_of, translator

POPE = "Pope et al. 2022, arXiv:2211.05102, section 2"
CROSS = "Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3"
SHAZEER = "Shazeer 2019, arXiv:1911.02150"
SOURCE, STEPS = 3, 5

Kernels = dict[str, Kernel]


def cached_logits(model: Model, ids: Tensor, source: Tensor | None, *, first: int) -> Tensor:
    """Logits [B,T,V] of `first` tokens at once and the others one by one, from a cache."""
    cache = model.cache(ids.shape[0], ids.shape[1], source=0 if source is None else source.shape[1])
    parts = [model(ids[:, :first], source=source, cache=cache)["lm_head"]]
    parts += [model(ids[:, t : t + 1], cache=cache)["lm_head"] for t in range(first, ids.shape[1])]
    return torch.cat(parts, dim=1)


Cached = Callable[..., Tensor]


@claim(quantity="logits from the cache - recomputed", formula="softmax(q_t K') V, K and V kept", source=POPE)
def cached_equals_recomputed(cached: Cached = cached_logits) -> Finding:
    """Decoding from a cache gives the logits that recomputing the whole sequence gives (grouped heads, rotary positions)."""
    model, ids = build(one_stack(position=s.Rope())), random_ids(2, 7)
    with torch.no_grad():
        return at_most(1e-12, difference(model(ids)["lm_head"], cached(model, ids, None, first=3)))


@claim(quantity="the same with an encoder", formula="softmax(q_t K') V, also of the encoder", source=f"{POPE}; {CROSS}")
def cached_equals_recomputed_with_encoder(cached: Cached = cached_logits) -> Finding:
    """So it does with cross-attention, whose keys and values are made once and kept."""
    model, ids, source = build(translator()), random_ids(2, 6), random_ids(2, SOURCE)
    with torch.no_grad():
        return at_most(1e-12, difference(model(ids, source=source)["lm_head"], cached(model, ids, source, first=1)))


def attention_flops(tokens: int, *, cached: bool) -> int:
    """FLOPs of the scores and the weighted values while `tokens` tokens are generated, as PyTorch's counter has them."""
    model = build_model(one_stack(position=s.Rope(), layers=1), device="meta")
    cache, total = model.cache(1, tokens), 0
    for t in range(1, tokens + 1):
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            model(torch.zeros(1, 1 if cached else t, dtype=torch.long, device="meta"), cache=cache if cached else None)
        names = [name for name, module in model.named_modules() if isinstance(module, Scores)]
        total += sum(sum(counter.get_flop_counts()[f"Model.{name}"].values()) for name in names)
    return total


Flops = Callable[..., int]
PAIR = 4 * 32  # 2 products of 2 FLOPs, N · H = 32


@claim(quantity="attention FLOPs of recomputing 16 tokens", formula="4·N·H · Σ t² = 4·N·H · n(n+1)(2n+1)/6", source=POPE)
def recomputing_is_cubic(flops: Flops = attention_flops) -> Finding:
    """Generating n tokens without a cache costs O(n³) of attention: every step computes the square of all before (counted by PyTorch)."""
    return equal(PAIR * sum(t * t for t in range(1, 17)), flops(16, cached=False))


@claim(quantity="attention FLOPs of 16 cached steps", formula="4·N·H · Σ t = 4·N·H · n(n+1)/2", source=POPE)
def cached_is_quadratic(flops: Flops = attention_flops) -> Finding:
    """With a cache it costs O(n²): every step compares one query with all keys (counted by PyTorch)."""
    return equal(PAIR * sum(range(1, 17)), flops(16, cached=True))


@claim(quantity="keys that self-attention sees, step by step", formula="S = t", source=SHAZEER)
def self_cache_grows_by_one(build: Build = build) -> Finding:
    """The cache of self-attention grows by one key and value a step."""
    return equal([1, 2, 3, 4, 5], keys_by_step(build, r"subs\.0"))


@claim(quantity="keys that cross-attention sees, step by step", formula="S = source tokens", source=CROSS)
def cross_cache_is_constant(build: Build = build) -> Finding:
    """The cache of cross-attention stays what it is: as many keys as the source has tokens, at every step."""
    return equal([SOURCE] * STEPS, keys_by_step(build, r"subs\.1"))


def keys_by_step(build: Build, sublayer: str) -> list[int]:
    """How many keys the first decoder layer's attention is given at each of STEPS steps."""
    model = build(translator(1))
    seen, ids, source = attended(model), random_ids(1, STEPS), random_ids(1, SOURCE)
    with torch.no_grad():
        cached_logits(model, ids, source, first=1)
    return [keys for name, keys in seen if re.search(rf"stacks\.1\.layers\.0\.{sublayer}\.", name)]


def cross_keys(build: Build) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    """Of a model with two layers a side: the encoder's output, its own keys, each decoder layer's keys, and their matrices."""
    model = build(translator(2))
    seen, hooks = outputs_of(model, Linear, "k_proj")
    with torch.no_grad():
        out = model(random_ids(2, 4), source=random_ids(2, SOURCE))
    for hook in hooks:
        hook.remove()
    matrices = [layer.subs[1].mixer.k_proj.weight for layer in stack_of(model, 1).layers]
    # in order: 2 of the encoder, then self- and cross-attention of each decoder layer
    return out["encoder"], seen[:2], seen[3::2], matrices


@claim(quantity="cross keys - W_K · encoder output, each layer", formula="K = h_enc W_K of the decoder layer", source=CROSS)
def cross_keys_are_projected_by_the_decoder(build: Build = build) -> Finding:
    """The keys of cross-attention are the encoder's output projected by the decoder layer's own matrix."""
    encoded, _, keys, matrices = cross_keys(build)
    return at_most(1e-12, max(difference(encoded @ w.T, k) for k, w in zip(keys, matrices, strict=True)))


@claim(quantity="least difference of cross keys to others", formula="W_K differs by layer", source=CROSS)
def cross_keys_are_nobody_elses(build: Build = build) -> Finding:
    """They are not the encoder's own keys, and every decoder layer has others."""
    _, own, keys, _ = cross_keys(build)
    return at_least(0.01, min(difference(keys[0], other) for other in (*own, keys[1])))


def shaped(q: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random q [1,2,q,4], k and v [1,2,k,4]."""
    return torch.randn(1, 2, q, 4).double(), torch.randn(1, 2, k, 4).double(), torch.randn(1, 2, k, 4).double()


@claim(quantity="output rows of 4 queries and 3 keys, all kernels", formula="[T,S] @ [S,H] -> [T,H]", source=CROSS)
def as_many_outputs_as_queries(kernels: Kernels = IMPLEMENTATIONS) -> Finding:
    """There is an output for every query, not for every key: 4 of them over 3 encoder positions."""
    q, k, v = shaped(4, 3)
    return equal([4] * len(kernels), [kernel(q, k, v, Rules(causal=False)).shape[2] for kernel in kernels.values()])


@claim(quantity="outputs of shuffled queries and keys, all kernels", formula="f(P q, Q k, Q v) = P f(q, k, v)", source=CROSS)
def outputs_follow_the_queries(kernels: Kernels = IMPLEMENTATIONS) -> Finding:
    """Outputs stand where the queries stand: shuffling queries shuffles them, shuffling keys with their values does nothing."""
    q, k, v = shaped(4, 3)
    order, other = torch.tensor([1, 2, 3, 0]), torch.tensor([1, 2, 0])
    rules = Rules(causal=False)
    found = [
        difference(kernel(q, k, v, rules)[:, :, order], kernel(q[:, :, order], k[:, :, other], v[:, :, other], rules))
        for kernel in kernels.values()
    ]
    return at_most(1e-12, max(found))
