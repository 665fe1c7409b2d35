"""Sparse decoders: published models by their sizes, what their layers are read as, and what is refused or said."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.estimators.kvcache import growth, kvcache
from tfm.estimators.ledger import ledger, total
from tfm.estimators.params import params
from tfm.estimators.work import Pass
from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import read_config
from tfm.presets.spec import Attention, Chunked, CompressedAttention, LatentAttention, ModelSpec, MoE, Sliding

Facts = tuple[int, int, int, int]  # parameters, active ones; cache bytes a token (bf16) inside and beyond every window


def config(kind: str, vocab: int, d_model: int, d_ff: int, layers: int, heads: int, kv: int | None = None, **more: Any) -> dict[str, Any]:
    """A configuration under the usual names; what is not given is the family's default."""
    made = {
        "model_type": kind,
        "vocab_size": vocab,
        "hidden_size": d_model,
        "intermediate_size": d_ff,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **more,
    }
    return made if kv is None else {**made, "num_key_value_heads": kv}


def facts(spec: ModelSpec) -> Facts:
    count = params(spec)
    return count.total_params, count.active_params, growth(spec, Pass(context=16)), growth(spec, Pass(context=2**22))


def experts(count: int, chosen: int, d_ff: int) -> dict[str, int]:
    """Fine-grained experts under the most usual names."""
    return {"num_experts": count, "num_experts_per_tok": chosen, "moe_intermediate_size": d_ff}


def kinds(spec: ModelSpec) -> list[str]:
    """The kind of every layer."""
    return [layer.name for layer in spec.main.layers()]


def mixer(spec: ModelSpec, name: str, index: int = 0) -> Any:
    """A mixer of the first layer of a kind."""
    return next(layer for layer in spec.main.layers() if layer.name == name).sublayers[index].mixer


M3_FIRST = [0, 0, 0, *[1] * 57]
# Sizes are those of the published files; the counts are those the library (5.24) builds from them.
PUBLISHED = [
    pytest.param(config("mixtral", 32000, 4096, 14336, 32, 32, 8), (46702792704, 12879925248, 131072, 131072), id="Mixtral-8x7B"),
    pytest.param(
        config("mixtral", 32768, 6144, 16384, 56, 48, 8),
        (140630071296, 39161468928, 229376, 229376),
        id="Mixtral-8x22B: 141 B, 39 B active",
    ),
    pytest.param({"model_type": "qwen2_moe"}, (14315784192, 2689173504, 196608, 196608), id="Qwen1.5-MoE-A2.7B: all defaults"),
    pytest.param(
        config("qwen2_moe", 151936, 3584, 18944, 28, 28, 4, **experts(64, 8, 2560), shared_expert_intermediate_size=20480),
        (57408658944, 14249270784, 57344, 57344),
        id="Qwen2-57B-A14B",
    ),
    pytest.param(
        config("qwen3_moe", 151936, 2048, 6144, 48, 32, 4, head_dim=128, **experts(128, 8, 768)),
        (30532122624, 3353032704, 98304, 98304),
        id="Qwen3-30B-A3B",
    ),
    pytest.param(
        config("qwen3_moe", 151936, 6144, 8192, 62, 96, 8, head_dim=128, **experts(160, 8, 2560)),
        (480154875392, 35474765312, 253952, 253952),
        id="Qwen3-Coder-480B-A35B",
    ),
    pytest.param(config("olmoe", 50304, 2048, 1024, 16, 16), (6919161856, 1282017280, 131072, 131072), id="OLMoE-1B-7B"),
    pytest.param(
        config("granitemoe", 49155, 1024, 512, 24, 16, 8, num_local_experts=32, num_experts_per_tok=8, tie_word_embeddings=True),
        (1334628352, 428658688, 49152, 49152),
        id="Granite-3.1-1B-A400M",
    ),
    pytest.param(
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
        (131596523520, 36469708800, 163840, 163840),
        id="DBRX: 132 B, 36 B active",
    ),
    pytest.param(
        config("deepseek_v2", 102400, 2048, 10944, 27, 16, 16, q_lora_rank=None, first_k_dense_replace=1, **experts(64, 6, 1408)),
        (15706484224, 2661150208, 31104, 31104),
        id="DeepSeek-V2-Lite: queries without a low rank",
    ),
    pytest.param(
        {"model_type": "deepseek_v3"}, (671026404352, 37552282624, 70272, 70272), id="DeepSeek-V3: all defaults, 61 x 576 x 2 bytes"
    ),
    pytest.param(
        {"model_type": "glm_moe_dsa"}, (743911199232, 41784709632, 109824, 109824), id="GLM-5: the indexer keeps 128 a layer and token"
    ),
    pytest.param(
        config("gpt_oss", 201088, 2880, 2880, 24, 64, 8, num_local_experts=32), (20914757184, 4187440704, 49152, 24576), id="gpt-oss-20b"
    ),
    pytest.param({"model_type": "gpt_oss"}, (116829156672, 5711982912, 73728, 36864), id="gpt-oss-120b: 36 x 2,048 bytes, not half"),
    pytest.param(
        {"model_type": "glm4_moe", "attention_bias": True, "head_dim": 128}, (106852245504, 13424123904, 188416, 188416), id="GLM-4.5-Air"
    ),
    pytest.param(
        {"model_type": "mimo_v2_flash"}, (308778768832, 15445924288, 222720, 23040), id="MiMo-V2-Flash: K 192, V 128, 8 or 4 heads"
    ),
    pytest.param({"model_type": "glm4_moe_lite"}, (29943390976, 3896763136, 54144, 54144), id="GLM-4.7-Flash: latent, all defaults"),
    pytest.param({"model_type": "solar_open"}, (102651793408, 12054827008, 196608, 196608), id="Solar Open 102B-A12B: all defaults"),
    pytest.param(
        {"model_type": "ernie4_5_moe"}, (21825437888, 3352150208, 57344, 57344), id="ERNIE-4.5-21B-A3B: its corrections are parameters"
    ),
    pytest.param(
        {"model_type": "dots1", "n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1},
        (161206276032, 16353759168, 1142784, 1142784),
        id="dots1: its other defaults",
    ),
    pytest.param({"model_type": "llama4_text"}, (107769861120, 17172894720, 196608, 49152), id="Llama 4 Scout's text model"),
    pytest.param(
        {"model_type": "minimax_m3_vl_text", "moe_layer_freq": M3_FIRST, "sparse_attention_config": {"sparse_attention_freq": M3_FIRST}},
        (426174565632, 25962466560, 137472, 137472),
        id="MiniMax-M3's text model",
    ),
]


@pytest.mark.parametrize(("given", "expected"), PUBLISHED)
def test_a_published_model_has_its_counts(given: dict[str, Any], expected: Facts) -> None:
    assert facts(read_config(given)) == expected


# --- DeepSeek-V4: what grows and what does not ----------------------------------------------------------------------

V4_FLASH = {"model_type": "deepseek_v4", "compress_ratios": [0, 0, *[4, 128] * 20, 4]}
V4_PRO = {
    **config("deepseek_v4", 129280, 7168, 3072, 61, 128, index_topk=1024, n_routed_experts=384, o_groups=16, q_lora_rank=1536),
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0],  # one more than there are layers: for the token after the next
}


