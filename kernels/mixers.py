"""Attention as a module, multi-head in every grouping, and what the layers of one pass share.

Letters: B sequences, T new tokens, S attended, D width, N query heads, K key and value heads, H and Hv their widths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..presets import spec as s
from . import between
from .attention import KERNELS
from .cache import Cross, KeyValue
from .masks import Rules
from .modules import Draw, Leaf, Linear, Make, Named, Norm, UnsupportedError
from .positions import alibi_bias, relative_bias, rotate
from .rope import angles


@dataclass(kw_only=True, eq=False)
class Run:
    """One pass of a stack: what its layers share.

    Attributes:
        start: position of the first new token. tokens: T.
        sources: outputs of other stacks, [B,S,D]; empty in decode steps, where cross-attention reads its cache.
        absent: stacks that are named and not there: what attends them rests.
        stack: the name of its own. padding: bool [B,S] by stack, True where a token is real; stacks without padding have none.
        tables: parameters of the stack that all its layers use (T5's relative biases).
        kernel: how attention runs, a key of `attention.KERNELS`; None: what suits device and shape.
        recompute: every layer is run again in the backward pass, in place of keeping what it needs there.
        made: what was computed once for all layers (angles, biases).
        reusable: keys and values of the last layer of each mask that has its own.
    """

    start: int
    tokens: int
    device: torch.device
    dtype: torch.dtype
    sources: dict[str, Tensor] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    stack: str = ""
    padding: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[str, Tensor] = field(default_factory=dict)
    kernel: str | None = None
    recompute: bool = False
    made: dict[Any, Any] = field(default_factory=dict)
    reusable: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """`make()`, the first time it is asked for."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def apart(self) -> Run:
        """The same pass for one layer that is run twice: it shares nothing with the others, so that both runs do the same."""
        return replace(self, made={}, reusable={})

    def lengthen(self, tokens: int) -> None:
        """There are so many tokens now: a stem makes fewer, a class token one more."""
        if tokens != self.tokens:
            self.tokens = tokens
            self.made.clear()

    @property
    def positions(self) -> Tensor:
        """[T], those of the new tokens."""
        return self.once("positions", lambda: torch.arange(self.start, self.start + self.tokens, device=self.device))  # type: ignore[no-any-return]

    def turn(self, x: Tensor, rope: s.Position | None, *, tuned: bool = False) -> Tensor:
        """x [B,N,T,H] turned by its positions, where they are rotary; `tuned`: by a compiled loop, if it can be."""
        if not isinstance(rope, s.Rope):
            return x
        width = x.shape[-1]
        cos, sin = self.angles_of(rope, width)
        if rope.interleaved or cos.shape[-1] != width:
            return rotate(x, cos, sin, interleaved=rope.interleaved)
        if tuned and self.tokens == 1 and between.takes(x, cos, sin):
            return between.turned(x, cos, sin)
        # [a cos - b sin, b cos + a sin] of a head's halves a and b, in three operators
        return torch.addcmul(x * cos, x.roll(width // 2, dims=-1), sin)

    def angles_of(self, rope: s.Rope, width: int) -> tuple[Tensor, Tensor]:
        """`angles`, made once."""
        return self.once((rope, width), lambda: self.angles(rope, width))  # type: ignore[no-any-return]

    def angles(self, rope: s.Rope, width: int) -> tuple[Tensor, Tensor]:
        """cos and sin [T,R/2]; of whole heads in halves [T,H], each angle twice and the first half's sines negative."""
        cos, sin = (part.to(self.device) for part in angles(rope, width, self.exact_positions, self.dtype))
        if rope.interleaved or 2 * cos.shape[-1] != width:
            return cos, sin
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

    @property
    def exact_positions(self) -> Tensor:
        """[T] where there is fp64 to compute angles in: not on Apple's GPUs."""
        return self.positions.cpu() if self.device.type == "mps" else self.positions

    def bias(self, position: s.Position | None, heads: int, keys: int) -> Tensor | None:
        """[1,N,T,S] added to the scores by positions that are not rotary."""
        return self.once(("bias", position, heads, keys), lambda: self.make_bias(position, heads, keys))  # type: ignore[no-any-return]

    def make_bias(self, position: s.Position | None, heads: int, keys: int) -> Tensor | None:
        """ALiBi's distances or T5's table."""
        match position:
            case s.Alibi():
                return alibi_bias(heads, self.tokens, keys).to(self.device, self.dtype)[None]
            case s.RelativeBuckets(max_distance=furthest, bidirectional=both):
                if "relative_bias" not in self.tables:
                    raise UnsupportedError("relative buckets need a parameter called relative_bias among the stack's embeddings")
                return relative_bias(self.tables["relative_bias"], self.tokens, keys, bidirectional=both, furthest=furthest)[None]
            case _:
                return None


def rules_of(mask: s.Mask, tokens: int, keys: int) -> dict[str, Any]:
    """A mask as the kernels' rules; what hides nothing is left out, so that no mask is made for it."""
    match mask:
        case s.Full():
            return {"causal": False}
        case s.Local(reach=reach):
            return {"causal": False, "window": 2 * reach if reach < keys - 1 else None}
        case s.Blocked(size=size):
            return {"causal": False, "chunk": size if size < keys else None}
    limits: dict[str, int] = {}
    if isinstance(mask, s.Sliding) and mask.window < keys:
        limits["window"] = mask.window
    if isinstance(mask, s.Chunked) and mask.chunk < keys:
        limits["chunk"] = mask.chunk
    return {"causal": tokens > 1 or bool(limits), **limits}


class Scores(Leaf):
    """Scores, softmax and weighted values: q [B,N,T,H], k [B,K,S,H], v [B,K,S,Hv] -> [B,N,T,Hv]."""

    def __init__(self, mask: s.Mask, *, softcap: float | None, scale: float | None) -> None:
        super().__init__()
        self.mask, self.softcap, self.scale = mask, softcap, scale

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        run: Run,
        *,
        bias: Tensor | None = None,
        sinks: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> Tensor:
        """By the kernel that suits: the whole square on `meta`, the grouped one for a single token, else PyTorch's."""
        T, S = q.shape[2], k.shape[2]
        rules = run.once((self.mask, self.softcap, self.scale, T, S), lambda: self.rules(T, S))
        if bias is not None or sinks is not None or padding is not None:
            rules = replace(rules, bias=bias, sinks=sinks, padding=padding)
        name = run.kernel or ("eager" if q.is_meta else "grouped" if T == 1 else "sdpa")
        return KERNELS[name](q, k, v, rules)

    def rules(self, tokens: int, keys: int) -> Rules:
        """Which keys so many new tokens attend, and how: the same for all layers of a pass with this mask."""
        return Rules(**rules_of(self.mask, tokens, keys), softcap=self.softcap, scale=self.scale)


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[B,T,N*H] -> [B,N,T,H]."""
    B, T, width = x.shape
    return x.view(B, T, heads, width // heads).transpose(1, 2)


def head_norm(spec: s.HeadNorm, heads: int, width: int, make: Make) -> Norm:
    """The norm of queries or keys: one weight for all heads, one a head, or over all of them."""
    if spec.over == "all":
        return Norm(spec, heads * width, make)
    return Norm(spec, width, make, heads=heads if spec.over == "heads" else None)


class Attention(Named):
    """Multi-head, grouped-query or multi-query attention, of a stack to itself or to another."""

    def __init__(self, spec: s.Attention, width: int, make: Make) -> None:
        super().__init__()
        refuse(spec)
        self.spec = spec
        N, K, H, Hv = spec.heads, spec.kv_heads, spec.head_dim, spec.v_dim
        d_in, d_out = spec.d_in or width, spec.d_out or width
        d_source = spec.source_width or d_in
        wide = 2 if spec.gate == "full" else 1
        self.q_proj = Linear(d_in, wide * N * H, make, bias="q" in spec.bias)
        self.gate_proj = Linear(d_in, N, make) if spec.gate == "head" else None
        self.k_proj = Linear(d_source, K * H, make, bias="k" in spec.bias) if spec.keys != "reused" else None
        self.v_proj = Linear(d_source, K * Hv, make, bias="v" in spec.bias) if spec.keys == "own" else None
        self.q_norm = head_norm(spec.head_norm, N, H, make) if spec.head_norm else None
        self.k_norm = head_norm(spec.head_norm, K, H, make) if spec.head_norm and spec.keys != "reused" else None
        self.sinks = make(N) if spec.sinks else None
        self.scores = Scores(spec.mask, softcap=spec.softcap, scale=spec.scale)
        self.o_proj = Linear(N * Hv, d_out, make, bias="o" in spec.bias)

    def reset(self, draw: Draw) -> None:
        """Sinks that take a share of every softmax."""
        if self.sinks is not None:
            draw(self.sinks, 1.0, 0.0)

    def forward(self, x: Tensor, run: Run, entry: KeyValue | Cross | None) -> Tensor:
        """x [B,T,D] -> [B,T,D]; keys and values are added to `entry`, or read from it."""
        q, gate = self.queries(x, run)
        k, v = self.memory(x, run, entry)
        bias = run.bias(self.spec.position, self.spec.heads, k.shape[2])
        padding = run.padding.get(self.spec.source or run.stack)
        out = self.scores(q, k, v, run, bias=bias, sinks=self.sinks, padding=padding)
        # [B,N,T,Hv] -> [B,T,N,Hv]
        out = out.transpose(1, 2)
        if gate is not None:
            out = out * gate.sigmoid()
        y: Tensor = self.o_proj(out.flatten(2))
        return y

    def queries(self, x: Tensor, run: Run) -> tuple[Tensor, Tensor | None]:
        """q [B,N,T,H] and the output's gate, [B,T,N,H] or [B,T,N,1]."""
        q, gate = self.q_proj(x), None
        if self.spec.gate == "full":
            # each head's queries are followed by its gate
            q, gate = q.unflatten(-1, (self.spec.heads, -1)).chunk(2, dim=-1)
            q = q.flatten(2)
        elif self.gate_proj is not None:
            gate = self.gate_proj(x).unsqueeze(-1)
        q = self.normed(self.q_norm, q, self.spec.heads)
        return run.turn(q, self.spec.position, tuned=self.tuned), gate

    def normed(self, norm: Norm | None, x: Tensor, heads: int) -> Tensor:
        """[B,T,N*H] -> [B,N,T,H], normalised before or after the heads are told apart."""
        if norm is None:
            return heads_of(x, heads)
        if self.spec.head_norm is not None and self.spec.head_norm.over == "all":
            return heads_of(norm(x), heads)
        y: Tensor = norm(x.unflatten(-1, (heads, -1))).transpose(1, 2)
        return y

    def memory(self, x: Tensor, run: Run, entry: KeyValue | Cross | None) -> tuple[Tensor, Tensor]:
        """Keys [B,K,S,H] and values [B,K,S,Hv]: new, from the cache, from another stack, or from an earlier layer."""
        if self.spec.source is not None:
            return self.crossed(run, entry)
        kind = type(self.spec.mask).__name__
        if self.spec.keys == "reused":
            if kind not in run.reusable:
                raise UnsupportedError("a layer reads an earlier layer's cache, but none before it has one with the same mask")
            return run.reusable[kind]
        k, v = self.keys_values(x)
        k = run.turn(k, self.spec.position, tuned=self.tuned)
        if isinstance(entry, KeyValue):
            # a bias depends on distance, so it needs the tokens in their order
            ordered = self.spec.position is not None and not isinstance(self.spec.position, s.Rope)
            k, v = (ring.append(new, run.start, ordered=ordered) for ring, new in ((entry.keys, k), (entry.values, v)))
        run.reusable[kind] = k, v
        return k, v

    def crossed(self, run: Run, entry: KeyValue | Cross | None) -> tuple[Tensor, Tensor]:
        """Keys and values of another stack's output: made where it ran, else as they were kept."""
        source = run.sources.get(self.spec.source or "")
        if source is None:
            if not isinstance(entry, Cross):
                raise UnsupportedError(f"cross-attention needs the output of {self.spec.source!r}, or a cache that has it")
            return entry.keys, entry.values
        k, v = self.keys_values(source)
        if isinstance(entry, Cross):
            entry.keys.copy_(k)
            entry.values.copy_(v)
        return k, v

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B,S,D] -> [B,K,S,H], [B,K,S,Hv]."""
        assert self.k_proj is not None
        k = self.k_proj(x)
        v = heads_of(k if self.v_proj is None else self.v_proj(x), self.spec.kv_heads)
        if self.spec.head_norm is not None and self.spec.head_norm.values:
            v = v * torch.rsqrt(v.square().mean(dim=-1, keepdim=True) + self.spec.head_norm.eps)
        return self.normed(self.k_norm, k, self.spec.kv_heads), v


def refuse(spec: s.Attention | s.LatentAttention) -> None:
    """What has rows in the ledger and no module here."""
    if spec.indexer is not None:
        raise UnsupportedError("attention to keys that an indexer picks has no module here")
    if isinstance(spec.position, s.Disentangled):
        raise UnsupportedError("DeBERTa's disentangled positions have no module here")
    if spec.extra:
        raise UnsupportedError(f"further weights of attention ({', '.join(leaf.name for leaf in spec.extra)}) have no module here")
