"""Every model preset against published figures: parameters, active parameters, FLOPs, caches; and what a preset must be."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tfm.estimators.ledger import ledger, total
from tfm.estimators.rows import Row
from tfm.estimators.work import Pass
from tfm.presets.dump import model_to_yaml
from tfm.presets.errors import TfmError
from tfm.presets.loader import FOLDER, load_model, load_preset, model_aliases
from tfm.presets.spec import Attention, Data, Embedding, LatentAttention, Linear, ModelSpec, Parameter, RelativeBuckets

# Parameters in all, used for one token, and the source of the figure where it is not the issue's own: the sum of the
# shapes in the published safetensors index, or what PyTorch counts in the class built from the published configuration.
PARAMETERS = {
    "transformer-base": (63_045_632, 63_045_632),  # by hand below
    "transformer-big": (214_171_648, 214_171_648),
    "transformer-toy": (2_208, 2_208),
    "bert-base": (109_482_240, 109_482_240),
    "bert-large": (335_141_888, 335_141_888),
    "t5-small": (60_506_624, 60_506_624),
    "t5-base": (222_903_552, 222_903_552),
    "t5-11b": (11_307_321_344, 11_307_321_344),
    "gpt-2": (124_439_808, 124_439_808),
    "gpt-2-medium": (354_823_168, 354_823_168),
    "gpt-2-large": (774_030_080, 774_030_080),
    "gpt-2-xl": (1_557_611_200, 1_557_611_200),
    "gpt-3-175b": (174_604_259_328, 174_604_259_328),  # the paper: 175.0 billion
    "llama-7b": (6_738_415_616, 6_738_415_616),
    "llama-13b": (13_015_864_320, 13_015_864_320),
    "llama-33b": (32_528_943_616, 32_528_943_616),
    "llama-65b": (65_285_660_672, 65_285_660_672),
    "llama-2-7b": (6_738_415_616, 6_738_415_616),
    "llama-2-13b": (13_015_864_320, 13_015_864_320),
    "llama-2-70b": (68_976_648_192, 68_976_648_192),
    "llama-3-8b": (8_030_261_248, 8_030_261_248),
    "llama-3-70b": (70_553_706_496, 70_553_706_496),
    "llama-3.1-405b": (405_853_388_800, 405_853_388_800),
    "mistral-7b": (7_241_732_096, 7_241_732_096),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "qwen2.5-7b": (7_615_616_512, 7_615_616_512),
    "qwen2.5-72b": (72_706_203_648, 72_706_203_648),
    "qwen3-8b": (8_190_735_360, 8_190_735_360),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "gemma-2-9b": (9_241_705_984, 9_241_705_984),
    "gemma-2-27b": (27_227_128_320, 27_227_128_320),
    "gemma-3-27b": (27_432_406_640, 27_432_406_640),
    "deepseek-v3": (671_026_404_352, 37_552_282_624),
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704),
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912),
    "vit-b-16": (86_567_656, 86_567_656),
    "whisper-large-v3": (1_543_490_560, 1_543_490_560),
    "openvla-7b": (7_541_237_184, 7_525_998_832),  # SigLIP's pooling head is held and never runs
}
NAMES = sorted(PARAMETERS)
# Not published by anyone: no `total_params` in the file.
UNPUBLISHED = {"gpt-3-175b"}


def rows_of(spec: ModelSpec, **options: Any) -> tuple[Row, ...]:
    return ledger(spec, Pass(**options))


def parameters(spec: ModelSpec) -> tuple[int, int, int]:
    """Parameters in all, those used for a token, buffers."""
    rows = rows_of(spec)
    params, active, buffers = (total(rows, name, per="copies") for name in ("params", "active", "buffers"))
    return params, active, buffers


def kept(spec: ModelSpec, of: str, policy: str = "minimal", **options: Any) -> int:
    """Bytes at 2 an element that are kept between steps."""
    held: list[int] = [getattr(row.store, policy) * row.repeat for row in rows_of(spec, **options) if row.store and row.store.of == of]
    return 2 * sum(held)


# --- the figures ----------------------------------------------------------------------------------------------------


def test_the_table_names_every_preset() -> None:
    assert sorted(path.stem for path in FOLDER.glob("[!_]*.yaml")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_parameters(name: str) -> None:
    params, active, buffers = parameters(load_model(name))
    assert (params, active) == PARAMETERS[name]
    assert buffers == {"deepseek-v3": 14_848}.get(name, 0)


@pytest.mark.parametrize("name", NAMES)
def test_total_params_of_the_file_is_the_sum(name: str) -> None:
    spec = load_model(name)
    assert spec.total_params == (None if name in UNPUBLISHED else PARAMETERS[name][0])


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((512, 2048, 37_000, 6), 63_045_632), ((1024, 4096, 37_000, 6), 214_171_648), ((8, 16, 100, 1), 2_208)],
    ids=["base", "big", "toy"],
)
def test_the_original_transformer_by_hand(sizes: tuple[int, int, int, int], expected: int) -> None:
    """V·D + L·(encoder 4D² + FFN + 2 norms) + L·(decoder 8D² + FFN + 3 norms), FFN = 2·D·F + F + D, norm = 2D."""
    D, F, V, L = sizes
    feed_forward = 2 * D * F + F + D
    assert V * D + L * (4 * D**2 + feed_forward + 4 * D) + L * (8 * D**2 + feed_forward + 6 * D) == expected


@pytest.mark.parametrize(
    ("share", "options", "expected"),
    [
        ("linear", {}, 2 * 4096 * 32 * (4 * 4096**2 + 3 * 4096 * 11008)),
        ("attention", {}, 32 * 2 * 32 * (4096 * 4097 // 2) * (128 + 128)),
        ("attention", {"full_attention": True}, 32 * 2 * 32 * 4096**2 * (128 + 128)),
        ("head", {}, 2 * 4096 * 4096 * 32000),
    ],
    ids=["linear-53.05T", "attention-causal-4.40T", "attention-full-8.80T", "head-1.07T"],
)
def test_llama_2_7b_prefill_of_4096(share: str, options: dict[str, Any], expected: int) -> None:
    rows = [row for row in rows_of(load_model("llama-2-7b"), context=4096, **options) if row.share == share]
    assert total(rows, "flops") == expected
    stated = {"linear": 53.05, "head": 1.07, "attention": 8.80 if options else 4.40}[share]
    assert round(expected / 1e12, 2) == stated


@pytest.mark.parametrize(
    ("name", "policy", "context", "batch", "expected"),
    [
        ("llama-2-7b", "minimal", 1, 1, 524_288),
        ("llama-2-7b", "minimal", 32_768, 1, 16 * 2**30),
        ("llama-2-70b", "minimal", 4_096, 1, 1_342_177_280),
        ("mistral-7b", "minimal", 32_768, 1, 4_096 * 131_072),
        ("mistral-7b", "full", 32_768, 1, 32_768 * 131_072),
        ("deepseek-v3", "minimal", 1, 1, 70_272),
        ("deepseek-v3", "minimal", 65_536, 1, 4_605_345_792),
        ("deepseek-v3", "decompressed", 65_536, 1, 327_491_256_320),
        ("gemma-2-27b", "minimal", 8_192, 1, 2_315_255_808),
        ("gemma-2-27b", "full", 8_192, 1, 3_087_007_744),
        ("gemma-3-27b", "minimal", 1, 1, 507_904),
        ("gpt-oss-120b", "minimal", 1, 1, 73_728),
        ("gpt-oss-20b", "minimal", 8_192, 32, 6_543_114_240),
        ("gpt-oss-20b", "full", 8_192, 32, 12 * 2**30),
        ("whisper-large-v3", "minimal", 1, 1, 163_840),
        ("t5-11b", "minimal", 1, 1, 1_572_864),
    ],
    ids=str,
)
def test_self_attention_cache(name: str, policy: str, context: int, batch: int, expected: int) -> None:
    assert kept(load_model(name), "self", policy, phase="decode", context=context, batch=batch) == expected


@pytest.mark.parametrize("context", [1, 7, 448])
def test_whisper_keeps_245_760_000_bytes_of_the_sound_whatever_is_generated(context: int) -> None:
    spec = load_model("whisper-large-v3")
    assert kept(spec, "cross", phase="decode", context=context) == 245_760_000
    assert kept(spec, "cross", phase="decode", context=context, batch=3) == 3 * 245_760_000


@pytest.mark.parametrize("name", ["bert-base", "bert-large", "vit-b-16"])
def test_an_encoder_keeps_nothing(name: str) -> None:
    spec = load_model(name)
    assert not spec.decodes
    assert all(row.store is None for row in rows_of(spec))


@pytest.mark.parametrize(("name", "batch", "expected"), [("mixtral-8x7b", 3, 4.625), ("deepseek-v3", 64, 222.4)])
def test_distinct_experts_of_a_decode_step(name: str, batch: int, expected: float) -> None:
    rows = rows_of(load_model(name), phase="decode", batch=batch)
    (distinct,) = {row.dims["distinct"] for row in rows if row.op == "experts"}
    assert round(distinct, 3 if expected == 4.625 else 1) == expected


def test_vit_runs_its_convolution_on_patches_and_its_head_once() -> None:
    """17.6 GMAC, as is usually said of ViT-B/16: 196 patches, 197 positions, one class token."""
    rows = {row.path: row for row in rows_of(load_model("vit-b-16"), batch=5)}
    assert rows["vision/embedding/patches"].dims["m"] == 5 * 196
    assert rows["vision/attention/q_proj"].dims["m"] == 5 * 197
    assert rows["classifier/weight"].dims["m"] == 5
    assert round(total(rows.values(), "flops") / 5 / 2e9, 1) == 17.6


def test_gemma_3_sees_4096_patches_as_256_tokens() -> None:
    spec = load_model("gemma-3-27b")
    assert not any(row.repeat for row in rows_of(spec, context=64) if row.path.startswith(("vision", "projector")))
    rows = {row.path: row for row in rows_of(spec, context=64, images=2, batch=3)}
    assert rows["vision/attention/q_proj"].dims["m"] == 6 * 4096
    assert rows["projector/weight"].dims["m"] == 6 * 256


def test_openvla_sees_with_two_towers_side_by_side() -> None:
    """Two towers over one image: 261 positions with the class token and registers, 256 without; 256 tokens of the decoder."""
    spec = load_model("openvla-7b")
    rows = {row.path: row for row in rows_of(spec, context=280, batch=3)}
    sizes = {path: tuple(rows[path].dims[name] for name in ("m", "k", "n")) for path in rows if "m" in rows[path].dims}
    assert sizes["dinov2/embedding/patches"] == (*sizes["siglip/embedding/patches"][:2], 1024) == (3 * 256, 3 * 14**2, 1024)
    assert sizes["dinov2/attention/q_proj"] == (3 * 261, 1024, 1024)
    assert sizes["siglip/attention/q_proj"] == (3 * 256, 1152, 1152)
    assert sizes["projector/fc1"] == (3 * 256, 1024 + 1152, 4 * 2176)
    assert sizes["projector/fc3"] == (3 * 256, 4096, 4096)
    # the pooling head of vit_so400m_patch14_siglip_224: latent, attention, norm, MLP
    pool = 1152 + 4 * (1152**2 + 1152) + 2 * 1152 + 2 * 1152 * 4304 + 4304 + 1152
    held = [row for row in rows.values() if row.path.startswith("model/siglip_pool")]
    assert sum(row.params for row in held) == pool == 7_541_237_184 - 7_525_998_832
    assert not any(row.repeat or row.active or row.fetches for row in held)
    decoding = [row.path for row in rows_of(spec, phase="decode", context=280) if row.repeat]
    assert not any(path.startswith(("dinov2", "siglip", "projector", "model")) for path in decoding)


def test_a_connector_of_two_towers_needs_both_before_it() -> None:
    spec = load_model("openvla-7b")
    with pytest.raises(TfmError, match="after dinov2"):
        msgspec.structs.replace(spec, stacks=(spec.stacks[1], spec.stacks[0], spec.stacks[2]))
    (joint,) = spec.connectors
    with pytest.raises(TfmError, match="clip"):
        msgspec.structs.replace(spec, connectors=(msgspec.structs.replace(joint, beside=("clip",)),))


def test_whisper_halves_its_frames() -> None:
    rows = {row.path: row for row in rows_of(load_model("whisper-large-v3"), context=10)}
    assert [rows[f"encoder/embedding/{name}"].dims["m"] for name in ("conv1", "conv2")] == [3000, 1500]


# --- what a preset must be ------------------------------------------------------------------------------------------


def walk(value: Any) -> Iterator[Data]:
    """Every struct in a spec."""
    if isinstance(value, Data):
        yield value
        for name in value.__struct_fields__:
            yield from walk(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from walk(item)


@pytest.mark.parametrize("name", NAMES)
def test_a_source_is_a_paper_or_a_published_configuration(name: str) -> None:
    text = "\n".join(load_model(name).source)
    assert re.search(r"arXiv:\d{4}\.\d{5}|Radford et al\. 2019", text)
    assert re.search(r"table \d|section \d|appendix|published config\.json of [\w.-]+/[\w.-]+", text)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_written_as_show_prints_it(name: str) -> None:
    """One style for all; `presets/dump.py` writes it. No anchors either, which would be numbers taken from elsewhere."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert text == model_to_yaml(load_model(name))
    assert not any(getattr(event, "anchor", None) for event in yaml.parse(text))


