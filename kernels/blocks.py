"""Sublayers, layers and stacks: the residual stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..estimators.ledger import layer_names
from ..presets import spec as s
from ..presets.errors import UsageError
from .cache import Entry
from .embeddings import Embeddings, Registry, attach, leaf_module
from .feed_forward import FeedForward, MoE
from .latent import LatentAttention
from .mixers import Attention, Run
from .modules import Bare, Make, Named, Norm, UnsupportedError, activation_named
from .recurrent import GatedDelta, Mamba, Mamba2, RgLru, ShortConv


class Chain(Named):
    """Linear layers and norms one after another, then an activation."""

    def __init__(self, spec: s.Chain, width: int, make: Make) -> None:
        super().__init__()
        self.function = activation_named(spec.activation) if spec.activation else None
        for leaf in spec.parts:
            attach(self, leaf.name, leaf_module(leaf, width, make, {}))

    def forward(self, x: Tensor) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        for leaf in self.children():
            x = leaf(x)
        return x if self.function is None else self.function(x)


# Modules of the mixers: those that see the other tokens take the pass and their cache's entry.
MIXERS: dict[type[s.Data], Callable[[Any, int, Make], Named]] = {
    s.Attention: Attention,
    s.LatentAttention: LatentAttention,
    s.Mamba: Mamba,
    s.Mamba2: Mamba2,
    s.GatedDelta: GatedDelta,
    s.RgLru: RgLru,
    s.ShortConv: ShortConv,
}
POINTWISE: dict[type[s.Data], Callable[[Any, int, Make], Named]] = {s.FeedForward: FeedForward, s.MoE: MoE, s.Chain: Chain}


class OneCall(Protocol):
    """A sublayer as one call, for what it takes (`fused`)."""

    def takes(self, x: Tensor, run: Run, entry: Entry | None) -> bool:
        """Whether x [B,T,D] is what it is for, now."""

    def __call__(self, x: Tensor, run: Run, entry: Entry | None) -> Tensor:
        """What the sublayer gives."""


class Sublayer(Named):
    """One residual branch: x + f(norm(x)), or norm(x + f(x))."""

    def __init__(self, spec: s.Sublayer, width: int, make: Make) -> None:
        super().__init__()
        kind = type(spec.mixer)
        if kind not in MIXERS and kind not in POINTWISE:
            raise UnsupportedError(f"a mixer of kind {spec.mixer.__struct_config__.tag!r} has no module here")
        self.spec, self.label, self.mixes = spec, spec.name, kind in MIXERS
        self.source = spec.mixer.source if isinstance(spec.mixer, s.Attention) else None
        self.norm = Norm(spec.pre_norm, spec.pre_norm.width or width, make) if spec.pre_norm else None
        self.mixer = (MIXERS | POINTWISE)[kind](spec.mixer, width, make)
        self.mixer.label = ""
        self.output_norm = Norm(spec.output_norm, spec.output_norm.width or width, make) if spec.output_norm else None
        self.residual_norm = Norm(spec.residual_norm, spec.residual_norm.width or width, make) if spec.residual_norm else None
        self.scales = nn.ModuleList(layer_scale(leaf, width, make) for leaf in spec.extra)
        self.fused: OneCall | None = None

    def branch(self, x: Tensor, run: Run, entry: Entry | None) -> Tensor:
        """x, already normed -> what is added to the residual."""
        y: Tensor = self.mixer(x, run, entry) if self.mixes else self.mixer(x)
        if self.output_norm is not None:
            y = self.output_norm(y)
        for scale in self.scales:
            y = scale(y)
        return y if self.spec.residual_scale is None else y * self.spec.residual_scale

    def forward(self, x: Tensor, run: Run, entry: Entry | None) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        if self.source is not None and self.source in run.absent:
            return x
        if self.fused is not None and self.fused.takes(x, run, entry):
            return self.fused(x, run, entry)
        x = x + self.branch(x if self.norm is None else self.norm(x), run, entry)
        return x if self.residual_norm is None else self.residual_norm(x)


class LayerScale(Bare):
    """A vector that multiplies."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] -> [..., D]."""
        y: Tensor = x * self.weight
        return y


