"""Whisper (Radford et al. 2022, arXiv:2212.04356): sound through two convolutions into an encoder, text out of a decoder."""

from __future__ import annotations

from ...spec import Attention, Block, Causal, Conv, Embedding, Full, Head, Layer, Linear, ModelSpec, Norm, Parameter, Part, Stack
from ..blocks import activation, even_width, plain, sublayer
from ..config import Config
from ..registry import family
from .encoder_shared import class_ending, classifier, dense

NORM = Norm(type="layer", eps=1e-5)
ENDINGS = ("ForConditionalGeneration", "Model", "ForAudioClassification", "ForCausalLM")
UNREAD = (
    "apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob", "mask_feature_length",
    "mask_feature_min_masks", "median_filter_width", "forced_decoder_ids", "scale_embedding", "is_encoder_decoder",
    "encoder_layerdrop", "decoder_layerdrop", "lang_ids", "classifier_proj_size", "use_weighted_layer_sum", "tie_word_embeddings",
)  # fmt: skip


@family("whisper")
def whisper(cfg: Config) -> ModelSpec:
    """The class that writes text where none is named."""
    kind = class_ending(cfg, ENDINGS, usual="ForConditionalGeneration")
    encoder = encoder_stack(cfg, alone=kind == "ForAudioClassification")
    decoder = decoder_stack(cfg)
    cfg.ignore(*UNREAD)
    seconds = (encoder.default_tokens or 0) / 50
    cfg.assume(f"{seconds:g} seconds of sound: {encoder.default_tokens} encoder positions, two frames of 10 ms each")
    if kind == "ForAudioClassification":
        return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(encoder,), heads=(audio_labels(cfg, encoder),))
    heads = () if kind == "Model" else (output(cfg, decoder),)
    if kind == "ForCausalLM":
        return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(decoder,), heads=heads, absent=("encoder",))
    return ModelSpec(name=cfg.name, source=(cfg.source,), stacks=(encoder, decoder), heads=heads)


def encoder_stack(cfg: Config, *, alone: bool) -> Stack:
    """Two convolutions, the second with stride 2, and a fixed table of positions (counted: PyTorch holds it as a parameter)."""
    width, positions = cfg.integer("d_model", "hidden_size", default=384), cfg.integer("max_source_positions", default=1500)
    bands = cfg.integer("num_mel_bins", default=80)
    embeddings: tuple[Part, ...] = (
        Conv(name="conv1", d_in=bands, d_out=width, kernel=(3,), bias=True, expand=2, activation="gelu"),
        Conv(name="conv2", d_in=width, d_out=width, kernel=(3,), stride=(2,), bias=True, activation="gelu"),
        Embedding(name="position", rows=positions, role="position"),
    )
    depth = cfg.layers("encoder_layers", "num_hidden_layers", default=4)
    if alone and cfg.flag("use_weighted_layer_sum", default=False):
        embeddings += (Parameter(name="layer_weights", shape=(depth + 1,)),)
    return Stack(
        name="encoder",
        d_model=width,
        role="encoder",
        tokens="source",
        default_tokens=positions,
        max_positions=positions,
        embeddings=embeddings,
        blocks=(Block(pattern=(layer(cfg, width, "encoder"),), repeat=depth),),
        final=(NORM,),
    )


def decoder_stack(cfg: Config) -> Stack:
    """Learned positions; attention to the encoder in every layer."""
    width, positions = cfg.integer("d_model", "hidden_size", default=384), cfg.integer("max_target_positions", default=448)
    return Stack(
        name="decoder",
        d_model=width,
        role="decoder",
        max_positions=positions,
        embeddings=(
            Embedding(name="token", rows=cfg.integer("vocab_size", default=51865)),
            Embedding(name="position", rows=positions, role="position"),
        ),
        blocks=(Block(pattern=(layer(cfg, width, "decoder"),), repeat=cfg.layers("decoder_layers", default=4)),),
        final=(NORM,),
    )


def layer(cfg: Config, width: int, name: str) -> Layer:
    """Pre-norm; keys have no bias."""
    heads = cfg.integer(f"{name}_attention_heads", default=6)
    dim = even_width(cfg, width, heads)

    def attention(source: str | None) -> Attention:
        mask = Causal() if name == "decoder" and source is None else Full()
        return Attention(heads=heads, kv_heads=heads, head_dim=dim, mask=mask, bias=("q", "v", "o"), source=source)

    act = activation(cfg, "activation_function", default="gelu")
    mlp = plain(cfg.integer(f"{name}_ffn_dim", default=1536), activation=act)
    first = sublayer("attention", attention(None), NORM)
    cross = (sublayer("cross_attention", attention("encoder"), NORM),) if name == "decoder" else ()
    return Layer(sublayers=(first, *cross, sublayer("feed_forward", mlp, NORM)))


def output(cfg: Config, decoder: Stack) -> Head:
    """The output matrix."""
    tied = cfg.flag("tie_word_embeddings", default=True)
    vocab = cfg.integer("vocab_size", default=51865)
    matrix = Linear(name="weight", d_in=decoder.d_model, d_out=vocab, shares="decoder/embedding/token" if tied else None)
    return Head(name="lm_head", stack="decoder", parts=(matrix,))


def audio_labels(cfg: Config, encoder: Stack) -> Head:
    """A projection at every position, their mean, the labels."""
    size = cfg.integer("classifier_proj_size", default=256)
    return classifier(cfg, encoder, once=True, before=(dense(encoder.d_model, size),), width=size)
