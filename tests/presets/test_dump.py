"""A spec as YAML text: it loads back to an equal spec, whatever is in it, and looks like a preset."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tfm.presets import spec as s
from tfm.presets.dump import ORDER, STATED, WIDTH, model_to_yaml
from tfm.presets.loader import load_model, model_from_yaml, model_names


def model(*, sublayers: tuple[s.Sublayer, ...] = (), **fields: Any) -> s.ModelSpec:
    """A model of one layer with the given sublayers; its stack is called as `samples` calls everything."""
    stack = s.Stack(name="a", d_model=8, role="decoder", blocks=(s.Block(pattern=(s.Layer(sublayers=sublayers),)),))
    return s.ModelSpec(**{"name": "x", "source": ("a paper",), "stacks": (stack,)} | fields)


def mixer(value: Any, **fields: Any) -> s.ModelSpec:
    return model(sublayers=(s.Sublayer(name="here", mixer=value, **fields),))


def text_of_mixer(value: s.Data, **fields: Any) -> list[str]:
    """The lines of the only sublayer, without their indentation."""
    lines = model_to_yaml(mixer(value, **fields)).splitlines()
    start = next(index for index, line in enumerate(lines) if "- name: here" in line)
    return [line[16:] for line in lines[start + 1 :]]


def samples(hint: Any) -> list[Any]:
    """Values of a type, one of each kind it allows, that are no default."""
    if isinstance(hint, type) and issubclass(hint, s.Data):
        return instances(hint)
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) is tuple:
        return [tuple(samples(get_args(hint)[0]))]
    if get_origin(hint) is UnionType or get_origin(hint) is Union:
        return [value for inner in get_args(hint) if inner is not type(None) for value in samples(inner)]
    plain: dict[Any, list[Any]] = {int: [3], float: [0.25, 1e-7], bool: [True, False], str: ["a"]}
    return plain[hint]


@cache
def instances(cls: type[s.Data]) -> list[s.Data]:
    """Instances of a struct in which every field takes each of its samples at least once."""
    fields = {name: samples(hint) for name, hint in get_type_hints(cls).items() if not name.startswith("__")}
    most = max((len(values) for values in fields.values()), default=1)
    return [cls(**{name: values[index % len(values)] for name, values in fields.items()}) for index in range(most)]


MIXERS = {cls.__name__: cls for cls in get_args(s.Mixer)}


@pytest.mark.parametrize("name", model_names())
def test_presets_load_back(name: str) -> None:
    spec = load_model(name)
    assert model_from_yaml(model_to_yaml(spec), "text") == spec


@pytest.mark.parametrize("kind", MIXERS.values(), ids=MIXERS)
def test_every_mixer_loads_back_with_every_field_set(kind: type[s.Data]) -> None:
    for value in instances(kind):
        spec = mixer(value, shared="a", residual_scale=0.25, output_norm=s.Norm(type="layer_plain", eps=1e-12))
        assert model_from_yaml(model_to_yaml(spec), "text") == spec


def test_every_part_loads_back_with_every_field_set() -> None:
    parts = samples(s.Part)
    assert {type(part) for part in parts} == set(get_args(s.Part))
    spec = model(extra=tuple(parts))
    assert model_from_yaml(model_to_yaml(spec), "text") == spec


def test_a_model_of_many_parts_loads_back() -> None:
    vision = s.Stack(name="vision", d_model=6, role="encoder", tokens="image", default_tokens=9, blocks=(s.Block(pattern=(), repeat=3),))
    text = model().stacks[0]
    spec = model(
        stacks=(vision, text),
        connectors=(s.Connector(name="joint", source="vision", target="a", parts=(s.Linear(name="w", d_in=6, d_out=8, merge=4),)),),
        heads=(s.Head(name="lm_head", stack="a", softcap=30.0, scale=0.1, parts=(s.Similarity(name="pairs", width=4),)),),
        extra=(s.Parameter(name="logit_scale", shape=(1,), buffer=True),),
        images=2,
    )
    assert model_from_yaml(model_to_yaml(spec), "text") == spec


# --- how it looks ---------------------------------------------------------------------------------------------------


def test_leaves_are_one_line_and_defaults_are_left_out() -> None:
    norm = s.Norm(type="rms", eps=1e-6)
    assert text_of_mixer(s.FeedForward(d_ff=20, activation="silu", gated=True, bias=False), pre_norm=norm) == [
        "pre_norm: {type: rms, eps: 1.0e-06}",
        "mixer: {kind: feed_forward, d_ff: 20, activation: silu, gated: true}",
    ]


def test_what_holds_something_is_a_block() -> None:
    value = s.Attention(heads=6, kv_heads=2, head_dim=4, mask=s.Sliding(window=7), bias=("q", "v"), position=s.Rope())
    assert text_of_mixer(value) == [
        "mixer:",
        "  kind: attention",
        "  heads: 6",
        "  kv_heads: 2",
        "  head_dim: 4",
        "  mask: {kind: sliding, window: 7}",
        "  bias: [q, v]",
        "  position: {kind: rope, theta: 10000}",
    ]


def test_a_leaf_that_is_too_wide_is_a_block() -> None:
    lines = text_of_mixer(s.FeedForward(d_ff=20, activation="w" * WIDTH))
    assert lines[:3] == ["mixer:", "  kind: feed_forward", "  d_ff: 20"]


def test_the_order_is_that_of_reading() -> None:
    spec = mixer(s.RgLru(width=8, conv=4, blocks=2), pre_norm=s.Norm(type="rms"), residual_norm=s.Norm(type="rms"))
    spec = msgspec.structs.replace(spec, title="X", license="MIT", total_params=5)
    keys = [line.split(":")[0].strip(" -") for line in model_to_yaml(spec).splitlines()]
    assert keys == [
        *("name", "title", "source", "a paper", "license", "total_params", "stacks", "name", "role", "d_model", "blocks", "pattern"),
        *("sublayers", "name", "pre_norm", "mixer", "residual_norm"),
    ]


@pytest.mark.parametrize("table", [ORDER, STATED], ids=["order", "stated"])
def test_the_tables_name_fields_that_exist(table: dict[type[s.Data], tuple[str, ...]]) -> None:
    for cls, names in table.items():
        assert set(names) <= set(cls.__struct_fields__)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("GPT-2 (small), 2019", "GPT-2 (small), 2019"),
        ("a: b", '"a: b"'),
        ("a #b", '"a #b"'),
        ("ends:", '"ends:"'),
        ("No", '"No"'),
        ("3", '"3"'),
        (" a", '" a"'),
        ("- a", '"- a"'),
        ("{a}", '"{a}"'),
        ('a"b', 'a"b'),
        ("'a'", "\"'a'\""),
        ("1/√D", '"1/√D"'),
        ("a\nb\tc\u2028\x85\U000e0001", '"a\\nb\\tc\\u2028\\u0085\\U000e0001"'),
    ],
    ids=[
        "plain",
        "colon",
        "comment",
        "last-colon",
        "boolean",
        "number",
        "space",
        "dash",
        "brace",
        "quote",
        "quotes",
        "first-digit",
        "control",
    ],
)
def test_text(value: str, shown: str) -> None:
    text = model_to_yaml(model(title=value))
    assert f"title: {shown}\n" in text
    assert yaml.safe_load(text)["title"] == model_from_yaml(text, "text").title == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1e-6, "1.0e-06"),
        (0.25, "0.25"),
        (10000.0, "10000"),
        (1e20, "1.0e+20"),
        (2.5e-300, "2.5e-300"),
        (0.1 + 0.2, "0.30000000000000004"),
        (-3.0, "-3"),
    ],
)
def test_numbers(value: float, shown: str) -> None:
    """Read alike by YAML 1.1, where 1e-6 is text, and 1.2."""
    text = model_to_yaml(mixer(s.Attention(heads=1, kv_heads=1, head_dim=2, mask=s.Causal(), scale=value)))
    assert f"scale: {shown}\n" in text
    data = yaml.safe_load(text)["stacks"][0]["blocks"][0]["pattern"][0]["sublayers"][0]["mixer"]
    assert data["scale"] == value


def test_long_text_is_wrapped() -> None:
    sentence = "words and more words, " * 20 + "end"
    spec = model(source=(sentence, f"quoted: {sentence}", "two  spaces " + sentence))
    text = model_to_yaml(spec)
    assert [line for line in text.splitlines() if len(line) > WIDTH and "two  spaces" not in line] == []
    assert model_from_yaml(text, "text") == spec


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=300), min_size=1, max_size=3))
def test_any_text_loads_back(lines: list[str]) -> None:
    spec = model(
        title=lines[0], assumptions=tuple(lines), sublayers=(s.Sublayer(name="a", mixer=s.FeedForward(d_ff=1, activation=lines[-1])),)
    )
    assert model_from_yaml(model_to_yaml(spec), "text") == spec


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_number_loads_back(value: float) -> None:
    spec = mixer(s.FeedForward(d_ff=1, activation="relu"), residual_scale=value)
    assert model_from_yaml(model_to_yaml(spec), "text") == spec
