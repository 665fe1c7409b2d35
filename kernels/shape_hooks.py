"""Tensors predicted and seen: the real modules run once on `meta` with hooks, and every shape is compared.

`meta` has shapes and no numbers, so the whole model runs, however large, and the shapes are PyTorch's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ..estimators.ledger import layer_names
from ..estimators.policy import tokens_brought
from ..estimators.shapes import shapes
from ..estimators.tensors import Term, sizes
from ..estimators.work import Pass, image_count
from ..presets import spec as s
from ..presets.errors import UsageError
from .cache import Cache, Latent, State
from .cache import KeyValue as Kept
from .counting import meta_model
from .inputs import cross_tokens, random_inputs
from .mixers import Scores
from .model import Model
from .modules import Leaf, UnsupportedError
from .paths import ledger_path

Size = tuple[int, ...]
# Rows whose modules must have run; others (a type table of which one row is added, a layer scale) are used in place.
RUN = ("linear", "experts", "scores", "conv", "absorbed")
KEPT = ("append", "state")  # what a cache holds after the step
REGROUPED = ("heads", "view")  # the same elements seen otherwise: a module may hand out either


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One tensor of the real model beside what was predicted; `observed` None: its module did not run.

    `what`: input, output, weights (of attention, after the softmax), cache.
    """

    path: str
    what: str
    predicted: tuple[Size, ...]
    observed: Size | None

    @property
    def ok(self) -> bool:
        """Whether the shape is one of those predicted there."""
        return self.observed in self.predicted


@dataclass(kw_only=True)
class Watch:
    """What the hooks note: shapes by path and by what they are."""

    shapes: defaultdict[tuple[str, str], list[Size]] = field(default_factory=lambda: defaultdict(list))
    attending: str = ""
    sinks: int = 0

    def note(self, path: str, what: str, shape: Iterable[int]) -> None:
        """A shape, once."""
        known, size = self.shapes[path, what], tuple(shape)
        if size not in known:
            known.append(size)

    def leaf(self, path: str, module: nn.Module) -> None:
        """Hooks on one leaf."""
        scores = isinstance(module, Scores)

        def before(_module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            tensors = [value for value in given if isinstance(value, Tensor)]
            for tensor in tensors if scores else tensors[:1]:
                self.note(path, "input", tensor.shape)
            if scores:
                self.attending, self.sinks = path, int(named.get("sinks") is not None)

        def after(_module: nn.Module, _given: tuple[Any, ...], out: Tensor | tuple[Tensor, ...]) -> None:
            # a scan gives its last state too, which the cache holds
            self.note(path, "output", (out if isinstance(out, Tensor) else out[0]).shape)
            self.attending = ""

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)


class Softmaxes(TorchDispatchMode):
    """Notes the shape of every attention's weights, without the column of a sink."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run as usual, and note."""
        out = func(*args, **(kwargs or {}))
        if self.watch.attending and func.overloadpacket.__name__ == "_softmax":
            *lead, keys = out.shape
            self.watch.note(self.watch.attending, "weights", (*lead, keys - self.watch.sinks))
        return out


def compare(spec: s.ModelSpec, work: Pass, terms: tuple[Term, ...] | None = None) -> tuple[Seen, ...]:
    """Every tensor that the real model's modules take and give, beside the predicted one (`terms`, else those of the spec).

    Raises UnsupportedError for a part that has no module, UsageError where images do not fit into the context.
    """
    refuse_long_images(spec, work)
    model = meta_model(spec)
    watch = Watch()
    for name, module in model.named_modules():
        if isinstance(module, Leaf):
            watch.leaf(ledger_path(model, name), module)
    run(model, work, watch)
    return tuple(judged(shapes(spec, work) if terms is None else terms, watch, spec))


def refuse_long_images(spec: s.ModelSpec, work: Pass) -> None:
    """The tokens of images stand in place of tokens of the context: there must be so many."""
    for joint in spec.connectors:
        tower = spec.stack(joint.source)
        needed = tokens_brought(spec, joint, image_count(spec, work))
        if tower.tokens == "image" and not work.decoding and needed > work.context:
            raise UsageError(f"{image_count(spec, work)} images are {needed} tokens of the context, got --ctx {work.context}; give more")


