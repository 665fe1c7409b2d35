"""The real modules have the predicted shapes, and a wrong prediction is seen."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tfm.estimators.shapes import shapes
from tfm.estimators.tensors import Dim, Term
from tfm.estimators.work import Pass
from tfm.kernels.cut import cut
from tfm.kernels.shape_hooks import compare
from tfm.presets.errors import UsageError
from tfm.presets.huggingface import read_config
from tfm.presets.loader import load_model
from tfm.presets.variants import with_kv_heads

TRAIN = Pass(phase="train", batch=2, context=4, source=3)
DECODE = Pass(phase="decode", batch=3, context=37, source=22)
MODELS = [
    pytest.param("transformer-toy", id="encoder and decoder"),
    pytest.param("llama-3-8b", id="grouped heads"),
    pytest.param("qwen3-8b", id="norms on queries and keys"),
    pytest.param("gpt-oss-20b", id="sinks, windows, experts"),
    pytest.param("deepseek-v3", id="MLA, shared experts"),
    pytest.param("whisper-large-v3", id="mel frames"),
    pytest.param("t5-small", id="relative positions"),
]
FORWARD = [pytest.param("bert-base", id="pooler"), pytest.param("vit-b-16", id="patches, class token")]


@pytest.mark.parametrize("name", [*MODELS, *FORWARD])
def test_prefill_and_training_as_predicted(name: str) -> None:
    for phase in ("prefill", "train"):
        seen = compare(cut(load_model(name), 2), Pass(phase=phase, batch=3, context=37, source=22))
        assert [shape for shape in seen if not shape.ok] == []
        assert len(seen) > 20


@pytest.mark.parametrize("name", MODELS)
def test_a_decode_step_as_predicted(name: str) -> None:
    seen = compare(cut(load_model(name), 2), DECODE)
    assert [shape for shape in seen if not shape.ok] == []
    assert any(shape.what == "cache" for shape in seen)


def test_windows_shorter_than_the_context() -> None:
    seen = compare(cut(load_model("gpt-oss-20b"), 2), replace(DECODE, context=300))
    assert [shape for shape in seen if not shape.ok] == []
    caches = {shape.path: shape.observed for shape in seen if shape.what == "cache"}
    assert {size[2] for size in caches.values() if size} == {128, 300}


def test_what_is_compared() -> None:
    seen = {(shape.path, shape.what, shape.observed) for shape in compare(load_model("transformer-toy"), TRAIN)}
    assert {
        ("decoder/cross_attention/scores", "weights", (2, 2, 4, 3)),
        ("decoder/cross_attention/k_proj", "input", (2, 3, 8)),
        ("decoder/attention/scores", "output", (2, 2, 4, 4)),
        ("logits", "output", (2, 4, 100)),
        ("loss", "output", ()),
    } <= seen


# --- what must be seen ------------------------------------------------------------------------------------------------


def wrong_paths(name: str, work: Pass, terms: tuple[Term, ...]) -> set[str]:
    return {shape.path for shape in compare(load_model(name), work, terms) if not shape.ok}


def test_other_heads_are_seen() -> None:
    spec = load_model("llama-3-8b")
    found = wrong_paths("llama-3-8b", DECODE, shapes(with_kv_heads(spec, 4), DECODE))
    assert {"decoder/attention/k_proj", "decoder/attention/k_cache", "decoder/attention/scores"} <= found


def test_another_length_is_seen() -> None:
    found = wrong_paths("transformer-toy", DECODE, shapes(load_model("transformer-toy"), replace(DECODE, context=36)))
    assert found == {"decoder/attention/k_cache", "decoder/attention/v_cache", "decoder/attention/scores"}


@pytest.mark.parametrize(
    ("path", "seen_at"),
    [
        ("decoder/attention/weights", "decoder/attention/scores"),
        ("loss", "loss"),
        ("encoder/feed_forward/up_proj", "encoder/feed_forward/up_proj"),
    ],
)
def test_one_wrong_tensor_is_seen(path: str, seen_at: str) -> None:
    terms = shapes(load_model("transformer-toy"), TRAIN)
    spoilt = tuple(replace(term, output=(*term.output, Dim("x", 7))) if term.path == path else term for term in terms)
    assert wrong_paths("transformer-toy", TRAIN, spoilt) == {seen_at}


def test_a_module_that_never_ran_is_seen() -> None:
    terms = shapes(load_model("transformer-toy"), TRAIN)
    last = next(term for term in terms if term.op == "linear")
    ghost = replace(last, path="decoder/ghost/up_proj", row="decoder/ghost/up_proj")
    assert "decoder/ghost/up_proj" in wrong_paths("transformer-toy", TRAIN, (*terms, ghost))


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="512 tokens of the context, got --ctx 37"):
        compare(load_model("gemma-3-27b"), Pass(batch=1, context=37, images=2))


HYBRIDS = {
    "mamba": {
        "model_type": "mamba", "architectures": ["MambaForCausalLM"], "vocab_size": 211, "hidden_size": 24, "state_size": 6,
        "num_hidden_layers": 2, "time_step_rank": 3,
    },
    "mamba2": {
        "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "vocab_size": 211, "hidden_size": 24, "state_size": 6,
        "num_hidden_layers": 2, "num_heads": 6, "head_dim": 8, "n_groups": 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_and_tails_as_predicted(name: str) -> None:
    spec = read_config(HYBRIDS[name])
    seen = [*compare(spec, Pass(batch=2, context=5)), *compare(spec, Pass(phase="decode", batch=2, context=5))]
    assert [shape for shape in seen if not shape.ok] == []
    assert {shape.path.rpartition("/")[2] for shape in seen if shape.what == "cache"} == {"state", "conv_tail"}