def layer_scale(leaf: s.Part, width: int, make: Make) -> LayerScale:
    """A vector that multiplies a branch's output (Touvron et al. 2021, arXiv:2103.17239)."""
    if not isinstance(leaf, s.Parameter) or leaf.shape != (width,):
        raise UnsupportedError(f"a further weight {leaf.name!r} of a sublayer has no module here; only a layer scale of its width has")
    made = LayerScale(leaf, make)
    made.label = leaf.name
    return made


class Layer(Named):
    """Sublayers in order; parallel ones read the same input, and those without a norm of their own the first one's."""

    def __init__(self, spec: s.Layer, label: str, subs: list[Sublayer]) -> None:
        super().__init__()
        self.label, self.parallel = label, spec.parallel
        self.subs = nn.ModuleList(subs)

    def forward(self, x: Tensor, run: Run, entries: list[Entry | None]) -> Tensor:
        """x [B,T,D] -> [B,T,D]."""
        if self.parallel:
            return self.side_by_side(x, run, entries)
        for sub, entry in zip(self.subs, entries, strict=True):
            x = sub(x, run, entry)
        return x

    def side_by_side(self, x: Tensor, run: Run, entries: list[Entry | None]) -> Tensor:
        """x + sum of the branches (GPT-J; Black et al. 2022, arXiv:2204.06745, section 2.1)."""
        total, normed = x, x
        for sub, entry in zip(self.subs, entries, strict=True):
            assert isinstance(sub, Sublayer)
            normed = normed if sub.norm is None else sub.norm(x)
            total = total + sub.branch(normed, run, entry)
        return total


def apart(layer: nn.Module, x: Tensor, run: Run, entries: list[Entry | None]) -> Tensor:
    """One layer that shares nothing with the others, so that it does the same when it is run again."""
    y: Tensor = layer(x, run.apart(), entries)
    return y


class Stack(Named):
    """Embeddings, layers, what follows the last one: ids or raw data in, hidden states [B,T,D] out."""

    def __init__(self, spec: s.Stack, make: Make, owners: Registry, shared: dict[str, Sublayer]) -> None:
        super().__init__()
        self.spec, self.label = spec, spec.name
        self.embedding = Embeddings(spec, make, owners)
        names = layer_names(spec)
        self.layers = nn.ModuleList(
            Layer(layer, names[layer], [shared_sublayer(sub, spec.d_model, make, shared) for sub in layer.sublayers])
            for layer in spec.layers()
        )
        self.final = Named()
        for leaf in spec.final:
            attach(self.final, leaf.name, leaf_module(leaf, spec.d_model, make, owners))

    def forward(self, raw: Tensor, run: Run, entries: list[list[Entry | None]] | None, prefix: Tensor | None = None) -> Tensor:
        """`prefix` [B,P,D]: states from a connector that stand in place of the first P embeddings."""
        x = self.embedding(raw, run)
        if prefix is not None:
            if prefix.shape[1] > x.shape[1]:
                raise UsageError(
                    f"the images are {prefix.shape[1]} tokens of the context, got {x.shape[1]}; give more tokens or fewer images"
                )
            x = torch.cat([prefix, x[:, prefix.shape[1] :]], dim=1)
        run.tables = {name: leaf.weight for name, leaf in self.embedding.leaves.items() if name == "relative_bias"}
        nothing: list[list[Entry | None]] = [[None] * len(layer.sublayers) for layer in self.spec.layers()]
        for layer, held in zip(self.layers, nothing if entries is None else entries, strict=True):
            x = checkpoint(apart, layer, x, run, held, use_reentrant=False) if run.recompute else layer(x, run, held)
        for leaf in self.final.children():
            x = leaf(x)
        y: Tensor = x
        return y


def shared_sublayer(sub: s.Sublayer, width: int, make: Make, shared: dict[str, Sublayer]) -> Sublayer:
    """A new sublayer, or the one that was made for the same name."""
    made = shared.get(sub.shared) if sub.shared else None
    if made is None:
        made = Sublayer(sub, width, make)
        if sub.shared:
            shared[sub.shared] = made
    return made
