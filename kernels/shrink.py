"""Small copies of a description, for tests that run the real thing in float64 in a moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, count
from math import isclose
from typing import Any

import msgspec

from ..presets import spec as s
from ..presets.errors import UsageError
from .cut import cut_stack, kinds_of

replace = msgspec.structs.replace

PRIMES = (13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
HEAD, VALUE, WINDOW, POSITIONS = 8, 6, 5, 40


def shrink(spec: s.ModelSpec, *, layers: int = 2) -> s.ModelSpec:
    """A copy that is small enough to be run in float64 in a moment, with every option and every inequality of sizes kept.

    What was equal stays equal (tied tables, a head's input and its stack's width), what was different stays different. Every
    kind of layer is kept once at least, so a stack can be deeper than `layers`.
    """
    stacks = tuple(cut_stack(stack, max(layers, kinds_of(stack))) for stack in spec.stacks)
    return Shrinker.of(spec).model(replace(spec, stacks=stacks, total_params=None))


@dataclass(kw_only=True)
class Shrinker:
    """How sizes become small: `widths` of hidden states, tables and heads, `tokens` of position tables; both old to new."""

    widths: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    primes: Any = field(default_factory=lambda: chain(PRIMES, count(101, 2)))

    @classmethod
    def of(cls, spec: s.ModelSpec) -> Shrinker:
        """A shrinker that knows the widths of a model's stacks."""
        made = cls()
        for place, stack in enumerate(spec.stacks):
            attentions = [sub.mixer for layer in stack.layers() for sub in layer.sublayers if isinstance(sub.mixer, s.Attention)]
            square = next((small_heads(a)[0] * HEAD for a in attentions if a.heads * a.head_dim == stack.d_model), None)
            made.widths.setdefault(stack.d_model, square or 36 + 24 * place)
            made.remember_tokens(stack, spec)
        for joint in (joint for joint in spec.connectors if joint.beside):
            sizes = [spec.stack(name).d_model for name in (*joint.beside, joint.source)]
            made.widths[sum(sizes)] = sum(made.widths[size] for size in sizes)
        return made

    def remember_tokens(self, stack: s.Stack, spec: s.ModelSpec) -> None:
        """Position tables: 40 rows; an image tower's, a few patches and what stands before them."""
        if stack.default_tokens:
            joints = [leaf for joint in spec.connectors if joint.source == stack.name for leaf in joint.parts]
            merge = max([leaf.merge for leaf in joints if isinstance(leaf, s.Linear)], default=1)
            patches = next((leaf.expand for leaf in stack.embeddings if isinstance(leaf, s.Conv) and leaf.merge > 1), stack.default_tokens)
            few = 6 if merge == 1 else 2 * merge
            self.tokens |= {stack.default_tokens: few + stack.default_tokens - patches, patches: few}
        if stack.max_positions:
            self.tokens.setdefault(stack.max_positions, POSITIONS)

    def width(self, size: int) -> int:
        """The small width that stands for `size` everywhere."""
        if size <= 8:
            return self.widths.get(size, size)
        if size not in self.widths:
            multiple = next((known for known in self.widths if size % known == 0 and size // known <= 16), None)
            self.widths[size] = self.widths[multiple] * (size // multiple) if multiple else next(self.primes)
        return self.widths[size]

    def model(self, spec: s.ModelSpec) -> s.ModelSpec:
        """The model, small."""
        return replace(
            spec,
            stacks=tuple(self.stack(stack) for stack in spec.stacks),
            heads=tuple(self.head(head, spec.stack(head.stack).d_model) for head in spec.heads),
            connectors=tuple(
                replace(joint, parts=self.parts(joint.parts), tokens=joint.tokens and self.tokens[joint.tokens])
                for joint in spec.connectors
            ),
            extra=self.parts(spec.extra),
        )

    def head(self, head: s.Head, width: int) -> s.Head:
        """A head; a scale of 1 / sqrt(d_model) stays that."""
        return replace(head, parts=self.parts(head.parts), scale=self.root(head.scale, width))

    def root(self, scale: float | None, width: int) -> float | None:
        """A factor that is a root of the width stays one."""
        for power in (0.5, -0.5):
            if scale is not None and isclose(scale, width**power, rel_tol=1e-6):
                return float(self.widths[width] ** power)
        return scale

    def stack(self, stack: s.Stack) -> s.Stack:
        """A stack: widths, tables, layers."""
        D = stack.d_model
        blocks = [replace(block, pattern=tuple(self.layer(layer, D) for layer in block.pattern)) for block in stack.blocks]
        return replace(
            stack,
            d_model=self.widths[D],
            default_tokens=self.tokens[stack.default_tokens] if stack.default_tokens else None,
            max_positions=self.tokens[stack.max_positions] if stack.max_positions else None,
            embeddings=tuple(self.table(leaf, D) for leaf in stack.embeddings),
            final=self.parts(stack.final),
            blocks=tuple(blocks),
        )

    def table(self, leaf: s.Part, width: int) -> Any:
        """A part of the embeddings; a factor of sqrt(d_model) stays that."""
        made = self.part(leaf)
        return replace(made, scale=self.root(leaf.scale, width)) if isinstance(leaf, s.Embedding) else made

    def layer(self, layer: s.Layer, width: int) -> s.Layer:
        """A layer's sublayers."""
        return replace(layer, sublayers=tuple(self.sublayer(sub, width) for sub in layer.sublayers))

    def sublayer(self, sub: s.Sublayer, width: int) -> s.Sublayer:
        """A sublayer's norms and mixer."""
        norms = {name: self.part(norm) for name in ("pre_norm", "output_norm", "residual_norm") if (norm := getattr(sub, name)) is not None}
        return replace(sub, mixer=self.mixer(sub.mixer, width), extra=self.parts(sub.extra), **norms)

    def parts(self, parts: tuple[s.Part, ...]) -> tuple[s.Part, ...]:
        """Leaves, one by one."""
        return tuple(self.part(leaf) for leaf in parts)

    def part(self, leaf: s.Part) -> Any:
        """One leaf: every size by what it measures."""
        match leaf:
            case s.Linear():
                return replace(leaf, d_in=self.width(leaf.d_in), d_out=self.width(leaf.d_out))
            case s.Conv():
                return self.conv(leaf)
            case s.Norm(width=int() as width):
                return replace(leaf, width=self.width(width))
            case s.Embedding():
                positions = self.tokens.get(leaf.rows - leaf.offset, POSITIONS) + leaf.offset
                rows = positions if leaf.role == "position" else self.width(leaf.rows)
                return replace(leaf, rows=rows, width=leaf.width and self.width(leaf.width))
            case s.Parameter():
                return replace(leaf, shape=tuple(self.tokens.get(size) or self.extent(leaf, size) for size in leaf.shape))
            case _:
                return leaf

    def extent(self, leaf: s.Parameter, size: int) -> int:
        """One side of a bare tensor; a table of relative biases keeps its buckets, its other side is heads."""
        if leaf.name == "relative_bias":
            return size if size == leaf.shape[0] else 3
        return self.width(size)

    def conv(self, leaf: s.Conv) -> s.Conv:
        """Patches of 16 become 2; short kernels stay."""
        kernel = tuple(2 if size > 4 else size for size in leaf.kernel)
        stride = leaf.stride and tuple(2 if size > 4 else size for size in leaf.stride)
        expand, merge = (self.tokens.get(size, size) for size in (leaf.expand, leaf.merge))
        sizes = {"d_in": self.width(leaf.d_in), "d_out": self.width(leaf.d_out), "kernel": kernel, "stride": stride}
        return replace(leaf, **sizes, expand=expand, merge=merge)

    def mixer(self, mixer: s.Mixer, width: int) -> s.Mixer:
        """A mixer or feed-forward by its kind."""
        match mixer:
            case s.Attention():
                return self.attention(mixer)
            case s.LatentAttention():
                return self.latent(mixer)
            case s.FeedForward():
                return self.feed_forward(mixer, width)
            case s.MoE():
                return self.moe(mixer, width)
            case s.Chain():
                return replace(mixer, parts=self.parts(mixer.parts))
            case s.Mamba() | s.Mamba2() | s.GatedDelta() | s.RgLru() | s.ShortConv():
                return self.recurrent(mixer, width)
            case _:
                raise UsageError(f"a mixer of kind {mixer.__struct_config__.tag!r} cannot be shrunk; it has no module here")

    def recurrent(self, mixer: s.Mixer, width: int) -> s.Mixer:
        """A state of small sides, no two alike; inner widths stay multiples of the stack's where they were."""
        match mixer:
            case s.Mamba():
                return replace(mixer, d_inner=self.width(mixer.d_inner), state=5, dt_rank=3)
            case s.Mamba2():
                heads = 2 * self.widths[width] // HEAD if mixer.heads * mixer.head_dim == 2 * width else 4
                groups = 2 if mixer.groups > 1 and heads % 2 == 0 else 1
                return replace(mixer, heads=heads, head_dim=HEAD, groups=groups, state=5)
            case s.GatedDelta():
                return replace(mixer, key_heads=2, value_heads=6 if mixer.value_heads > mixer.key_heads else 2, key_dim=8, value_dim=VALUE)
            case s.RgLru():
                return replace(mixer, width=24, blocks=3)
            case s.ShortConv():
                return replace(mixer, width=self.width(mixer.width))
            case _:
                return mixer

    def attention(self, mixer: s.Attention) -> s.Attention:
        """Heads keep their grouping, windows become short enough to close."""
        heads, kv_heads = small_heads(mixer)
        return replace(
            mixer,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=HEAD,
            value_dim=mixer.value_dim and (HEAD if mixer.value_dim == mixer.head_dim else VALUE),
            mask=small_mask(mixer.mask),
            position=small_rope(mixer.position, mixer.head_dim),
            source_width=mixer.source_width and self.width(mixer.source_width),
            d_in=mixer.d_in and self.width(mixer.d_in),
            d_out=mixer.d_out and self.width(mixer.d_out),
            extra=self.parts(mixer.extra),
        )

    def latent(self, mixer: s.LatentAttention) -> s.LatentAttention:
        """Every width another; a scale keeps its factor on 1 / sqrt(nope + rope)."""
        sizes = {"heads": 3, "kv_rank": 10, "nope_dim": 8, "rope_dim": 6, "value_dim": 9, "q_rank": mixer.q_rank and 14}
        small = replace(mixer, **sizes, mask=small_mask(mixer.mask))
        if mixer.scale is None:
            return small
        return replace(small, scale=mixer.scale * ((mixer.nope_dim + mixer.rope_dim) / (small.nope_dim + small.rope_dim)) ** 0.5)

    def feed_forward(self, mixer: s.FeedForward, width: int) -> s.FeedForward:
        """As many times the width as it was, 8 at most, and never equal to it."""
        d_ff = max(5, round(min(mixer.d_ff / width, 8) * self.widths[width]))
        d_ff += d_ff == self.widths[width]
        inner = mixer.inner_norm and replace(mixer.inner_norm, width=None)
        ends = {name: size and self.width(size) for name, size in (("d_in", mixer.d_in), ("d_out", mixer.d_out))}
        return replace(mixer, d_ff=d_ff, inner_norm=inner, **ends)

    def moe(self, mixer: s.MoE, width: int) -> s.MoE:
        """3 experts a group, or 6 at most; 3 at most run."""
        groups = min(mixer.groups, 4)
        experts = 3 * groups if groups > 1 else min(mixer.experts, 6)
        return replace(
            mixer,
            experts=experts,
            top_k=min(mixer.top_k, 3, experts),
            groups=groups,
            top_groups=max(1, mixer.top_groups * groups // mixer.groups),
            expert=self.feed_forward(mixer.expert, width),
            shared=mixer.shared and self.feed_forward(mixer.shared, width),
            latent=mixer.latent and self.width(mixer.latent),
        )


def small_heads(mixer: s.Attention) -> tuple[int, int]:
    """Query and key/value heads: 3 of each, 4 or 6 on 2, 3 on 1."""
    group = min(mixer.heads // mixer.kv_heads, 3)
    kv_heads = min(mixer.kv_heads, 2) if group > 1 else min(mixer.kv_heads, 3)
    return kv_heads * group, kv_heads


def small_mask(mask: s.Mask) -> s.Mask:
    """A window or chunk of 5, a reach of 2."""
    match mask:
        case s.Sliding():
            return s.Sliding(window=WINDOW)
        case s.Chunked():
            return s.Chunked(chunk=WINDOW)
        case s.Local():
            return s.Local(reach=2)
        case _:
            return mask


def small_rope(position: s.Position | None, head_dim: int) -> s.Position | None:
    """Rotary positions on the same share of a head."""
    if isinstance(position, s.Rope) and position.dims:
        return replace(position, dims=max(2, HEAD * position.dims // head_dim // 2 * 2))
    return position
