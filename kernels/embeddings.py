"""What makes the first hidden state of a stack, and how leaves find the weights that they share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..presets import spec as s
from .mixers import Run
from .modules import Bare, Conv, Leaf, Linear, Make, Named, Norm, Table, UnsupportedError
from .positions import sinusoidal

Registry = dict[str, Leaf]  # by path in the ledger: what shares a weight finds it here


def attach(parent: nn.Module, name: str, child: Named) -> None:
    """Make `child` a part of `parent`; where `name` cannot be an attribute's it keeps it as its label."""
    attribute = name.replace(".", "_").replace("-", "_")
    child.label = name
    parent.add_module(attribute + "_" if hasattr(parent, attribute) else attribute, child)


def leaf_module(leaf: s.Part, width: int, make: Make, owners: Registry) -> Leaf:
    """The module of one leaf; a shared weight is that of the module at its path."""
    match leaf:
        case s.Linear():
            return Linear(leaf.d_in, leaf.d_out, make, bias=leaf.bias, weight=shared_weight(leaf.shares, owners))
        case s.Conv():
            return Conv(leaf, make)
        case s.Norm():
            return Norm(leaf, leaf.width or width, make)
        case s.Embedding():
            return Table(leaf, leaf.width or width, make, weight=shared_weight(leaf.shares, owners))
        case s.Parameter():
            return Bare(leaf, make)
        case _:
            raise UnsupportedError(f"a part of kind {leaf.__struct_config__.tag!r} has no module here")


def shared_weight(path: str | None, owners: Registry) -> nn.Parameter | None:
    """The weight at `path`; raises UnsupportedError where there is none."""
    if path is None:
        return None
    if path not in owners:
        raise UnsupportedError(f"a weight is shared with {path!r}, which has none; there are {', '.join(owners)}")
    weight = owners[path].weight
    assert isinstance(weight, nn.Parameter)
    return weight


class Embeddings(Named):
    """What makes the first hidden state: tables, positions, stems, norms, in the order of the description."""

    def __init__(self, stack: s.Stack, make: Make, owners: Registry) -> None:
        super().__init__()
        refuse(stack)
        self.label, self.parts, self.width, self.most = "embedding", stack.embeddings, stack.d_model, stack.default_tokens
        self.last_conv = next((leaf for leaf in reversed(stack.embeddings) if isinstance(leaf, s.Conv)), None)
        self.leaves: Registry = {}
        for leaf in stack.embeddings:
            if isinstance(leaf, s.Sinusoidal):
                continue
            made = leaf_module(leaf, stack.d_model, make, owners)
            owners[f"{stack.name}/embedding/{leaf.name}"] = made
            attach(self, leaf.name, made)
            self.leaves[leaf.name] = made

    def forward(self, raw: Tensor, run: Run) -> Tensor:
        """Token ids [B,T], or pixels or frames [B,channels,*size] -> [B,T,D]."""
        x = raw
        if isinstance(self.parts[0], s.Parameter):  # learned queries: of what comes in only the number of sequences counts
            x = torch.zeros(len(raw), 0, self.width, device=run.device, dtype=run.dtype)
        for leaf in self.parts:
            x = self.step(leaf, x, run)
            if not isinstance(leaf, s.Conv) or leaf is self.last_conv:
                run.lengthen(x.shape[1])
        return x

    def step(self, leaf: s.Part, x: Tensor, run: Run) -> Tensor:
        """x after one more part."""
        if isinstance(leaf, s.Sinusoidal):
            table: Tensor = run.once(leaf, lambda: sinusoidal(run.exact_positions, x.shape[-1]).to(run.device, run.dtype))
            return x + table
        module = self.leaves[leaf.name]
        match leaf:
            case s.Embedding(role="token"):
                return module(x)  # type: ignore[no-any-return]
            case s.Embedding(role="position"):
                return x + module(run.positions)  # type: ignore[no-any-return]
            case s.Embedding(role="type"):
                return x + module.weight[0]  # type: ignore[no-any-return]
            case s.Conv():
                x = module(x)
                # [B,D,*size] -> [B,T,D] after the last convolution
                return x.flatten(2).transpose(1, 2) if leaf is self.last_conv else x
            case s.Linear() | s.Norm():
                return module(x)  # type: ignore[no-any-return]
            case s.Parameter():
                return self.bare(leaf, module.weight, x)
            case _:
                raise UnsupportedError(f"an embedding {leaf.name!r} of this kind has no module here")

    def bare(self, leaf: s.Parameter, weight: Tensor, x: Tensor) -> Tensor:
        """A table as long as the tokens is added, anything else comes before them while there are fewer than the stack has.

        Biases by distance belong to the layers; a mask token waits for a training that masks.
        """
        if leaf.name == "relative_bias":
            return x
        if leaf.shape == (x.shape[1], self.width):
            return x + weight
        if self.most is not None and x.shape[1] >= self.most:
            return x
        before = weight.reshape(1, -1, self.width).expand(x.shape[0], -1, -1)
        return torch.cat([before, x], dim=1)


def refuse(stack: s.Stack) -> None:
    """What has rows in the ledger and no module here."""
    tables = [leaf.name for leaf in stack.embeddings if isinstance(leaf, s.Embedding) and leaf.role in ("token", "other")]
    if len(tables) > 1:
        raise UnsupportedError(f"embeddings of every layer ({tables[1]!r} beside {tables[0]!r}) have no module here")
    for leaf in stack.embeddings:
        if isinstance(leaf, s.Sinusoidal) and leaf.base != 10000.0:
            raise UnsupportedError(f"sinusoidal positions of base {leaf.base} have no module here; 10000 has")
