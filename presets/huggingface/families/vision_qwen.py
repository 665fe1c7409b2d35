"""The vision towers of Qwen2-VL and its successors: patches of two frames, images of any size, a merger of 2 x 2 patches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...spec import Block, Blocked, Connector, Conv, Embedding, FeedForward, Full, Layer, Norm, Part, Rope, Stack
from ..blocks import activation, compress, gated, plain
from ..config import Config
from .multimodal_shared import dense, note_size, projector, same_norm
from .vision_shared import attention, plain_layer, tower

SIDE = 16  # tokens of the text on either side of the image that is assumed where its size is free


@dataclass(frozen=True, kw_only=True)
class Vision:
    """A tower and what joins it to the text model."""

    stack: Stack
    joints: tuple[Connector, ...]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a tower: width, heads, width it gives; `merge`: patches on a side that become one token; `side`: tokens on one."""

    width: int
    heads: int
    out: int
    merge: int
    depth: int
    side: int = SIDE

    @property
    def patches(self) -> int:
        """Patches of the assumed image."""
        return (self.side * self.merge) ** 2

    @property
    def merged(self) -> int:
        """Width of a token's patches side by side."""
        return self.width * self.merge**2


def shape(cfg: Config, *, width_key: str, width: int, out_key: str, depth: int = 32) -> Shape:
    """By the keys of the family."""
    return Shape(
        width=cfg.integer(width_key, default=width),
        heads=cfg.integer("num_heads", default=16),
        out=cfg.integer(out_key, default=3584),
        merge=cfg.integer("spatial_merge_size", default=2, most=64),
        depth=cfg.layers("depth", default=depth),
    )


def patches(cfg: Config, size: Shape, *, bias: bool, patch: int) -> Conv:
    """A convolution over `temporal_patch_size` frames (an image is repeated) without overlap."""
    side = cfg.integer("patch_size", default=patch, most=2**12)
    frames = cfg.integer("temporal_patch_size", default=2, most=64)
    channels = cfg.integer("in_channels", default=3, most=2**12)
    cfg.ignore("in_chans", "spatial_patch_size", "tokens_per_second", "model_type")
    kernel = (frames, side, side)
    return Conv(name="patches", d_in=channels, d_out=size.width, kernel=kernel, stride=kernel, bias=bias)


def layer(cfg: Config, size: Shape, norm: Norm, mlp: FeedForward, *, name: str = "", block: int | None = None) -> Layer:
    """Attention with rotation in two dimensions and biases everywhere; `block`: only inside so many positions."""
    mask = Full() if block is None else Blocked(size=block)
    return plain_layer(norm, attention(cfg, size.width, size.heads, position=Rope(), mask=mask), mlp, name=name)


def merger(size: Shape, norm: Norm, *, name: str = "projector", shuffled: bool = False) -> Connector:
    """A norm (after the patches are put side by side where `shuffled`), two matrices."""
    area = size.merge**2
    return projector(
        "vision",
        same_norm(norm, size.merged if shuffled else size.width),
        dense("fc1", size.merged, size.merged, merge=area),
        dense("fc2", size.merged, size.out, merge=area),
        name=name,
    )


def finished(cfg: Config, size: Shape, blocks: tuple[Block, ...], embeddings: tuple[Part, ...], joints: tuple[Connector, ...]) -> Vision:
    """The tower over the assumed image."""
    stack = tower(size.width, blocks, embeddings, tokens=size.patches)
    note_size(cfg, stack, size.side**2, f"{size.side * size.merge} x {size.side * size.merge} patches (its size is free)")
    return Vision(stack=stack, joints=joints)


def qwen2_vision(cfg: Config) -> Vision:
    """Qwen2-VL (arXiv:2409.12191): layer norms; `hidden_size` is the width it gives."""
    size = shape(cfg, width_key="embed_dim", width=1280, out_key="hidden_size")
    norm = Norm(type="layer", eps=1e-6)
    mlp = plain(size.width * cfg.integer("mlp_ratio", default=4, most=2**10), activation=activation(cfg, default="quick_gelu"))
    block = Block(pattern=(layer(cfg, size, norm, mlp),), repeat=size.depth)
    return finished(cfg, size, (block,), (patches(cfg, size, bias=False, patch=14),), (merger(size, norm),))


def qwen2_5_vision(cfg: Config) -> Vision:
    """Qwen2.5-VL (arXiv:2502.13923): RMS norms, a gated feed-forward, most layers only inside windows of patches."""
    size = shape(cfg, width_key="hidden_size", width=3584, out_key="out_hidden_size")
    norm = Norm(type="rms", eps=1e-6)
    first = patches(cfg, size, bias=False, patch=14)
    mlp = gated(cfg.integer("intermediate_size", default=3420), activation=activation(cfg, default="silu"), bias=True)
    window = cfg.integer("window_size", default=112) // size.merge // first.kernel[-1]
    if not 1 <= window <= 2**10:
        raise cfg.refuse("window_size must be from 1 to 1024 tokens of patch_size x spatial_merge_size pixels")
    size = replace(size, side=window * max(round(SIDE / window), 1))  # whole windows
    everywhere = cfg.integers("fullatt_block_indexes", default=(7, 15, 23, 31)) or ()
    full = layer(cfg, size, norm, mlp, name="global")
    inside = layer(cfg, size, norm, mlp, name="window", block=(window * size.merge) ** 2)
    blocks = compress(full if index in everywhere else inside for index in range(size.depth))
    return finished(cfg, size, blocks, (first,), (merger(size, norm),))


def qwen3_vision(cfg: Config, *, deepstack: tuple[int, ...]) -> Vision:
    """Qwen3-VL and Qwen3.5: a table of positions, resampled; layers in between are merged and added to the text's first layers."""
    size = shape(cfg, width_key="hidden_size", width=1152, out_key="out_hidden_size", depth=27)
    norm = Norm(type="layer", eps=1e-6)
    mlp = plain(cfg.integer("intermediate_size", default=4304), activation=activation(cfg, default="gelu_pytorch_tanh"))
    first = patches(cfg, size, bias=True, patch=16)
    table = Embedding(name="position", rows=cfg.integer("num_position_embeddings", default=2304), role="position")
    block = Block(pattern=(layer(cfg, size, norm, mlp),), repeat=size.depth)
    extra = (merger(size, norm, name=f"deepstack_{place}", shuffled=True) for place in range(len(deepstack)))
    return finished(cfg, size, (block,), (first, table), (merger(size, norm), *extra))
