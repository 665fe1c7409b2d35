"""Gemma 4's towers: one that sees images of any shape, one that hears."""

from __future__ import annotations

from ...spec import (
    Attention,
    Block,
    Chain,
    Connector,
    Conv,
    FeedForward,
    Full,
    HeadNorm,
    Layer,
    Linear,
    Norm,
    Parameter,
    Rope,
    Stack,
    Sublayer,
)
from ..blocks import activation, even_width, gated
from ..config import Config
from .multimodal_shared import dense, note_size, projector
from .vision_shared import plain_layer, tower

SOUND_UNREAD = (
    "attention_chunk_size", "attention_context_left", "attention_context_right", "attention_logit_cap", "attention_invalid_logits_value",
    "residual_weight", "gradient_clipping", "use_clipped_linears",
)  # fmt: skip
FRAMES_A_CLIP = 750  # 30 seconds, a position every 40 ms


def gemma4_vision(cfg: Config, d_model: int, tokens: int) -> tuple[Stack, Connector]:
    """Norms on both sides of a sublayer, normed heads, gated; `pooling_kernel_size`² patches are averaged to a token."""
    width = cfg.integer("hidden_size", default=768)
    side = cfg.integer("patch_size", default=16, most=2**12)
    area = cfg.integer("pooling_kernel_size", default=3, most=64) ** 2
    rows = cfg.integer("position_embedding_size", default=10240)
    norm = Norm(type="rms", eps=cfg.number("rms_norm_eps", default=1e-6))
    act = activation(cfg, "hidden_activation", default="gelu_pytorch_tanh")
    layer = plain_layer(norm, vision_heads(cfg, norm), gated(cfg.integer("intermediate_size", default=3072), activation=act), after=norm)
    block = Block(pattern=(layer,), repeat=cfg.layers("num_hidden_layers", default=16))
    # The last two change buffers only; the model gives its own length whatever default_output_length says.
    cfg.ignore("max_position_embeddings", "global_head_dim", "default_output_length", "standardize", "use_clipped_linears")
    first = Linear(name="patches", d_in=3 * side**2, d_out=width)
    stack = tower(width, (block,), (first, Parameter(name="position", shape=(2, rows, width))), tokens=tokens * area)
    note_size(cfg, stack, tokens, f"{tokens} x {area} patches (its shape is free)")
    return stack, projector("vision", Norm(type="rms_plain", width=width), dense("linear", width, d_model, bias=False, merge=area))


def vision_heads(cfg: Config, norm: Norm) -> Attention:
    """Queries, keys and values are normed, the values without a weight."""
    heads = cfg.integer("num_attention_heads", default=12)
    groups = cfg.integer("num_key_value_heads", default=12)
    if heads % groups:
        raise cfg.refuse(f"num_key_value_heads {groups} does not divide num_attention_heads {heads}")
    cfg.ignore("attention_bias", "tie_word_embeddings")  # the class has neither a bias nor an output matrix
    return Attention(
        heads=heads,
        kv_heads=groups,
        head_dim=cfg.integer("head_dim", default=64),
        mask=Full(),
        head_norm=HeadNorm(eps=norm.eps, values=True),
        position=Rope(),
        scale=1.0,
    )


def gemma4_sound(cfg: Config, d_model: int) -> tuple[Stack, Connector]:
    """A conformer (Gulati et al. 2020, arXiv:2005.08100): half feed-forward, attention, convolution, half feed-forward.

    It rests here: no pass has sound, and its weights alone are counted.
    """
    width = cfg.integer("hidden_size", default=1024)
    out = cfg.integer("output_proj_dims", default=1536)
    cfg.ignore(*SOUND_UNREAD, "tie_word_embeddings")
    stack = Stack(
        name="sound",
        d_model=width,
        role="encoder",
        tokens="sound",
        default_tokens=FRAMES_A_CLIP,
        embeddings=subsampling(cfg, width),
        blocks=(Block(pattern=(conformer(cfg, width),), repeat=cfg.layers("num_hidden_layers", default=12)),),
        final=(Linear(name="output", d_in=width, d_out=out, bias=True),),
    )
    cfg.assume("no pass has sound: the audio tower rests, and its weights alone are counted")
    joint = projector("sound", Norm(type="rms_plain", width=out), dense("linear", out, d_model, bias=False), name="sound_projector")
    return stack, joint


def subsampling(cfg: Config, width: int) -> tuple[Conv | Norm | Linear, ...]:
    """Two convolutions over time and frequency, each with stride 2 and a norm, then a matrix to the tower's width."""
    channels = cfg.integers("subsampling_conv_channels", default=(128, 32), least=1, most=2**16) or ()
    if len(channels) != 2 or channels[0] < 4:
        raise cfg.refuse("subsampling_conv_channels must be two numbers, the first at least 4")
    first, second = channels
    return (
        Conv(name="conv1", d_in=1, d_out=first, kernel=(3, 3), stride=(2, 2), expand=2 * (first // 2)),
        Norm(type="layer_unbiased", name="norm1", width=first),
        Conv(name="conv2", d_in=first, d_out=second, kernel=(3, 3), stride=(2, 2), expand=first // 4),
        Norm(type="layer_unbiased", name="norm2", width=second),
        Linear(name="input", d_in=first // 4 * second, d_out=width),
    )


def conformer(cfg: Config, width: int) -> Layer:
    """Four branches; keys also of relative positions, a scale a channel of the heads."""
    heads = cfg.integer("num_attention_heads", default=8)
    dim = even_width(cfg, width, heads)
    norm = Norm(type="rms", eps=cfg.number("rms_norm_eps", default=1e-6))
    half = FeedForward(d_ff=4 * width, activation=activation(cfg, default="silu"))
    further = (Linear(name="relative_key", d_in=width, d_out=width), Parameter(name="dim_scale", shape=(dim,)))
    attention = Attention(heads=heads, kv_heads=heads, head_dim=dim, mask=Full(), extra=further)
    kernel = cfg.integer("conv_kernel_size", default=5, most=2**12)
    light = Chain(
        parts=(
            Linear(name="start", d_in=width, d_out=2 * width),
            Conv(name="conv", d_in=width, d_out=width, kernel=(kernel,), groups=width),
            Norm(type="rms", name="inner_norm", eps=norm.eps),
            Linear(name="end", d_in=width, d_out=width),
        ),
        activation="silu",
    )
    return Layer(
        sublayers=(
            Sublayer(name="feed_forward_before", mixer=half, pre_norm=norm, output_norm=norm, residual_scale=0.5),
            Sublayer(name="attention", mixer=attention, pre_norm=norm, output_norm=norm),
            Sublayer(name="conv", mixer=light, pre_norm=norm),
            Sublayer(name="feed_forward_after", mixer=half, pre_norm=norm, output_norm=norm, residual_norm=norm, residual_scale=0.5),
        )
    )
