"""Small models that the claims run: sizes differ wherever a mix-up could hide (T and S, heads and key/value heads)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

from ...presets import spec as s
from ...presets.loader import load_model
from ..mixers import Scores
from ..model import Model, build_model

Build = Callable[[s.ModelSpec], Model]
Where = Literal["pre", "post"]

ROWS = 50  # tokens of the vocabulary
WIDTH = 32


def build(spec: s.ModelSpec) -> Model:
    """A model in fp64: what differs then differs because of the mathematics."""
    return build_model(spec, dtype=torch.float64)


def layer(mask: s.Mask, position: s.Position | None, *, heads: int, kv_heads: int, width: int, norm: Where) -> s.Layer:
    """Attention and a feed-forward of four times the width."""
    mixer = s.Attention(heads=heads, kv_heads=kv_heads, head_dim=width // heads, mask=mask, position=position)
    feed_forward = s.FeedForward(d_ff=4 * width, activation="relu")
    placed: dict[str, Any] = {"pre_norm" if norm == "pre" else "residual_norm": s.Norm(type="layer")}
    return s.Layer(
        sublayers=(s.Sublayer(name="attention", mixer=mixer, **placed), s.Sublayer(name="feed_forward", mixer=feed_forward, **placed))
    )


def one_stack(
    mask: s.Mask | None = None,
    position: s.Position | s.Sinusoidal | s.Embedding | None = None,
    *,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = WIDTH,
    norm: Where = "pre",
) -> s.ModelSpec:
    """A decoder (causal unless another mask is given) with a tied head; `position` acts in the layers or on the embeddings."""
    token = s.Embedding(name="token", rows=ROWS)
    added = (position,) if isinstance(position, s.Sinusoidal | s.Embedding) else ()
    inside = None if isinstance(position, s.Sinusoidal | s.Embedding) else position
    made = layer(mask or s.Causal(), inside, heads=heads, kv_heads=kv_heads, width=width, norm=norm)
    stack = s.Stack(
        name="decoder", d_model=width, role="decoder", embeddings=(token, *added), blocks=(s.Block(pattern=(made,), repeat=layers),),
        final=(s.Norm(type="layer"),) if norm == "pre" else (),
    )  # fmt: skip
    head = s.Linear(name="weight", d_in=width, d_out=ROWS, shares="decoder/embedding/token")
    return s.ModelSpec(
        name="small", source=("made for a claim",), stacks=(stack,), heads=(s.Head(name="lm_head", stack="decoder", parts=(head,)),)
    )


def translator(layers: int = 2) -> s.ModelSpec:
    """The preset transformer-toy with so many layers in its encoder and in its decoder."""
    toy = load_model("transformer-toy")
    stacks = tuple(
        msgspec.structs.replace(stack, blocks=(s.Block(pattern=stack.blocks[0].pattern, repeat=layers),)) for stack in toy.stacks
    )
    return msgspec.structs.replace(toy, stacks=stacks, total_params=None)


def stack_of(model: Model, number: int) -> Any:
    """A stack of a model; its type would say of nothing in it what it is."""
    return model.stacks[number]


def random_ids(batch: int, tokens: int, rows: int = ROWS) -> Tensor:
    """Token ids [B,T]."""
    return torch.randint(rows, (batch, tokens))


def outputs_of(model: nn.Module, kind: type[nn.Module], part: str) -> tuple[list[Tensor], list[Any]]:
    """What every submodule of a kind whose name ends in `part` gives from now on, in order; and the hooks to remove."""
    seen: list[Tensor] = []

    def note(_module: nn.Module, _given: Any, got: Tensor) -> None:
        seen.append(got.detach().clone())

    hooks = [m.register_forward_hook(note) for name, m in model.named_modules() if isinstance(m, kind) and name.endswith(part)]
    return seen, hooks


def attended(model: nn.Module) -> list[tuple[str, int]]:
    """From now on, for every attention that runs: its module's name and how many keys it was given."""
    seen: list[tuple[str, int]] = []

    def noting(name: str) -> Callable[[nn.Module, Any], None]:
        return lambda _module, given: seen.append((name, given[1].shape[2]))

    for name, module in model.named_modules():
        if isinstance(module, Scores):
            module.register_forward_pre_hook(noting(name))
    return seen
