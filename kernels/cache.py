"""What a model keeps between steps, allocated once: keys and values, MLA's latent, what cross-attention reads, recurrent state.

Policy `minimal`: a layer with a window or a chunk keeps no more tokens than a later step can need, in a ring (the token at
position p in slot p mod slots). Policy `full`: every layer keeps every token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from ..presets import spec as s
from ..presets.errors import UsageError
from .init import Drawer

Policy = Literal["minimal", "full"]
Change = Callable[[Tensor], Tensor]  # a tensor of the cache, [B, ...], as the changed cache has it


@dataclass(kw_only=True, slots=True, eq=False)
class Ring:
    """The newest tokens of one layer: buffer [B,K,slots,width]; `limit` is the window or chunk, None where all are kept."""

    buffer: Tensor
    limit: int | None = None
    chunked: bool = False

    @property
    def slots(self) -> int:
        """Tokens there is room for."""
        return self.buffer.shape[2]

    def changed(self, change: Change) -> Ring:
        """The same with another buffer."""
        return replace(self, buffer=change(self.buffer))

    def used_bytes(self, length: int) -> int:
        """Bytes of what is kept of the first `length` tokens."""
        return self.buffer[:, :, : self.kept(length)].numel() * self.buffer.element_size()

    def append(self, new: Tensor, start: int, *, ordered: bool = False) -> Tensor:
        """Keep new [B,K,T,width], the tokens from position `start` on; gives what they may attend, [B,K,S,width].

        S counts the kept tokens that the first of them can still need, and the new ones, oldest first; a single token gets
        the slots as they lie, unless `ordered`.
        """
        T = new.shape[2]
        if self.limit is None:
            self.buffer.narrow(2, start, T).copy_(new)
            return self.buffer.narrow(2, 0, start + T)
        if T == 1 and not ordered:
            self.buffer.narrow(2, start % self.limit, 1).copy_(new)
            return self.buffer.narrow(2, 0, self.kept(start + 1))
        seen = torch.cat([self.past(start), new], dim=2)
        kept = min(self.kept(start + T), T)
        slots = torch.arange(start + T - kept, start + T, device=new.device) % self.limit
        self.buffer.index_copy_(2, slots, new[:, :, T - kept :].to(self.buffer.dtype))
        return seen

    def kept(self, length: int) -> int:
        """Tokens kept of the first `length`: those of the window, or of the last one's chunk."""
        if self.limit is None:
            return length
        return (length - 1) % self.limit + 1 if self.chunked and length else min(length, self.limit)

    def past(self, start: int) -> Tensor:
        """The tokens before position `start` that the next one can need, oldest first."""
        if self.limit is None:
            return self.buffer[:, :, :start]
        if self.chunked:
            return self.buffer[:, :, : start % self.limit]
        if start <= self.limit:
            return self.buffer[:, :, :start]
        turn = start % self.limit
        return torch.cat([self.buffer[:, :, turn:], self.buffer[:, :, :turn]], dim=2)


@dataclass(kw_only=True, slots=True, eq=False)
class KeyValue:
    """Keys [B,K,S,H] and values [B,K,S,Hv] of a self-attention."""

    keys: Ring
    values: Ring

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What is held, and as what."""
        yield "self", self.keys.buffer
        yield "self", self.values.buffer

    def changed(self, change: Change) -> KeyValue:
        """The same with other tensors."""
        return KeyValue(keys=self.keys.changed(change), values=self.values.changed(change))


@dataclass(kw_only=True, slots=True, eq=False)
class Latent:
    """MLA's compressed keys and values with the rotated part, [B,1,S,kv_rank + rope_dim]."""

    latent: Ring

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What is held, and as what."""
        yield "self", self.latent.buffer

    def changed(self, change: Change) -> Latent:
        """The same with another tensor."""
        return Latent(latent=self.latent.changed(change))


@dataclass(kw_only=True, slots=True, eq=False)
class Cross:
    """Keys and values of another stack's output, made once."""

    keys: Tensor
    values: Tensor

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What is held, and as what."""
        yield "cross", self.keys
        yield "cross", self.values

    def changed(self, change: Change) -> Cross:
        """The same with other tensors."""
        return Cross(keys=change(self.keys), values=change(self.values))


@dataclass(kw_only=True, slots=True, eq=False)
class State:
    """A recurrent state, in fp32 at least, and the last inputs of a convolution, [B, channels, taps kept]."""

    state: Tensor | None = None
    tail: Tensor | None = None

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What is held, and as what."""
        if self.state is not None:
            yield "state", self.state
        if self.tail is not None:
            yield "tail", self.tail

    def changed(self, change: Change) -> State:
        """The same with other tensors."""
        state, tail = (None if tensor is None else change(tensor) for tensor in (self.state, self.tail))
        return State(state=state, tail=tail)


