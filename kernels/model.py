"""A whole model from its description: `build_model(spec, device=..., dtype=...)`, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..presets import spec as s
from .blocks import Stack, Sublayer
from .cache import Cache, Policy, Room, empty_cache
from .cut import cut
from .embeddings import Registry, attach, leaf_module
from .init import fill
from .mixers import Run
from .modules import Make, Named, activate

__all__ = ["Model", "build_model", "cut"]


class Joint(Named):
    """A connector or a head: parts one after another over a stack's states."""

    def __init__(self, parts: tuple[s.Part, ...], stack: s.Stack, make: Make, owners: Registry, label: str) -> None:
        super().__init__()
        self.parts, self.label = parts, label
        # What runs once a sequence reads the first state of an encoder, the last of a decoder.
        self.place = 0 if stack.role == "encoder" else -1
        for leaf in parts:
            made = leaf_module(leaf, stack.d_model, make, owners)
            owners[f"{label}/{leaf.name}"] = made
            attach(self, leaf.name, made)

    def forward(self, x: Tensor, *, last: bool = False) -> Tensor:
        """x [B,T,D] -> [B,T',D'], or [B,D'] where a part runs once; `last`: at the last position only."""
        x = x[:, -1:] if last and self.place else x
        for leaf, module in zip(self.parts, self.children(), strict=True):
            if isinstance(leaf, s.Linear):
                x = activate(leaf.activation, module(gathered(leaf, x, self.place)))
            elif not isinstance(leaf, s.Parameter):
                x = module(x)
        return x


def gathered(leaf: s.Linear, x: Tensor, place: int) -> Tensor:
    """What a linear part sees of x [B,T,D]: all of it, the position `place`, or `merge` neighbours side by side or as their mean."""
    if leaf.once and x.ndim == 3:
        return x[:, place]
    if leaf.merge == 1:
        return x
    x = x.unflatten(1, (-1, leaf.merge))
    return x.flatten(2) if leaf.d_in == leaf.merge * x.shape[-1] else x.mean(dim=2)


