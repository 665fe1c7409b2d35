"""Vision transformers: patches, a class token, positions that are added, plain layers."""

from __future__ import annotations

from ...spec import Block, Conv, FeedForward, Head, Layer, Linear, ModelSpec, Parameter, Part, Stack
from ..blocks import activation, gated, layer_norm, plain
from ..classes import label_count
from ..config import Config
from ..registry import family
from .encoder_shared import class_ending
from .vision_shared import ALL, Grid, attention, grid, plain_layer, tower

DINO_UNREAD = (
    "layerscale_value", "drop_path_rate", "out_features", "out_indices", "apply_layernorm", "reshape_hidden_states", "stage_names",
)  # fmt: skip


def classes(cfg: Config, stack: Stack, width: int, *, name: str = "classifier") -> tuple[Head, ...]:
    """Logits of the labels, once an image; none with 0 labels."""
    count = label_count(cfg)
    if not count:
        return ()
    return (Head(name=name, stack=stack.name, parts=(Linear(name="weight", d_in=width, d_out=count, bias=True, once=True),)),)


def image_spec(cfg: Config, stack: Stack, *heads: Head) -> ModelSpec:
    """A model of one tower, used with one image."""
    cfg.ignore("encoder_stride", "pooler_output_size", "tie_word_embeddings")
    return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(stack,), heads=heads, images=1)


def vit_stack(cfg: Config, *, tokens: tuple[str, ...], masked: bool) -> Stack:
    """ViT's tower; `tokens`: learned tokens before the patches."""
    width = cfg.integer("hidden_size", default=768)
    cut = grid(cfg, image=224, patch=16)
    bias = ALL if cfg.flag("qkv_bias", default=True) else ("o",)
    mixer = attention(cfg, width, cfg.integer("num_attention_heads", default=12), bias=bias)
    mlp = plain(cfg.integer("intermediate_size", default=3072), activation=activation(cfg, default="gelu"))
    norm = layer_norm(cfg, default=1e-12)
    count = cut.patches + len(tokens)
    learned = (*tokens, "mask_token") if masked else tokens
    embeddings: tuple[Part, ...] = (
        cut.conv(width, bias=True, others=len(tokens)),
        *(Parameter(name=name, shape=(width,)) for name in learned),
        Parameter(name="position", shape=(count, width)),
    )
    block = Block(pattern=(plain_layer(norm, mixer, mlp),), repeat=cfg.layers("num_hidden_layers", default=12))
    return tower(width, (block,), embeddings, tokens=count, final=(norm,))


def pooled(cfg: Config, stack: Stack) -> Head:
    """A linear layer on the class token."""
    width = cfg.optional_integer("pooler_output_size", least=0) or stack.d_model
    return Head(name="pooler", stack=stack.name, parts=(Linear(name="dense", d_in=stack.d_model, d_out=width, bias=True, once=True),))


def painted(cfg: Config, stack: Stack, tokens: int) -> Head:
    """Pixels of every patch (masked image modelling): stride² numbers a channel."""
    width = cfg.integer("encoder_stride", default=16, most=4096) ** 2 * cfg.integer("num_channels", default=3)
    count = stack.default_tokens or 1
    part = Conv(name="weight", d_in=stack.d_model, d_out=width, kernel=(1, 1), bias=True, expand=count - tokens, merge=count)
    return Head(name="pixels", stack=stack.name, parts=(part,))


@family("vit")
def vit(cfg: Config) -> ModelSpec:
    """ViT (Dosovitskiy et al. 2020, arXiv:2010.11929); the class with a classifier where none is named."""
    kind = class_ending(cfg, ("Model", "ForImageClassification", "ForMaskedImageModeling"), usual="ForImageClassification")
    stack = vit_stack(cfg, tokens=("class_token",), masked=kind == "ForMaskedImageModeling")
    match kind:
        case "Model":
            return image_spec(cfg, stack, pooled(cfg, stack))
        case "ForMaskedImageModeling":
            return image_spec(cfg, stack, painted(cfg, stack, 1))
        case _:
            return image_spec(cfg, stack, *classes(cfg, stack, stack.d_model))