Entry = KeyValue | Latent | Cross | State


@dataclass(kw_only=True, slots=True, eq=False)
class Cache:
    """The entries of every layer of every decoder, by stack; `length` tokens are in it, of at most `capacity`."""

    capacity: int
    entries: dict[str, list[list[Entry | None]]] = field(default_factory=dict)
    length: int = 0

    def room_for(self, new: int) -> None:
        """Refuse what does not fit; raises UsageError."""
        if self.length + new > self.capacity:
            raise UsageError(f"the cache holds {self.capacity} tokens; {self.length} are in it and {new} more do not fit. Make it larger.")

    def each(self) -> Iterator[Entry]:
        """Every entry."""
        for layers in self.entries.values():
            for layer in layers:
                yield from (entry for entry in layer if entry is not None)

    def rings(self) -> Iterator[Ring]:
        """Every ring: what grows with the tokens."""
        for entry in self.each():
            match entry:
                case KeyValue():
                    yield from (entry.keys, entry.values)
                case Latent():
                    yield entry.latent

    def bytes_of(self, *kinds: str) -> int:
        """Bytes of the tensors held as one of `kinds`: self, cross, state, tail."""
        return sum(tensor.numel() * tensor.element_size() for entry in self.each() for kind, tensor in entry.tensors() if kind in kinds)

    @property
    def bytes(self) -> int:
        """Bytes of all of it."""
        return self.bytes_of("self", "cross", "state", "tail")

    @property
    def used_bytes(self) -> int:
        """Bytes of what is in it: of the tokens kept so far, and of all that does not grow."""
        return self.bytes_of("cross", "state", "tail") + sum(ring.used_bytes(self.length) for ring in self.rings())

    def changed(self, change: Change) -> Cache:
        """A cache of other tensors, each made of the one here by `change`."""
        entries = {
            stack: [[None if entry is None else entry.changed(change) for entry in layer] for layer in layers]
            for stack, layers in self.entries.items()
        }
        return Cache(capacity=self.capacity, entries=entries, length=self.length)

    def copied(self) -> Cache:
        """The same in memory of its own."""
        return self.changed(torch.clone)

    def reordered(self, index: Tensor) -> Cache:
        """The sequences `index` [B'] of these, each as often as it is named: what beam search needs, kind of cache regardless."""
        return self.changed(lambda tensor: tensor.index_select(0, index))

    def expanded(self, times: int) -> Cache:
        """Every sequence `times` times, one beside the other: a prefix that several requests share."""
        return self.changed(lambda tensor: tensor.repeat_interleave(times, dim=0))

    @property
    def rewinds(self) -> bool:
        """Whether tokens can be taken back: not where a state has swallowed them, nor where a ring writes over older ones."""
        states = any(isinstance(entry, State) for entry in self.each())
        return not states and all(ring.limit is None or ring.slots >= self.capacity for ring in self.rings())

    def rewind(self, length: int) -> None:
        """As if only the first `length` tokens had come; raises UsageError where that cannot be (`rewinds`)."""
        if not 0 <= length <= self.length:
            raise UsageError(f"a cache of {self.length} tokens cannot go back to {length}; allowed: 0 to {self.length}")
        if not self.rewinds:
            raise UsageError("a recurrent state or a closed window cannot take tokens back; keep a copy (`copied`) to return to")
        self.length = length

    def randomise(self, length: int) -> None:
        """As if `length` tokens were in it: random numbers, for measuring a step without running what comes before."""
        tensors = [tensor for entry in self.each() for _, tensor in entry.tensors()]
        if tensors:
            draw = Drawer(0, tensors[0].device)
            for tensor in tensors:
                draw(tensor, 1.0, 0.0)
        self.length = length


