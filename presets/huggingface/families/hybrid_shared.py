"""State spaces all through, and one block of attention whose weights several layers share: Zamba."""

from __future__ import annotations

from ...spec import Attention, Chain, FeedForward, Layer, Linear, Norm, Sublayer
from ..blocks import Heads, Text, decoder, gated, rms
from ..config import Config
from ..registry import text_family
from ..standard import self_attention, sizes, tied
from .hybrid_mamba import every, listed_types, mamba1


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
    attention, mlp = self_attention(shape, d_in=wide, d_out=size.d_model), gated(size.d_ff, activation=size.act)
    block = shared_block(attention, mlp, norm, wide, shared=one_table)
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