@pytest.mark.parametrize("name", NAMES)
def test_tied_weights_have_an_owner_of_their_shape(name: str) -> None:
    spec = load_model(name)
    rows = {row.path: row for row in rows_of(spec)}
    widths = {stack.name: stack.d_model for stack in spec.stacks}
    for stack in spec.stacks:
        for table in (leaf for leaf in stack.embeddings if isinstance(leaf, Embedding) and leaf.shares):
            owner = rows[table.shares or ""]
            assert (owner.dims, owner.copies) == ({"rows": table.rows, "n": stack.d_model}, 1)
    for head in spec.heads:
        for leaf in (leaf for leaf in head.parts if isinstance(leaf, Linear)):
            assert leaf.d_in == widths[head.stack]
            if leaf.shares:
                assert (rows[leaf.shares].dims, rows[leaf.shares].copies) == ({"rows": leaf.d_out, "n": leaf.d_in}, 1)


@pytest.mark.parametrize("name", NAMES)
def test_position_tables_fit(name: str) -> None:
    """A learned table has one row a position; T5's biases one row a bucket and one column a head."""
    for stack in load_model(name).stacks:
        tables = [leaf.rows for leaf in stack.embeddings if isinstance(leaf, Embedding) and leaf.role == "position"]
        assert tables in ([], [stack.max_positions or stack.default_tokens])
        shapes = {(found.position.buckets, found.heads) for found in attentions(stack) if isinstance(found.position, RelativeBuckets)}
        biases = [leaf.shape for leaf in stack.embeddings if isinstance(leaf, Parameter) and leaf.name == "relative_bias"]
        assert biases == list(shapes)


