"""DeepSeek-V4: a window and compressed entries in place of old keys, experts everywhere, several residual streams."""

from __future__ import annotations

import msgspec

from ...spec import CompressedAttention, Indexer, Layer, Linear, MoE, Parameter, Part, StreamMix, Sublayer
from ..blocks import Text, decoder, gated, rms
from ..config import Config, shown
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, sizes, tied
from .moe_blocks import by_list, routing, unread

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
NAMES = {SLIDING: "sliding", SPARSE: "sparse", HEAVY: "heavy"}
RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}


@text_family("deepseek_v4")
def deepseek_v4(cfg: Config) -> Text:
    """DeepSeek-V4 in three kinds of layers; the first ones look their experts up by token."""
    size = sizes(cfg, vocab=129280, d_model=4096, d_ff=2048, depth=43, positions=1048576)
    streams = cfg.integer("hc_mult", default=4)
    cfg.ignore("hc_sinkhorn_iters", "hc_eps", "num_nextn_predict_layers", "num_mtp_layers", "expert_dtype")
    unread(cfg, attention_bias=False, n_shared_experts=1, num_key_value_heads=1)
    attentions, experts = attention_kinds(cfg), routed(cfg, size)
    norm = rms(cfg)
    made: dict[tuple[str, bool], Layer] = {}
    layers = []
    for kind, hashed in zip(attention_types(cfg, size.depth), hashed_layers(cfg, size.depth), strict=True):
        if (kind, hashed) not in made:
            branches = (("attention", attentions[kind]), ("moe", experts[hashed]))
            extra = hyper_connection(streams, size.d_model)
            subs = tuple(Sublayer(name=name, mixer=mixer, pre_norm=norm, extra=extra) for name, mixer in branches)
            made[kind, hashed] = Layer(name=f"{NAMES[kind]}_hashed" if hashed else NAMES[kind], sublayers=subs)
        layers.append(made[kind, hashed])
    stack = decoder(size.d_model, size.vocab, layers, final=norm, max_positions=size.positions)
    stack = msgspec.structs.replace(stack, final=(*stream_head(streams, size.d_model), norm))
    return Text(stack=stack, vocab=size.vocab, tied=tied(cfg, default=False))


def hyper_connection(streams: int, d_model: int) -> tuple[Part, ...]:
    """What mixes `streams` residuals around a branch: weights to take them together, to spread them and to mix them."""
    outputs = streams * (streams + 2)
    return (
        Linear(name="hyper_weight", d_in=streams * d_model, d_out=outputs),
        Parameter(name="hyper_base", shape=(outputs,)),
        Parameter(name="hyper_scale", shape=(3,)),
        StreamMix(name="hyper_mix", streams=streams, width=d_model),
    )


def stream_head(streams: int, d_model: int) -> tuple[Part, ...]:
    """What takes the streams together after the last layer."""
    return (
        Linear(name="hyper_weight", d_in=streams * d_model, d_out=streams),
        Parameter(name="hyper_base", shape=(streams,)),
        Parameter(name="hyper_scale", shape=(1,)),
    )


