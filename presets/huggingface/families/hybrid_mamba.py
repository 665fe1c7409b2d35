"""Attention in a few layers, a state space in the others: Jamba, Bamba, Granite 4, Zamba, Nemotron-H."""

from __future__ import annotations

from collections.abc import Callable

from ...spec import Attention, Chain, FeedForward, Layer, Linear, Mamba, Mamba2, Mixer, MoE, Norm, Sublayer
from ..blocks import Heads, Text, activation, biases, decoder, gated, grouped, layer_types, plain, rms
from ..config import MOST_LAYERS, Config, shown
from ..registry import text_family
from ..rope import rope
from ..standard import self_attention, sizes, tied
from .moe_blocks import Branch, feeds_of, routing, two_branches, unread
from .statespace import TIMING, inner_width, time_step_rank


def mamba1(cfg: Config, d_model: int, *, heads: int = 1, inner_norms: bool = False) -> Mamba:
    """A Mamba-1 mixer by `mamba_` keys."""
    cfg.ignore(*TIMING)
    return Mamba(
        d_inner=inner_width(cfg, d_model, key="mamba_expand"),
        state=cfg.integer("mamba_d_state", default=16),
        conv=cfg.integer("mamba_d_conv", default=4),
        dt_rank=time_step_rank(cfg, "mamba_dt_rank", d_model),
        heads=heads,
        conv_bias=cfg.flag("mamba_conv_bias", default=True),
        proj_bias=cfg.flag("mamba_proj_bias", default=False),
        inner_norms=inner_norms,
    )


@text_family("jamba")
def jamba(cfg: Config) -> Text:
    """Jamba (Lieber et al. 2024, arXiv:2403.19887): attention and experts each in every so many layers; no positions."""
    size = sizes(cfg, vocab=65536, d_model=4096, d_ff=14336, depth=32, positions=262144)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    attends = every(cfg, "attn_layer", period=8, offset=4)
    has_experts = every(cfg, "expert_layer", period=2, offset=1)
    experts, top_k = cfg.integer("num_experts", "num_local_experts", default=16), cfg.integer("num_experts_per_tok", default=2)
    kinds = {
        True: Branch("attention", self_attention(shape)),
        False: Branch("mamba", mamba1(cfg, size.d_model, inner_norms=True), "mamba"),
    }
    how = routing(cfg, scoring="softmax", normalize=False)
    expert = gated(size.d_ff, activation=size.act)
    moe = MoE(experts=experts, top_k=top_k, expert=expert, **how) if experts > 1 else None
    feeds = feeds_of(size.depth, lambda index: moe is not None and has_experts(index), expert, moe)
    norm = rms(cfg)
    layers = two_branches(norm, [kinds[attends(index)] for index in range(size.depth)], feeds)
    stack = decoder(size.d_model, size.vocab, layers, final=norm, max_positions=size.positions)
    return Text(stack=stack, vocab=size.vocab, tied=tied(cfg, default=False))


def every(cfg: Config, key: str, *, period: int, offset: int) -> Callable[[int], bool]:
    """Whether a layer is one of every `period`-th, from `offset` on."""
    step, start = cfg.integer(f"{key}_period", default=period), cfg.integer(f"{key}_offset", default=offset, least=0)
    if start >= step:
        raise cfg.refuse(f"{key}_offset {start} must be smaller than {key}_period {step}")
    return lambda index: index % step == start


def mamba2(cfg: Config, d_model: int) -> Mamba2:
    """A Mamba-2 mixer by `mamba_` keys; its heads make up the inner width."""
    inner, heads = inner_width(cfg, d_model, key="mamba_expand"), cfg.integer("mamba_n_heads", default=128)
    width = inner // heads if cfg.raw("mamba_d_head", default="auto") == "auto" else cfg.integer("mamba_d_head")
    if heads * width != inner:
        raise cfg.refuse(f"mamba_n_heads x mamba_d_head is {heads * width}, mamba_expand x hidden_size {inner}; they must be the same")
    cfg.ignore(*TIMING)
    return Mamba2(
        heads=heads,
        head_dim=width,
        groups=cfg.integer("mamba_n_groups", default=1),
        state=cfg.integer("mamba_d_state", default=256),
        conv=cfg.integer("mamba_d_conv", default=4),
        conv_bias=cfg.flag("mamba_conv_bias", default=True),
        proj_bias=cfg.flag("mamba_proj_bias", default=False),
    )


