"""Encoders: published counts, heads by class, shared layers, relative positions, windows."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.estimators.flops import flops
from tfm.estimators.kvcache import kvcache
from tfm.estimators.ledger import ledger
from tfm.estimators.params import params
from tfm.estimators.work import Pass
from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import read_config
from tfm.presets.spec import Local, ModelSpec

Data = dict[str, Any]
SMALL: Data = {
    "vocab_size": 211, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 80,
    "max_position_embeddings": 64,
}  # fmt: skip


def read(kind: str, cls: str | None = None, **data: Any) -> ModelSpec:
    named = {"architectures": [cls]} if cls else {}
    return read_config({"model_type": kind, **named, **data})


LARGE: Data = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
ROBERTA: Data = {"max_position_embeddings": 514, "type_vocab_size": 1}
DEBERTA: Data = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "relative_attention": True,
    "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False,
}  # fmt: skip
PUBLISHED = [
    # model_type, class, what differs from the defaults, total, embedding tables, output head
    pytest.param("bert", "BertForMaskedLM", {}, 109514298, 23835648, 30522, id="BERT base: tied head, a bias of V"),
    pytest.param("bert", "BertModel", {}, 109482240, 23835648, 0, id="BERT base with its pooler"),
    pytest.param("bert", "BertModel", LARGE, 335141888, 31780864, 0, id="BERT large"),
    pytest.param("roberta", "RobertaForMaskedLM", {"num_hidden_layers": 6, **ROBERTA}, 82170201, 38999040, 50265, id="DistilRoBERTa"),
    pytest.param(
        "xlm-roberta", "XLMRobertaModel", {"vocab_size": 250002, **LARGE, **ROBERTA}, 559890432, 256529408, 0, id="multilingual E5 large"
    ),
    pytest.param("distilbert", "DistilBertForMaskedLM", {}, 66985530, 23834112, 30522, id="DistilBERT: no token types"),
    pytest.param("electra", "ElectraForPreTraining", {}, 13549057, 3972608, 0, id="ELECTRA small: tables of 128, a discriminator"),
    pytest.param(
        "albert",
        "AlbertForMaskedLM",
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
        11221680,
        3905792,
        30000,
        id="ALBERT base: twelve runs of one layer",
    ),
    pytest.param("deberta-v2", "DebertaV2Model", DEBERTA, 183831552, 98380800, 0, id="DeBERTa-v3 base: the relative table is no embedding"),
    pytest.param("modernbert", "ModernBertForMaskedLM", {}, 149655232, 38682624, 50368, id="ModernBERT base"),
]


@pytest.mark.parametrize(("kind", "cls", "sizes", "total", "embedding", "head"), PUBLISHED)
def test_published_counts(kind: str, cls: str, sizes: Data, total: int, embedding: int, head: int) -> None:
    count = params(read(kind, cls, **sizes))
    assert (count.total_params, count.embedding_params, count.lm_head_params) == (total, embedding, head)


D, V, LABELS = 48, 211, 3
POOLER, DENSE, LOGITS = D * D + D, D * D + D, D * LABELS + LABELS
LM = DENSE + 2 * D + V  # dense, norm, the bias of a tied output matrix


@pytest.mark.parametrize(
    ("kind", "cls", "beyond"),
    [
        pytest.param("bert", "BertModel", POOLER, id="bert pooler"),
        pytest.param("bert", "BertForMaskedLM", LM, id="bert masked lm"),
        pytest.param("bert", "BertLMHeadModel", LM, id="bert lm head"),
        pytest.param("bert", "BertForPreTraining", POOLER + LM + 2 * D + 2, id="bert pretraining: which sentence follows"),
        pytest.param("bert", "BertForSequenceClassification", POOLER + LOGITS, id="bert sequence"),
        pytest.param("bert", "BertForTokenClassification", LOGITS, id="bert tokens: no pooler"),
        pytest.param("bert", "BertForQuestionAnswering", LOGITS, id="bert answers"),
        pytest.param("bert", "BertForMultipleChoice", POOLER + D + 1, id="bert choices: one number each"),
        pytest.param("roberta", "RobertaForSequenceClassification", DENSE + LOGITS, id="roberta sequence: a dense layer, no pooler"),
        pytest.param("electra", "ElectraModel", 0, id="electra has no pooler"),
        pytest.param("electra", "ElectraForPreTraining", DENSE + D + 1, id="electra discriminator"),
        pytest.param("electra", "ElectraForSequenceClassification", DENSE + LOGITS, id="electra sequence"),
        pytest.param("deberta", "DebertaForSequenceClassification", POOLER + LOGITS, id="deberta sequence"),
        pytest.param("deberta-v2", "DebertaV2ForMaskedLM", LM, id="deberta masked lm"),
        pytest.param("modernbert", "ModernBertForTokenClassification", D * D + D + LOGITS, id="modernbert: dense without bias, norm of D"),
    ],
)
def test_what_a_class_adds_to_the_bare_encoder(kind: str, cls: str, beyond: int) -> None:
    narrow = {"embedding_size": D} if kind == "electra" else {}
    spec = read(kind, cls, **SMALL, **narrow, id2label=dict.fromkeys("abc", ""))
    bare = sum(row.params * row.copies for row in ledger(spec, Pass(context=1)) if row.share != "head")
    assert params(spec).total_params - bare == beyond


def test_pooled_heads_run_once_and_others_everywhere() -> None:
    B, T = 3, 7
    data = {**SMALL, "id2label": dict.fromkeys("abc", "")}
    work = Pass(batch=B, context=T)
    assert flops(read("bert", "BertForSequenceClassification", **data), work).head_flops == 2 * B * (D * D + D * LABELS)
    assert flops(read("bert", "BertForTokenClassification", **data), work).head_flops == 2 * B * T * D * LABELS
    assert flops(read("bert", "BertForMaskedLM", **data), work).head_flops == 2 * B * T * (D * D + D * V)


@pytest.mark.parametrize(
    ("groups", "inner", "distinct"),
    [pytest.param(1, 1, 1, id="one"), pytest.param(2, 1, 2, id="two groups"), pytest.param(2, 3, 6, id="of three")],
)
def test_albert_layers_are_counted_once_and_run_often(groups: int, inner: int, distinct: int) -> None:
    data = {**SMALL, "embedding_size": 24, "num_hidden_groups": groups, "inner_group_num": inner}
    rows = [row for row in ledger(read("albert", "AlbertModel", **data), Pass(context=6)) if row.path.endswith("attention/q_proj")]
    assert sum(row.copies for row in rows) == distinct
    assert sum(row.repeat for row in rows) == 5 * inner


def test_narrow_tables_are_projected() -> None:
    wide = params(read("electra", "ElectraModel", **SMALL, embedding_size=D)).total_params
    narrow = params(read("electra", "ElectraModel", **SMALL, embedding_size=32)).total_params
    rows = 211 + 64 + 2
    assert wide - narrow == rows * (D - 32) + 2 * (D - 32) - (32 * D + D)


class TestDisentangled:
    """DeBERTa: [B,N,T,H] @ [N,H,2r] for c2p, [B,N,S,H] @ [N,H,2r] for p2c; 2r positions projected once a layer."""

    B, T, N, H, L = 2, 20, 4, 12, 5

    def attention_flops(self, kind: str, **data: Any) -> int:
        spec = read(kind, None, **SMALL, relative_attention=True, **data)
        return int(flops(spec, Pass(batch=self.B, context=self.T)).attention_flops)

    @pytest.mark.parametrize(
        ("kind", "data", "terms", "positions"),
        [
            pytest.param("deberta-v2", {"pos_att_type": ["c2p", "p2c"], "position_buckets": 16}, 2, 32, id="v2: all buckets"),
            pytest.param("deberta-v2", {"pos_att_type": "c2p", "max_relative_positions": 24}, 1, 48, id="v2: one term, no buckets"),
            pytest.param("deberta-v2", {"pos_att_type": None, "position_buckets": 16}, 0, 32, id="v2: no term"),
            pytest.param("deberta", {"pos_att_type": "c2p|p2c", "max_relative_positions": 24}, 2, 40, id="v1: no more than tokens"),
            pytest.param("deberta", {"pos_att_type": "p2c", "max_relative_positions": 8}, 1, 16, id="v1: the table's reach"),
        ],
    )
    def test_products(self, kind: str, data: Data, terms: int, positions: int) -> None:
        content = 2 * self.B * self.N * self.T * self.T * 2 * self.H
        position = 2 * self.B * self.N * self.T * self.H * positions
        assert self.attention_flops(kind, **data) == self.L * (content + terms * position)

    def test_projections_are_of_their_own_or_the_contents(self) -> None:
        data = {**SMALL, "relative_attention": True, "pos_att_type": "c2p|p2c", "position_buckets": 16}
        own, shared = (params(read("deberta-v2", None, **data, share_att_key=flag)).total_params for flag in (False, True))
        assert own - shared == self.L * 2 * (D * D + D)

    def test_a_convolution_follows_the_first_layer(self) -> None:
        plain, conv = (params(read("deberta-v2", None, **SMALL, conv_kernel_size=kernel)).total_params for kernel in (0, 3))
        assert conv - plain == D * D * 3 + D + 2 * D


def test_modernbert_sees_a_window_in_two_of_three_layers() -> None:
    spec = read("modernbert", None, **SMALL, local_attention=16)
    masks = [layer.sublayers[0].mixer.mask for layer in spec.stacks[0].layers()]  # type: ignore[union-attr]
    assert [isinstance(mask, Local) for mask in masks] == [False, True, True, False, True]
    assert [layer.sublayers[0].pre_norm is None for layer in spec.stacks[0].layers()] == [True, False, False, False, False]


def test_an_encoder_keeps_no_cache_and_a_decoder_does() -> None:
    assert kvcache(read("bert", None, **SMALL), Pass(context=9)).kv_bytes == 0
    assert kvcache(read("bert", "BertLMHeadModel", **SMALL, is_decoder=True), Pass(context=9)).kv_bytes == 9 * 5 * 2 * D * 2


def test_a_decoder_taken_alone_keeps_its_cross_attention() -> None:
    alone = read("bert", "BertLMHeadModel", **SMALL, is_decoder=True)
    joined = read("bert", "BertLMHeadModel", **SMALL, is_decoder=True, add_cross_attention=True)
    assert params(joined).total_params - params(alone).total_params == 5 * (4 * (D * D + D) + 2 * D)
    assert flops(joined, Pass(context=8)).total_flops == flops(alone, Pass(context=8)).total_flops


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        pytest.param("bert", {"architectures": ["BertForPoetry"]}, "architectures names 'BertForPoetry'", id="a class nobody knows"),
        pytest.param("bert", {"num_attention_heads": 5}, "5 heads do not divide", id="heads that do not divide"),
        pytest.param("bert", {"architectures": ["BertForTokenClassification"], "id2label": {}}, "at least one label", id="no labels"),
        pytest.param("albert", {"num_hidden_groups": 7}, "do not fit 5 layers", id="more groups than layers"),
        pytest.param("deberta", {"talking_head": True}, "talking_head", id="heads that are mixed"),
        pytest.param("deberta-v2", {"attention_head_size": 16}, "attention_head_size must be", id="heads of another width"),
        pytest.param("deberta-v2", {"conv_kernel_size": 4}, "must be odd", id="an even convolution"),
        pytest.param("modernbert", {"layer_types": ["full_attention"]}, "1 entries for 5 layers", id="a list of the wrong length"),
    ],
)
def test_refused(kind: str, data: Data, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        read_config({"model_type": kind, **SMALL, **data})


def test_relative_positions_that_the_library_dropped_are_noted() -> None:
    spec = read("bert", None, **SMALL, position_embedding_type="relative_key")
    assert any("absolute" in line for line in spec.assumptions)
