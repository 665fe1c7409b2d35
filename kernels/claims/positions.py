"""What attention knows of positions, and the published ways to tell it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...presets import spec as s
from .. import positions as p
from .claim import Finding, at_least, at_most, claim, difference, equal, same
from .specs import Build, build, one_stack, random_ids

VASWANI = "Vaswani et al. 2017, arXiv:1706.03762, section 3.5"
ROPE = "Su et al. 2021, arXiv:2104.09864, section 3.4"
YARN = "Peng et al. 2023, arXiv:2309.00071"
TOKENS = 6

Rotate = Callable[..., Tensor]
KINDS: dict[str, s.Position | s.Sinusoidal | s.Embedding] = {
    "rotary": s.Rope(),
    "alibi": s.Alibi(),
    "sinusoidal": s.Sinusoidal(),
    "learned": s.Embedding(name="position", rows=TOKENS, role="position"),
}


def moved(spec: s.ModelSpec, build: Build) -> float:
    """How far the states of shuffled tokens are from the shuffled states, relative to the largest state."""
    model, ids = build(spec), random_ids(2, TOKENS)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    with torch.no_grad():
        return difference(model(ids)["decoder"][:, order], model(ids[:, order])["decoder"])


@claim(
    quantity="states of shuffled tokens - shuffled states", formula="f(P x) = P f(x)", source=f"{VASWANI}: no recurrence, no convolution"
)
def without_positions_order_is_lost(build: Build = build) -> Finding:
    """Attention without positions is permutation-equivariant: shuffle the tokens and the same states come out, shuffled."""
    return at_most(1e-12, moved(one_stack(s.Full()), build))


@claim(quantity="the same, least of rotary, ALiBi, sinusoidal, learned", formula="f(P x) ≠ P f(x)", source=VASWANI)
def with_positions_order_counts(build: Build = build) -> Finding:
    """With positions of any kind it is not: the order of the tokens changes their states."""
    return at_least(0.01, min(moved(one_stack(s.Full(), position), build) for position in KINDS.values()))


def turned(x: Tensor, position: int, rotate: Rotate, *, interleaved: bool) -> Tensor:
    """x [H] turned to a position."""
    cos, sin = p.rotation(torch.tensor([position]), p.rotary_frequencies(x.shape[-1]), dtype=torch.float64)
    return rotate(x[None], cos, sin, interleaved=interleaved)[0]


@claim(quantity="score at (3, 1) - score 1000 positions on", formula="(R_m q)·(R_n k) = q·R_(n-m) k", source=f"{ROPE}, eq. 16")
def rope_scores_depend_on_distance(rotate: Rotate = p.rotate) -> Finding:
    """Rotary scores depend on the distance of query and key alone, in both ways of pairing channels."""
    q, k = torch.randn(2, 16, dtype=torch.float64)
    pairs = [
        [
            turned(q, first, rotate, interleaved=both) @ turned(k, second, rotate, interleaved=both)
            for first, second in ((3, 1), (1003, 1001))
        ]
        for both in (False, True)
    ]
    return at_most(1e-9, max(difference(near, far) for near, far in pairs))


@claim(quantity="score at distance 2 - score at distance 5", formula="q·R_2 k ≠ q·R_5 k", source=f"{ROPE}, eq. 16")
def rope_scores_change_with_distance(rotate: Rotate = p.rotate) -> Finding:
    """And they do depend on it: the same query and key at another distance have another score."""
    q, k = torch.randn(2, 16, dtype=torch.float64)
    near, far = (turned(q, 7, rotate, interleaved=False) @ turned(k, 7 - gap, rotate, interleaved=False) for gap in (2, 5))
    return at_least(0.01, difference(near, far))


@claim(quantity="PE of positions 0, 1, 1000, D = 10", formula="sin(p / 10000^(2i/D)), cos(p / 10000^(2i/D))", source=VASWANI)
def sinusoidal_as_published(sinusoidal: Callable[[Tensor, int], Tensor] = p.sinusoidal) -> Finding:
    """Sinusoidal positions are the published sines and cosines, side by side."""
    places, D = [0, 1, 1000], 10
    angles = [[place / 10000 ** (2 * i / D) for i in range(D // 2)] for place in places]
    wanted = [[f(angle) for angle in row for f in (math.sin, math.cos)] for row in angles]
    return at_most(1e-12, difference(wanted, sinusoidal(torch.tensor(places), D)))


@claim(quantity="learned position 3 - row 3 of the table", formula="x_p = E_p", source="Gehring et al. 2017, arXiv:1705.03122, section 3.1")
def learned_is_a_row(learned: Callable[[Tensor, Tensor], Tensor] = p.learned) -> Finding:
    """A learned position is a row of a table."""
    table = torch.randn(9, 4)
    return equal(0.0, difference(table[[3, 0]], learned(torch.tensor([3, 0]), table)))


@claim(quantity="position 1025 of a table for 1024", formula="E [1024, D]", source="Radford et al. 2019 (GPT-2): 1024 positions")
def learned_ends_at_1024(learned: Callable[[Tensor, Tensor], Tensor] = p.learned) -> Finding:
    """A learned table of 1024 positions has nothing for the 1025th: asking for it is an error, not a guess."""
    table = torch.randn(1024, 4)
    learned(torch.tensor([1023]), table)
    try:
        learned(torch.tensor([1024]), table)
    except IndexError:
        return same("refused", "refused")
    return same("refused", "a vector")


@claim(
    quantity="slopes of 8 heads",
    formula="2^(-8n/N), n = 1..N; bias -slope · distance",
    source="Press et al. 2021, arXiv:2108.12409, section 3",
)
def alibi_as_published(slopes: Callable[[int], Tensor] = p.alibi_slopes) -> Finding:
    """ALiBi's slopes for 8 heads are 1/2, 1/4 ... 1/256."""
    return equal([2.0**-n for n in range(1, 9)], slopes(8), within=1e-12)


