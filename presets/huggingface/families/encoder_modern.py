"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): pre-norm, rotary, gated, most layers local."""

from __future__ import annotations

from ...spec import Attention, Embedding, Full, Head, Layer, Linear, Local, ModelSpec, Norm, Rope
from ..blocks import activation, biases, compress, even_width, gated, layer_types, sublayer
from ..config import Config
from ..registry import family
from ..rope import rope
from .encoder_bert import ENDINGS
from .encoder_shared import class_ending, classifier, dense, encoder_spec, text_encoder, tied

UNREAD = (
    "reference_compile", "sparse_prediction", "sparse_pred_ignore_index", "deterministic_flash_attn", "repad_logits_with_grad",
    "initializer_cutoff_factor", "global_rope_theta", "local_rope_theta", "global_attn_every_n_layers",
)  # fmt: skip


@family("modernbert")
def modernbert(cfg: Config) -> ModelSpec:
    """The class with the masked-language head where none is named."""
    width = cfg.integer("hidden_size", default=768)
    norm = Norm(type="layer" if cfg.flag("norm_bias", default=False) else "layer_unbiased", eps=cfg.number("norm_eps", default=1e-5))
    embeddings = (Embedding(name="token", rows=cfg.integer("vocab_size", default=50368)), norm)
    stack = text_encoder(cfg, width, compress(layers(cfg, width, norm)), embeddings, final=(norm,))
    cfg.ignore("max_position_embeddings", *UNREAD)
    kind = class_ending(cfg, ENDINGS, usual="ForMaskedLM")
    head = (dense(width, width, bias=cfg.flag("classifier_bias", default=False)), norm)
    bias = cfg.flag("decoder_bias", default=True)
    if kind == "Model":
        return encoder_spec(cfg, stack)
    if kind == "ForMaskedLM":
        shares = "encoder/embedding/token" if tied(cfg) else None
        matrix = Linear(name="weight", d_in=width, d_out=embeddings[0].rows, bias=bias, shares=shares)
        return encoder_spec(cfg, stack, Head(name="lm_head", stack=stack.name, parts=(*head, matrix)))
    once = kind in ("ForSequenceClassification", "ForMultipleChoice")
    first = dense(width, width, once=once, bias=cfg.flag("classifier_bias", default=False))
    outputs = 1 if kind == "ForMultipleChoice" else None
    return encoder_spec(cfg, stack, classifier(cfg, stack, once=once, before=(first, norm), outputs=outputs))


def layers(cfg: Config, width: int, norm: Norm) -> list[Layer]:
    """Every third layer sees all, the others a window; the first has no norm before its attention."""
    depth = cfg.layers("num_hidden_layers", default=22)
    every = cfg.integer("global_attn_every_n_layers", default=3)
    kinds = layer_types(cfg, depth, ("full_attention", "sliding_attention")) or tuple(
        "sliding_attention" if index % every else "full_attention" for index in range(depth)
    )
    made = {kind: layer_kind(cfg, width, norm, kind) for kind in dict.fromkeys(kinds)}
    first, *rest = (made[kind] for kind in kinds)
    attention, mlp = first.sublayers
    unnormed = Layer(name="first", sublayers=(sublayer(attention.name, attention.mixer, None), mlp))
    return [unnormed, *rest]


def layer_kind(cfg: Config, width: int, norm: Norm, kind: str) -> Layer:
    """One layer: attention to all or to half the window on either side, and a gated feed-forward."""
    heads = cfg.integer("num_attention_heads", default=12)
    bias = cfg.flag("attention_bias", default=False)
    window = cfg.integer("local_attention", default=128, least=2)
    slides = kind == "sliding_attention"
    attention = Attention(
        heads=heads,
        kv_heads=heads,
        head_dim=even_width(cfg, width, heads),
        mask=Local(reach=window // 2) if slides else Full(),
        bias=biases(qkv=bias, out=bias),
        position=rotation(cfg, even_width(cfg, width, heads), kind),
    )
    act = activation(cfg, "hidden_activation", default="gelu")
    mlp = gated(cfg.integer("intermediate_size", default=1152), activation=act, bias=cfg.flag("mlp_bias", default=False))
    return Layer(
        name="local" if slides else "global",
        sublayers=(sublayer("attention", attention, norm), sublayer("feed_forward", mlp, norm)),
    )


def rotation(cfg: Config, head_dim: int, kind: str) -> Rope:
    """The two kinds rotate with bases of their own."""
    slides = kind == "sliding_attention"
    key, theta = ("local_rope_theta", 10000.0) if slides else ("global_rope_theta", 160000.0)
    return rope(cfg, head_dim, theta=theta, theta_key=key, kind=kind)
