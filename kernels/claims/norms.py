"""Norms: over one token each, and where they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...presets import spec as s
from ...presets.loader import load_model
from ..blocks import Sublayer
from ..modules import normalise
from .claim import Finding, at_least, at_most, claim, difference, equal
from .specs import Build, Where, build, one_stack, random_ids, stack_of
from .worked import Normalise

LAYER, RMS = "Ba et al. 2016, arXiv:1607.06450, eq. 4", "Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4"
XIONG = "Xiong et al. 2020, arXiv:2002.04745, theorem 1"
WANG = "Wang et al. 2019, arXiv:1906.01787, eq. 5 and 6; Xiong et al. 2020, arXiv:2002.04745"
VASWANI = "Vaswani et al. 2017, arXiv:1706.03762"
DEPTH = 24


def normed(kind: str, normalise: Normalise, x: Tensor) -> Tensor:
    """x [B,T,D] through a norm without weights and with next to no epsilon."""
    return normalise(x, s.Norm(type="layer_plain" if kind == "layer" else "rms_plain", eps=1e-12), x.shape[-1], None, None)


def neighbours(kind: str, normalise: Normalise) -> float:
    """How far other tokens of the sequence and other sequences move a token's result."""
    x = torch.randn(3, 4, 8).double()
    other = x.clone()
    other[1:] *= 5
    other[0, 1:] -= 3
    return difference(normed(kind, normalise, x)[0, 0], normed(kind, normalise, other)[0, 0])


@claim(quantity="|mean| and variance - 1 of every token", formula="(x - mean) / sqrt(var)", source=LAYER)
def layer_norm_centres_every_token(normalise: Normalise = normalise) -> Finding:
    """After LayerNorm every token has mean 0 and variance 1 over its channels."""
    y = normed("layer", normalise, 2 + 3 * torch.randn(3, 4, 8).double())
    return at_most(1e-9, float(torch.maximum(y.mean(dim=-1).abs(), (y.var(dim=-1, correction=0) - 1).abs()).max()))


@claim(quantity="mean square - 1 of every token", formula="x / sqrt(mean of x²)", source=RMS)
def rms_norm_scales_every_token(normalise: Normalise = normalise) -> Finding:
    """After RMSNorm every token has a mean square of 1 and points where it pointed: the mean is not taken off."""
    x = 2 + 3 * torch.randn(3, 4, 8).double()
    y = normed("rms", normalise, x)
    turned = 1 - F.cosine_similarity(x, y, dim=-1)
    return at_most(1e-9, float(torch.maximum((y.square().mean(dim=-1) - 1).abs(), turned.abs()).max()))


@claim(quantity="change of a token's norm by all others", formula="statistics over D alone", source=f"{LAYER}; {RMS}")
def norms_are_per_token(normalise: Normalise = normalise) -> Finding:
    """LayerNorm and RMSNorm work on each token by itself: neither other tokens nor other sequences change its result."""
    return at_most(1e-12, max(neighbours(kind, normalise) for kind in ("layer", "rms")))


def along_the_residual(norm: Where, build: Build) -> float:
    """Gradient behind the last of DEPTH layers over that behind the first, along the residual stream alone: nothing through branches."""
    model = build(one_stack(position=s.Rope(), layers=DEPTH, norm=norm))
    states: list[Tensor] = []
    for layer in stack_of(model, 0).layers:
        layer.register_forward_hook(lambda _module, _given, got: states.append(got))
        for sub in layer.subs:
            cut_gradient(sub)
    loss = loss_of(model)
    for state in (states[0], states[-1]):
        state.retain_grad()
    loss.backward()
    first, last = (state.grad for state in (states[0], states[-1]))
    assert first is not None
    assert last is not None
    return float(last.norm() / first.norm())


def cut_gradient(sub: Sublayer) -> None:
    """No gradient through a sublayer's branch."""
    branch = sub.branch
    sub.branch = lambda x, run, entry: branch(x, run, entry).detach()  # type: ignore[method-assign]


def loss_of(model: nn.Module) -> Tensor:
    """Cross-entropy of the next token at random."""
    ids = random_ids(8, 16)
    return F.cross_entropy(model(ids[:, :-1])["lm_head"].flatten(0, 1), ids[:, 1:].flatten())


def last_gradient(depth: int, norm: Where, build: Build) -> float:
    """Gradient of the last layer's second feed-forward matrix in a model so deep."""
    model = build(one_stack(position=s.Rope(), layers=depth, norm=norm))
    loss_of(model).backward()
    return float(stack_of(model, 0).layers[-1].subs[1].mixer.down_proj.weight.grad.norm())


