"""DeepSeek-V2 and what is built like it: latent attention, first layers dense, fine-grained experts beside shared ones."""

from __future__ import annotations

import msgspec

from ...spec import Causal, FeedForward, Indexer, LatentAttention, MoE
from ..blocks import Text, gated, layer_types, rms
from ..config import REQUIRED, Config, shown
from ..registry import text_family
from ..rope import rope
from ..standard import Sizes, sizes
from .moe_blocks import Branch, Correction, Scoring, dense_first, feeds_of, routed_layers, routing, two_branch_text, unread

PREDICTION = ("num_nextn_predict_layers", "num_mtp_layers")
INDEXED = ("indexed_attention", "deepseek_sparse_attention")


def latent_heads(cfg: Config, *, heads: int, q_rank: int, nope: int, value: int, interleaved: bool = True) -> LatentAttention:
    """Latent attention by the usual keys; `attention_bias` gives the projections from and to d_model a bias, but q_proj never."""
    rope_dim = cfg.integer("qk_rope_head_dim", default=64)
    cfg.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "rope_interleave", "indexer_rope_interleave")
    return LatentAttention(
        heads=cfg.integer("num_attention_heads", default=heads),
        kv_rank=cfg.integer("kv_lora_rank", default=512),
        q_rank=cfg.optional_integer("q_lora_rank", default=q_rank),
        nope_dim=cfg.integer("qk_nope_head_dim", default=nope),
        rope_dim=rope_dim,
        value_dim=cfg.integer("v_head_dim", default=value),
        mask=Causal(),
        bias=cfg.flag("attention_bias", default=False),
        position=rope(cfg, rope_dim, interleaved=interleaved),
    )


def shared_and_routed(
    cfg: Config,
    size: Sizes,
    *,
    experts: int | None,
    top_k: int | None,
    d_ff: int,
    shared: int,
    scoring: Scoring,
    correction: Correction,
    mlp_bias: bool = False,
) -> MoE:
    """`n_routed_experts`, and one expert as wide as `n_shared_experts` of them that always runs."""
    width = cfg.integer("moe_intermediate_size", default=d_ff)
    beside = cfg.optional_integer("n_shared_experts", default=shared, least=0) or 0
    count = cfg.integer("num_experts", "n_routed_experts", "num_local_experts", default=REQUIRED if experts is None else experts)
    chosen = cfg.optional_integer("num_experts_per_tok", default=top_k)
    if chosen is None:  # the class of DeepSeek-V2 has no default: it can be counted, but not run
        chosen = min(6, count)
        cfg.assume(f"num_experts_per_tok is not given; {chosen} was assumed, as in DeepSeek-V2")
    return MoE(
        experts=count,
        top_k=chosen,
        expert=gated(width, activation=size.act),
        shared=gated(width * beside, activation=size.act, bias=mlp_bias) if beside else None,
        correction=correction,
        **routing(cfg, scoring=scoring, normalize=scoring == "sigmoid"),
    )


def assemble(cfg: Config, size: Sizes, mixers: list[Branch], moe: MoE, dense: FeedForward, *, first: int) -> Text:
    """Dense layers first, then routed ones; layers that predict further tokens are in checkpoints, not in this class."""
    unread(cfg, moe_layer_freq=1)
    cfg.ignore(*PREDICTION)
    sparse = dense_first(cfg, size.depth, first=first)
    return two_branch_text(cfg, size, rms(cfg), mixers, feeds_of(size.depth, lambda index: sparse[index], dense, moe))


@text_family("deepseek_v2")
def deepseek_v2(cfg: Config) -> Text:
    """DeepSeek-V2 (arXiv:2405.04434): softmax routing, biases of dense and shared experts by `mlp_bias`."""
    size = sizes(cfg, vocab=102400, d_model=4096, d_ff=11008, depth=32)
    attention = latent_heads(cfg, heads=32, q_rank=1536, nope=128, value=128)
    if size.d_model % attention.heads:
        raise cfg.refuse(f"num_attention_heads {attention.heads} does not divide hidden_size {size.d_model}")
    bias = cfg.flag("mlp_bias", default=False)
    moe = shared_and_routed(cfg, size, experts=64, top_k=None, d_ff=1407, shared=2, scoring="softmax", correction="none", mlp_bias=bias)
    dense = gated(size.d_ff, activation=size.act, bias=bias)
    return assemble(cfg, size, [Branch("latent", attention)] * size.depth, moe, dense, first=0)


def v3_experts(cfg: Config, size: Sizes) -> MoE:
    """DeepSeek-V3's routing: sigmoid scores with a correction that PyTorch holds as a buffer."""
    return shared_and_routed(cfg, size, experts=256, top_k=8, d_ff=2048, shared=1, scoring="sigmoid", correction="buffer")


