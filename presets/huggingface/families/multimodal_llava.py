"""A tower that exists on its own, a small projector, a language model that exists on its own: LLaVA, Mistral 3, PaliGemma, Gemma 3."""

from __future__ import annotations

from ...spec import Connector, ModelSpec, Norm, Parameter, Stack
from ..blocks import Text
from ..config import Config
from ..registry import family, text_model
from .dense_gemma import gemma3
from .multimodal_shared import assemble, dense, projector, same_norm, says, section, text_section
from .vision_clip import siglip_vision
from .vision_pixtral import towers

CLIP_LARGE = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336,
    "patch_size": 14, "projection_dim": 768,
}  # fmt: skip
PIXTRAL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 1540,
    "patch_size": 14,
}  # fmt: skip
MISTRAL_SMALL = {
    "hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 131072, "sliding_window": None,
}  # fmt: skip
SIGLIP_DEFAULT = {
    "hidden_size": 1152, "intermediate_size": 4096, "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14,
    "vision_use_head": False,
}  # fmt: skip
GEMMA_2B = {
    "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1,
    "vocab_size": 257152,
}  # fmt: skip


def read_layers(cfg: Config, default: int) -> int:
    """How many of the tower's layers are read side by side: `vision_feature_layer` is one layer or a list."""
    value = cfg.raw("vision_feature_layer", default=default)
    listed = value if isinstance(value, list) else [value]
    if not listed or len(listed) > 64 or any(isinstance(item, bool) or not isinstance(item, int) for item in listed):
        raise cfg.refuse("vision_feature_layer must be a whole number or a list of them")
    return len(listed)


def two_matrices(cfg: Config, vision: Stack, text: Text, *, bias: bool) -> Connector:
    """LLaVA's projector: up to the text's width, once more; without the class token unless the strategy is `full`."""
    count = vision.default_tokens or 1
    strategy = cfg.choice("vision_feature_select_strategy", allowed=("default", "full"), default="default")
    kept = count - 1 if strategy == "default" and count > 1 else count
    wide, width = vision.d_model * read_layers(cfg, -2), text.stack.d_model
    expand, merge = (1, 1) if kept == count else (kept, count)
    first = dense("linear_1", wide, width, bias=bias, expand=expand, merge=merge)
    return projector(vision.name, first, dense("linear_2", width, width, bias=bias, expand=expand, merge=merge))


@family("llava")
def llava(cfg: Config) -> ModelSpec:
    """LLaVA 1.5 (arXiv:2310.03744), and others under that name: the tower stays whole, whichever layer is read."""
    own = section(cfg, "vision_config", CLIP_LARGE)
    seen = towers(own, usual="clip_vision_model")
    text = text_model(text_section(cfg), usual="llama")
    joint = two_matrices(cfg, seen[0], text, bias=cfg.flag("multimodal_projector_bias", default=True))
    cfg.ignore("image_seq_length")
    return assemble(cfg, text, seen, (joint,), tied=says(cfg) or text.tied)


@family("llava_next")
def llava_next(cfg: Config) -> ModelSpec:
    """LLaVA-NeXT: the image also in tiles, and a learned token at the end of a row of them."""
    own = section(cfg, "vision_config", CLIP_LARGE)
    seen = towers(own, usual="clip_vision_model")
    text = text_model(text_section(cfg), usual="llama")
    joint = two_matrices(cfg, seen[0], text, bias=cfg.flag("multimodal_projector_bias", default=True))
    cfg.ignore("image_seq_length", "image_grid_pinpoints", "use_image_newline_parameter", "image_crop_resolution", "image_split_resolution")
    cfg.assume("an image is one tile of the tower's size; a picture of several tiles counts as several images")
    newline = Parameter(name="image_newline", shape=(text.stack.d_model,))
    return assemble(cfg, text, seen, (joint,), tied=says(cfg), extra=(newline,))


@family("mistral3")
def mistral3(cfg: Config) -> ModelSpec:
    """Mistral Small 3.1 and Ministral 3: Pixtral's tower, 2 x 2 patches merged."""
    own = section(cfg, "vision_config", PIXTRAL)
    seen = towers(own, usual="pixtral")
    text = text_model(text_section(cfg, MISTRAL_SMALL), usual="mistral")
    bias = cfg.flag("multimodal_projector_bias", default=False)
    area = cfg.integer("spatial_merge_size", default=2, most=64) ** 2
    wide, width = seen[0].d_model, text.stack.d_model
    count = read_layers(cfg, -1)
    joint = projector(
        seen[0].name,
        same_norm(Norm(type="rms", eps=1e-5), wide),
        dense("merge", wide * area, wide, bias=False, merge=area),
        dense("linear_1", wide * count, width, bias=bias, merge=area),
        dense("linear_2", width, width, bias=bias, merge=area),
    )
    return assemble(cfg, text, seen, (joint,), tied=says(cfg, default=True))


@family("paligemma")
def paligemma(cfg: Config) -> ModelSpec:
    """PaliGemma (arXiv:2407.07726): SigLIP, one matrix, Gemma; image and prompt see each other both ways."""
    own = section(cfg, "vision_config", SIGLIP_DEFAULT)
    seen = towers(own, usual="siglip_vision_model")
    words = text_section(cfg, GEMMA_2B)
    words.ignore("num_image_tokens", "use_bidirectional_attention")  # who sees whom in the prompt changes no count of a generation
    cfg.ignore("_vocab_size")
    text = text_model(words, usual="gemma")
    width = cfg.integer("projection_dim", default=2048)
    if width != text.stack.d_model:
        raise cfg.refuse(f"projection_dim {width} must be the text model's hidden_size {text.stack.d_model}")
    return assemble(cfg, text, seen, (projector("vision", dense("linear", seen[0].d_model, width)),), tied=says(cfg, default=True))


@family("gemma3")
def gemma3_vl(cfg: Config) -> ModelSpec:
    """Gemma 3 (arXiv:2503.19786): SigLIP, its patches averaged to `mm_tokens_per_image` tokens, a norm, one matrix."""
    own = section(cfg, "vision_config")
    seen = siglip_vision(own)
    text = gemma3(text_section(cfg))
    tokens = cfg.integer("mm_tokens_per_image", default=256)
    patches = seen[0].default_tokens or 1
    if patches % tokens:
        cfg.assume(
            f"mm_tokens_per_image {tokens} does not divide the {patches} patches of an image, so the library runs none; not averaged"
        )
    joint = projector(
        "vision",
        same_norm(Norm(type="rms", eps=1e-6), seen[0].d_model),
        dense("linear", seen[0].d_model, text.stack.d_model, bias=False, merge=1 if patches % tokens else patches // tokens),
    )
    return assemble(cfg, text, seen, (joint,), tied=says(cfg, default=True))
