"""Towers over images: patches, learned tokens, pooling, two towers side by side."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.estimators.flops import flops
from tfm.estimators.ledger import ledger
from tfm.estimators.params import params
from tfm.estimators.work import Pass
from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import read_config
from tfm.presets.spec import ModelSpec

Data = dict[str, Any]
SMALL: Data = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "image_size": 32,
    "patch_size": 8,
}
TEXT: Data = {
    "vocab_size": 211, "hidden_size": 40, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 5,
    "max_position_embeddings": 77,
}  # fmt: skip
D = 48


def read(kind: str, cls: str | None = None, **data: Any) -> ModelSpec:
    named = {"architectures": [cls]} if cls else {}
    return read_config({"model_type": kind, **named, **data})


GIANT: Data = {
    "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 24, "image_size": 518, "use_swiglu_ffn": True,
}  # fmt: skip
BIG_G: Data = {"hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 20, "num_hidden_layers": 32, "projection_dim": 1280}
THOUSAND: Data = {"id2label": {str(label): "" for label in range(1000)}}


@pytest.mark.parametrize(
    ("kind", "cls", "sizes", "total", "embedding"),
    [
        pytest.param("vit", "ViTForImageClassification", THOUSAND, 86567656, 0, id="ViT B/16: positions are no table"),
        pytest.param("vit", "ViTModel", {}, 86389248, 0, id="ViT B/16 with a pooler"),
        pytest.param("dinov2", "Dinov2Model", {"image_size": 518}, 86580480, 0, id="DINOv2 base"),
        pytest.param("dinov2", "Dinov2Model", GIANT, 1136480768, 0, id="DINOv2 giant: SwiGLU of two thirds"),
        pytest.param("clip", "CLIPModel", {}, 151277313, 25374720, id="CLIP B/32: positions of both towers are tables"),
        pytest.param("clip_text_model", "CLIPTextModelWithProjection", BIG_G, 694659840, 63340800, id="OpenCLIP bigG's text tower"),
        pytest.param("siglip", "SiglipModel", {}, 203155970, 24775680, id="SigLIP base"),
    ],
)
def test_published_counts(kind: str, cls: str, sizes: Data, total: int, embedding: int) -> None:
    count = params(read(kind, cls, **sizes))
    assert (count.total_params, count.embedding_params, count.lm_head_params) == (total, embedding, 0)


@pytest.mark.parametrize(
    ("image", "patch", "patches"),
    [
        pytest.param(32, 8, 16, id="square"),
        pytest.param([32, 48], 8, 24, id="a wide image"),
        pytest.param([32, 48], [8, 16], 12, id="tall patches"),
        pytest.param(50, 8, 36, id="whole patches only"),
    ],
)
def test_patches(image: Any, patch: Any, patches: int) -> None:
    spec = read("vit", None, **{**SMALL, "image_size": image, "patch_size": patch})
    assert spec.stacks[0].default_tokens == patches + 1
    rows = {row.path: row for row in ledger(spec, Pass(batch=3, images=2))}
    high, wide = patch if isinstance(patch, list) else (patch, patch)
    assert rows["vision/embedding/patches"].flops == 2 * (3 * 2 * patches) * (3 * high * wide) * D
    assert rows["vision/attention/q_proj"].flops == 2 * (3 * 2 * (patches + 1)) * D * D
    assert rows["classifier/weight"].flops == 2 * (3 * 2) * D * 2


def test_an_image_model_runs_with_one_image_and_ignores_the_context() -> None:
    spec = read("vit", None, **SMALL)
    assert flops(spec, Pass(context=8)).total_flops == flops(spec, Pass(context=800, images=1)).total_flops > 0


@pytest.mark.parametrize(
    ("kind", "cls", "data", "tokens", "beyond"),
    [
        # tokens before the patches; parameters beyond ViT without a head
        pytest.param("vit", "ViTModel", {"pooler_output_size": 40}, 1, 40 * D + 40, id="a narrow pooler"),
        pytest.param("vit", "ViTForImageClassification", {"id2label": {}}, 1, 0, id="no labels, no classifier"),
        pytest.param("vit", "ViTForMaskedImageModeling", {"encoder_stride": 8}, 1, D + 192 * D + 192, id="pixels of masked patches"),
        pytest.param("vit", "ViTForImageClassification", {"qkv_bias": False}, 1, 2 * D + 2 - 3 * 3 * D, id="no biases on q, k, v"),
        pytest.param("deit", "DeiTForImageClassification", {}, 2, 2 * D + 2 * D + 2, id="a token that learns from a teacher"),
        pytest.param("deit", "DeiTForImageClassificationWithTeacher", {}, 2, 2 * D + 2 * (2 * D + 2), id="two classifiers"),
    ],
)
def test_classes(kind: str, cls: str, data: Data, tokens: int, beyond: int) -> None:
    spec = read(kind, cls, **SMALL, **data)
    bare = params(read("vit", "ViTForImageClassification", **SMALL)).total_params - (2 * D + 2)
    assert spec.stacks[0].default_tokens == 16 + tokens
    assert params(spec).total_params - bare == beyond


def test_dino_scales_its_layers_and_may_have_registers() -> None:
    sizes = {key: value for key, value in SMALL.items() if key != "intermediate_size"}
    plain = params(read("dinov2", None, **sizes)).total_params
    assert plain - params(read("dinov2", None, **sizes, use_mask_token=False)).total_params == D
    registers = read("dinov2_with_registers", None, **sizes, num_register_tokens=5)
    assert params(registers).total_params - plain == 5 * D
    assert registers.stacks[0].default_tokens == 16 + 1 + 5
    vit = params(read("vit", "ViTForImageClassification", **SMALL, id2label={}, num_labels=0)).total_params
    assert plain - vit == D + 3 * 2 * D + 3 * (2 * D + 1) * (4 * D - 80)  # mask token, layer scales, a wider feed-forward


@pytest.mark.parametrize(("ratio", "width"), [pytest.param(4, 128, id="128 is a multiple of 8"), pytest.param(3, 96, id="rounded up")])
def test_swiglu_takes_two_thirds(ratio: int, width: int) -> None:
    sizes = {key: value for key, value in SMALL.items() if key != "intermediate_size"}
    rows = {row.path: row for row in ledger(read("dinov2", None, **sizes, use_swiglu_ffn=True, mlp_ratio=ratio), Pass())}
    assert rows["vision/feed_forward/gate_proj"].params == D * width + width


# --- two towers -----------------------------------------------------------------------------------------------------


def clip(cls: str | None = None, **data: Any) -> ModelSpec:
    return read("clip", cls, text_config=TEXT, vision_config=SMALL, projection_dim=24, **data)


def test_every_text_meets_every_image() -> None:
    B, T = 3, 7
    rows = {row.path: row for row in ledger(clip(), Pass(batch=B, context=T, images=2))}
    assert rows["similarity/logits"].flops == 2 * B * 24 * (B * 2)
    assert rows["text_projection/weight"].flops == 2 * B * 40 * 24
    assert rows["visual_projection/weight"].flops == 2 * (B * 2) * D * 24
    assert rows["text/attention/scores"].flops == 2 * B * 5 * (T * (T + 1) // 2) * 2 * 8  # causal
    assert rows["vision/attention/scores"].flops == 2 * (B * 2) * 4 * 17 * 17 * 2 * 12


def test_one_tower_of_two() -> None:
    text, image = clip("CLIPTextModel"), clip("CLIPVisionModelWithProjection")
    assert [stack.name for stack in text.stacks] == ["text"]
    assert text.images == 0
    assert (image.images, image.heads[0].name) == (1, "vision_projection")
    assert params(text) == params(read("clip_text_model", None, **TEXT))


def test_an_older_section_beside_the_newer_counts_alone() -> None:
    older = clip(text_config_dict={**TEXT, "num_hidden_layers": 4}, vision_config_dict=None)
    assert [stack.depth for stack in older.stacks] == [4, 3]


class TestSiglip:
    """A learned query pools the image: one token an image, attending the tower."""

    B, N = 3, 16

    def read(self, kind: str = "siglip", **vision: Any) -> ModelSpec:
        given = {key: value for key, value in SMALL.items() if kind == "siglip" or key != "image_size"}
        return read(kind, None, text_config={**TEXT, "projection_size": D}, vision_config={**given, **vision})

    def test_the_query_attends_its_image_alone(self) -> None:
        rows = {row.path: row for row in ledger(self.read(), Pass(batch=self.B, context=5, images=2))}
        images = self.B * 2
        assert rows["pooler/attention/q_proj"].flops == 2 * images * D * D
        assert rows["pooler/attention/k_proj"].flops == 2 * images * self.N * D * D
        assert rows["pooler/attention/scores"].flops == 2 * images * 4 * self.N * 2 * 12
        assert rows["pooler/feed_forward/up_proj"].flops == 2 * images * D * 80

    def test_without_it(self) -> None:
        with_query, without = (params(self.read(vision_use_head=flag)).total_params for flag in (True, False))
        assert with_query - without == D + 4 * (D * D + D) + 2 * D + D * 80 + 80 + 80 * D + D

    def test_the_second_reads_patches_of_any_image(self) -> None:
        spec = self.read("siglip2", num_patches=25)
        assert spec.stacks[1].default_tokens == 25
        first = ledger(spec, Pass())
        assert next(row for row in first if row.path == "vision/embedding/patches").params == 3 * 8 * 8 * D + D


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        pytest.param("vit", {**SMALL, "patch_size": 64}, "larger than image_size 32 x 32", id="no whole patch"),
        pytest.param("vit", {**SMALL, "image_size": [1, 2, 3]}, "a pair of them, got", id="three sides"),
        pytest.param("vit", {**SMALL, "image_size": True}, "a pair of them, got true", id="a boolean side"),
        pytest.param("vit", {**SMALL, "architectures": ["ViTForPoetry"]}, "classes that end in", id="a class nobody knows"),
        pytest.param("clip", {"vision_config": {**SMALL, "num_attention_heads": 5}}, "5 heads do not divide", id="inside a section"),
        pytest.param("clip", {"text_config": {"depth": 3}}, "text_config: depth = 3 is not understood", id="a key nobody asked for"),
    ],
)
def test_refused(kind: str, data: Data, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        read_config({"model_type": kind, **data})
