"""What families with experts, or with several kinds of mixers, share: layers put together of two branches, routing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from ...spec import Attention, FeedForward, Layer, Mixer, MoE, Norm
from ..blocks import Text, decoder, pre_norm
from ..config import Config, shown
from ..standard import Sight, Sizes, tied

Scoring = Literal["softmax", "sigmoid", "softmax_topk", "sqrtsoftplus"]
Correction = Literal["none", "buffer", "parameter"]

# How experts are chosen, weighed and balanced: no weights and no products.
ROUTING = (
    "norm_topk_prob", "routed_scaling_factor", "scoring_func", "topk_method", "n_group", "topk_group", "router_aux_loss_coef",
    "output_router_logits", "router_jitter_noise", "input_jitter_noise", "seq_aux", "aux_loss_alpha", "ep_size", "swiglu_limit",
    "swiglu_alpha", "routed_scaling", "router_z_loss_coef", "use_routing_bias", "moe_router_dtype",
)  # fmt: skip


class Branch(NamedTuple):
    """One residual branch of a layer: its kind, which tells layers apart, what it does, and its name in the path."""

    kind: str
    mixer: Mixer
    path: str = "attention"


def attention_branches(attention: Attention, sights: Sequence[Sight]) -> list[Branch]:
    """The same attention in every layer, with each layer's mask and positions."""
    made = {
        sight: Branch(sight.name, msgspec.structs.replace(attention, mask=sight.mask, position=sight.position))
        for sight in dict.fromkeys(sights)
    }
    return [made[sight] for sight in sights]


def two_branches(norm: Norm, mixers: Sequence[Branch], feeds: Sequence[Branch]) -> list[Layer]:
    """Layers of a mixer and a feed-forward, each normed before; named by what varies among them."""
    by_mixer, by_feed = (len({branch.kind for branch in side}) > 1 for side in (mixers, feeds))
    made: dict[tuple[Branch, Branch], Layer] = {}
    for mixer, feed in zip(mixers, feeds, strict=True):
        if (mixer, feed) not in made:
            name = "_".join(part for part in (mixer.kind if by_mixer else "", feed.kind if by_feed else "") if part)
            made[mixer, feed] = pre_norm(norm, mixer.mixer, feed.mixer, name=name, attention_name=mixer.path)
    return [made[pair] for pair in zip(mixers, feeds, strict=True)]


def two_branch_text(cfg: Config, size: Sizes, norm: Norm, mixers: Sequence[Branch], feeds: Sequence[Branch], **head: Any) -> Text:
    """The text model of such layers with a final norm; its head is untied unless the file says so; `head`: fields of `Text`."""
    layers = two_branches(norm, mixers, feeds)
    stack = decoder(size.d_model, size.vocab, layers, final=norm, max_positions=size.positions)
    return Text(stack=stack, vocab=size.vocab, tied=tied(cfg, default=False), **head)


def feeds_of(depth: int, is_routed: Callable[[int], bool], dense: FeedForward | None, routed: MoE | None) -> list[Branch]:
    """The feed-forward of every layer, routed where `is_routed(index)` says so."""
    made = []
    for index in range(depth):
        mixer = routed if is_routed(index) else dense
        if mixer is None:
            raise ValueError(f"layer {index} has no feed-forward")
        made.append(Branch("moe" if isinstance(mixer, MoE) else "dense", mixer))
    return made


def routing(cfg: Config, *, scoring: Scoring, normalize: bool, key: str = "norm_topk_prob") -> dict[str, Any]:
    """How experts are chosen and weighed, as fields of `MoE`: none of them changes a count."""
    cfg.ignore(*ROUTING)
    return {
        "scoring": scoring,
        "normalize": cfg.flag(key, default=normalize),
        "routed_scale": cfg.number("routed_scaling_factor", default=1.0),
        "groups": cfg.optional_integer("n_group", default=1) or 1,
        "top_groups": cfg.optional_integer("topk_group", default=1) or 1,
    }


def unread(cfg: Config, **usual: object) -> None:
    """Keys that the library's class does not read: said where the value is not what the class does anyway."""
    for key, value in usual.items():
        given = cfg.raw(key, default=value)
        if given is not None and given not in (value, []):
            cfg.assume(f"{key} = {shown(given)} is not read by the class of this family and changes nothing")


def dense_first(cfg: Config, depth: int, *, first: int) -> tuple[bool, ...]:
    """Which layers are routed: by `mlp_layer_types`, else all but the first `first_k_dense_replace`."""
    return routed_layers(cfg, depth, dense=cfg.optional_integer("first_k_dense_replace", default=first, least=0) or 0)


def routed_layers(cfg: Config, depth: int, *, dense: int) -> tuple[bool, ...]:
    """Which layers are routed: by `mlp_layer_types`, else all but the first `dense`."""
    listed = cfg.texts("mlp_layer_types")
    if listed is None:
        return tuple(index >= dense for index in range(depth))
    return by_list(cfg, "mlp_layer_types", listed, depth, routed="sparse", dense="dense")


def by_list(cfg: Config, key: str, listed: Iterable[str], depth: int, *, routed: str, dense: str) -> tuple[bool, ...]:
    """Which layers are routed, by a list of kinds."""
    kinds = tuple(listed)
    for kind in kinds:
        if kind not in (routed, dense):
            raise cfg.refuse(f"{key} names {shown(kind)}; known are {dense}, {routed}")
    if len(kinds) != depth:
        raise cfg.refuse(f"{key} has {len(kinds)} entries for {depth} layers")
    return tuple(kind == routed for kind in kinds)
