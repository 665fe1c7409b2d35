"""Backpropagation by hand: the articles' rules against PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .claim import Finding, at_least, at_most, claim, difference, equal
from .specs import Build, build, random_ids, translator

RULES = "Goodfellow, Bengio and Courville 2016, section 6.5; Vaswani et al. 2017, eq. 1"
T, S, D = 4, 3, 5
EXACT = 1e-10


# --- the rules, each as one writes it on paper --------------------------------------------------------------------------


def loss_rule(p: Tensor, y: Tensor) -> Tensor:
    """dL/dlogits = p - y."""
    return p - y


def value_rule(weights: Tensor, d_out: Tensor) -> Tensor:
    """dV = A' dO."""
    return weights.T @ d_out


def weight_rule(d_out: Tensor, v: Tensor) -> Tensor:
    """dA = dO V'."""
    return d_out @ v.T


def softmax_rule(weights: Tensor, d_weights: Tensor) -> Tensor:
    """dS = A ∘ (dA - row sum of dA ∘ A)."""
    return weights * (d_weights - (d_weights * weights).sum(dim=-1, keepdim=True))


def query_rule(d_scores: Tensor, k: Tensor) -> Tensor:
    """dQ = dS K / sqrt(d)."""
    d_q: Tensor = d_scores @ k / k.shape[-1] ** 0.5
    return d_q


def key_rule(d_scores: Tensor, q: Tensor) -> Tensor:
    """dK = dS' Q / sqrt(d)."""
    d_k: Tensor = d_scores.T @ q / q.shape[-1] ** 0.5
    return d_k


def projection_rule(x: Tensor, d_q: Tensor) -> Tensor:
    """dW = X' dQ, for Q = X W."""
    return x.T @ d_q


class Step:
    """One attention, forward and backward by autograd: every tensor of it, and its gradient."""

    def __init__(self) -> None:
        self.x, self.w = torch.randn(T, 6).double(), torch.randn(6, D).double().requires_grad_()
        self.k, self.v = (torch.randn(S, D).double().requires_grad_() for _ in range(2))
        self.q = self.x @ self.w
        self.scores = self.q @ self.k.T / D**0.5
        self.weights = self.scores.softmax(dim=-1)
        out = self.weights @ self.v
        for tensor in (self.q, self.scores, self.weights):
            tensor.retain_grad()
        self.d_out = torch.randn(T, D).double()
        out.backward(self.d_out)


def compare(wanted: Tensor | None, by_hand: Tensor) -> Finding:
    """Autograd's gradient and the rule's."""
    assert wanted is not None
    with torch.no_grad():
        return at_most(EXACT, difference(wanted, by_hand))


Rule = Callable[[Tensor, Tensor], Tensor]


@claim(quantity="gradient of the logits: by hand - autograd", formula="dL/dz = p - y", source=RULES)
def softmax_with_cross_entropy(rule: Rule = loss_rule) -> Finding:
    """The gradient of cross-entropy behind a softmax is the probabilities minus the truth."""
    logits, labels = torch.randn(T, 7).double().requires_grad_(), torch.randint(7, (T,))
    F.cross_entropy(logits, labels, reduction="sum").backward()
    return compare(logits.grad, rule(logits.softmax(dim=-1), F.one_hot(labels, 7).double()))


@claim(quantity="gradient of V: by hand - autograd", formula="dV = A' dO", source=RULES)
def gradient_of_values(rule: Rule = value_rule) -> Finding:
    """A value's gradient is the sum of the outputs' gradients, each times the weight it had."""
    step = Step()
    return compare(step.v.grad, rule(step.weights, step.d_out))


@claim(quantity="gradient of A: by hand - autograd", formula="dA = dO V'", source=RULES)
def gradient_of_weights(rule: Rule = weight_rule) -> Finding:
    """A weight's gradient is the product of the output's gradient and the value."""
    step = Step()
    return compare(step.weights.grad, rule(step.d_out, step.v))


