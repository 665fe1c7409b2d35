"""The worked numbers of the articles, recomputed by the kernels and the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from ...estimators.kvcache import kvcache
from ...estimators.latency import roofline
from ...estimators.ledger import ledger
from ...estimators.work import Pass
from ...presets import spec as s
from ...presets.device import Device, load_device
from ...presets.loader import load_model
from ..attention import IMPLEMENTATIONS, Kernel
from ..masks import Rules
from ..modules import normalise
from .claim import Finding, at_most, claim, equal
from .specs import WIDTH, build, one_stack, stack_of

VASWANI = "Vaswani et al. 2017, arXiv:1706.03762"
WORST = "the worst of all four kernels"

Kernels = dict[str, Kernel]
Normalise = Callable[[Tensor, s.Norm | s.HeadNorm, int, Tensor | None, Tensor | None], Tensor]
CacheBytes = Callable[[s.ModelSpec, int], int]


def through(kernel: Kernel, logits: Tensor, values: Tensor) -> Tensor:
    """softmax(logits) values by an attention kernel: one query whose products with the keys are `logits` [S]; values [S,Dv]."""
    q = F.one_hot(torch.tensor([0]), values.shape[1]).double()
    k = torch.zeros_like(values)
    k[:, 0] = logits
    return kernel(q[None, None], k[None, None], values[None, None], Rules(causal=False, scale=1.0))[0, 0, 0]


def worst(kernels: Kernels, logits: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """The result of the kernel that is furthest from what is wanted."""
    found = [through(kernel, logits, values) for kernel in kernels.values()]
    return max(found, key=lambda got: float((got - wanted).abs().max()))


def expect_softmax(logits: list[float], wanted: list[float], kernels: Kernels) -> Finding:
    """Weights show where the values are the unit matrix; three digits, as the articles print them."""
    given, three = torch.tensor(logits, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64)
    got = worst(kernels, given, torch.eye(len(logits), dtype=torch.float64), three)
    return equal(three, got, within=1e-3, note=WORST)


@claim(quantity="softmax of [3, 1, 0.2]", formula="exp(x_i) / Σ_j exp(x_j)", source=f"{VASWANI}, eq. 1")
def softmax_of_3_1_02(kernels: Kernels = IMPLEMENTATIONS) -> Finding:
    """Scores 3, 1 and 0.2 become weights 0.836, 0.113 and 0.051."""
    return expect_softmax([3, 1, 0.2], [0.836, 0.113, 0.051], kernels)


@claim(quantity="softmax of [1, 2, 0]", formula="exp(x_i) / Σ_j exp(x_j)", source=f"{VASWANI}, eq. 1")
def softmax_of_1_2_0(kernels: Kernels = IMPLEMENTATIONS) -> Finding:
    """Scores 1, 2 and 0 become weights 0.245, 0.665 and 0.090."""
    return expect_softmax([1, 2, 0], [0.245, 0.665, 0.090], kernels)


@claim(quantity="0.2 V1 + 0.7 V2 + 0.1 V3", formula="Σ_s a_s V_s, V1 = [1,0], V2 = [0,2], V3 = [1,1]", source=f"{VASWANI}, eq. 1")
def weighted_values(kernels: Kernels = IMPLEMENTATIONS) -> Finding:
    """What attention gives is the sum of the values, each times its weight: 0.2, 0.7 and 0.1 of three vectors are [0.3, 1.5]."""
    weights = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64)
    values, wanted = torch.tensor([[1, 0], [0, 2], [1, 1]]).double(), torch.tensor([0.3, 1.5], dtype=torch.float64)
    return equal(wanted, worst(kernels, weights.log(), values, wanted), within=1e-9, note=WORST)


@claim(quantity="loss of a true token of probability 0.665", formula="-ln p", source="cross-entropy; logits [1, 2, 0], label 1")
def loss_of_0665(loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> Finding:
    """Where the true token has probability 0.665 the loss is -ln 0.665 = 0.408."""
    return equal(0.408, float(loss(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([1]))), within=1e-3)


def sgd(weights: Iterable[Tensor]) -> torch.optim.Optimizer:
    """PyTorch's own, at a learning rate of 0.1."""
    return torch.optim.SGD(weights, lr=0.1)


@claim(quantity="weight after a step", formula="w - η g, w = 0.5, η = 0.1, g = 0.2", source="Robbins and Monro 1951")
def sgd_step(optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer] = sgd) -> Finding:
    """A step of gradient descent goes against the gradient: 0.5 - 0.1 · 0.2 = 0.48."""
    weight = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    weight.grad = torch.tensor([0.2], dtype=torch.float64)
    optimizer([weight]).step()
    return equal([0.48], weight, within=1e-12)


def scores(q: Tensor, k: Tensor) -> Tensor:
    """q [T,D] with every key, k [S,D]: [T,S]."""
    return q @ k.T


@claim(quantity="[1, 1] K', K = [[1,0], [0,1], [1,1]]", formula="q K'", source=f"{VASWANI}, eq. 1")
def query_times_keys(scores: Callable[[Tensor, Tensor], Tensor] = scores) -> Finding:
    """A query's scores are its products with all keys: [1, 1] with [1,0], [0,1] and [1,1] gives [1, 1, 2]."""
    return equal([[1, 1, 2]], scores(torch.ones(1, 2), torch.tensor([[1.0, 0], [0, 1], [1, 1]])))