@text_family("bamba")
def bamba(cfg: Config) -> Text:
    """Bamba (IBM 2024): Mamba-2, attention in the layers that `attn_layer_indices` names."""
    size = sizes(cfg, vocab=128000, d_model=4096, d_ff=14336, depth=32, positions=262144)
    shape = grouped(cfg, size.d_model, heads=32, kv_heads=8)
    attends = frozenset(cfg.integers("attn_layer_indices", default=()) or ())
    bias = cfg.flag("attention_bias", default=False)
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias), position=rope(cfg, shape.head_dim, partial=0.5))
    kinds = {True: Branch("attention", attention), False: Branch("mamba", mamba2(cfg, size.d_model), "mamba")}
    dense = gated(size.d_ff, activation=size.act, bias=cfg.flag("mlp_bias", default=False))
    norm = rms(cfg, default=1e-5)
    mixers = [kinds[index in attends] for index in range(size.depth)]
    layers = two_branches(norm, mixers, [Branch("dense", dense)] * size.depth)
    stack = decoder(size.d_model, size.vocab, layers, final=norm, max_positions=size.positions)
    return Text(stack=stack, vocab=size.vocab, tied=tied(cfg, default=False))


LINEAR = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}


@text_family("granitemoehybrid")
def granitemoehybrid(cfg: Config) -> Text:
    """Granite 4: layers by a list, a shared feed-forward beside routed experts, which may be none."""
    size = sizes(cfg, vocab=32000, d_model=4096, d_ff=11008, depth=32)
    shape = grouped(cfg, size.d_model, heads=32)
    bias = cfg.flag("attention_bias", default=False)
    rotary = cfg.raw("position_embedding_type") == "rope"
    attention = self_attention(shape, bias=biases(qkv=bias, out=bias), position=rope(cfg, shape.head_dim) if rotary else None)
    kinds = {"attention": Branch("attention", attention), "mamba": Branch("mamba", mamba2(cfg, size.d_model), "mamba")}
    listed = listed_types(cfg, size.depth, tuple(LINEAR)) or ("mamba",) * size.depth
    shared = gated(cfg.integer("shared_intermediate_size", default=1024), activation=size.act)
    experts, top_k = cfg.integer("num_local_experts", default=8, least=0), cfg.integer("num_experts_per_tok", default=2, least=0)
    how = routing(cfg, scoring="softmax_topk", normalize=False)
    routed = Branch("moe", MoE(experts=experts, top_k=top_k, expert=gated(size.d_ff, activation=size.act), shared=shared, **how)) if experts else None
    norm = rms(cfg)
    layers = two_branches(norm, [kinds[LINEAR[kind]] for kind in listed], [routed or Branch("dense", shared)] * size.depth)
    stack = decoder(size.d_model, size.vocab, layers, final=norm, max_positions=size.positions)
    return Text(stack=stack, vocab=size.vocab, tied=tied(cfg, default=False))


def listed_types(cfg: Config, depth: int, allowed: tuple[str, ...]) -> tuple[str, ...] | None:
    """The list of layer kinds under either of its names."""
    return layer_types(cfg, depth, allowed, key="layers_block_type" if cfg.has("layers_block_type") else "layer_types")


# --- Zamba ----------------------------------------------------------------------------------------------------------