@claim(
    quantity="bias of 2 queries over 4 keys, head 1 of 2",
    formula="-m · |position of the query - of the key|",
    source="Press et al. 2021, figure 3",
)
def alibi_grows_with_distance(bias: Callable[[int, int, int], Tensor] = p.alibi_bias) -> Finding:
    """ALiBi takes from a score its slope times the distance, the last query standing at the last key."""
    m = 2.0**-4
    wanted = torch.tensor([[-2 * m, -m, 0, -m], [-3 * m, -2 * m, -m, 0]], dtype=torch.float64)
    return at_most(1e-12, difference(wanted, bias(2, 2, 4)[0]))


@claim(
    quantity="stretch of the fastest and the slowest pair",
    formula="base' = base · s^(d/(d-2)), s = 4, d = 128",
    source=f"{YARN}, definition 1",
)
def ntk_as_published(ntk_base: Callable[[float, int, float], float] = p.ntk_base) -> Finding:
    """NTK-aware scaling stretches the slowest pair by the factor and leaves the fastest as it is."""
    plain, scaled = (p.rotary_frequencies(128, base) for base in (10000.0, ntk_base(10000.0, 128, 4.0)))
    return equal([1.0, 4.0], (plain / scaled)[[0, -1]], within=1e-9)


def published_yarn(d: int, base: float, s_: float, trained: int) -> list[float]:
    """h(θ_i) = (1 - γ) θ_i / s + γ θ_i, the ramp 1 - γ running over whole pairs as in the authors' code: 32 turns and 1 turn."""
    first, last = (d * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32, 1))
    ramp = [min(max((i - math.floor(first)) / (math.ceil(last) - math.floor(first)), 0), 1) for i in range(d // 2)]
    return [(t / s_ + 1 - t) * base ** (-2 * i / d) for i, t in enumerate(ramp)]


def yarn(width: int, base: float, factor: float, trained: int) -> Tensor:
    """Frequencies by the kernel."""
    return p.yarn_scaled(width, base, factor=factor, trained=trained)


@claim(
    quantity="frequencies - published, d = 128, s = 16, 4096 trained",
    formula="(1 - γ) θ / s + γ θ, γ from 1 turn (0) to 32 turns (1)",
    source=f"{YARN}, section 3.2",
)
def yarn_as_published(yarn: Callable[[int, float, float, int], Tensor] = yarn) -> Finding:
    """YaRN keeps the pairs that turn often in the trained context, stretches those that turn less than once, and blends between."""
    wanted = torch.tensor(published_yarn(128, 10000.0, 16.0, 4096), dtype=torch.float64)
    return at_most(1e-9, float(((yarn(128, 10000.0, 16.0, 4096) - wanted) / wanted).abs().max()))


@claim(quantity="YaRN's factor on attention, s = 1, 16, 40", formula="0.1 ln s + 1", source=f"{YARN}, eq. 22")
def yarn_factor_as_published(factor: Callable[[float], float] = p.yarn_attention_factor) -> Finding:
    """YaRN multiplies queries and keys by 0.1 ln s + 1: 1.277 for 16 times the context, 1.369 for 40 times."""
    return equal([1.0, 1.2773, 1.3689], [factor(s_) for s_ in (1.0, 16.0, 40.0)], within=1e-4)