def run(model: Model, work: Pass, watch: Watch) -> None:
    """One pass; stacks, heads, cache and loss are noted from outside. Raises UnsupportedError where it does not run."""
    inputs = random_inputs(model, work)
    cache = None
    if work.decoding:
        cache = model.cache(work.batch, work.context, source=cross_tokens(model.spec, work))
        cache.length = work.context - work.new_tokens
    try:
        with Softmaxes(watch), torch.no_grad():
            outputs = model(**inputs, cache=cache, last=work.last_logits)
    except RuntimeError as error:  # shapes that do not fit one another: a finding, but not one tensor's
        reason = str(error).splitlines()[0]
        raise UnsupportedError(f"the modules do not run this pass of {model.spec.name!r}, so nothing was compared: {reason}") from error
    for stack in model.spec.stacks:
        if stack.name in outputs:
            watch.note(f"{stack.name}/output", "output", outputs[stack.name].shape)
    if "lm_head" in outputs:
        note_loss(outputs["lm_head"], work, watch)
    if cache is not None:
        note_cache(model.spec, cache, watch)


def note_loss(logits: Tensor, work: Pass, watch: Watch) -> None:
    """Logits, and in training the loss against labels of the tokens' shape."""
    watch.note("logits", "output", logits.shape)
    if work.phase == "train":
        labels = torch.zeros(logits.shape[:-1], dtype=torch.long, device=logits.device)
        watch.note("labels", "output", labels.shape)
        watch.note("loss", "output", F.cross_entropy(logits.flatten(0, -2), labels.flatten()).shape)


def note_cache(spec: s.ModelSpec, cache: Cache, watch: Watch) -> None:
    """What each layer's cache holds after the step."""
    for stack in spec.stacks:
        names = layer_names(stack)
        for layer, entries in zip(stack.layers(), cache.entries.get(stack.name, []), strict=stack.name in cache.entries):
            for sub, entry in zip(layer.sublayers, entries, strict=True):
                path = "/".join(step for step in (stack.name, names[layer], sub.name) if step)
                if isinstance(entry, Kept):
                    watch.note(f"{path}/k_cache", "cache", entry.keys.buffer.shape)
                    watch.note(f"{path}/v_cache", "cache", entry.values.buffer.shape)
                elif isinstance(entry, Latent):
                    watch.note(f"{path}/latent_cache", "cache", entry.latent.buffer.shape)
                elif isinstance(entry, State):
                    for name, held in (("state", entry.state), ("conv_tail", entry.tail)):
                        if held is not None:
                            watch.note(f"{path}/{name}", "cache", held.shape)


# --- judging ----------------------------------------------------------------------------------------------------------


def judged(terms: tuple[Term, ...], watch: Watch, spec: s.ModelSpec) -> Iterator[Seen]:
    """Predicted beside seen, by path; and what was predicted but has not run."""
    known = predictions(terms)
    for (path, what), observed in watch.shapes.items():
        for shape in observed:
            yield Seen(path=path, what=what, predicted=tuple(sorted(known[path, what])), observed=shape)
    asleep = {stack.name for stack in spec.stacks} - {path.split("/")[0] for path, _ in watch.shapes}
    for term in terms:
        if term.op in RUN and (term.row, "output") not in watch.shapes and term.path.split("/")[0] not in asleep:
            yield Seen(path=term.path, what="output", predicted=(tuple(sizes(term.output)),), observed=None)


def predictions(terms: tuple[Term, ...]) -> defaultdict[tuple[str, str], set[Size]]:
    """Shapes that may be seen, by path and by what they are."""
    found: defaultdict[tuple[str, str], set[Size]] = defaultdict(set)
    for term, following in zip(terms, (*terms[1:], None), strict=True):
        out = tuple(sizes(term.output))
        found[term.path, "cache" if term.op in KEPT else "output"].add(out)
        if term.op == "softmax":
            found[term.path.rpartition("/")[0] + "/scores", "weights"].add(out)
        if term.row:
            found[term.row, "output"].add(out)
            found[term.row, "input"] |= {tuple(shape) for shape in taken(term)}
            if following is not None and following.op in REGROUPED and term.output in following.inputs:
                found[term.row, "output"].add(tuple(sizes(following.output)))
    return found


def taken(term: Term) -> Iterator[Size]:
    """Inputs as a module takes them: keys not yet turned [B,K,S,H]."""
    for place, shape in enumerate(term.inputs):
        size = sizes(shape)
        yield tuple(size)
        if term.op == "scores" and place == 1:
            yield (*size[:-2], size[-1], size[-2])