def attention_kinds(cfg: Config) -> dict[str, CompressedAttention]:
    """The three kinds of layers: the window alone; entries of few tokens that overlap and are picked; entries of many."""
    heads, head_dim = cfg.integer("num_attention_heads", default=64), cfg.integer("head_dim", default=512)
    rope_dim = cfg.optional_integer("qk_rope_head_dim", least=0)
    partial = 64 / 512 if rope_dim is None else rope_dim / head_dim
    q_rank, ratios = cfg.integer("q_lora_rank", default=1024), compress_rates(cfg)
    shared = CompressedAttention(
        heads=heads,
        head_dim=head_dim,
        q_rank=q_rank,
        window=cfg.integer("sliding_window", default=128),
        out_groups=cfg.integer("o_groups", default=8),
        out_rank=cfg.integer("o_lora_rank", default=1024),
        position=rope(cfg, head_dim, partial=partial, interleaved=True, kind="compress", theta_key="compress_rope_theta", theta=160000.0),
    )
    indexer = Indexer(
        heads=cfg.integer("index_n_heads", default=64),
        head_dim=cfg.integer("index_head_dim", default=128),
        top_k=cfg.integer("index_topk", default=512),
        q_in=q_rank,
        key_norm="rms",
    )
    main = rope(cfg, head_dim, partial=partial, interleaved=True, kind="main")
    return {
        # Without entries the library's cache keeps keys and values apart, although they are the same.
        SLIDING: msgspec.structs.replace(shared, values_apart=True, position=msgspec.structs.replace(main, scaling=None)),
        SPARSE: msgspec.structs.replace(shared, ratio=ratios[SPARSE], overlap=True, indexer=indexer),
        HEAVY: msgspec.structs.replace(shared, ratio=ratios[HEAVY]),
    }


def compress_rates(cfg: Config) -> dict[str, int]:
    """Tokens an entry stands for, by kind; older files give them under names of their own."""
    rates = cfg.section("compress_rates") or cfg.empty_section("compress_rates")
    found = {SPARSE: rates.integer(SPARSE, default=4), HEAVY: rates.integer(HEAVY, default=128)}
    old = {SPARSE: cfg.optional_integer("compress_rate_csa"), HEAVY: cfg.optional_integer("compress_rate_hca")}
    return {kind: old[kind] or rate for kind, rate in found.items()}


def attention_types(cfg: Config, depth: int) -> tuple[str, ...]:
    """The kind of every layer: `layer_types`, else by `compress_ratios` (0, 4, 128), else two heavy ones, then alternating."""
    listed, ratios = cfg.texts("layer_types"), cfg.integers("compress_ratios")
    if listed is None and ratios is not None:
        if not set(ratios) <= set(RATIOS):
            raise cfg.refuse(f"compress_ratios are {shown(list(ratios))}; known are 0, 4 and 128")
        listed = tuple(RATIOS[ratio] for ratio in ratios)
    if listed is None:
        listed = tuple(HEAVY if index < 2 or index % 2 == 0 else SPARSE for index in range(depth))
    # The list may go on with layers that predict further tokens, which the class does not have.
    listed = listed[:depth]
    if len(listed) != depth or not set(listed) <= set(NAMES):
        raise cfg.refuse(f"the kinds of layers are {shown(list(listed))}; needed are {depth} of {', '.join(NAMES)}")
    return listed


def hashed_layers(cfg: Config, depth: int) -> tuple[bool, ...]:
    """Which layers look their experts up by token: `mlp_layer_types`, else the first `num_hash_layers`."""
    listed, first = cfg.texts("mlp_layer_types"), cfg.optional_integer("num_hash_layers", default=3, least=0)
    if listed is None:
        return tuple(index < (3 if first is None else first) for index in range(depth))
    return by_list(cfg, "mlp_layer_types", listed[:depth], depth, routed="hash_moe", dense="moe")


def routed(cfg: Config, size: Sizes) -> dict[bool, MoE]:
    """The experts, with a correction that is learned beside the loss, or looked up by token."""
    scoring = cfg.choice("scoring_func", allowed=("softmax", "sigmoid", "sqrtsoftplus"), default="sqrtsoftplus")
    width = cfg.integer("moe_intermediate_size", "intermediate_size", default=2048)
    experts = MoE(
        experts=cfg.integer("n_routed_experts", "num_local_experts", default=256),
        top_k=cfg.integer("num_experts_per_tok", default=6),
        expert=gated(width, activation=size.act),
        shared=gated(width, activation=size.act, bias=cfg.flag("mlp_bias", default=False)),
        correction="buffer",
        **routing(cfg, scoring=scoring, normalize=True),  # type: ignore[arg-type]
    )
    return {False: experts, True: msgspec.structs.replace(experts, correction="none", hashed=size.vocab)}
