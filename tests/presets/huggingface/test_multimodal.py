"""Language models that see: published counts, what ties, projectors, layers that rest without an image."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.estimators.flops import flops
from tfm.estimators.kvcache import kvcache
from tfm.estimators.ledger import ledger
from tfm.estimators.params import params
from tfm.estimators.rows import Row
from tfm.estimators.work import Pass
from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import read_config
from tfm.presets.spec import ModelSpec

Data = dict[str, Any]
TEXT: Data = {
    "vocab_size": 211, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 5,
    "num_key_value_heads": 5, "head_dim": 8,
}  # fmt: skip
TOWER: Data = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "image_size": 32,
    "patch_size": 8,
}
QWEN: Data = {"depth": 3, "num_heads": 4, "patch_size": 4, "out_hidden_size": 40}
D, V = 40, 211


def read(kind: str, cls: str | None = None, **data: Any) -> ModelSpec:
    named = {"architectures": [cls]} if cls else {}
    return read_config({"model_type": kind, **named, **data})


def rows(spec: ModelSpec, **work: Any) -> dict[str, Row]:
    return {row.path: row for row in ledger(spec, Pass(**work))}


SMALLEST: dict[str, Data] = {
    "llava": {"text_config": TEXT, "vision_config": TOWER},
    "llava_next": {"text_config": TEXT, "vision_config": TOWER},
    "mistral3": {"text_config": TEXT, "vision_config": TOWER},
    "paligemma": {"text_config": TEXT, "vision_config": TOWER, "projection_dim": D},
    "gemma3": {"text_config": TEXT, "vision_config": TOWER, "mm_tokens_per_image": 4},
    "gemma4": {"text_config": {**TEXT, "hidden_size_per_layer_input": 0}, "vision_config": {"num_hidden_layers": 2}},
    "qwen2_vl": {"text_config": TEXT, "vision_config": {"depth": 2, "hidden_size": D}},
    "qwen3_vl": {"text_config": TEXT, "vision_config": {"hidden_size": 48, **QWEN}},
    "llama4": {"text_config": TEXT, "vision_config": TOWER},
    "lfm2_vl": {"text_config": {key: value for key, value in TEXT.items() if key != "head_dim"}, "vision_config": {"num_patches": 16}},
    "kimi_k25": {"text_config": {"num_hidden_layers": 2, "vocab_size": V, "hidden_size": D}, "vision_config": {"vt_num_hidden_layers": 2}},
    "minimax_m3_vl": {
        "text_config": {"num_hidden_layers": 2, "vocab_size": V, "hidden_size": D},
        "vision_config": {"num_hidden_layers": 2},
    },
}


@pytest.mark.parametrize(
    ("kind", "top", "nested", "tied"),
    [
        pytest.param("llava", None, None, False, id="llava: not by itself"),
        pytest.param("llava", None, True, True, id="llava: the text model may say it"),
        pytest.param("llava_next", None, True, False, id="llava next: only the top level"),
        pytest.param("mistral3", None, False, True, id="mistral 3: by itself, whatever the text says"),
        pytest.param("mistral3", False, True, False, id="mistral 3: the top level decides"),
        pytest.param("paligemma", None, False, True, id="paligemma: by itself"),
        pytest.param("gemma3", False, True, False, id="gemma 3: the top level decides"),
        pytest.param("gemma4", None, None, True, id="gemma 4: by itself"),
        pytest.param("qwen2_vl", None, True, True, id="qwen 2: either level"),
        pytest.param("qwen3_vl", None, True, False, id="qwen 3: the top level decides"),
        pytest.param("qwen3_vl", True, False, True, id="qwen 3: tied at the top"),
        pytest.param("llama4", True, None, False, id="llama 4: the text model decides"),
        pytest.param("llama4", None, True, True, id="llama 4: tied in the text model"),
        pytest.param("lfm2_vl", None, False, True, id="lfm2: by itself"),
        pytest.param("kimi_k25", None, False, True, id="kimi: by itself"),
        pytest.param("minimax_m3_vl", None, True, True, id="minimax: either level"),
    ],
)
def test_what_ties(kind: str, top: bool | None, nested: bool | None, tied: bool) -> None:
    data = {**SMALLEST[kind]}
    if top is not None:
        data["tie_word_embeddings"] = top
    if nested is not None:
        data["text_config"] = {**data["text_config"], "tie_word_embeddings": nested}
    assert params(read(kind, None, **data)).lm_head_params == (0 if tied else V * D)


@pytest.mark.parametrize("kind", SMALLEST)
def test_a_tower_rests_until_an_image_comes(kind: str) -> None:
    spec = read(kind, None, **SMALLEST[kind])
    assert spec.images == 0
    without = rows(spec, context=64)
    assert not any(row.repeat for path, row in without.items() if path.split("/")[0] in ("vision", "pooler", "projector"))
    decoded = flops(spec, Pass(phase="decode", context=64))
    assert decoded.total_flops == flops(spec, Pass(phase="decode", context=64, images=2)).total_flops
    one, two = (flops(spec, Pass(context=64, images=images)).total_flops for images in (1, 2))
    assert two - one == one - flops(spec, Pass(context=64)).total_flops > 0


@pytest.mark.parametrize("kind", SMALLEST)
def test_the_class_without_an_output_matrix(kind: str) -> None:
    data = {**SMALLEST[kind], "tie_word_embeddings": False}
    data["text_config"] = {**data["text_config"], "tie_word_embeddings": False}
    untied = params(read(kind, None, **data))
    assert untied.total_params - params(read(kind, "SomeModel", **data)).total_params == V * D


LLAMA_32: Data = {
    "text_config": {
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 100,
        "cross_attention_layers": list(range(3, 100, 5)),
    },
    "vision_config": {"image_size": 560},
}  # fmt: skip
GEMMA_27B: Data = {
    "text_config": {
        "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
        "head_dim": 128, "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27,
        "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip
QWEN_7B: Data = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "vision_config": {"hidden_size": 1280},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "data", "total", "embedding", "per_token"),
    [
        pytest.param("llava", {"text_config": {"vocab_size": 32064}}, 7063427072, 131924992, 524288, id="LLaVA 1.5 7B"),
        pytest.param("mllama", LLAMA_32, 88593355323, 1124604928, 327680, id="Llama 3.2 90B: 80 layers grow"),
        pytest.param("gemma3", GEMMA_27B, 27432406640, 1414348800, 507904, id="Gemma 3 27B"),
        pytest.param("qwen2_5_vl", QWEN_7B, 8292166656, 544997376, 57344, id="Qwen2.5-VL 7B: keys at the top level"),
    ],
)
def test_published_counts(kind: str, data: Data, total: int, embedding: int, per_token: int) -> None:
    spec = read(kind, None, **data)
    count = params(spec)
    assert (count.total_params, count.embedding_params) == (total, embedding)
    assert kvcache(spec, Pass(context=99)).kv_bytes_per_token == per_token


# --- projectors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "positions", "wide"),
    [
        pytest.param({}, 16, 48, id="the class token is left out"),
        pytest.param({"vision_feature_select_strategy": "full"}, 17, 48, id="or not"),
        pytest.param({"vision_feature_layer": [-2, -1]}, 16, 96, id="two layers side by side"),
    ],
)
def test_llavas_projector(data: Data, positions: int, wide: int) -> None:
    found = rows(read("llava", None, **SMALLEST["llava"], **data), batch=2, context=64, images=3)
    assert found["projector/linear_1"].flops == 2 * (2 * 3 * positions) * wide * D
    assert found["projector/linear_2"].flops == 2 * (2 * 3 * positions) * D * D


def test_any_tower_before_any_text_model() -> None:
    spec = read("llava", None, text_config={**TEXT, "model_type": "qwen2"}, vision_config={**TOWER, "model_type": "siglip_vision_model"})
    assert [stack.name for stack in spec.stacks] == ["vision", "pooler", "decoder"]
    pixtral = read("llava", None, text_config={**TEXT, "model_type": "mistral"}, vision_config={**TOWER, "model_type": "pixtral"})
    assert pixtral.stacks[0].default_tokens == 16


def test_patches_are_averaged_or_merged() -> None:
    gemma = rows(read("gemma3", None, **SMALLEST["gemma3"]), context=64, images=1)
    assert gemma["projector/linear"].flops == 2 * 4 * 48 * D
    mistral = rows(read("mistral3", None, **SMALLEST["mistral3"]), context=64, images=1)
    assert mistral["projector/merge"].flops == 2 * 4 * (48 * 4) * 48
    llama = rows(read("llama4", None, **SMALLEST["llama4"]), context=64, images=1)
    assert llama["projector/linear"].flops == 2 * 4 * 7680 * D


class TestQwen:
    """Images of any size: 16 x 16 tokens are assumed, and said."""

    def test_the_size_is_said(self) -> None:
        spec = read("qwen3_vl", None, **SMALLEST["qwen3_vl"])
        assert spec.stacks[0].default_tokens == 32 * 32
        assert any("32 x 32 patches" in line and "256 tokens" in line for line in spec.assumptions)

    def test_windows_of_patches(self) -> None:
        vision = {"hidden_size": 48, "intermediate_size": 72, "window_size": 32, "fullatt_block_indexes": [1], **QWEN}
        found = rows(read("qwen2_5_vl", None, text_config=TEXT, vision_config=vision), context=64, images=1)
        inside, everywhere = found["vision/window/attention/scores"], found["vision/global/attention/scores"]
        assert (inside.repeat, everywhere.repeat) == (2, 1)
        assert inside.dims["pairs"] == 16 * 64 * 64  # 16 windows of 8 x 8
        assert everywhere.dims["pairs"] == 1024 * 1024

    def test_whole_windows_whatever_their_side(self) -> None:
        vision = {"hidden_size": 48, "window_size": 56, **QWEN}  # 7 x 7 tokens a window
        assert read("qwen2_5_vl", None, text_config=TEXT, vision_config=vision).stacks[0].default_tokens == (14 * 2) ** 2

    def test_layers_that_are_merged_in_between(self) -> None:
        none, two = (
            params(read("qwen3_vl", None, text_config=TEXT, vision_config={"hidden_size": 48, **QWEN, "deepstack_visual_indexes": listed}))
            for listed in ([], [0, 2])
        )
        merged = 4 * 48
        assert two.total_params - none.total_params == 2 * (2 * merged + merged * merged + merged + merged * D + D)

    def test_flat_and_nested_files_say_the_same(self) -> None:
        vision = {"depth": 2, "hidden_size": D}
        flat, nested = read("qwen2_vl", None, **TEXT, vision_config=vision), read("qwen2_vl", None, text_config=TEXT, vision_config=vision)
        assert flat.stacks == nested.stacks
        both = read("qwen2_vl", None, **TEXT, text_config=TEXT, vision_config=vision)
        assert both.stacks == nested.stacks
        assert any("not used" in line for line in both.assumptions)


CROSSING: Data = {
    "text_config": {
        "vocab_size": V, "hidden_size": D, "intermediate_size": 72, "num_hidden_layers": 4, "num_attention_heads": 5,
        "num_key_value_heads": 5, "cross_attention_layers": [1],
    },
    "vision_config": {
        "hidden_size": 48, "num_hidden_layers": 2, "num_global_layers": 2, "attention_heads": 4, "intermediate_size": 80, "image_size": 32,
        "patch_size": 8, "intermediate_layers_indices": [0], "vision_output_dim": 96,
    },
}  # fmt: skip


class TestCrossAttention:
    """Llama 3.2: layers that attend the image and nothing else."""

    spec = read("mllama", None, **CROSSING)

    def test_they_rest_without_an_image(self) -> None:
        found = rows(self.spec, context=64)
        assert [found[f"decoder/{name}/feed_forward/up_proj"].repeat for name in ("self", "cross")] == [3, 0]
        assert found["decoder/cross/feed_forward/up_proj"].copies == 1

    def test_they_read_every_tile_of_every_image(self) -> None:
        tokens = 4 * 17
        found = rows(self.spec, batch=3, context=20, images=2)
        assert found["decoder/cross/cross_attention/scores"].dims["pairs"] == 20 * 2 * tokens
        assert found["decoder/cross/cross_attention/k_proj"].flops == 2 * (3 * 2 * tokens) * D * D
        assert found["vision/local/attention/scores"].dims["pairs"] == tokens * tokens

    def test_their_cache_is_constant(self) -> None:
        cache = kvcache(self.spec, Pass(context=20, images=2))
        assert cache.cross_kv_bytes == 2 * 68 * 2 * D * 2
        assert cache.kv_bytes_per_token == 3 * 2 * D * 2

    def test_the_token_table_has_rows_for_the_image(self) -> None:
        assert rows(self.spec)["decoder/embedding/token"].params == (V + 8) * D


class TestGemma4:
    """Towers that are there only where the file has them."""

    text: Data = SMALLEST["gemma4"]["text_config"]

    def test_none(self) -> None:
        spec = read("gemma4", None, text_config=self.text, vision_config=None, audio_config=None)
        assert [stack.name for stack in spec.stacks] == ["decoder"]

    def test_sound_is_weighed_and_not_run(self) -> None:
        sound = {
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "subsampling_conv_channels": [8, 4],
            "output_proj_dims": 32,
        }
        deaf, hears = (read("gemma4", None, text_config=self.text, audio_config=given) for given in (None, sound))
        feed_forward = 2 * 4 * 48 * 48 + 2 * 48
        attention = 5 * 48 * 48 + 12 + 2 * 48
        conv = 3 * 48 * 48 + 48 * 5 + 2 * 48
        layers = 2 * (2 * feed_forward + attention + conv + 48)
        ends = 8 * 9 + 8 + 4 * 8 * 9 + 4 + 2 * 4 * 48 + 48 * 32 + 32 + 32 * D
        assert params(hears).total_params - params(deaf).total_params == layers + ends
        assert flops(hears, Pass(context=9, images=1)).total_flops == flops(deaf, Pass(context=9)).total_flops

    def test_a_token_is_nine_patches(self) -> None:
        spec = read("gemma4", None, **SMALLEST["gemma4"], vision_soft_tokens_per_image=70)
        assert spec.stacks[0].default_tokens == 70 * 9

    def test_layers_stated_one_by_one(self) -> None:
        stated = {"2": {"head_dim": 24, "num_key_value_heads": 1}}
        found = rows(read("gemma4", None, text_config={**self.text, "per_layer_config": stated}))
        assert found["decoder/global/attention/k_proj"].params == D * 24
        with pytest.raises(UnreadableError, match="no full layer"):
            read("gemma4", None, text_config={**self.text, "per_layer_config": {"0": {"head_dim": 24}}})


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        pytest.param("llava", {"vision_config": {"model_type": "poetry"}}, "not known as a vision tower", id="a tower nobody knows"),
        pytest.param("llava", {"text_config": {"model_type": "poetry"}}, "not known as a text model", id="a text model nobody knows"),
        pytest.param("llava", {"vision_feature_layer": []}, "a whole number or a list", id="no layer to read"),
        pytest.param(
            "paligemma", {**SMALLEST["paligemma"], "projection_dim": 7}, "must be the text model's", id="a width that does not fit"
        ),
        pytest.param("qwen2_5_vl", {"vision_config": {"window_size": 2}}, "window_size must be", id="a window smaller than a token"),
        pytest.param("mllama", {"vision_config": {"vision_output_dim": 7}}, "vision_output_dim 7 must be", id="layers that do not fit"),
        pytest.param("llama4", {"vision_config": {"pixel_shuffle_ratio": 0.0}}, "pixel_shuffle_ratio 0 must be", id="no token is left"),
        pytest.param("gemma4", {"audio_config": {"subsampling_conv_channels": [8]}}, "must be two numbers", id="one convolution"),
        pytest.param("qwen3_vl", {"vision_config": {"flavour": 3}}, "vision_config: flavour = 3", id="a key nobody asked for"),
    ],
)
def test_refused(kind: str, data: Data, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        read_config({"model_type": kind, **data})