@text_family("zamba")
def zamba(cfg: Config) -> Text:
    """Zamba (Glorioso et al. 2024, arXiv:2405.16712): Mamba, and one block of attention whose weights several layers share.

    The block sees its input beside the embeddings, 2 x d_model wide; a matrix of each layer's own follows it.
    """
    size = sizes(cfg, vocab=32000, d_model=3712, d_ff=14848, depth=76, positions=4096, act="gelu")
    wide = cfg.optional_integer("attention_hidden_size") or 2 * size.d_model
    heads, kv_heads = cfg.integer("num_attention_heads", default=16), cfg.integer("num_key_value_heads", default=16)
    width = cfg.optional_integer("attention_head_dim", "head_dim") or 2 * size.d_model // heads
    shape = Heads(heads=heads, kv_heads=kv_heads, head_dim=width)
    parts = cfg.integer("n_mamba_heads", default=2)
    mixer = mamba1(cfg, size.d_model, heads=parts)
    if mixer.d_inner % parts:
        raise cfg.refuse(f"n_mamba_heads {parts} does not divide the inner width {mixer.d_inner}")
    cfg.ignore("hidden_mamba_act")
    norm, one_table = rms(cfg, default=1e-5), tied(cfg, default=True)
    own = Sublayer(name="mamba", mixer=mixer, pre_norm=norm)
    # The library shares the block's weights by the same switch that ties the head.
    block = shared_block(self_attention(shape, d_in=wide, d_out=size.d_model), gated(size.d_ff, activation=size.act), norm, wide, shared=one_table)
    after = Sublayer(name="linear", mixer=Chain(parts=(Linear(name="weight", d_in=size.d_model, d_out=size.d_model),)))
    kinds = {"mamba": Layer(name="mamba", sublayers=(own,)), "hybrid": Layer(name="hybrid", sublayers=(*block, after, own))}
    layers = [kinds[kind] for kind in zamba_types(cfg, size.depth)]
    stack = decoder(size.d_model, size.vocab, layers, final=norm, max_positions=size.positions)
    return Text(stack=stack, vocab=size.vocab, tied=one_table)


def shared_block(attention: Attention, mlp: FeedForward, norm: Norm, wide: int, *, shared: bool) -> tuple[Sublayer, Sublayer]:
    """Attention over the wide input and a feed-forward, owned by the first layer that has them."""
    names = ("shared_attention", "shared_feed_forward") if shared else (None, None)
    wide_norm = Norm(type="rms", width=wide, eps=norm.eps)
    return (
        Sublayer(name="attention", mixer=attention, pre_norm=wide_norm, shared=names[0]),
        Sublayer(name="feed_forward", mixer=mlp, pre_norm=norm, shared=names[1]),
    )


def zamba_types(cfg: Config, depth: int) -> tuple[str, ...]:
    """The kind of every layer: the list, else the third and then every so many."""
    attends = every(cfg, "attn_layer", period=6, offset=4)
    listed = listed_types(cfg, depth, ("mamba", "linear_attention", "hybrid"))
    if listed is None:
        listed = ("mamba", "mamba", "hybrid", *("hybrid" if attends(index) else "mamba" for index in range(depth - 3)))
    if len(listed) != depth:
        raise cfg.refuse(f"num_hidden_layers {depth} is fewer than the three layers that the pattern begins with")
    return tuple("hybrid" if kind == "hybrid" else "mamba" for kind in listed)


# --- Nemotron-H -----------------------------------------------------------------------------------------------------

LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
WORDS = LINEAR | {"moe": "moe", "mlp": "mlp"}


