"""Gemma 4: text, images, and in its smaller models sound."""

from __future__ import annotations

from ...spec import Connector, ModelSpec, Stack
from ..config import Config
from ..registry import family
from .dense_gemma4 import gemma4
from .multimodal_shared import assemble, says, text_section
from .vision_gemma4 import gemma4_sound, gemma4_vision


@family("gemma4")
def gemma4_vl(cfg: Config) -> ModelSpec:
    """A tower that is absent or null is not there; the top level decides on tying."""
    text = gemma4(text_section(cfg))
    width = text.stack.d_model
    made: list[tuple[Stack, Connector]] = []
    tokens = cfg.integer("vision_soft_tokens_per_image", default=280)
    if (seen := cfg.section("vision_config")) is not None:
        made.append(gemma4_vision(seen, width, tokens))
    if (heard := cfg.section("audio_config")) is not None:
        made.append(gemma4_sound(heard, width))
    return assemble(cfg, text, [stack for stack, _ in made], [joint for _, joint in made], tied=says(cfg, default=True))
