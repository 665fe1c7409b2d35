"""What tests of modules share: one thread, and the weights of the transformers library in our modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch

from tfm.kernels.model import Model
from tfm.kernels.paths import ledger_path

Change = Callable[[Any], Any]  # a tensor of the library's as ours has it
Names = Mapping[str, str | tuple[str, Change]]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are slower on several threads, by much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def library_model() -> Callable[..., Any]:
    """A model of the library, in float64, every weight moved by random numbers: `library_model("Llama", vocab_size=31, ...)`.

    `classes`: names of the configuration and of the model, where they are not the usual ones of a language model.
    """

    def build(name: str, *, classes: tuple[str, str] | None = None, **settings: Any) -> Any:
        import transformers

        transformers.utils.logging.set_verbosity_error()
        config_name, model_name = classes or (f"{name}Config", f"{name}ForCausalLM")
        plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
        config = getattr(transformers, config_name)(**settings, **plain)
        torch.manual_seed(1)
        model = getattr(transformers, model_name)(config).eval().double()
        with torch.no_grad():
            corrections = [buffer for name, buffer in model.named_buffers() if "correction" in name]
            for weight in (*model.parameters(), *corrections):
                weight.add_(0.15 * torch.randn_like(weight))
        return model

    return build


@pytest.fixture(scope="session")
def copy_weights() -> Callable[[Names, Any, Model], None]:
    """Give our model the library's weights; every one of ours has to be named in the table, by its path in the ledger.

    Names of layers have {i} for their number, and lack the end that says weight or bias.
    """

    def copy(names: Names, theirs: Any, ours: Model) -> None:
        state = theirs.state_dict()
        with torch.no_grad():
            for name, weight in (*ours.named_parameters(), *ours.named_buffers()):
                path, index = place_of(ours, name)
                entry = names[path]
                template, change = entry if isinstance(entry, tuple) else (entry, lambda tensor: tensor)
                base, end = template.format(i=index), name.rsplit(".", 1)[-1]
                there = [full for full in (f"{base}.{end}", f"{base}_{end}", base) if full in state]
                weight.copy_(change(state[there[0]]).reshape(weight.shape))

    return copy


def place_of(model: Any, name: str) -> tuple[str, int]:
    """The ledger's path of one of our parameters, without its layer's kind; and the number of the layer."""
    path, found = ledger_path(model, name), re.match(r"stacks\.(\d+)\.layers\.(\d+)\.", name)
    if found is None:
        return path, 0
    label = model.stacks[int(found[1])].layers[int(found[2])].label
    return (path.replace(f"/{label}/", "/", 1) if label else path), int(found[2])