def attentions(value: Any) -> list[Attention]:
    return [found for found in walk(value) if isinstance(found, Attention)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mistral-7b", ["sliding"] * 32),
        ("mixtral-8x7b", ["causal"] * 32),
        ("gemma-2-9b", ["sliding", "causal"] * 21),
        ("gemma-2-27b", ["sliding", "causal"] * 23),
        ("gemma-3-27b", ["causal" if i % 6 == 5 else "sliding" for i in range(62)]),
        ("gpt-oss-20b", ["sliding", "causal"] * 12),
        ("gpt-oss-120b", ["sliding", "causal"] * 18),
        ("deepseek-v3", ["causal"] * 61),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_which_layer_has_a_window(name: str, expected: list[str]) -> None:
    mixers = [sub.mixer for layer in load_model(name).main.layers() for sub in layer.sublayers]
    masks = [mixer.mask.__struct_config__.tag for mixer in mixers if isinstance(mixer, Attention | LatentAttention)]
    assert masks == expected


def test_deepseek_has_three_dense_layers() -> None:
    kinds = [layer.name for layer in load_model("deepseek-v3").main.layers()]
    assert kinds == ["dense"] * 3 + ["moe"] * 58


@pytest.mark.parametrize(
    ("name", "field", "expected"),
    [
        ("gemma-2-9b", "scale", 256**-0.5),
        ("gemma-2-27b", "scale", 144**-0.5),
        ("gemma-3-27b", "scale", 168**-0.5),
        ("t5-11b", "scale", 1.0),
        ("gemma-2-27b", "softcap", 50.0),
        ("gpt-oss-20b", "sinks", True),
        ("llama-2-70b", "kv_heads", 8),
        ("whisper-large-v3", "bias", ("q", "v", "o")),
        ("qwen2.5-7b", "bias", ("q", "k", "v")),
    ],
)
def test_attention_of_the_main_stack(name: str, field: str, expected: object) -> None:
    assert {getattr(found, field) for found in attentions(load_model(name).main)} == {expected}


# --- names ----------------------------------------------------------------------------------------------------------


def test_aliases_are_other_names_of_presets() -> None:
    aliases = model_aliases()
    assert set(aliases.values()) <= set(NAMES)
    assert not set(aliases) & set(NAMES)
    required = {"llama-70b": "llama-2-70b", "gpt2": "gpt-2", "gpt2-medium": "gpt-2-medium", "gpt2-large": "gpt-2-large"}
    assert required.items() <= aliases.items()
    assert load_model("llama-70b") == load_model("llama-2-70b")


# --- a changed file is noticed --------------------------------------------------------------------------------------

COUNTED = {
    *("rows", "width", "shape", "kernel", "repeat", "d_in", "d_out", "d_model", "d_ff", "experts", "top_k"),
    *("heads", "kv_heads", "head_dim", "q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim"),
}


def counted_places(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where a preset's data holds a size that the count depends on (tied weights are their owner's)."""
    if isinstance(data, list):
        for index, item in enumerate(data):
            yield from counted_places(item, (*path, index))
    elif isinstance(data, dict) and "shares" not in data:
        for key, item in data.items():
            yield from counted_places(item, (*path, key))
    elif isinstance(data, int) and not isinstance(data, bool) and any(key in COUNTED for key in path[-2:]):
        yield path


def with_one_more(data: Any, path: tuple[str | int, ...]) -> Any:
    changed = copy.deepcopy(data)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] += 1
    return changed


@pytest.mark.parametrize("name", NAMES)
def test_a_size_that_is_off_by_one_is_noticed(name: str) -> None:
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    right = parameters(msgspec.convert(data, ModelSpec))
    places = list(counted_places(data))
    assert len(places) >= 7
    for path in places:
        try:
            wrong = parameters(msgspec.convert(with_one_more(data, path), ModelSpec))
        except (TfmError, msgspec.ValidationError):  # kv_heads that no longer divide heads
            continue
        assert wrong != right, path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"^name: .*$", "name: another"),
        (r"^stacks:$", "stack:"),
        (r"^source:$", "sources:"),
        (r"^(    d_model: ).*$", r"\1wide"),
        (r"^(    d_model: ).*$", r"\1-8"),
        (r"^    role: .*$", "    role: coder"),
        (r"kind: attention|kind: latent_attention", "kind: attentive"),
        (r"^    blocks:$", "    colour: red\n    blocks:"),
    ],
    ids=["other-name", "no-stacks", "no-source", "text-for-a-size", "negative-size", "unknown-role", "unknown-kind", "unknown-field"],
)
def test_a_broken_file_is_refused_by_name(name: str, old: str, new: str, tmp_path: Path) -> None:
    text, changes = re.subn(old, new, (FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
    assert changes == 1
    file = tmp_path / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(TfmError, match=re.escape(str(file))):
        load_preset(file)


def test_components_cover_the_model() -> None:
    """What `tfm params` groups by: nothing is left without a component."""
    for name in NAMES:
        parts: Counter[str] = Counter()
        for row in rows_of(load_model(name)):
            parts[row.component] += row.params * row.copies
        assert "" not in parts
        assert sum(parts.values()) == PARAMETERS[name][0]