@text_family("deepseek_v3", "kimi_k2")
def deepseek_v3(cfg: Config) -> Text:
    """DeepSeek-V3 (arXiv:2412.19437), DeepSeek-R1 and Kimi K2."""
    size = sizes(cfg, vocab=129280, d_model=7168, d_ff=18432, depth=61, positions=4096)
    attention = latent_heads(cfg, heads=128, q_rank=1536, nope=128, value=128)
    dense = gated(size.d_ff, activation=size.act)
    return assemble(cfg, size, [Branch("latent", attention)] * size.depth, v3_experts(cfg, size), dense, first=3)


@text_family("glm4_moe_lite")
def glm4_moe_lite(cfg: Config) -> Text:
    """GLM-4.7-Flash: DeepSeek-V3 in a small size, the first layer dense."""
    size = sizes(cfg, vocab=154880, d_model=2048, d_ff=10240, depth=47, positions=202752)
    attention = latent_heads(cfg, heads=20, q_rank=768, nope=192, value=256)
    moe = shared_and_routed(cfg, size, experts=64, top_k=4, d_ff=1536, shared=1, scoring="sigmoid", correction="buffer")
    unread(cfg, first_k_dense_replace=1)
    sparse = routed_layers(cfg, size.depth, dense=1)
    feeds = feeds_of(size.depth, lambda index: sparse[index], gated(size.d_ff, activation=size.act), moe)
    cfg.ignore(*PREDICTION)
    return two_branch_text(cfg, size, rms(cfg, default=1e-5), [Branch("latent", attention)] * size.depth, feeds)


def indexer(cfg: Config, attention: LatentAttention, *, heads: int, own: bool) -> Indexer:
    """The lightning indexer of DeepSeek sparse attention: queries from the low rank, one key a token with a layer norm."""
    if attention.q_rank is None:
        raise cfg.refuse("q_lora_rank must be given: the indexer's queries are made from that rank")
    return Indexer(
        heads=cfg.integer("index_n_heads", default=heads),
        head_dim=cfg.integer("index_head_dim", default=128),
        top_k=cfg.integer("index_topk", default=2048),
        q_in=attention.q_rank,
        own=own,
    )


def indexed(cfg: Config, size: Sizes, attention: LatentAttention, own: tuple[bool, ...], *, heads: int) -> list[Branch]:
    """Latent attention over the keys that each layer's indexer picks, or an earlier layer's."""
    layer_types(cfg, size.depth, INDEXED)
    made = {}
    for has in set(own):
        mixer = msgspec.structs.replace(attention, indexer=indexer(cfg, attention, heads=heads, own=has))
        made[has] = Branch("indexed" if has else "reused", mixer)
    return [made[has] for has in own]


@text_family("deepseek_v32")
def deepseek_v32(cfg: Config) -> Text:
    """DeepSeek-V3.2: V3 with an indexer in every layer."""
    size = sizes(cfg, vocab=129280, d_model=7168, d_ff=18432, depth=61, positions=163840)
    attention = latent_heads(cfg, heads=128, q_rank=1536, nope=128, value=128)
    mixers = indexed(cfg, size, attention, (True,) * size.depth, heads=64)
    unread(cfg, mlp_bias=False)
    return assemble(cfg, size, mixers, v3_experts(cfg, size), gated(size.d_ff, activation=size.act), first=3)


@text_family("glm_moe_dsa")
def glm_moe_dsa(cfg: Config) -> Text:
    """GLM-5: V3.2 where a layer may use the choice of an earlier layer's indexer (arXiv:2603.12201)."""
    size = sizes(cfg, vocab=154880, d_model=6144, d_ff=12288, depth=78, positions=202752)
    attention = latent_heads(cfg, heads=64, q_rank=2048, nope=192, value=256)
    mixers = indexed(cfg, size, attention, own_indexers(cfg, size.depth), heads=32)
    unread(cfg, mlp_bias=False)
    return assemble(cfg, size, mixers, v3_experts(cfg, size), gated(size.d_ff, activation=size.act), first=3)


def own_indexers(cfg: Config, depth: int) -> tuple[bool, ...]:
    """Which layers have an indexer: `indexer_types`, else `index_topk_pattern` (F and S), else every `index_topk_freq`-th."""
    kinds = cfg.texts("indexer_types")
    pattern = cfg.raw("index_topk_pattern")
    frequency, offset = cfg.integer("index_topk_freq", default=1, least=0), cfg.integer("index_skip_topk_offset", default=2, least=0)
    if kinds is None and pattern is not None:
        letters = {"F": "full", "S": "shared"}
        named = cfg.text("index_topk_pattern") if isinstance(pattern, str) else cfg.texts("index_topk_pattern") or ()
        kinds = tuple(letters.get(letter, letter) for letter in named)
    if kinds is None:
        return tuple(max(index - offset + 1, 0) % max(frequency, 1) == 0 for index in range(depth))
    if len(kinds) < depth or not set(kinds) <= {"full", "shared"} or kinds[0] != "full":
        raise cfg.refuse(f"the kinds of indexers are {shown(list(kinds))}; needed are {depth} of full and shared, full first")
    return tuple(kind == "full" for kind in kinds[:depth])
