"""What towers over images share: the grid of patches, the matrix that reads them, plain pre-norm layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...spec import Attention, Block, Conv, FeedForward, Full, Layer, Mask, Norm, Part, Position, Stack, Sublayer
from ..blocks import even_width
from ..config import Config, shown

MOST_SIDE = 2**16  # pixels of a side of an image
ALL: tuple[Literal["q", "k", "v", "o"], ...] = ("q", "k", "v", "o")


def sides(cfg: Config, key: str, *, default: int) -> tuple[int, int]:
    """Height and width under a key that holds one number for both, or a pair."""
    value: Any = cfg.raw(key, default=default)
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or any(isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= MOST_SIDE for side in pair):
        raise cfg.refuse(f"{key} must be a whole number from 1 to {MOST_SIDE} or a pair of them, got {shown(value)}")
    return pair[0], pair[1]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """An image cut into patches: `rows` x `columns` of them, each `patch` pixels high and wide; whole patches only."""

    rows: int
    columns: int
    patch: tuple[int, int]
    channels: int

    @property
    def patches(self) -> int:
        """How many there are."""
        return self.rows * self.columns

    @property
    def pixels(self) -> int:
        """Numbers in one patch."""
        return self.channels * self.patch[0] * self.patch[1]

    def conv(self, width: int, *, bias: bool, others: int = 0) -> Conv:
        """A convolution without overlap, at every patch; `others`: tokens of the stack that are no patches."""
        return Conv(
            name="patches",
            d_in=self.channels,
            d_out=width,
            kernel=self.patch,
            stride=self.patch,
            bias=bias,
            expand=self.patches if others else 1,
            merge=self.patches + others if others else 1,
        )


def grid(cfg: Config, *, image: int, patch: int, channels: int = 3) -> Grid:
    """The grid of `image_size` and `patch_size`."""
    high, wide = sides(cfg, "image_size", default=image)
    tall, broad = sides(cfg, "patch_size", default=patch)
    if tall > high or broad > wide:
        raise cfg.refuse(f"patch_size {tall} x {broad} is larger than image_size {high} x {wide}")
    count = cfg.integer("num_channels", default=channels)
    return Grid(rows=high // tall, columns=wide // broad, patch=(tall, broad), channels=count)


def attention(
    cfg: Config,
    width: int,
    heads: int,
    *,
    bias: Sequence[Literal["q", "k", "v", "o"]] = ALL,
    position: Position | None = None,
    mask: Mask | None = None,
    head_dim: int | None = None,
) -> Attention:
    """Ungrouped attention, to everything in the image unless a mask says less."""
    cfg.ignore("tie_word_embeddings")  # every section may say it; a tower has no output matrix
    return Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim or even_width(cfg, width, heads),
        mask=mask or Full(),
        bias=tuple(bias),
        position=position,
    )


def plain_layer(
    norm: Norm,
    mixer: Attention,
    mlp: FeedForward,
    *,
    name: str = "",
    after: Norm | None = None,
    first: tuple[Part, ...] = (),
    second: tuple[Part, ...] = (),
) -> Layer:
    """Norm, attention, norm, feed-forward; `after`: a norm on each output; `first`, `second`: further weights (layer scale)."""
    return Layer(
        name=name,
        sublayers=(
            Sublayer(name="attention", mixer=mixer, pre_norm=norm, output_norm=after, extra=first),
            Sublayer(name="feed_forward", mixer=mlp, pre_norm=norm, output_norm=after, extra=second),
        ),
    )


def tower(
    width: int, blocks: Iterable[Block], embeddings: Iterable[Part], *, tokens: int, final: Sequence[Part] = (), name: str = "vision"
) -> Stack:
    """A stack over images of `tokens` positions each."""
    return Stack(
        name=name,
        d_model=width,
        role="encoder",
        tokens="image",
        default_tokens=tokens,
        blocks=tuple(blocks),
        embeddings=tuple(embeddings),
        final=tuple(final),
    )