# --- allocation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Room:
    """For how much there is room: `batch` sequences of `capacity` tokens that read `source` tokens of another stack."""

    batch: int
    capacity: int
    source: int
    policy: Policy
    device: torch.device
    dtype: torch.dtype

    def entry(self, mixer: s.Mixer) -> Entry | None:
        """The entry of one mixer; None where it keeps nothing."""
        match mixer:
            case s.Attention(source=str()):
                keys, values = (self.zeros(mixer.kv_heads, self.source, width) for width in (mixer.head_dim, mixer.v_dim))
                return Cross(keys=keys, values=values)
            case s.Attention(keys="reused"):
                return None
            case s.Attention():
                rings = [self.ring(mixer.mask, mixer.kv_heads, width) for width in (mixer.head_dim, mixer.v_dim)]
                return KeyValue(keys=rings[0], values=rings[1])
            case s.LatentAttention():
                return Latent(latent=self.ring(mixer.mask, 1, mixer.kv_rank + mixer.rope_dim))
            case _:
                return self.recurrent(mixer)

    def recurrent(self, mixer: s.Mixer) -> State | None:
        """State and tail of a mixer that has them; a tail is as many inputs as the convolution has taps (one less in Griffin)."""
        match mixer:
            case s.Mamba():
                return self.state((mixer.d_inner, mixer.state), mixer.d_inner, mixer.conv)
            case s.Mamba2():
                inner = mixer.heads * mixer.head_dim
                return self.state((mixer.heads, mixer.head_dim, mixer.state), inner + 2 * mixer.groups * mixer.state, mixer.conv)
            case s.GatedDelta():
                mixed = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
                return self.state((mixer.value_heads, mixer.key_dim, mixer.value_dim), mixed, mixer.conv)
            case s.RgLru():
                return self.state((mixer.width,), mixer.width, mixer.conv - 1)
            case s.ShortConv():
                return self.state(None, mixer.width, mixer.conv)
            case _:
                return None

    def ring(self, mask: s.Mask, heads: int, width: int) -> Ring:
        """Slots for the tokens that a mask lets a later step see."""
        limit = None
        match mask:
            case s.Sliding(window=size) | s.Chunked(chunk=size) if self.policy == "minimal":
                limit = size
        slots = self.capacity if limit is None else min(self.capacity, limit)
        return Ring(buffer=self.zeros(heads, slots, width), limit=limit, chunked=isinstance(mask, s.Chunked))

    def state(self, shape: tuple[int, ...] | None, channels: int, taps: int) -> State:
        """A state in fp32 at least, and a tail in the cache's format."""
        wide = torch.promote_types(self.dtype, torch.float32)
        state = None if shape is None else torch.zeros(self.batch, *shape, device=self.device, dtype=wide)
        return State(state=state, tail=self.zeros(channels, taps))

    def zeros(self, *shape: int) -> Tensor:
        """[B, *shape] in the cache's format."""
        return torch.zeros(self.batch, *shape, device=self.device, dtype=self.dtype)


def empty_cache(spec: s.ModelSpec, room: Room) -> Cache:
    """Entries of every layer of every decoder."""
    entries = {
        stack.name: [[room.entry(sub.mixer) for sub in layer.sublayers] for layer in stack.layers()]
        for stack in spec.stacks
        if stack.role == "decoder"
    }
    return Cache(capacity=room.capacity, entries=entries)
