"""Encoder-decoders: published counts, what is shared, where the norms stand, the cache of two kinds of attention."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.estimators.flops import flops
from tfm.estimators.kvcache import kvcache
from tfm.estimators.params import params
from tfm.estimators.work import Pass
from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import read_config
from tfm.presets.spec import Attention, ModelSpec, Sinusoidal

Data = dict[str, Any]
T5: Data = {"vocab_size": 211, "d_model": 40, "d_kv": 12, "d_ff": 72, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 5}
BART: Data = {
    "vocab_size": 211, "d_model": 48, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 6,
    "encoder_ffn_dim": 72, "decoder_ffn_dim": 80, "max_position_embeddings": 64,
}  # fmt: skip


def read(kind: str, cls: str | None = None, **data: Any) -> ModelSpec:
    named = {"architectures": [cls]} if cls else {}
    return read_config({"model_type": kind, **named, **data})


GENERATES = "ForConditionalGeneration"
T5_11: Data = {
    "d_model": 1024,
    "num_layers": 24,
    "num_heads": 16,
    "d_ff": 2816,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
BART_BASE: Data = {
    "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
}  # fmt: skip
OPUS: Data = {
    "d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "max_position_embeddings": 512, "vocab_size": 65001,
}  # fmt: skip
TURBO: Data = {
    "d_model": 1280, "encoder_layers": 32, "decoder_layers": 4, "num_hidden_layers": 32, "encoder_attention_heads": 20,
    "decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120, "num_mel_bins": 128, "vocab_size": 51866,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "cls", "sizes", "total", "embedding", "head", "per_token"),
    [
        pytest.param("t5", f"T5{GENERATES}", {}, 60506624, 16449536, 0, 12288, id="T5 small: all that is absent"),
        pytest.param("t5", "T5EncoderModel", {}, 35330816, 16449536, 0, 0, id="T5 small's encoder"),
        pytest.param("t5", f"T5{GENERATES}", T5_11, 783150080, 32899072, 32899072, 98304, id="Flan-T5 large: gated, not tied"),
        pytest.param("bart", f"Bart{GENERATES}", BART_BASE, 139420416, 40179456, 0, 18432, id="BART base"),
        pytest.param("marian", "MarianMTModel", OPUS, 77943296, 33804800, 0, 12288, id="opus-mt: fixed positions in a table"),
        pytest.param(
            "m2m_100", f"M2M100{GENERATES}", {"vocab_size": 256206}, 615073792, 262354944, 0, 49152, id="NLLB 600M: positions are computed"
        ),
        pytest.param("whisper", f"Whisper{GENERATES}", {}, 37760640, 20664192, 0, 6144, id="Whisper tiny"),
        pytest.param("whisper", f"Whisper{GENERATES}", TURBO, 808878080, 68881920, 0, 20480, id="Whisper turbo: 4 decoder layers, not 32"),
    ],
)
def test_published_counts(kind: str, cls: str, sizes: Data, total: int, embedding: int, head: int, per_token: int) -> None:
    spec = read(kind, cls, **{"encoder_layers": 12, "decoder_layers": 12} if kind == "m2m_100" else {}, **sizes)
    count = params(spec)
    assert (count.total_params, count.embedding_params, count.lm_head_params) == (total, embedding, head)
    assert kvcache(spec, Pass(context=99)).kv_bytes_per_token == per_token


def test_whisper_reads_its_encoder_in_every_layer() -> None:
    cache = kvcache(read("whisper", None, **TURBO), Pass(context=448))
    assert cache.cross_kv_bytes == 4 * 1500 * 2 * 1280 * 2  # 30.7 MB


class TestT5:
    D, F, N, H, V = 40, 72, 5, 12, 211

    def layers(self) -> tuple[int, int]:
        attention = 4 * self.D * self.N * self.H
        encoder = attention + 2 * self.D * self.F + 2 * self.D
        return encoder, encoder + attention + self.D

    def test_one_table_of_tokens_one_of_buckets_a_stack(self) -> None:
        encoder, decoder = self.layers()
        expected = self.V * self.D + 3 * encoder + 2 * decoder + 2 * (32 * self.N) + 2 * self.D
        assert params(read("t5", None, **T5)).total_params == expected

    def test_a_table_of_buckets_a_layer(self) -> None:
        more = params(read("umt5", None, **T5, feed_forward_proj="relu")).total_params - params(read("t5", None, **T5)).total_params
        assert more == (3 + 2 - 2) * 32 * self.N

    @pytest.mark.parametrize(
        ("data", "gates"),
        [
            pytest.param({"feed_forward_proj": "gated-silu"}, 5, id="gated by name"),
            pytest.param({"is_gated_act": True}, 5, id="gated by the flag beside it"),
            pytest.param({"feed_forward_proj": "gated-gelu", "is_gated_act": False}, 0, id="the flag wins"),
        ],
    )
    def test_gates(self, data: Data, gates: int) -> None:
        plain = params(read("t5", None, **T5)).total_params
        assert params(read("t5", None, **T5, **data)).total_params - plain == gates * self.D * self.F

    def test_absent_means_tied_and_as_deep_as_the_encoder(self) -> None:
        tied, own = (params(read("t5", None, **T5, tie_word_embeddings=flag)) for flag in (True, False))
        assert params(read("t5", None, **T5)).total_params == tied.total_params
        assert own.lm_head_params == self.V * self.D
        deep = {**T5, "num_decoder_layers": None}
        assert [stack.depth for stack in read("t5", None, **deep).stacks] == [3, 3]

    def test_an_encoder_alone_reads_the_context(self) -> None:
        alone = flops(read("t5", "T5EncoderModel", **T5), Pass(context=9))
        assert alone.total_flops == flops(read("t5", "T5EncoderModel", **T5), Pass(context=9, source=70)).total_flops > 0

    @pytest.mark.parametrize("named", ["gated-poetry", "gated-gelu-gelu", "GELU"])
    def test_functions_nobody_knows(self, named: str) -> None:
        with pytest.raises(UnreadableError, match="feed_forward_proj is"):
            read("t5", None, **T5, feed_forward_proj=named)


D, V = 48, 211
NORM = 2 * D


@pytest.mark.parametrize(
    ("kind", "rows", "norms"),
    [
        # rows of position tables; norms on the embeddings or behind the last layer
        pytest.param("bart", 2 * (64 + 2), 2, id="bart: learned from row 2 on, a norm on the embeddings"),
        pytest.param("mbart", 2 * (64 + 2), 4, id="mbart: both"),
        pytest.param("marian", 2 * 64, 0, id="marian: neither"),
        pytest.param("pegasus", 2 * 64, 2, id="pegasus: a norm behind"),
        pytest.param("m2m_100", 0, 2, id="m2m_100: no table"),
        pytest.param("blenderbot", 2 * 64, 2, id="blenderbot"),
        pytest.param("blenderbot-small", 2 * 64, 2, id="blenderbot 90M: on the embeddings"),
    ],
)
def test_families_differ_in_positions_and_norms(kind: str, rows: int, norms: int) -> None:
    attention = 4 * (D * D + D) + NORM
    encoder = attention + D * 72 + 72 + 72 * D + D + NORM
    decoder = 2 * attention + D * 80 + 80 + 80 * D + D + NORM
    assert params(read(kind, None, **BART)).total_params == V * D + rows * D + 3 * encoder + 2 * decoder + norms * NORM


@pytest.mark.parametrize(
    ("kind", "cls", "beyond"),
    [
        pytest.param("bart", "BartModel", 0, id="bare"),
        pytest.param("bart", "BartForSequenceClassification", D * D + D + 3 * D + 3, id="bart has three labels where none are said"),
        pytest.param("mbart", "MBartForSequenceClassification", D * D + D + 2 * D + 2, id="mbart has two"),
        pytest.param("bart", "BartForQuestionAnswering", 2 * D + 2, id="answers"),
    ],
)
def test_classes(kind: str, cls: str, beyond: int) -> None:
    assert params(read(kind, cls, **BART)).total_params - params(read(kind, None, **BART)).total_params == beyond


def test_nothing_is_shared_where_nothing_is_tied() -> None:
    tied, own = (params(read("bart", None, **BART, tie_word_embeddings=flag)) for flag in (True, False))
    assert own.embedding_params - tied.embedding_params == 2 * V * D  # a table a stack, and the one that is not used
    assert own.lm_head_params == V * D


def test_a_table_a_language() -> None:
    spec = read("marian", None, **BART, share_encoder_decoder_embeddings=False, decoder_vocab_size=77)
    assert params(spec).embedding_params == (V + 77 + 2 * 64) * D
    assert params(spec).lm_head_params == 0  # tied to the decoder's table


def test_the_decoder_alone_rests_where_it_attended() -> None:
    alone = read("bart", "BartForCausalLM", **BART)
    cross = next(sub.mixer for _, sub in alone.sublayers() if sub.name == "cross_attention")
    assert isinstance(cross, Attention)
    assert alone.absent == (cross.source,)
    assert kvcache(alone, Pass(context=9)).cross_kv_bytes == 0
    linear = 2 * 7 * 2 * (4 * D * D + 2 * D * 80 + V * D / 2)
    attention = 2 * 2 * 7 * 7 * 2 * D
    assert flops(alone, Pass(context=7, full_attention=True)).total_flops == linear + attention


def test_positions_that_are_computed() -> None:
    assert all(any(isinstance(leaf, Sinusoidal) for leaf in stack.embeddings) for stack in read("m2m_100", None, **BART).stacks)


def test_sound_is_halved_once() -> None:
    tiny = read(
        "whisper", None, vocab_size=211, d_model=48, encoder_ffn_dim=72, decoder_ffn_dim=80, max_source_positions=30, num_mel_bins=20
    )
    first, second = (row for row in flops(tiny, Pass(batch=2, context=5)).rows if row.op == "conv")
    assert first.flops == 2 * (2 * 2 * 30) * (20 * 3) * 48
    assert second.flops == 2 * (2 * 30) * (48 * 3) * 48
