"""Layers, stacks of them, what joins stacks, and the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ..errors import UsageError
from .base import Count, Data, Name, Size
from .feed_forward import Chain, FeedForward, MoE
from .mixers import Attention, CompressedAttention, GatedDelta, LatentAttention, Mamba, Mamba2, RgLru, ShortConv
from .parts import Norm, Part

MOST_LAYERS = 4096  # of a stack: they are gone through one by one, so this bounds time and memory
Mixer = Attention | LatentAttention | CompressedAttention | Mamba | Mamba2 | GatedDelta | RgLru | ShortConv | FeedForward | MoE | Chain


class Sublayer(Data, frozen=True, tag="sublayer"):
    """One residual branch.

    Attributes:
        pre_norm: on its input. output_norm: on its output, before the residual is added. residual_norm: after the sum
            (post-norm, the original Transformer).
        shared: sublayers with the same name use the same weights (ALBERT, Zamba); the first one owns them.
        extra: further weights of the branch (layer scale).
    """

    name: Name
    mixer: Mixer
    pre_norm: Norm | None = None
    output_norm: Norm | None = None
    residual_norm: Norm | None = None
    shared: str | None = None
    extra: tuple[Part, ...] = ()
    residual_scale: float | None = None


class Layer(Data, frozen=True, tag="layer"):
    """Sublayers in order; `parallel` ones read the same input and are added together (GPT-J, Falcon, Cohere).

    `name` tells kinds of layers apart where a stack has several (`sliding`, `global`, `moe`).
    """

    sublayers: tuple[Sublayer, ...]
    name: str = ""
    parallel: bool = False


class Block(Data, frozen=True, tag="block"):
    """A pattern of layers, `repeat` times."""

    pattern: tuple[Layer, ...]
    repeat: Size = 1


class Stack(Data, frozen=True, tag="stack"):
    """Layers over one sequence of tokens.

    Attributes:
        role: a `decoder` keeps a cache and runs in decode steps; an `encoder` runs once.
        tokens: what its positions are: `context` (--ctx), `source` (--src), `image` (patches, fixed) or `sound` (a tower
            that hears: no pass has sound, so it rests).
        default_tokens: positions per image, or the source's length where the model fixes one (Whisper 1500).
        embeddings: what makes the first hidden state, in order. final: what follows the last layer.
    """

    name: Name
    d_model: Size
    role: Literal["encoder", "decoder"]
    blocks: tuple[Block, ...]
    tokens: Literal["context", "source", "image", "sound"] = "context"
    default_tokens: Size | None = None
    embeddings: tuple[Part, ...] = ()
    final: tuple[Part, ...] = ()
    max_positions: Size | None = None

    def __post_init__(self) -> None:
        if self.depth > MOST_LAYERS:
            raise UsageError(f"stack {self.name!r} has {self.depth} layers; allowed: at most {MOST_LAYERS}")

    def layers(self) -> Iterator[Layer]:
        """Every layer from the input to the output."""
        for block in self.blocks:
            for _ in range(block.repeat):
                yield from block.pattern

    @property
    def depth(self) -> int:
        """Number of layers."""
        return sum(block.repeat * len(block.pattern) for block in self.blocks)


class Connector(Data, frozen=True, tag="connector"):
    """Parts that carry one stack's output to another (a vision tower's projector), over the source's positions.

    Attributes:
        beside: further stacks whose states stand before the source's, channel by channel, position by position (two
            towers over one image); they come before the source in the model.
        tokens: the last so many positions of each are carried (a class token and registers stay behind); None: all.
    """

    name: Name
    source: str
    target: str
    parts: tuple[Part, ...]
    beside: tuple[str, ...] = ()
    tokens: Size | None = None


class Head(Data, frozen=True, tag="head"):
    """Parts on top of a stack: the output matrix, a classifier, a contrastive projection."""

    name: Name
    stack: str
    parts: tuple[Part, ...]
    softcap: float | None = None
    scale: float | None = None


class Action(Data, frozen=True, tag="action"):
    """What a robot's policy says (a vision-language-action model).

    Attributes:
        tokens: of one action, one a degree of freedom. prompt: tokens of a usual instruction with all that is around it.
    """

    tokens: Size
    prompt: Size


class ModelSpec(Data, frozen=True, tag="model"):
    """A transformer, described once.

    Attributes:
        source: where the numbers come from; none loads without.
        total_params: the published or counted exact figure, checked by a test, never used.
        images: images per sequence when not said (0 for a language model with a vision tower, 1 for pure vision).
        absent: stacks that are named and not described (a decoder taken alone keeps its cross-attention): what attends
            them keeps its weights and rests.
        action: for a policy, what an action is.
        assumptions: what a reader of this description must know.
    """

    name: str
    source: tuple[str, ...]
    stacks: tuple[Stack, ...]
    title: str = ""
    heads: tuple[Head, ...] = ()
    connectors: tuple[Connector, ...] = ()
    total_params: Size | None = None
    images: Count = 0
    action: Action | None = None
    absent: tuple[Name, ...] = ()
    license: str | None = None
    assumptions: tuple[str, ...] = ()
    extra: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if not self.source or not all(line.strip() for line in self.source):
            raise UsageError(f"model {self.name!r} has no source; say where its numbers come from")
        names = [stack.name for stack in self.stacks]
        if not names or len(set(names)) != len(names):
            raise UsageError(f"model {self.name!r} needs at least one stack and different names for them; got {names}")
        for joint in self.connectors:
            if joint.source in names and any(names.index(other) > names.index(joint.source) for other in joint.beside if other in names):
                raise UsageError(
                    f"connector {joint.name!r} of {self.name!r} needs its source {joint.source!r} after {', '.join(joint.beside)}"
                )
        for owner, stack in self._references():
            if stack not in (*names, *self.absent):
                raise UsageError(f"{owner} names the stack {stack!r}, which {self.name!r} does not have; it has {', '.join(names)}")

    def _references(self) -> Iterator[tuple[str, str]]:
        for head in self.heads:
            yield f"head {head.name!r}", head.stack
        for joint in self.connectors:
            yield f"connector {joint.name!r}", joint.source
            yield f"connector {joint.name!r}", joint.target
            yield from ((f"connector {joint.name!r}", name) for name in joint.beside)
        for stack, sub in self.sublayers():
            if isinstance(sub.mixer, Attention) and sub.mixer.source is not None:
                yield f"{stack.name}/{sub.name}", sub.mixer.source

    def sublayers(self) -> Iterator[tuple[Stack, Sublayer]]:
        """Every kind of sublayer of every stack, once a pattern."""
        for stack in self.stacks:
            for block in stack.blocks:
                for layer in block.pattern:
                    yield from ((stack, sub) for sub in layer.sublayers)

    @property
    def uses_latent_attention(self) -> bool:
        """Whether any layer is MLA, whose prefill and decode are computed in different forms."""
        return any(isinstance(sub.mixer, LatentAttention) for _, sub in self.sublayers())

    def stack(self, name: str) -> Stack:
        """The stack called `name`; raises KeyError."""
        return {stack.name: stack for stack in self.stacks}[name]

    @property
    def main(self) -> Stack:
        """The stack that people mean: the decoder if there is one, else the one that reads text, else the first."""
        order = sorted(self.stacks, key=lambda stack: (stack.role != "decoder", stack.tokens == "image"))
        return order[0]

    @property
    def decodes(self) -> bool:
        """Whether there is a decoder, and so a decode phase."""
        return any(stack.role == "decoder" for stack in self.stacks)