@claim(
    quantity="gradient of layer 24 / of layer 1 along the residual, pre-norm", formula="x + f(norm(x)): ∂x_L/∂x_1 = 1 + ...", source=WANG
)
def pre_norm_keeps_gradients_even(build: Build = build) -> Finding:
    """With the norm inside the branch the residual stream hands the gradient down all 24 layers unchanged."""
    return equal(1.0, along_the_residual("pre", build), within=1e-9)


@claim(quantity="the same, post-norm", formula="norm(x + f(x)): ∂x_L/∂x_1 = Π ∂norm + ...", source=WANG)
def post_norm_does_not(build: Build = build) -> Finding:
    """With the norm after each sum every layer divides it by the size of the sum: it shrinks with every layer, here by a thousand and
    more, and what arrives at the first layers has come through the branches.
    """
    return at_least(1000.0, along_the_residual("post", build))


@claim(quantity="gradient of the last layer, 6 / 24 layers, pre-norm", formula="O(sqrt(1 / L)): sqrt(24 / 6)", source=XIONG)
def pre_norm_tames_the_last_layer(build: Build = build) -> Finding:
    """With pre-norm the gradient of the last layer falls with the root of the depth, so that no warm-up is needed."""
    return equal(2.0, last_gradient(6, "pre", build) / last_gradient(24, "pre", build), within=0.3)


# --- embeddings, head, dropout ------------------------------------------------------------------------------------------------


@claim(quantity="embedded token without position / its row, D = 8", formula="x = sqrt(D) · E[token] + PE", source=f"{VASWANI}, section 3.4")
def embedding_is_scaled(build: Build = build) -> Finding:
    """The original Transformer multiplies embeddings by the square root of D before it adds positions (D = 8: 2.828)."""
    model = build(load_model("transformer-toy"))
    table = stack_of(model, 0).embedding.token
    with torch.no_grad():
        return equal(8**0.5, float((table(torch.tensor([5])) / table.weight[5]).mean()), within=1e-9)


@claim(
    quantity="tables that two embeddings and the output matrix use",
    formula="W_out = E",
    source=f"{VASWANI}, section 3.4; Press and Wolf 2016, arXiv:1608.05859",
)
def head_is_tied(build: Build = build) -> Finding:
    """Both embeddings and the output matrix of the original Transformer are one table: one memory, counted once."""
    model = build(load_model("transformer-toy"))
    places = {weight.data_ptr() for _, weight in model.named_parameters(remove_duplicate=False) if weight.shape[0] == 100}
    return equal(1, len(places))


class Drop(Protocol):
    """x [...] -> the same shape."""

    def __call__(self, x: Tensor, p: float, *, training: bool) -> Tensor:
        """Some zeroed."""


def drop(x: Tensor, p: float, *, training: bool) -> Tensor:
    """PyTorch's own."""
    return F.dropout(x, p, training)


@claim(quantity="change by dropout in evaluation", formula="x", source="Srivastava et al. 2014, JMLR 15, section 4")
def no_dropout_in_evaluation(drop: Drop = drop) -> Finding:
    """Outside training dropout does nothing at all."""
    x = torch.randn(1000)
    return equal(0.0, difference(x, drop(x, 0.1, training=False)))


@claim(
    quantity="share dropped and mean in training, p = 0.1",
    formula="x / (1 - p) with probability 1 - p, else 0",
    source="Srivastava et al. 2014, JMLR 15, section 4",
)
def dropout_in_training(drop: Drop = drop) -> Finding:
    """In training a tenth is zeroed and the rest scaled up, so that the mean stays."""
    y = drop(torch.ones(1 << 16), 0.1, training=True)
    return equal([0.1, 1.0], [float((y == 0).double().mean()), float(y.mean())], within=0.01)


def dropped_out(layer: nn.Module) -> float:
    """How far two passes of the same input through a layer are apart."""
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        return difference(layer(x), layer(x))


def encoder_layer() -> nn.Module:
    """PyTorch's own, with its default dropout of 0.1."""
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


@claim(
    quantity="two passes of a torch layer: evaluation, training differ",
    formula="dropout acts in training only",
    source=f"{VASWANI}, section 5.4",
)
def two_passes_agree_only_in_evaluation(layer: Callable[[], nn.Module] = encoder_layer) -> Finding:
    """Two passes of one input agree in evaluation and differ in training."""
    made = layer()
    return equal([0, 1], [int(dropped_out(made.eval()) > 0), int(dropped_out(made.train()) > 0)])
