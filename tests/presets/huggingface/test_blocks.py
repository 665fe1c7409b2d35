"""What families share: patterns of layers, heads, windows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface.blocks import Heads, compress, grouped, one_window, sliding_types
from tfm.presets.huggingface.config import Config
from tfm.presets.spec import Layer

KINDS = {letter: Layer(sublayers=(), name=letter) for letter in "abc"}


def pattern(letters: str) -> list[tuple[str, int]]:
    return [("".join(layer.name for layer in block.pattern), block.repeat) for block in compress(KINDS[c] for c in letters)]


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        pytest.param("a", [("a", 1)], id="one"),
        pytest.param("aaaa", [("a", 4)], id="alike"),
        pytest.param("aabaabaa", [("aab", 2), ("a", 2)], id="a pattern and what is left of it"),
        pytest.param("aaabbbbb", [("a", 3), ("b", 5)], id="dense layers first"),
        pytest.param("abc", [("a", 1), ("b", 1), ("c", 1)], id="nothing repeats"),
        pytest.param("abababac", [("ab", 3), ("a", 1), ("c", 1)], id="the longest run"),
    ],
)
def test_layers_become_patterns(letters: str, expected: list[tuple[str, int]]) -> None:
    assert pattern(letters) == expected


@given(st.text(alphabet="abc", min_size=1, max_size=80))
def test_patterns_written_out_are_the_layers(letters: str) -> None:
    assert "".join(text * repeat for text, repeat in pattern(letters)) == letters


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param({}, Heads(heads=8, kv_heads=8, head_dim=8), id="defaults"),
        pytest.param({"num_attention_heads": 4, "num_key_value_heads": 2}, Heads(heads=4, kv_heads=2, head_dim=16), id="groups"),
        pytest.param({"head_dim": 24}, Heads(heads=8, kv_heads=8, head_dim=24), id="a width of its own"),
        pytest.param({"num_attention_heads": 5}, Heads(heads=5, kv_heads=5, head_dim=12), id="rounded down, as the library does"),
    ],
)
def test_heads(data: dict[str, Any], expected: Heads) -> None:
    assert grouped(Config(data), 64, heads=8) == expected


def test_heads_that_are_refused() -> None:
    for data, message in (
        ({"num_attention_heads": 128}, "more than the width"),
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, "3 does not divide"),
    ):
        with pytest.raises(UnreadableError, match=message):
            grouped(Config(data), 64, heads=8)


def test_kinds_of_layers_come_from_the_list_or_the_rule() -> None:
    listed = ["sliding_attention", "full_attention", "full_attention"]
    assert sliding_types(Config({"layer_types": listed}), 3, lambda _: True) == tuple(listed)
    assert sliding_types(Config({"layer_types": None}), 3, lambda index: index == 2) == (
        "full_attention",
        "full_attention",
        "sliding_attention",
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param({}, 32, id="default"),
        pytest.param({"sliding_window": None}, None, id="null"),
        pytest.param({"sliding_window": 8, "layer_types": ["sliding_attention"] * 2}, 8, id="a list that agrees"),
    ],
)
def test_one_window_for_all(data: dict[str, Any], expected: int | None) -> None:
    assert one_window(Config(data), 2, default=32) == expected
