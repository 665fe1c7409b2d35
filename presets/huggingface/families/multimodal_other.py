"""LFM2-VL, Kimi K2.5 and MiniMax-M3: towers of known shapes behind projectors of their own."""

from __future__ import annotations

from ...spec import Block, Connector, Conv, ModelSpec, Norm, Parameter, Rope, Stack
from ..blocks import activation, layer_norm, plain
from ..config import Config
from ..registry import family, text_model
from .moe_fine import minimax_m3
from .multimodal_shared import assemble, dense, note_size, projector, same_norm, says, section, text_section
from .vision_pixtral import towers
from .vision_shared import attention, grid, plain_layer, sides, tower

LFM2_UNREAD = (
    "do_image_splitting", "encoder_patch_size", "max_image_tokens", "min_image_tokens", "max_num_patches", "max_pixels_tolerance",
    "max_tiles", "min_tiles", "tile_size", "use_image_special_tokens", "use_thumbnail", "max_seq_length", "vision_feature_layer",
)  # fmt: skip


@family("lfm2_vl")
def lfm2_vl(cfg: Config) -> ModelSpec:
    """LFM2-VL (Liquid AI 2025): SigLIP 2, squares of patches put side by side, two matrices."""
    seen = towers(section(cfg, "vision_config"), usual="siglip2_vision_model")
    text = text_model(text_section(cfg), usual="lfm2")
    side = cfg.integer("downsample_factor", default=2, most=64)
    wide, middle = seen[0].d_model * side**2, cfg.integer("projector_hidden_size", default=2560)
    bias = cfg.flag("projector_bias", default=True)
    normed = cfg.flag("projector_use_layernorm", default=True)
    joint = projector(
        "vision",
        *((Norm(type="layer", width=wide),) if normed else ()),
        dense("linear_1", wide, middle, bias=bias, merge=side**2),
        dense("linear_2", middle, text.stack.d_model, bias=bias, merge=side**2),
    )
    cfg.ignore(*LFM2_UNREAD)
    patches = seen[0].default_tokens or 1
    note_size(cfg, seen[0], patches // side**2, f"one tile of {patches} patches (a picture of several tiles counts as several images)")
    return assemble(cfg, text, seen, (joint,), tied=cfg.flag("tie_embedding", "tie_word_embeddings", default=True))


@family("kimi_k25")
def kimi_k25(cfg: Config) -> ModelSpec:
    """Kimi K2.5 (Moonshot AI 2026): MoonViT, 2 x 2 patches merged, DeepSeek-V3's structure behind."""
    own = section(cfg, "vision_config")
    vision = moon_vision(own)
    text = text_model(text_section(cfg), usual="deepseek_v3")
    high, wide = sides(own, "merge_kernel_size", default=2)
    area = high * wide
    width = own.integer("mm_hidden_size", default=cfg.integer("projection_hidden_size", default=1152))
    own.ignore("text_hidden_size", "model_type")
    joint = projector(
        "vision",
        same_norm(Norm(type="layer"), width),
        dense("linear_1", width * area, width * area, merge=area),
        dense("linear_2", width * area, text.stack.d_model, merge=area),
    )
    cfg.ignore("use_unified_vision_chunk")
    note_size(cfg, vision, (vision.default_tokens or 1) // area, "as many patches as the table of positions has (its size is free)")
    return assemble(cfg, text, (vision,), (joint,), tied=says(cfg, default=True))


def moon_vision(cfg: Config) -> Stack:
    """MoonViT: a table of positions in two dimensions that is resampled, biases everywhere; keys in the names of two releases."""
    width = cfg.integer("vt_hidden_size", "hidden_size", default=1152)
    rows = cfg.integer("init_pos_emb_height", "pos_emb_height", default=64, most=2**12)
    columns = cfg.integer("init_pos_emb_width", "pos_emb_width", default=64, most=2**12)
    patch = sides(cfg, "patch_size", default=14)
    norm = Norm(type="layer", eps=1e-5)
    heads = cfg.integer("vt_num_attention_heads", "num_attention_heads", default=16)
    mlp = plain(
        cfg.integer("vt_intermediate_size", "intermediate_size", default=4304), activation=activation(cfg, default="gelu_pytorch_tanh")
    )
    depth = cfg.layers("vt_num_hidden_layers", "num_hidden_layers", default=27)
    cfg.ignore("init_pos_emb_time", "pos_emb_time", "projector_ln_eps")
    block = Block(pattern=(plain_layer(norm, attention(cfg, width, heads, position=Rope()), mlp),), repeat=depth)
    first = Conv(name="patches", d_in=3, d_out=width, kernel=patch, stride=patch, bias=True)
    table = Parameter(name="position", shape=(rows, columns, width))
    return tower(width, (block,), (first, table), tokens=rows * columns, final=(norm,))


@family("minimax_m3_vl")
def minimax_m3_vl(cfg: Config) -> ModelSpec:
    """MiniMax-M3 (2026): a tower with rotation in three dimensions, projected patch by patch, then merged 2 x 2."""
    own = section(cfg, "vision_config")
    vision, area = minimax_vision(own)
    text = minimax_m3(text_section(cfg))
    joint = minimax_projector(cfg, vision, text.stack.d_model, area)
    cfg.ignore("img_token_compression_config", "image_grid_pinpoints", "image_seq_length", "num_reward_heads", "vision_feature_layer")
    cfg.ignore("multimodal_projector_bias", "merged_hidden_size")  # a bias is always there; the width follows from the others
    note_size(cfg, vision, (vision.default_tokens or 1) // area, "the largest, of image_size pixels on both sides")
    return assemble(cfg, text, (vision,), (joint,), tied=says(cfg) or text.tied)


def minimax_projector(cfg: Config, vision: Stack, d_model: int, area: int) -> Connector:
    """Two matrices at every patch, two at every token."""
    middle = cfg.integer("projector_hidden_size", default=6144)
    return projector(
        "vision",
        dense("linear_1", vision.d_model, middle),
        dense("linear_2", middle, d_model),
        dense("merge_1", d_model * area, middle, merge=area),
        dense("merge_2", middle, d_model, merge=area),
    )


def minimax_vision(cfg: Config) -> tuple[Stack, int]:
    """Patches of two frames, a norm before the layers and none behind; and how many patches become one token."""
    width = cfg.integer("hidden_size", default=1280)
    cut = grid(cfg, image=2016, patch=14)
    merging = section(cfg, "img_token_compression_config")
    merge = cfg.integer("spatial_merge_size", default=merging.integer("spatial_merge_size", default=2), most=64)
    frames = cfg.integer("temporal_patch_size", default=merging.integer("temporal_patch_size", default=2), most=64)
    norm = layer_norm(cfg)
    mixer = attention(cfg, width, cfg.integer("num_attention_heads", default=16), position=Rope())
    mlp = plain(cfg.integer("intermediate_size", default=5120), activation=activation(cfg, default="gelu"))
    cfg.ignore("projection_dim", "vocab_size", "vision_segment_max_frames", "model_type")
    block = Block(pattern=(plain_layer(norm, mixer, mlp),), repeat=cfg.layers("num_hidden_layers", default=32))
    kernel = (frames, *cut.patch)
    first = Conv(name="patches", d_in=cut.channels, d_out=width, kernel=kernel, stride=kernel)
    return tower(width, (block,), (first, norm), tokens=cut.patches), merge**2
