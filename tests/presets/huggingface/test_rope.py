"""Rotary positions in their older and newer spellings."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface.config import Config
from tfm.presets.huggingface.rope import rope
from tfm.presets.spec import Rope, RopeScaling


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param({}, Rope(), id="absent"),
        pytest.param({"rope_theta": 5e5}, Rope(theta=5e5), id="older base"),
        pytest.param({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, Rope(theta=5e5), id="newer base"),
        pytest.param({"rotary_pct": 0.25}, Rope(dims=16), id="a quarter of 64"),
        pytest.param({"partial_rotary_factor": 1.0}, Rope(), id="all of it"),
        pytest.param(
            {"rope_scaling": {"type": "linear", "factor": 4}}, Rope(scaling=RopeScaling(type="linear", factor=4.0)), id="older key"
        ),
        pytest.param(
            {"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}},
            Rope(scaling=RopeScaling(type="yarn", factor=32.0, original_positions=4096, truncate=False)),
            id="yarn",
        ),
        pytest.param(
            {"rope_scaling": {"type": "su", "short_factor": [1, 1.1], "long_factor": [2, 4]}, "original_max_position_embeddings": 4096},
            Rope(scaling=RopeScaling(type="longrope", original_positions=4096, short_factor=(1.0, 1.1), long_factor=(2.0, 4.0))),
            id="longrope under its first name",
        ),
        pytest.param({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, Rope(sections=(16, 24, 24)), id="sections"),
        pytest.param(
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 1e6}}},
            Rope(theta=1e6),
            id="an object for each kind",
        ),
    ],
)
def test_a_spelling_is_read(data: dict[str, Any], expected: Rope) -> None:
    assert rope(Config(data), 64, kind="full_attention") == expected


def test_a_recipe_that_is_not_known_is_noted_since_it_changes_no_count() -> None:
    cfg = Config({"rope_scaling": {"type": "warp", "factor": 2.0}})
    assert rope(cfg, 64) == Rope()
    assert cfg.notes == ["rope type 'warp' is not known; it changes no count"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param({"partial_rotary_factor": 1.5}, "from 0 to 1", id="more than all"),
        pytest.param({"rope_scaling": [1]}, "must be objects", id="a list"),
        pytest.param({"rope_theta": "10000"}, "finite number", id="text"),
    ],
)
def test_what_makes_no_sense_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        rope(Config(data), 64)
