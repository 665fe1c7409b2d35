"""A recurrent network beside attention: steps that must follow one another, and how far a signal travels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..attention import IMPLEMENTATIONS
from ..masks import Rules
from ..timing import Stopping, interleave
from .claim import Finding, at_least, claim, equal
from .watching import Chain

TABLE = "Vaswani et al. 2017, arXiv:1706.03762, table 1"
WIDTH, LENGTHS = 16, [4, 8, 32]

Layer = Callable[[list[Tensor]], list[Tensor]]  # a token's vector [D] each -> an output each


def recurrent(tokens: list[Tensor]) -> list[Tensor]:
    """h_t = tanh(W x_t + U h_(t-1)), Elman 1990."""
    W, U = torch.randn(2, WIDTH, WIDTH) / WIDTH**0.5
    h, out = torch.zeros(WIDTH), []
    for x in tokens:
        h = torch.tanh(torch.mv(W, x) + torch.mv(U, h))
        out.append(h)
    return out


def attending(tokens: list[Tensor]) -> list[Tensor]:
    """Self-attention with projections, by the eager kernel."""
    x = torch.stack(tokens)
    q, k, v = (x @ w for w in torch.randn(3, WIDTH, WIDTH) / WIDTH**0.5)
    return list(IMPLEMENTATIONS["eager"](q[None, None], k[None, None], v[None, None], Rules(causal=True))[0, 0].unbind())


def chain(layer: Layer, tokens: int) -> tuple[int, int]:
    """Matrix products that must follow one another up to the last output, and the fewest from the first token to it."""
    given = [torch.randn(WIDTH) for _ in range(tokens)]
    with torch.no_grad(), Chain(*given) as all_tokens:
        longest = all_tokens.longest[id(layer(given)[-1])]
    with torch.no_grad(), Chain(given[0]) as first_token:
        shortest = first_token.shortest[id(layer(given)[-1])]
    return longest, shortest


@claim(quantity="products one after another, RNN of 4, 8, 32 tokens", formula="O(n): n", source=TABLE)
def rnn_needs_n_steps(layer: Layer = recurrent) -> Finding:
    """A recurrent layer takes n steps that must follow one another (the longest chain of matrix products that really runs)."""
    return equal(LENGTHS, [chain(layer, n)[0] for n in LENGTHS])


@claim(quantity="the same, attention over 4, 8, 32 tokens", formula="O(1): projection, scores, weighted sum", source=TABLE)
def attention_needs_one_step(layer: Layer = attending) -> Finding:
    """Attention takes one step for all tokens at once: three products one after another, however long the sequence is."""
    return equal([3, 3, 3], [chain(layer, n)[0] for n in LENGTHS])


@claim(quantity="products from the first token to the last output, RNN", formula="O(n): n", source=TABLE)
def rnn_path_is_n(layer: Layer = recurrent) -> Finding:
    """In a recurrent layer the first token's signal passes every step on its way to the last output."""
    return equal(LENGTHS, [chain(layer, n)[1] for n in LENGTHS])


@claim(quantity="the same, attention", formula="O(1): value projection, weighted sum", source=TABLE)
def attention_path_is_one(layer: Layer = attending) -> Finding:
    """In attention it takes one hop: from a value to the weighted sum, however far apart the tokens are."""
    return equal([2, 2, 2], [chain(layer, n)[1] for n in LENGTHS])


def rnn_layer(width: int) -> Callable[[Tensor], object]:
    """PyTorch's own RNN."""
    return nn.RNN(width, width, batch_first=True)


def attention_layer(width: int) -> Callable[[Tensor], object]:
    """The same size of self-attention, by PyTorch's SDPA."""
    weights = torch.randn(4, width, width) / width**0.5

    def run(x: Tensor) -> Tensor:
        q, k, v = (x @ w for w in weights[:3])
        mixed: Tensor = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0] @ weights[3]
        return mixed

    return run


Make = Callable[[int], Callable[[Tensor], object]]


@claim(
    quantity="time of an RNN / of attention, n = d = 128",
    formula="equal FLOPs at n = d up to a factor; n steps against 1",
    source=TABLE,
    measured=True,
)
def attention_is_faster_where_n_is_d(rnn: Make = rnn_layer, attention: Make = attention_layer, *, seconds: float = 0.5) -> Finding:
    """Where n = d both need about the same arithmetic, but the RNN takes it in n small steps: attention is at least twice as fast."""
    x, slow, fast = torch.randn(1, 128, 128), rnn(128), attention(128)
    with torch.no_grad():
        stopping = Stopping(min_seconds=seconds, max_seconds=4 * seconds)
        found = interleave({"rnn": lambda: slow(x), "attention": lambda: fast(x)}, stopping=stopping)
    return at_least(2.0, found["rnn"].p20_s / found["attention"].p20_s, note="one thread; 20th percentiles, taken in turn")
