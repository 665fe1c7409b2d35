"""From a module's parameters to the ledger's paths, so that a difference can be explained row by row."""

from __future__ import annotations

from torch import nn

from .modules import Leaf, Named


def ledger_path(model: nn.Module, name: str) -> str:
    """The ledger's path of a parameter, buffer or module called `name` in PyTorch.

    stacks.1.layers.3.subs.0.mixer.q_proj.weight is decoder/attention/q_proj: containers have no name there, a layer that of
    its kind, and what a leaf holds is one row.
    """
    module, path = model, []
    for step in name.split("."):
        child = module._modules.get(step)
        if isinstance(module, Leaf):
            break
        if child is None:
            path.append(step)
            break
        path.append("" if isinstance(child, nn.ModuleList) else label_of(child, step))
        module = child
    return "/".join(step for step in path if step)


def label_of(module: nn.Module, attribute: str) -> str:
    """A module's name in the ledger."""
    label = module.label if isinstance(module, Named) else None
    return attribute if label is None else label