@text_family("nemotron_h")
def nemotron_h(cfg: Config) -> Text:
    """Nemotron-H and Nemotron 3 (arXiv:2504.03624): every layer is one mixer or one feed-forward; the head is never tied."""
    d_model, vocab = cfg.integer("hidden_size", default=4096), cfg.integer("vocab_size", default=131072)
    norm = rms(cfg, key="layer_norm_epsilon", default=1e-5)
    unread(cfg, attention_bias=False, tie_word_embeddings=False, n_shared_experts=1, sliding_window=None)
    cfg.ignore(*TIMING, *NEMOTRON_UNREAD)
    shape = grouped(cfg, d_model, heads=32, kv_heads=8, head_dim=128)
    bias, act = cfg.flag("mlp_bias", default=False), activation(cfg, "mlp_hidden_act", default="relu2")
    mixers: dict[str, Mixer] = {
        "mamba": nemotron_mamba(cfg),
        "attention": self_attention(shape),
        "mlp": plain(cfg.integer("intermediate_size", default=21504), activation=act, bias=bias),
        "moe": nemotron_moe(cfg, act, bias=bias),
    }
    paths = {"mlp": "feed_forward"}
    kinds = {kind: Layer(name=kind, sublayers=(Sublayer(name=paths.get(kind, kind), mixer=mixer, pre_norm=norm),)) for kind, mixer in mixers.items()}
    layers = [kinds[kind] for kind in nemotron_types(cfg)]
    stack = decoder(d_model, vocab, layers, final=norm, max_positions=cfg.optional_integer("max_position_embeddings", default=4096))
    return Text(stack=stack, vocab=vocab, tied=False)


NEMOTRON_UNREAD = (
    "expand", "mamba_expand", "mamba_hidden_act", "mamba_proj_bias", "num_nextn_predict_layers", "mtp_layers_block_type",
    "mtp_layer_types", "mtp_hybrid_override_pattern", "moe_shared_expert_overlap", "mamba_dt_min", "mamba_dt_max",
    "mamba_dt_limit", "mamba_dt_init_floor",
)  # fmt: skip


def nemotron_mamba(cfg: Config) -> Mamba2:
    """The Mamba-2 mixer; older files have other names for some sizes, which win."""
    return Mamba2(
        heads=cfg.integer("mamba_num_heads", default=128),
        head_dim=cfg.integer("mamba_head_dim", default=64),
        groups=cfg.integer("mamba_n_groups", "n_groups", default=8),
        state=cfg.integer("ssm_state_size", default=128),
        conv=cfg.integer("mamba_d_conv", "conv_kernel", default=4),
        conv_bias=cfg.flag("mamba_conv_bias", "use_conv_bias", default=True),
        proj_bias=cfg.flag("use_bias", default=False),
    )


def nemotron_moe(cfg: Config, act: str, *, bias: bool) -> MoE:
    """Experts that may work in a narrower, latent width; the shared one works in d_model."""
    return MoE(
        experts=cfg.integer("n_routed_experts", "num_local_experts", default=8),
        top_k=cfg.integer("num_experts_per_tok", default=2),
        expert=plain(cfg.integer("moe_intermediate_size", default=7688), activation=act, bias=False),
        shared=plain(cfg.integer("moe_shared_expert_intermediate_size", default=7688), activation=act, bias=bias),
        latent=cfg.optional_integer("moe_latent_size"),
        latent_bias=bias,
        correction="buffer",
        **routing(cfg, scoring="sigmoid", normalize=True),
    )


def nemotron_types(cfg: Config) -> tuple[str, ...]:
    """The kind of every layer: a list of words, else a string of letters, else one of each; the number of layers follows."""
    depth = cfg.optional_integer("num_hidden_layers", least=0)
    listed = cfg.texts("layers_block_type") or cfg.texts("layer_types")
    letters = cfg.text("hybrid_override_pattern", default="")
    if listed is None and letters:
        listed = tuple(LETTERS.get(letter, letter) for letter in letters)
    listed = listed or ("mamba", "moe", "attention", "mlp")
    unknown = sorted(set(listed) - set(WORDS))
    if unknown or len(listed) > MOST_LAYERS:
        raise cfg.refuse(f"the pattern has {len(listed)} layers and names {shown(unknown)}; known are {', '.join(WORDS)} or the letters {' '.join(LETTERS)}")
    if depth is not None and depth != len(listed):
        cfg.assume(f"num_hidden_layers = {depth} is not read; the pattern has {len(listed)} layers")
    return tuple(WORDS[kind] for kind in listed)
