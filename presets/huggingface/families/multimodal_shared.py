"""A language model that sees: towers, the parts that carry what they give, the text model, the class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...spec import Connector, Linear, ModelSpec, Norm, Part, Stack
from ..blocks import Text
from ..classes import text_spec
from ..config import Config
from .encoder_shared import class_ending

ENDINGS = ("ForConditionalGeneration", "ForCausalLM", "Model")
# Sizes of the text model that files repeat beside its section, where no class reads them.
REPEATED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "max_position_embeddings", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "hidden_act",
)  # fmt: skip


def section(cfg: Config, key: str, default: Mapping[str, Any] | None = None) -> Config:
    """A nested configuration; where it is absent or null, `default`, else a family's own defaults."""
    found = cfg.section(key)
    if found is not None:
        return found
    cfg.ignore(key)
    return Config(default or {}, f"{cfg.where}: {key}", name=cfg.name, notes=cfg.notes)


def text_section(cfg: Config, default: Mapping[str, Any] | None = None) -> Config:
    """The text model's section; its sizes are not read from the top level, which may repeat them."""
    repeated = [key for key in REPEATED if cfg.has(key)]
    cfg.ignore(*REPEATED)
    if repeated:
        cfg.assume(f"{', '.join(repeated)} at the top level: not used, the text model's section decides")
    return section(cfg, "text_config", default)


def projector(source: str, *parts: Part, name: str = "projector", target: str = "decoder") -> Connector:
    """Parts between a tower and the text model."""
    return Connector(name=name, source=source, target=target, parts=parts)


def dense(name: str, d_in: int, d_out: int, *, bias: bool = True, merge: int = 1, expand: int = 1) -> Linear:
    """A matrix of a projector; it runs at `expand` of every `merge` positions of the tower."""
    return Linear(name=name, d_in=d_in, d_out=d_out, bias=bias, merge=merge, expand=expand)


def same_norm(norm: Norm, width: int) -> Norm:
    """The norm with a width of its own."""
    return Norm(type=norm.type, name=norm.name, width=width, eps=norm.eps)


def assemble(
    cfg: Config, text: Text, towers: Sequence[Stack], joints: Sequence[Connector], *, tied: bool, extra: tuple[Part, ...] = ()
) -> ModelSpec:
    """The model in the class that is named: with its output matrix, without it, or the text model alone.

    `tied`: whether the output matrix is the token table (most multimodal classes decide at their top level).
    """
    kind = class_ending(cfg, ENDINGS, usual="ForConditionalGeneration")
    cfg.ignore("tie_word_embeddings")
    if kind == "ForCausalLM":
        return text_spec(cfg, text.retied(tied=tied))
    heads = () if kind == "Model" else (text.lm_head(tied=tied),)
    return ModelSpec(
        name=cfg.name,
        source=(cfg.source,),
        stacks=(*towers, text.stack),
        connectors=tuple(joints),
        heads=heads,
        extra=(*text.extra, *extra),
    )


def says(cfg: Config | None, *, default: bool = False) -> bool:
    """What `tie_word_embeddings` says here."""
    return cfg.flag("tie_word_embeddings", default=default) if cfg is not None else default


def note_size(cfg: Config, tower: Stack, tokens: int, size: str) -> None:
    """Say what an image is taken to be where the model leaves it free."""
    cfg.assume(f"one image is {size}: {tower.default_tokens} positions of the vision tower, {tokens} tokens of the text")