class Model(nn.Module):
    """Named stacks, the connectors between them, heads on top. Every parameter has its ledger's path (`paths.ledger_path`)."""

    def __init__(self, spec: s.ModelSpec, make: Make) -> None:
        super().__init__()
        self.spec, self.make = spec, make
        owners: Registry = {}
        shared: dict[str, Sublayer] = {}
        self.stacks = nn.ModuleList(Stack(stack, make, owners, shared) for stack in spec.stacks)
        self.connectors = nn.ModuleList(Joint(c.parts, spec.stack(c.source), make, owners, c.name) for c in spec.connectors)
        self.heads = nn.ModuleList(Joint(head.parts, spec.stack(head.stack), make, owners, head.name) for head in spec.heads)
        self.extra = Joint(spec.extra, spec.main, make, owners, "model")

    def forward(
        self,
        tokens: Tensor | None = None,
        *,
        source: Tensor | None = None,
        source_padding: Tensor | None = None,
        images: Tensor | None = None,
        cache: Cache | None = None,
        last: bool = False,
        kernel: str | None = None,
        recompute: bool = False,
    ) -> dict[str, Tensor]:
        """One pass: the outputs of the heads, and the last hidden states of the stacks that ran, by name.

        Args:
            tokens: ids [B,T] of the stack that reads the context.
            source: ids [B,S] or frames [B,channels,S'] of an encoder. Decode steps leave it out: the cache has what it gave.
            source_padding: bool [B,S], True where an id of `source` is real; decode steps have to be given it too.
            images: pixels [B*images,channels,height,width] of a vision tower. In a language model their tokens stand in
                place of the first ones of the context.
            cache: where keys, values and states are kept; `tokens` follow the ones in it.
            last: the heads run at the last position only.
            kernel: how attention runs (a key of `attention.KERNELS`); None: what suits.
            recompute: training keeps the inputs of the layers alone and runs each again (`torch.utils.checkpoint`).
        """
        raw = {"context": tokens, "source": source, "image": images}
        how: dict[str, Any] = {"kernel": kernel, "recompute": recompute, "padding": {}}
        if source_padding is not None:
            how["padding"] = {stack.name: source_padding for stack in self.spec.stacks if stack.tokens == "source"}
        outputs: dict[str, Tensor] = {}
        new = tokens.shape[1] if tokens is not None else 0
        if cache is not None:
            cache.room_for(new)
        for stack in self.stacks:
            assert isinstance(stack, Stack)
            given = raw.get(stack.spec.tokens)
            if given is not None:
                outputs[stack.spec.name] = self.run_stack(stack, given, outputs, cache, how)
        for head, module in zip(self.spec.heads, self.heads, strict=True):
            if head.stack in outputs:
                outputs[head.name] = finished(head, module(outputs[head.stack], last=last))
        if cache is not None:
            cache.length += new
        return outputs

    def run_stack(self, stack: Stack, raw: Tensor, outputs: dict[str, Tensor], cache: Cache | None, how: dict[str, Any]) -> Tensor:
        """One stack, after those whose outputs it reads; `how`: further fields of `Run`."""
        decodes = cache is not None and stack.spec.role == "decoder"
        start = cache.length if cache is not None and decodes else 0
        entries = cache.entries[stack.spec.name] if cache is not None and decodes else None
        run = Run(start=start, tokens=raw.shape[1], device=self.make.device, dtype=self.make.dtype, **how)
        run.sources, run.absent, run.stack = dict(outputs), self.spec.absent, stack.spec.name
        x: Tensor = stack(raw, run, entries, self.prefix(stack.spec, outputs, raw.shape[0]))
        return x

    def prefix(self, stack: s.Stack, outputs: dict[str, Tensor], batch: int) -> Tensor | None:
        """What connectors bring to a stack: states [B*n,P,D] of n images a sequence -> [B,n*P,D]."""
        joints = zip(self.spec.connectors, self.connectors, strict=True)
        states = [module(carried(joint, outputs)) for joint, module in joints if joint.target == stack.name and joint.source in outputs]
        return torch.cat([x.reshape(batch, -1, x.shape[-1]) for x in states], dim=1) if states else None

    def cache(self, batch: int, capacity: int, *, source: int = 0, policy: Policy = "minimal", dtype: torch.dtype | None = None) -> Cache:
        """An empty cache of `capacity` tokens for `batch` sequences; `source`: tokens that cross-attention reads."""
        room = Room(batch=batch, capacity=capacity, source=source, policy=policy, device=self.make.device, dtype=dtype or self.make.dtype)
        return empty_cache(self.spec, room)


def carried(joint: s.Connector, outputs: dict[str, Tensor]) -> Tensor:
    """What a connector carries: its stacks' states [n,P,D] side by side, channel by channel, at the positions that go on."""
    states = [outputs[name] for name in (*joint.beside, joint.source)]
    if joint.tokens is not None:
        states = [x[:, x.shape[1] - joint.tokens :] for x in states]
    return torch.cat(states, dim=-1) if len(states) > 1 else states[0]


def finished(head: s.Head, logits: Tensor) -> Tensor:
    """Logits scaled and capped: c tanh(x / c) (Gemma 2, arXiv:2408.00118, section 2)."""
    if head.scale is not None:
        logits = logits * head.scale
    return logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)


def build_model(
    spec: s.ModelSpec, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, layers: int | None = None, seed: int = 0
) -> Model:
    """The model of a description, its weights random and made where they stay; `layers`: only so many of each stack (`cut`).

    Raises UnsupportedError for a part that has no module here.
    """
    made = Model(spec if layers is None else cut(spec, layers), Make(device=torch.device(device), dtype=dtype))
    fill(made, seed=seed)
    return made.eval()
