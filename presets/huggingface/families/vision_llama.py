"""The towers of Llama 3.2 Vision and Llama 4."""

from __future__ import annotations

from ...spec import Block, Connector, Embedding, Linear, Norm, Parameter, Part, Rope, Stack
from ..blocks import activation, plain
from ..config import Config
from .multimodal_shared import dense, projector
from .vision_shared import attention, grid, plain_layer, tower

ASPECT_RATIOS = 8  # ways to lay at most four tiles that Llama 3.2 knows


def mllama_vision(cfg: Config) -> Stack:
    """Llama 3.2's tower: up to four tiles seen together, eight gated layers on top of the others; five layers are read."""
    width = cfg.integer("hidden_size", default=1280)
    cut = grid(cfg, image=448, patch=14)
    tiles = cfg.integer("max_num_tiles", default=4, most=2**10)
    norm = Norm(type="layer", eps=cfg.number("norm_eps", default=1e-5))
    mixer = attention(cfg, width, cfg.integer("attention_heads", "num_attention_heads", default=16), bias=())
    mlp = plain(cfg.integer("intermediate_size", default=5120), activation=activation(cfg, default="gelu"))
    gate = (Parameter(name="gate", shape=(1,)),)
    local = plain_layer(norm, mixer, mlp, name="local")
    gated = plain_layer(norm, mixer, mlp, name="gated", first=gate, second=gate)
    blocks = [Block(pattern=(local,), repeat=cfg.layers("num_hidden_layers", default=32))]
    if upper := cfg.integer("num_global_layers", default=8, least=0, most=4096):
        blocks.append(Block(pattern=(gated,), repeat=upper))
    count = cut.patches + 1
    parts: tuple[Part, ...] = (cut.conv(width, bias=False, others=1), *tile_tables(cfg, width, tiles, count), norm)
    return tower(width, blocks, parts, tokens=tiles * count, final=(norm,))


def tile_tables(cfg: Config, width: int, tiles: int, count: int) -> tuple[Part, ...]:
    """Positions inside a tile, of a patch in every layout of tiles, and of tiles before and behind the layers."""
    value = cfg.raw("supported_aspect_ratios")
    if value is not None and (not isinstance(value, list) or len(value) > 2**12):
        raise cfg.refuse("supported_aspect_ratios must be a list")
    layouts = 1 + (ASPECT_RATIOS if value is None else len(value))

    def table(name: str, rows: int) -> Embedding:
        return Embedding(name=name, rows=layouts * rows, role="position")

    return (
        Parameter(name="class_token", shape=(width,)),
        table("tile_before", tiles),
        Parameter(name="tile_before_gate", shape=(1,)),
        Parameter(name="position", shape=(count, width)),
        table("tile_position", tiles * count),
        Parameter(name="position_gate", shape=(1,)),
        table("tile_after", tiles),
        Parameter(name="tile_after_gate", shape=(1,)),
    )


def mllama_projector(cfg: Config, vision: Stack, d_model: int) -> Connector:
    """The last layer and the ones that are read, side by side, to the text's width."""
    read = cfg.integers("intermediate_layers_indices", default=(3, 7, 15, 23, 30)) or ()
    wide = cfg.integer("vision_output_dim", default=7680)
    given = vision.d_model * (1 + len(read))
    if wide != given:
        raise cfg.refuse(f"vision_output_dim {wide} must be hidden_size x (1 + intermediate_layers_indices) = {given}")
    return projector("vision", dense("linear", wide, d_model))


def llama4_vision(cfg: Config, d_model: int) -> tuple[Stack, Connector, int]:
    """Llama 4's tower over one tile, and what joins it to the text model: patches put side by side, three matrices."""
    width, wide = cfg.integer("hidden_size", default=768), cfg.integer("intermediate_size", default=5632)
    cut = grid(cfg, image=448, patch=14)
    norm = Norm(type="layer", eps=cfg.number("norm_eps", default=1e-5))
    mixer = attention(cfg, width, cfg.integer("num_attention_heads", default=16), position=Rope())
    layer = plain_layer(norm, mixer, plain(wide, activation="gelu"))
    count = cut.patches + 1
    parts: tuple[Part, ...] = (
        Linear(name="patches", d_in=cut.pixels, d_out=width, expand=cut.patches, merge=count),
        Parameter(name="class_token", shape=(width,)),
        Parameter(name="position", shape=(count, width)),
        norm,
    )
    block = Block(pattern=(layer,), repeat=cfg.layers("num_hidden_layers", default=34))
    stack = tower(width, (block,), parts, tokens=count, final=(norm,))
    cfg.ignore("hidden_act", "multi_modal_projector_bias", "vision_feature_layer", "projector_dropout", "num_channels")
    tokens = shuffled(cfg, cut.rows) * shuffled(cfg, cut.columns)
    middle, out = cfg.integer("projector_input_dim", default=4096), cfg.integer("projector_output_dim", default=4096)
    last = cfg.integer("vision_output_dim", default=7680)
    joint = projector(
        "vision",
        dense("fc1", wide, middle, bias=False, expand=tokens, merge=count),
        dense("fc2", out, out, bias=False, expand=tokens, merge=count),
        dense("linear", last, d_model, bias=False, expand=tokens, merge=count),
    )
    return stack, joint, tokens


def shuffled(cfg: Config, side: int) -> int:
    """Tokens on a side after neighbouring patches were put side by side."""
    ratio = cfg.number("pixel_shuffle_ratio", default=0.5)
    if not 0 < ratio <= 1 or int(side * ratio) < 1:
        raise cfg.refuse(f"pixel_shuffle_ratio {ratio:g} must be from 0 to 1 and leave a token of {side} patches")
    return int(side * ratio)