@family("deit")
def deit(cfg: Config) -> ModelSpec:
    """DeiT (Touvron et al. 2020, arXiv:2012.12877): a second token that learns from a teacher."""
    known = ("Model", "ForImageClassification", "ForImageClassificationWithTeacher", "ForMaskedImageModeling")
    kind = class_ending(cfg, known, usual="ForImageClassification")
    stack = vit_stack(cfg, tokens=("class_token", "distillation_token"), masked=kind == "ForMaskedImageModeling")
    match kind:
        case "Model":
            return image_spec(cfg, stack, pooled(cfg, stack))
        case "ForMaskedImageModeling":
            return image_spec(cfg, stack, painted(cfg, stack, 2))
        case "ForImageClassificationWithTeacher":
            second = classes(cfg, stack, stack.d_model, name="distillation_classifier")
            return image_spec(cfg, stack, *classes(cfg, stack, stack.d_model), *second)
        case _:
            return image_spec(cfg, stack, *classes(cfg, stack, stack.d_model))


def dino_layer(cfg: Config, width: int) -> Layer:
    """A plain layer whose outputs are scaled channel by channel; its feed-forward may be gated."""
    bias = ALL if cfg.flag("qkv_bias", default=True) else ("o",)
    mixer = attention(cfg, width, cfg.integer("num_attention_heads", default=12), bias=bias)
    scale = (Parameter(name="layer_scale", shape=(width,)),)
    return plain_layer(layer_norm(cfg, default=1e-6), mixer, dino_mlp(cfg, width), first=scale, second=scale)


def dino_mlp(cfg: Config, width: int) -> FeedForward:
    """mlp_ratio x D, or SwiGLU of two thirds of that, rounded up to a multiple of 8."""
    d_ff = width * cfg.integer("mlp_ratio", default=4)
    act = activation(cfg, default="gelu")
    if cfg.flag("use_swiglu_ffn", default=False):
        return gated((int(d_ff * 2 / 3) + 7) // 8 * 8, bias=True)
    return plain(d_ff, activation=act)


def dino(cfg: Config, cut: Grid, *, masked: bool, registers: int) -> ModelSpec:
    """The tower (its base class has no pooler) or the classifier on class token and mean of patches side by side."""
    width = cfg.integer("hidden_size", default=768)
    count = cut.patches + 1 + registers
    embeddings: list[Part] = [cut.conv(width, bias=True, others=1 + registers), Parameter(name="class_token", shape=(width,))]
    if masked:
        embeddings.append(Parameter(name="mask_token", shape=(width,)))
    embeddings.append(Parameter(name="position", shape=(cut.patches + 1, width)))
    if registers:
        embeddings.append(Parameter(name="registers", shape=(registers, width)))
    block = Block(pattern=(dino_layer(cfg, width),), repeat=cfg.layers("num_hidden_layers", default=12))
    stack = tower(width, (block,), embeddings, tokens=count, final=(layer_norm(cfg, default=1e-6),))
    cfg.ignore(*DINO_UNREAD)
    kind = class_ending(cfg, ("Model", "Backbone", "ForImageClassification"), usual="Model")
    return image_spec(cfg, stack, *(classes(cfg, stack, 2 * width) if kind == "ForImageClassification" else ()))


@family("dinov2")
def dinov2(cfg: Config) -> ModelSpec:
    """DINOv2 (Oquab et al. 2023, arXiv:2304.07193)."""
    return dino(cfg, grid(cfg, image=224, patch=14), masked=cfg.flag("use_mask_token", default=True), registers=0)


@family("dinov2_with_registers")
def dinov2_with_registers(cfg: Config) -> ModelSpec:
    """DINOv2 with registers (Darcet et al. 2023, arXiv:2309.16588)."""
    registers = cfg.integer("num_register_tokens", default=4, least=0)
    return dino(cfg, grid(cfg, image=224, patch=16), masked=True, registers=registers)