@claim(quantity="gradient of the scores: by hand - autograd", formula="dS = A ∘ (dA - Σ_row dA ∘ A)", source=RULES)
def softmax_row_rule(rule: Rule = softmax_rule) -> Finding:
    """Through a softmax every row's gradient loses its weighted mean and is multiplied by the weights."""
    step = Step()
    assert step.weights.grad is not None
    return compare(step.scores.grad, rule(step.weights, step.weights.grad))


@claim(quantity="gradient of Q: by hand - autograd", formula="dQ = dS K / sqrt(d)", source=RULES)
def gradient_of_queries(rule: Rule = query_rule) -> Finding:
    """A query's gradient is the sum of the keys, each times the gradient of its score."""
    step = Step()
    assert step.scores.grad is not None
    return compare(step.q.grad, rule(step.scores.grad, step.k))


@claim(quantity="gradient of K: by hand - autograd", formula="dK = dS' Q / sqrt(d)", source=RULES)
def gradient_of_keys(rule: Rule = key_rule) -> Finding:
    """A key's gradient is the sum of the queries, each times the gradient of its score."""
    step = Step()
    assert step.scores.grad is not None
    return compare(step.k.grad, rule(step.scores.grad, step.q))


@claim(quantity="gradient of W_Q: by hand - autograd", formula="dW = X' dQ", source=RULES)
def gradient_of_projection(rule: Rule = projection_rule) -> Finding:
    """A projection's gradient is the product of its input, transposed, and its output's gradient."""
    step = Step()
    assert step.q.grad is not None
    return compare(step.w.grad, rule(step.x, step.q.grad))


# --- through cross-attention ----------------------------------------------------------------------------------------------


def layers_of(model: nn.Module, stack: int) -> list[nn.Parameter]:
    """The weights of a stack's layers; the embedding, which both share, is none of them."""
    return [weight for name, weight in model.named_parameters() if name.startswith(f"stacks.{stack}.layers")]


def backward(model: nn.Module) -> None:
    """The gradients of the loss at the decoder's output."""
    logits = model(random_ids(2, T), source=random_ids(2, S))["lm_head"]
    F.cross_entropy(logits.flatten(0, 1), random_ids(2, T).flatten()).backward()


@claim(quantity="smallest gradient of an encoder matrix", formula="dL/dh_enc = Σ over layers of dK W_K' + dV W_V'", source=RULES)
def gradient_reaches_the_encoder(build: Build = build) -> Finding:
    """The loss stands at the decoder's end, and cross-attention carries its gradient into every matrix of the encoder."""
    model = build(translator())
    backward(model)
    return at_least(1e-9, min(0.0 if w.grad is None else float(w.grad.norm()) for w in layers_of(model, 0) if w.ndim == 2))


def freeze(weights: list[nn.Parameter]) -> None:
    """No gradient for these."""
    for weight in weights:
        weight.requires_grad = False


def moved_by_training(build: Build, freeze: Callable[[list[nn.Parameter]], None]) -> tuple[float, float]:
    """How far a step of Adam moves the encoder's and the decoder's matrices, the encoder being frozen."""
    model = build(translator())
    freeze(layers_of(model, 0))
    before = [[weight.detach().clone() for weight in layers_of(model, stack)] for stack in (0, 1)]
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)
    backward(model)
    optimizer.step()
    return tuple(max(difference(*pair) for pair in zip(old, layers_of(model, stack), strict=True)) for stack, old in enumerate(before))  # type: ignore[return-value]


@claim(quantity="change of a frozen encoder by a step", formula="ΔW = 0", source="PyTorch: requires_grad=False")
def frozen_encoder_stays(freeze: Callable[[list[nn.Parameter]], None] = freeze) -> Finding:
    """A frozen encoder stays bit for bit what it was."""
    return equal(0.0, moved_by_training(build, freeze)[0])


@claim(quantity="change of its decoder by the same step", formula="ΔW ≠ 0", source="PyTorch: requires_grad=False")
def the_decoder_behind_it_learns(build: Build = build) -> Finding:
    """The decoder behind a frozen encoder learns all the same."""
    return at_least(1e-3, moved_by_training(build, freeze)[1])