@pytest.mark.parametrize(
    ("given", "count", "active", "state", "window_layers"),
    [
        pytest.param(V4_FLASH, 284332230231, 13799622231, 6174720, (2, 21, 20), id="Flash"),
        pytest.param(V4_PRO, 1572997179491, 49779058787, 8393728, (0, 30, 31), id="Pro"),
    ],
)
def test_deepseek_v4_keeps_windows_and_entries(
    given: dict[str, Any], count: int, active: int, state: int, window_layers: tuple[int, int, int]
) -> None:
    spec = read_config(given)
    only, sparse, heavy = window_layers
    # 127 past tokens of 512, twice where nothing is compressed; C and Z (fp32) of 4 tokens where entries overlap.
    assert state == 127 * 512 * 2 * (2 * only + sparse + heavy) + sparse * 4 * (512 + 128) * (2 + 4)
    found = params(spec), kvcache(spec, Pass(context=512)), kvcache(spec, Pass(context=256))
    assert (found[0].total_params, found[0].active_params, found[1].state_bytes) == (count, active, state)
    # An entry of 512 and an index of 128 every 4 tokens, an entry of 512 every 128.
    assert found[1].kv_bytes - found[2].kv_bytes == 256 * 2 * (sparse * (512 + 128) // 4 + heavy * 512 // 128)


def test_hashed_layers_choose_experts_without_a_correction() -> None:
    spec = read_config(V4_FLASH)
    assert kinds(spec)[:5] == ["sliding_hashed", "sliding_hashed", "sparse_hashed", "heavy", "sparse"]
    hashed, scored = mixer(spec, "sparse_hashed", 1), mixer(spec, "sparse", 1)
    assert isinstance(hashed, MoE)
    assert (hashed.hashed, hashed.correction, scored.hashed, scored.correction) == (129280, "none", None, "buffer")
    # Neither the table [vocabulary, 6] of three layers nor the corrections of 40 are parameters.
    assert params(spec).buffers == 3 * 129280 * 6 + 40 * 256
    tables = [row for row in ledger(spec, Pass(phase="decode")) if row.path.endswith("hash_table")]
    assert tables
    assert not sum(row.weight_reads * row.fetches for row in tables)  # a step looks six numbers up, and reads no table


def test_entries_overlap_only_where_they_are_picked() -> None:
    spec = read_config({**V4_FLASH, "compress_rate_hca": 64})
    sparse, heavy = mixer(spec, "sparse"), mixer(spec, "heavy")
    assert isinstance(sparse, CompressedAttention)
    assert (sparse.ratio, sparse.overlap, sparse.indexer is None) == (4, True, False)
    assert (heavy.ratio, heavy.overlap, heavy.indexer) == (64, False, None)


# --- what layers are read as ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"model_type": "mixtral", "num_hidden_layers": 2}, ["", ""], id="alike layers have no name"),
        pytest.param({"model_type": "gpt_oss", "num_hidden_layers": 3}, ["sliding", "global", "sliding"], id="gpt-oss: the first slides"),
        pytest.param(
            {"model_type": "qwen3_moe", "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
            ["dense", "dense", "dense", "moe"],
            id="every second layer is sparse, but one",
        ),
        pytest.param(
            {"model_type": "qwen2_moe", "num_hidden_layers": 5, "use_sliding_window": True, "max_window_layers": 3},
            ["sliding", "global", "sliding", "global", "global"],
            id="Qwen2-MoE: even layers below max_window_layers slide",
        ),
        pytest.param(
            {"model_type": "llama4_text", "num_hidden_layers": 4, "interleave_moe_layer_step": 2},
            ["chunked_dense", "chunked_moe", "chunked_dense", "global_moe"],
            id="Llama 4: experts and chunks by different steps",
        ),
        pytest.param(
            {
                "model_type": "mimo_v2_flash",
                "num_hidden_layers": 3,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            ["sliding_dense", "global_moe", "sliding_moe"],
            id="MiMo-V2: a list of kinds, the first layer dense",
        ),
        pytest.param(
            {"model_type": "glm_moe_dsa", "num_hidden_layers": 6, "index_topk_freq": 3, "first_k_dense_replace": 0},
            ["indexed", "indexed", "reused", "reused", "indexed", "reused"],
            id="GLM-5: an indexer for three layers",
        ),
        pytest.param(
            {"model_type": "glm_moe_dsa", "num_hidden_layers": 3, "index_topk_pattern": "FSS", "first_k_dense_replace": 2},
            ["indexed_dense", "reused_dense", "reused_moe"],
            id="GLM-5: indexers by letters",
        ),
    ],
)
def test_layers_are_told_apart(given: dict[str, Any], expected: list[str]) -> None:
    assert kinds(read_config(given)) == expected


def test_only_layers_that_own_an_indexer_keep_its_keys() -> None:
    spec = read_config({"model_type": "glm_moe_dsa", "num_hidden_layers": 6, "index_topk_freq": 3})
    assert growth(spec, Pass(context=64)) == 2 * (6 * (512 + 64) + 3 * 128)
    # A step reads 2,048 latents of each layer, and all keys of the three indexers.
    rows = [row for row in ledger(spec, Pass(phase="decode", context=2**16)) if row.store is not None]
    assert sum(row.store.moved * row.repeat for row in rows if row.store) == 6 * 2048 * 576 + 3 * 2**16 * 128


def test_minimax_m3_picks_blocks_of_keys() -> None:
    attention = mixer(
        read_config({"model_type": "minimax_m3_vl_text", "num_hidden_layers": 2, "layer_types": ["minimax_m3_sparse"] * 2}), ""
    )
    assert isinstance(attention, Attention)
    assert attention.indexer is not None
    assert (attention.indexer.block, attention.indexer.top_k, attention.indexer.head_weights) == (128, 16 * 128, False)


def test_mimo_v2_has_heads_of_two_widths_and_two_numbers() -> None:
    spec = read_config({"model_type": "mimo_v2_flash", "sliding_window_size": 64})
    sliding, full = mixer(spec, "sliding_moe"), mixer(spec, "global_dense")
    assert (sliding.kv_heads, sliding.head_dim, sliding.value_dim, sliding.sinks, sliding.mask) == (8, 192, 128, True, Sliding(window=65))
    assert (full.kv_heads, full.sinks) == (4, False)


def test_llama_4_norms_and_chunks_rotary_layers_only() -> None:
    spec = read_config({"model_type": "llama4_text", "attention_chunk_size": 96})
    rotary, plain = mixer(spec, "chunked"), mixer(spec, "global")
    assert (rotary.mask, rotary.head_norm is None, rotary.position is None) == (Chunked(chunk=96), False, False)
    assert (plain.head_norm, plain.position) == (None, None)


def test_the_bias_of_latent_attention_spares_the_straight_query() -> None:
    with_bias, without = (
        read_config(
            {"model_type": "deepseek_v2", "num_hidden_layers": 1, "q_lora_rank": None, "attention_bias": flag, "num_experts_per_tok": 2}
        )
        for flag in (True, False)
    )
    assert isinstance(mixer(with_bias, ""), LatentAttention)
    assert params(with_bias).total_params - params(without).total_params == (512 + 64) + 4096  # kv_a_proj, o_proj


# --- FLOPs ----------------------------------------------------------------------------------------------------------


def test_experts_cost_what_a_token_uses() -> None:
    small = config("mixtral", 101, 24, 40, 3, 6, 2, num_local_experts=5, num_experts_per_tok=2)
    two, three = (
        total(ledger(read_config({**small, "num_experts_per_tok": chosen}), Pass(batch=3, context=7)), "flops") for chosen in (2, 3)
    )
    assert three - two == 3 * (3 * 7) * (3 * 2 * 24 * 40)  # layers x tokens x gate, up and down


def test_an_indexer_limits_the_pairs_of_the_large_attention_only() -> None:
    spec = read_config(config("deepseek_v32", 101, 64, 40, 1, 4, index_topk=5, index_n_heads=3, first_k_dense_replace=1))
    rows = {row.path: row for row in ledger(spec, Pass(context=12))}
    assert rows["decoder/attention/scores"].dims["pairs"] == 1 + 2 + 3 + 4 + 5 * 8
    assert rows["decoder/attention/indexer/scores"].dims["pairs"] == 12 * 13 // 2


# --- what is said and what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"model_type": "deepseek_v3", "moe_layer_freq": 2}, "moe_layer_freq = 2 is not read", id="DeepSeek's step"),
        pytest.param(
            {"model_type": "qwen3_moe", "shared_expert_intermediate_size": 64}, "is not read", id="Qwen3-MoE has no shared expert"
        ),
        pytest.param(
            {"model_type": "mimo_v2_flash", "swa_num_key_value_heads": 2}, "swa_num_key_value_heads = 2", id="MiMo-V2 doubles its heads"
        ),
        pytest.param({"model_type": "deepseek_v2"}, "num_experts_per_tok is not given; 6 was assumed", id="DeepSeek-V2 has no default"),
    ],
)
def test_a_key_that_the_class_does_not_read_is_said(given: dict[str, Any], said: str) -> None:
    assert any(said in line for line in read_config(given).assumptions)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            {"model_type": "mixtral", "num_experts_per_tok": 9}, "top_k 9 is larger than experts 8", id="more chosen than there are"
        ),
        pytest.param({"model_type": "mixtral", "num_key_value_heads": 5}, "5 does not divide", id="heads that do not divide"),
        pytest.param({"model_type": "olmoe", "head_dim": 96}, "as the norm on queries needs", id="OLMoE norms all queries at once"),
        pytest.param({"model_type": "dbrx", "tie_word_embeddings": True}, "must be false", id="DBRX is never tied"),
        pytest.param({"model_type": "deepseek_v32", "q_lora_rank": None}, "q_lora_rank must be given", id="an indexer needs the low rank"),
        pytest.param({"model_type": "deepseek_v2", "num_attention_heads": 24}, "24 does not divide", id="DeepSeek-V2 checks its heads"),
        pytest.param({"model_type": "glm_moe_dsa", "index_topk_pattern": "SF"}, "full first", id="no choice to reuse yet"),
        pytest.param({"model_type": "glm_moe_dsa", "mlp_layer_types": ["dense"]}, "1 entries for 78 layers", id="a short list"),
        pytest.param({"model_type": "deepseek_v4", "compress_ratios": [0, 7]}, "known are 0, 4 and 128", id="an unknown ratio"),
        pytest.param({"model_type": "deepseek_v4", "o_groups": 3}, "out_groups 3 does not divide", id="groups that do not divide"),
        pytest.param({"model_type": "llama4_text", "no_rope_layers": [1]}, "1 entries for 48 layers", id="positions for some layers only"),
        pytest.param({"model_type": "minimax_m3_vl_text", "moe_layer_freq": [0, 1]}, "2 entries for 60", id="experts for some layers only"),
        pytest.param({"model_type": "dots1"}, "n_routed_experts .* is missing", id="dots1 has no number of experts by default"),
        pytest.param({"model_type": "qwen3_moe", "expert_rank": 8}, "expert_rank = 8 is not understood", id="an unknown size"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        read_config(given)