@claim(
    quantity="LayerNorm of [1, 2, 3, 4]",
    formula="(x - mean) / sqrt(mean of (x - mean)² + ε)",
    source="Ba et al. 2016, arXiv:1607.06450, eq. 4",
)
def layer_norm_of_1_2_3_4(normalise: Normalise = normalise) -> Finding:
    """Mean 2.5, variance 1.25 (over n, not n - 1): [-1.342, -0.447, 0.447, 1.342]."""
    got = normalise(torch.tensor([1.0, 2, 3, 4]), s.Norm(type="layer"), 4, None, None)
    return equal([-1.342, -0.447, 0.447, 1.342], got, within=1e-3)


def cache_bytes(spec: s.ModelSpec, tokens: int) -> int:
    """By the ledger, one sequence in bf16."""
    return int(kvcache(spec, Pass(phase="decode", context=tokens)).kv_bytes)


@claim(
    quantity="cache of a token, llama-2-7b",
    formula="2 · L · K · H · 2 bytes, L = 32, K = 32, H = 128",
    source="Shazeer 2019, arXiv:1911.02150",
)
def cache_per_token_7b(cache_bytes: CacheBytes = cache_bytes) -> Finding:
    """A token of a 7B model costs 512 KB of cache in 16 bits (KB of 1024 bytes): a key and a value for every head and layer."""
    return equal(512 * 2**10, cache_bytes(load_model("llama-2-7b"), 1))


@claim(quantity="cache at 32k, llama-2-7b", formula="2 · L · K · H · S · 2 bytes, S = 32768", source="Shazeer 2019, arXiv:1911.02150")
def cache_at_32k_7b(cache_bytes: CacheBytes = cache_bytes) -> Finding:
    """At a context of 32k tokens the cache of one sequence is 16 GiB, more than the weights."""
    return equal(16 * 2**30, cache_bytes(load_model("llama-2-7b"), 32768))


def step_seconds(spec: s.ModelSpec, device: Device) -> tuple[float, float]:
    """A decode step without context: seconds for its bytes, and for its arithmetic at the peak of bf16."""
    found = roofline(spec, Pass(phase="decode", context=1), device)
    return float(found.memory_s), math.inf if found.compute_s is None else float(found.compute_s)


Seconds = Callable[[s.ModelSpec, Device], tuple[float, float]]
ROUND = "14 GB in the articles; exactly it is 13.2 GB (the input table is not read) at 2.039 TB/s: 7 % less"


@claim(
    quantity="seconds to read 7B weights at 2 TB/s",
    formula="7e9 · 2 bytes / 2e12 bytes/s",
    source="Pope et al. 2022, arXiv:2211.05102, section 2",
)
def reading_7b_takes_7ms(step_seconds: Seconds = step_seconds) -> Finding:
    """A decode step reads every weight: 14 GB over the 2 TB/s of an A100 are 7 ms, whatever the arithmetic."""
    return equal(0.007, step_seconds(load_model("llama-2-7b"), load_device("a100-80gb-sxm"))[0], within=0.1, note=ROUND)


@claim(
    quantity="seconds of arithmetic of that step",
    formula="2 · 7e9 FLOPs / 312e12 FLOP/s",
    source="Pope et al. 2022, arXiv:2211.05102, section 2",
)
def arithmetic_of_that_step(step_seconds: Seconds = step_seconds) -> Finding:
    """The arithmetic of the same step takes less than 0.1 ms at the peak of an A100."""
    return at_most(1e-4, step_seconds(load_model("llama-2-7b"), load_device("a100-80gb-sxm"))[1])


def block_weights(spec: s.ModelSpec) -> dict[str, int]:
    """Weights of the matrices of one layer that PyTorch's modules really hold, by sublayer."""
    found: dict[str, int] = {}
    for name, weight in stack_of(build(spec), 0).layers[0].named_parameters():
        if weight.ndim == 2:
            sublayer = spec.stacks[0].blocks[0].pattern[0].sublayers[int(name.split(".")[1])].name
            found[sublayer] = found.get(sublayer, 0) + weight.numel()
    return found


Weights = Callable[[s.ModelSpec], dict[str, int]]


@claim(quantity="weights of a block", formula="4·D² + 8·D² = 12·D², D = 32", source=f"{VASWANI}, section 3; d_ff = 4 D")
def block_has_12_d2(block_weights: Weights = block_weights) -> Finding:
    """A block has 12·D² weights: four square matrices of attention, and two of D x 4D in the feed-forward."""
    return equal(12 * WIDTH**2, sum(block_weights(one_stack(kv_heads=4)).values()))


@claim(quantity="share of the feed-forward", formula="8·D² / 12·D²", source=f"{VASWANI}, section 3; d_ff = 4 D")
def feed_forward_has_two_thirds(block_weights: Weights = block_weights) -> Finding:
    """Two thirds of a block's weights are in its feed-forward."""
    found = block_weights(one_stack(kv_heads=4))
    return equal(2 / 3, found["feed_forward"] / sum(found.values()), within=1e-12)


def ledger_weights(spec: s.ModelSpec) -> int:
    """Parameters by the ledger."""
    return int(sum(row.params * row.copies for row in ledger(spec, Pass(context=1))))


@claim(quantity="parameters of transformer-toy", formula="Σ params · copies", source="the ledger, against PyTorch's own modules")
def ledger_counts_what_torch_holds(count: Callable[[s.ModelSpec], int] = ledger_weights) -> Finding:
    """The ledger's sum is the number of elements of the parameters that PyTorch holds, a shared table once."""
    toy = load_model("transformer-toy")
    return equal(sum(weight.numel() for weight in build(toy).parameters()), count(toy))
