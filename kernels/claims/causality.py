"""What the causal mask is for, and when it is needed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...presets import spec as s
from ..modules import Linear
from .claim import Finding, at_least, at_most, claim, difference, equal
from .specs import ROWS, Build, build, one_stack, outputs_of, random_ids

MASK = "Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3"
TOKENS = 6

# A model and the same without its mask take their weights from the same seed.
MASKED, OPEN = s.Causal(), s.Full()


def states(model: nn.Module, ids: Tensor) -> Tensor:
    """Last hidden states [B,T,D]."""
    with torch.no_grad():
        out: Tensor = model(ids)["decoder"]
    return out


def other_last(ids: Tensor) -> Tensor:
    """The same ids but for the last."""
    ids = ids.clone()
    ids[:, -1] = (ids[:, -1] + 1) % ROWS
    return ids


def changed(mask: s.Mask, build: Build, layers: int) -> tuple[float, float]:
    """How far another last token moves the states before it, and its own."""
    model, ids = build(one_stack(mask, s.Rope(), layers=layers)), random_ids(2, TOKENS)
    before, after = states(model, ids), states(model, other_last(ids))
    return difference(before[:, :-1], after[:, :-1]), difference(before[:, -1], after[:, -1])


@claim(quantity="change of earlier states by another last token, 3 layers", formula="∂h_t / ∂x_u = 0 for u > t", source=MASK)
def future_changes_nothing(build: Build = build) -> Finding:
    """Under a causal mask a future token changes no earlier state, however many layers there are."""
    return at_most(1e-12, changed(MASKED, build, 3)[0])


@claim(quantity="change of its own state", formula="∂h_t / ∂x_t ≠ 0", source=MASK)
def a_token_changes_its_own_state(build: Build = build) -> Finding:
    """The token itself is seen: its own state is another one."""
    return at_least(0.01, changed(MASKED, build, 3)[1])


def keys_moved(mask: s.Mask, build: Build) -> list[float]:
    """For each of two layers: how far another last token moves the keys of the tokens before it, what a cache would hold."""
    model, ids = build(one_stack(mask, s.Rope(), layers=2)), random_ids(2, TOKENS)
    seen, hooks = outputs_of(model, Linear, "k_proj")
    states(model, ids)
    states(model, other_last(ids))
    for hook in hooks:
        hook.remove()
    return [difference(seen[layer][:, :-1], seen[2 + layer][:, :-1]) for layer in range(2)]


@claim(quantity="change of earlier keys of layer 1, no mask", formula="k_t = W x_t in layer 1", source=MASK)
def first_layer_keys_need_no_mask(build: Build = build) -> Finding:
    """Without the mask a future token still changes no key of the first layer: keys are made of each token's own embedding."""
    return at_most(1e-12, keys_moved(OPEN, build)[0])


@claim(quantity="change of earlier keys of layer 2, no mask", formula="k_t = W h_t, h_t = f(x_1 ... x_T)", source=MASK)
def without_mask_second_layer_changes(build: Build = build) -> Finding:
    """From the second layer on it does: without the mask earlier states have seen the future, so no key could be kept in a cache."""
    return at_least(0.01, keys_moved(OPEN, build)[1])


@claim(quantity="change of earlier keys of layers 1 and 2, causal", formula="k_t = W h_t, h_t = f(x_1 ... x_t)", source=MASK)
def causal_keys_can_be_kept(build: Build = build) -> Finding:
    """Under the mask the keys of earlier tokens stay what they are in every layer: that is what makes a cache possible."""
    return at_most(1e-12, max(keys_moved(MASKED, build)))


def last_with_and_without(layers: int, build: Build) -> float:
    """How far the mask moves the state of the last position."""
    ids = random_ids(2, TOKENS)
    masked, unmasked = (states(build(one_stack(mask, s.Rope(), layers=layers)), ids)[:, -1] for mask in (MASKED, OPEN))
    return difference(masked, unmasked)


@claim(quantity="last state with the mask - without, 1 layer", formula="row T of the mask hides nothing", source=MASK)
def one_layer_needs_no_mask_at_the_end(build: Build = build) -> Finding:
    """With one layer and only the last position read no mask is needed: the last token sees every other anyway."""
    return at_most(1e-12, last_with_and_without(1, build))


@claim(quantity="last state with the mask - without, 2 layers", formula="h_T depends on h_t of layer 1, t < T", source=MASK)
def two_layers_need_the_mask(build: Build = build) -> Finding:
    """With two layers the last position differs too: it reads earlier states, and those have seen the future."""
    return at_least(0.01, last_with_and_without(2, build))


@claim(quantity="loss positions a pass gives, T = 6", formula="T predictions, one a position", source=f"{MASK}; section 3.1")
def every_position_predicts_its_next(build: Build = build) -> Finding:
    """One pass under the mask predicts at every position what a pass over the tokens up to there predicts at its end."""
    model, ids = build(one_stack(MASKED, s.Rope())), random_ids(2, TOKENS)
    whole = states(model, ids)
    right = [difference(whole[:, t], states(model, ids[:, : t + 1])[:, -1]) <= 1e-12 for t in range(TOKENS)]
    return equal(TOKENS, sum(right))
