"""Rotary positions of a configuration: `rope_theta` and `rope_scaling` (older files) or `rope_parameters` (newer)."""

from __future__ import annotations

from typing import Any, Literal

from ..spec import Rope, RopeScaling
from .config import LARGEST_REAL, Config

Recipe = Literal["linear", "dynamic", "ntk", "yarn", "llama3", "longrope", "proportional"]
# Names that files use, and the recipe they mean; None is plain rotation.
RECIPES: dict[str, Recipe | None] = {
    "default": None, "mrope": None, "linear": "linear", "dynamic": "dynamic", "ntk": "ntk", "yarn": "yarn",
    "deepseek_yarn": "yarn", "llama3": "llama3", "longrope": "longrope", "su": "longrope", "proportional": "proportional",
}  # fmt: skip
NUMBERS = ("factor", "beta_fast", "beta_slow", "low_freq_factor", "high_freq_factor", "attention_factor", "mscale", "mscale_all_dim")


def rope(
    cfg: Config,
    head_dim: int,
    *,
    theta: float = 10000.0,
    partial: float = 1.0,
    kind: str | None = None,
    interleaved: bool = False,
    theta_key: str = "rope_theta",
) -> Rope:
    """The rotation of one kind of layer; it changes no count.

    Args:
        cfg: the section that holds the keys.
        head_dim: width of a head.
        theta: base where the file gives none.
        partial: share of a head that is rotated where the file gives none.
        kind: layer kind (`full_attention`), where `rope_parameters` has an object for each.
        interleaved: pairs are neighbours.
        theta_key: where older files keep this kind's base.
    """
    given = parameters(cfg, kind)
    base = plain_number(given.get("rope_theta"), None) or cfg.optional_number(theta_key, "rotary_emb_base") or theta
    share = plain_number(given.get("partial_rotary_factor"), None)
    share = share if share is not None else cfg.number("partial_rotary_factor", "rotary_pct", default=partial)
    if not 0 <= share <= 1:
        raise cfg.refuse(f"partial_rotary_factor must be from 0 to 1, got {share}")
    dims = int(head_dim * share)
    return Rope(
        theta=base,
        dims=None if not 0 < dims < head_dim else dims,
        interleaved=interleaved,
        scaling=scaling(cfg, given),
        sections=sections(given),
    )


def parameters(cfg: Config, kind: str | None) -> dict[str, Any]:
    """The object that holds this kind's numbers, empty where there is none."""
    found = cfg.raw("rope_parameters") or cfg.raw("rope_scaling") or {}
    if not isinstance(found, dict):
        raise cfg.refuse("rope_parameters and rope_scaling must be objects")
    inner = found.get(kind) if kind else None
    return inner if isinstance(inner, dict) else found


def scaling(cfg: Config, given: dict[str, Any]) -> RopeScaling | None:
    """The recipe, None where the rotation is plain; one that is not known is noted, since it changes no count."""
    name = given.get("rope_type", given.get("type", "default"))
    if not isinstance(name, str) or name not in RECIPES:
        cfg.assume(f"rope type {name!r} is not known; it changes no count")
        return None
    recipe = RECIPES[name]
    if recipe is None:
        return None
    numbers = {key: value for key in NUMBERS if (value := plain_number(given.get(key), None)) is not None}
    original = given.get("original_max_position_embeddings", cfg.raw("original_max_position_embeddings"))
    return RopeScaling(
        type=recipe,
        original_positions=original if type(original) is int and 0 < original < 2**31 else None,
        short_factor=floats(given.get("short_factor")),
        long_factor=floats(given.get("long_factor")),
        truncate=given.get("truncate") is not False,
        **numbers,
    )


def sections(given: dict[str, Any]) -> tuple[int, ...] | None:
    """Widths that time, height and width take."""
    found = given.get("mrope_section")
    if not isinstance(found, list) or not all(type(item) is int and 0 < item < 2**31 for item in found):
        return None
    return tuple(found)


def plain_number(value: Any, default: float | None) -> float | None:
    """A JSON number as a float."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST_REAL <= value <= LARGEST_REAL
    return float(value) if usable else default


def floats(value: Any) -> tuple[float, ...]:
    """A list of JSON numbers as floats."""
    return tuple(float(item) for item in value if plain_number(item, None) is not None) if isinstance(value, list) else ()
