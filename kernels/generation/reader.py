"""A model that reads tokens and remembers them: in a cache, or, without one, by reading all of them again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...presets.errors import UsageError
from ...presets.spec import Embedding
from ..cache import Cache
from ..model import Model


def logits_head(model: Model) -> str:
    """The head over the decoder that says the next token; raises UsageError where there is none."""
    decoder = next((stack.name for stack in model.spec.stacks if stack.role == "decoder"), None)
    heads = [head.name for head in model.spec.heads if head.stack == decoder]
    if decoder is None or not heads:
        raise UsageError(f"{model.spec.name} has {'no output head' if decoder else 'no decoder'}, so it generates no tokens")
    return "lm_head" if "lm_head" in heads else heads[0]


def require_source(model: Model, source: Tensor | None) -> None:
    """An encoder-decoder reads something, a decoder alone does not (attention over no key at all ends the process). Raises UsageError."""
    reads = any(stack.tokens == "source" for stack in model.spec.stacks)
    if reads and (source is None or not source.numel()):
        raise UsageError(f"{model.spec.name} has an encoder: give its source, ids [B,S] of at least one token, or frames")
    if not reads and source is not None:
        raise UsageError(f"{model.spec.name} has no encoder that reads a source; leave it out")


def position_rows(model: Model) -> int | None:
    """Positions that the decoder's learned table has; None where positions are computed."""
    tables = [leaf for stack in model.spec.stacks if stack.role == "decoder" for leaf in stack.embeddings if isinstance(leaf, Embedding)]
    return min((leaf.rows - leaf.offset for leaf in tables if leaf.role == "position"), default=None)


def require_room(model: Model, tokens: int) -> None:
    """A learned table of positions has an end. `tokens`: prompt and new ones, of which the last is not read. Raises UsageError."""
    rows = position_rows(model)
    if rows is not None and tokens - 1 > rows:
        raise UsageError(f"prompt and new tokens are {tokens}, and {model.spec.name} has learned {rows} positions; ask for fewer")


def require_tokens(model: Model, prompt: Sequence[int]) -> None:
    """Token ids that the decoder's table has. Raises UsageError."""
    leaves = [leaf for stack in model.spec.stacks if stack.role == "decoder" for leaf in stack.embeddings if isinstance(leaf, Embedding)]
    rows = next((leaf.rows for leaf in leaves if leaf.role == "token"), None)
    wrong = next((token for token in prompt if not hasattr(token, "__index__") or token < 0 or (rows is not None and token >= rows)), None)
    if wrong is not None:
        most = "" if rows is None else f" to {rows - 1}"
        raise UsageError(f"{wrong!r} is no token of {model.spec.name}: a prompt is a list of ids, whole numbers from 0{most}")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pass and what it gave.

    Attributes:
        tokens: of each sequence, the one chosen; None where its prompt was still being read, or it had ended.
        read: tokens a sequence that the pass read. cache_length, cache_bytes: what is kept after it (0 without a cache).
        seconds: of the pass and of the choice.
    """

    tokens: tuple[int | None, ...]
    read: int
    cache_length: int
    cache_bytes: int
    seconds: float


class Reader:
    """Reads pieces of B sequences, one after another.

    Args of the constructor:
        capacity: tokens there has to be room for. given: `source`, `images` ... of the first piece, as `Model.forward` takes them.
        cached: keep keys, values and states; else every piece is read with all before it.
        cache: one that was filled before (a shared prefix).
    """

    def __init__(
        self, model: Model, batch: int, capacity: int, *, cached: bool = True, cache: Cache | None = None, **given: Tensor | None
    ) -> None:
        self.model, self.head = model, logits_head(model)
        self.given: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        require_source(model, given.get("source"))
        self.cache = cache
        if cache is None and cached:
            self.cache = model.cache(batch, capacity, source=self.sourced())
        self.seen = torch.empty(batch, 0, dtype=torch.long, device=model.make.device)

    def sourced(self) -> int:
        """Tokens that cross-attention will read: those of the encoder's output."""
        source = self.given.get("source")
        if source is None:
            return 0
        encoder = next(stack for stack in self.model.spec.stacks if stack.tokens == "source")
        return int(source.shape[1]) if not torch.is_floating_point(source) else encoder.default_tokens or int(source.shape[-1])

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return self.seen.shape[1] if self.cache is None else self.cache.length

    @torch.inference_mode()
    def read(self, tokens: Tensor, *, last: bool = True) -> Tensor:
        """tokens [B,T] -> logits after the last of them [B,V], or (`last=False`) after each, [B,T,V]."""
        T = tokens.shape[1]
        if self.cache is None:
            self.seen = torch.cat([self.seen, tokens], dim=1)
            found = self.model(self.seen, **self.given, last=last)[self.head][:, -T:]
        else:
            # what an encoder or a tower gave is in the cache; which ids were real is asked at every step
            given = {name: value for name, value in self.given.items() if self.cache.length == 0 or name == "source_padding"}
            found = self.model(tokens, **given, cache=self.cache, last=last)[self.head]
        return found[:, -1] if last else found  # type: ignore[no-any-return]

    @property
    def batch(self) -> int:
        """Sequences."""
        if self.cache is None:
            return len(self.seen)
        return next((len(tensor) for entry in self.cache.each() for _, tensor in entry.tensors()), len(self.seen))

    @torch.inference_mode()
    def reorder(self, index: list[int]) -> None:
        """Go on with the sequences `index` of these, each as often as it is named."""
        batch = self.batch
        if index == list(range(batch)):
            return
        chosen = torch.tensor(index, device=self.model.make.device)
        if self.cache is not None:
            self.cache = self.cache.reordered(chosen)
            return
        self.seen = self.seen.index_select(0, chosen)
        # images are several a sequence: [B*n,...]
        parts = {name: value.unflatten(0, (batch, -1)) for name, value in self.given.items()}
        self.given = {name: value.index_select(0, chosen).flatten(0, 1) for name, value in parts.items()}

    def step(self, tokens: tuple[int | None, ...], read: int, start: float) -> Step:
        """What a pass over `read` tokens gave, begun at `start` of the clock."""
        cache = self.cache
        held = (0, 0) if cache is None else (cache.length, cache.used_bytes)
        return Step(tokens=tokens, read=read, cache_length=held[0], cache_bytes=held[1], seconds=time.perf_counter() - start)

    # --- taking tokens back -----------------------------------------------------------------------------------------

    def mark(self) -> Cache | None:
        """What `take_back` may need: a copy of a cache that cannot forget."""
        return None if self.cache is None or self.cache.rewinds else self.cache.copied()

    def take_back(self, length: int, mark: Cache | None) -> None:
        """As if at most `length` tokens had been read: exactly so many, or, with a `mark`, those read when it was made."""
        if length >= self.length:
            return
        if self.cache is None:
            self.seen = self.seen[:, :length]
        elif mark is None:
            self.cache.rewind(length)
        else:
            self.cache = mark
