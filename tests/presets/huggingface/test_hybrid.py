"""State spaces, and hybrids of them with attention: published models by their sizes, and what their layers are read as."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from tfm.estimators.kvcache import growth, kvcache
from tfm.estimators.ledger import ledger, total
from tfm.estimators.params import params
from tfm.estimators.work import Pass
from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import read_config
from tfm.presets.spec import GatedDelta, Mamba, Mamba2, ModelSpec, RgLru, ShortConv

# parameters, active ones; cache bytes a token (bf16) inside and beyond every window; bytes of state that does not grow
Facts = tuple[int, int, int, int, int]

NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
MAMBA2 = (8192 + 2 * 256) * 4 * 2 + 128 * 64 * 256 * 4  # bytes a layer, where 128 heads of 64 have one group of 256
DELTA = {"model_type": "qwen3_5_moe_text", "num_experts_per_tok": 8}


def facts(spec: ModelSpec) -> Facts:
    count = params(spec)
    short, long = growth(spec, Pass(context=16)), growth(spec, Pass(context=2**22))
    return count.total_params, count.active_params, short, long, kvcache(spec, Pass(context=16)).state_bytes


def kinds(spec: ModelSpec) -> str:
    """Kinds of layers in order, runs of equal ones counted."""
    return " ".join(f"{len(list(run))}x{name}" for name, run in groupby(layer.name for layer in spec.main.layers()))


# Sizes are those of the published files; the counts are those the library (5.24) builds from them. States of recurrences
# are kept in fp32, tails of convolutions in bf16.
PUBLISHED = [
    pytest.param(
        {"model_type": "mamba", "num_hidden_layers": 24}, (129135360, 129135360, 0, 0, 24 * 1536 * (4 * 2 + 16 * 4)), id="Mamba-130M"
    ),
    pytest.param(
        {
            "model_type": "falcon_mamba",
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "expand": 16,
            "intermediate_size": 8192,
            "vocab_size": 65024,
            "tie_word_embeddings": False,
        },
        (7272665088, 7272665088, 0, 0, 37748736),
        id="Falcon-Mamba-7B: the width in the file wins over expand",
    ),
    pytest.param({"model_type": "mamba2"}, (7285403648, 7285403648, 0, 0, 273678336), id="Mamba-Codestral-7B: all defaults"),
    pytest.param({"model_type": "jamba"}, (51570323328, 12110311296, 16384, 16384, 16515072), id="Jamba-v0.1: all defaults"),
    pytest.param(
        {"model_type": "jamba", "hidden_size": 8192, "intermediate_size": 24576, "num_hidden_layers": 72, "num_attention_heads": 64},
        (398555145696, 94149338592, 36864, 36864, 74317824),
        id="Jamba-1.5-Large",
    ),
    pytest.param({"model_type": "zamba"}, (7232490496, 7232490496, 386048, 386048, 40624128), id="Zamba-7B: 13 caches, one block"),
    pytest.param(
        {
            "model_type": "nemotron_h",
            "hidden_size": 2688,
            "hybrid_override_pattern": NANO,
            "intermediate_size": 1856,
            "mamba_num_heads": 64,
            "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712,
            "n_routed_experts": 128,
            "num_experts_per_tok": 6,
            "num_key_value_heads": 2,
        },
        (31577937344, 3580073408, 6144, 6144, 49364992),
        id="Nemotron-3-Nano-30B-A3B",
    ),
    pytest.param(
        {"model_type": "recurrent_gemma", "intermediate_size": 15360, "num_key_value_heads": 1},
        (2682862080, 2682862080, 8192, 0, 18 * 2560 * (3 * 2 + 4)),
        id="RecurrentGemma-2B",
    ),
    pytest.param(
        {"model_type": "qwen3_next"},
        (79674391296, 3874929408, 24576, 24576, 36 * (8192 * 4 * 2 + 32 * 128 * 128 * 4)),
        id="Qwen3-Next-80B-A3B",
    ),
    pytest.param(DELTA, (34660610688, 3454988928, 20480, 20480, 64880640), id="Qwen3.5-35B-A3B's text model"),
    pytest.param({"model_type": "qwen3_5_text"}, (8953803264, 8953803264, 32768, 32768, 51904512), id="Qwen3.5-9B's text model"),
    pytest.param({"model_type": "lfm2", "full_attn_idxs": [2, 5]}, (3000635200, 3000635200, 5120, 5120, 30 * 2560 * 3 * 2), id="LFM2"),
    pytest.param(
        {"model_type": "bamba", "attn_layer_indices": [9, 18, 27]}, (9808584064, 9808584064, 12288, 12288, 29 * MAMBA2), id="Bamba"
    ),
    pytest.param(
        {"model_type": "lfm2_moe", "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"]},
        (987926656, 371363968, 2048, 2048, 3 * 2048 * 3 * 2),
        id="LFM2-MoE: four layers, two of them dense",
    ),
    pytest.param({"model_type": "granitemoehybrid"}, (38601064448, 12629934080, 0, 0, 32 * MAMBA2), id="Granite 4: all defaults"),
]


@pytest.mark.parametrize(("given", "expected"), PUBLISHED)
def test_a_published_model_has_its_counts(given: dict[str, Any], expected: Facts) -> None:
    assert facts(read_config(given)) == expected


# --- what layers are read as ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"model_type": "mamba", "num_hidden_layers": 3}, "3x", id="alike layers have no name"),
        pytest.param(
            {"model_type": "jamba", "num_hidden_layers": 6, "attn_layer_period": 3, "attn_layer_offset": 1},
            "1xmamba_dense 1xattention_moe 1xmamba_dense 1xmamba_moe 1xattention_dense 1xmamba_moe",
            id="Jamba: two periods",
        ),
        pytest.param(
            {"model_type": "jamba", "num_hidden_layers": 6, "num_experts": 1}, "4xmamba 1xattention 1xmamba", id="one expert is none"
        ),
        pytest.param(
            {"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [2]}, "2xmamba 1xattention 1xmamba", id="Bamba: by index"
        ),
        pytest.param(
            {"model_type": "zamba", "num_hidden_layers": 10},
            "2xmamba 1xhybrid 4xmamba 1xhybrid 2xmamba",
            id="Zamba: the third, then every sixth",
        ),
        pytest.param(
            {"model_type": "zamba", "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "linear_attention", "hybrid"]},
            "1xmamba 1xhybrid 1xmamba 1xhybrid",
            id="Zamba: by a list, old and new names",
        ),
        pytest.param(
            {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*E"}, "1xmamba 1xmlp 1xmamba 1xattention 1xmoe", id="by letters"
        ),
        pytest.param(
            {"model_type": "nemotron_h", "layers_block_type": ["mamba", "attention"], "hybrid_override_pattern": "EEE"},
            "1xmamba 1xattention",
            id="words win over letters",
        ),
        pytest.param({"model_type": "nemotron_h"}, "1xmamba 1xmoe 1xattention 1xmlp", id="Nemotron-H: one of each"),
        pytest.param(
            {"model_type": "recurrent_gemma", "num_hidden_layers": 5}, "2xrecurrent 1xattention 2xrecurrent", id="a pattern that is cut"
        ),
        pytest.param(
            {"model_type": "qwen3_next", "num_hidden_layers": 4, "full_attention_interval": 2, "mlp_only_layers": [0]},
            "1xlinear_dense 1xattention_moe 1xlinear_moe 1xattention_moe",
            id="Qwen3-Next: attention at an interval",
        ),
        pytest.param({"model_type": "lfm2", "num_hidden_layers": 3}, "3x", id="LFM2 without a list attends everywhere"),
        pytest.param(
            {"model_type": "lfm2", "num_hidden_layers": 3, "full_attn_idxs": [1]}, "1xconv 1xattention 1xconv", id="LFM2: by index"
        ),
    ],
)
def test_layers_are_told_apart(given: dict[str, Any], expected: str) -> None:
    assert kinds(read_config(given)) == expected


def mixer(spec: ModelSpec, kind: type) -> Any:
    """The first mixer of a type."""
    return next(sub.mixer for layer in spec.main.layers() for sub in layer.sublayers if isinstance(sub.mixer, kind))


@pytest.mark.parametrize(
    ("given", "kind", "expected"),
    [
        pytest.param({"model_type": "mamba", "hidden_size": 100}, Mamba, {"d_inner": 200, "dt_rank": 7}, id="auto is rounded up"),
        pytest.param({"model_type": "mamba", "time_step_rank": 5, "expand": 3}, Mamba, {"d_inner": 2304, "dt_rank": 5}, id="given"),
        pytest.param({"model_type": "jamba", "mamba_proj_bias": True}, Mamba, {"proj_bias": True, "inner_norms": True}, id="Jamba's norms"),
        pytest.param({"model_type": "zamba", "n_mamba_heads": 4}, Mamba, {"heads": 4, "d_inner": 7424}, id="Zamba's heads"),
        pytest.param(
            {"model_type": "bamba", "mamba_n_heads": 32},
            Mamba2,
            {"heads": 32, "head_dim": 256, "groups": 1},
            id="a head's width is implied",
        ),
        pytest.param({"model_type": "nemotron_h", "n_groups": 4, "mamba_n_groups": 2}, Mamba2, {"groups": 2}, id="an old name wins"),
        pytest.param({"model_type": "qwen3_next"}, GatedDelta, {"key_heads": 16, "value_heads": 32, "conv": 4}, id="delta rule"),
        pytest.param(
            {"model_type": "recurrent_gemma", "lru_width": 1280}, RgLru, {"width": 1280, "blocks": 10}, id="a narrower recurrence"
        ),
        pytest.param(
            {"model_type": "lfm2", "full_attn_idxs": [0], "conv_bias": True}, ShortConv, {"conv": 3, "bias": True}, id="short convolution"
        ),
    ],
)
def test_a_mixer_has_its_sizes(given: dict[str, Any], kind: type, expected: dict[str, object]) -> None:
    found = mixer(read_config(given), kind)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("keys", "width"),
    [
        pytest.param({}, 8192, id="two thirds, rounded up to 256"),
        pytest.param({"block_ff_dim": 6656}, 4608, id="the file's other name wins"),
        pytest.param({"block_ffn_dim_multiplier": 1.3}, 10752, id="times a factor"),
        pytest.param({"block_ffn_dim_multiplier": None, "intermediate_size": 100}, 66, id="no factor, no rounding"),
        pytest.param({"block_auto_adjust_ff_dim": False}, 12288, id="as given"),
    ],
)
def test_the_width_of_lfm2_adjusts_itself(keys: dict[str, Any], width: int) -> None:
    spec = read_config({"model_type": "lfm2", "num_hidden_layers": 1, **keys})
    rows = {row.path: row for row in ledger(spec, Pass(context=1))}
    assert rows["decoder/feed_forward/up_proj"].dims["n"] == width


# --- Zamba: one block, several layers -------------------------------------------------------------------------------


def test_the_shared_block_exists_once_and_runs_often() -> None:
    spec = read_config({"model_type": "zamba", "num_hidden_layers": 16})
    rows = {row.path: row for row in ledger(spec, Pass(context=5))}
    block, own = rows["decoder/hybrid/attention/q_proj"], rows["decoder/hybrid/linear/weight"]
    assert (block.copies, block.repeat, block.params) == (1, 3, 7424 * 7424)
    assert (own.copies, own.repeat) == (3, 3)
    # Every run of the block has a cache of its own.
    assert growth(spec, Pass(context=5)) == 3 * 2 * 2 * 16 * 464


def test_an_untied_head_unshares_the_block() -> None:
    tied, untied = (read_config({"model_type": "zamba", "num_hidden_layers": 16, "tie_word_embeddings": flag}) for flag in (True, False))
    block = 3 * 7424 * 7424 + 3712 * 7424 + 3 * 3712 * 14848 + 7424 + 3712
    assert params(untied).total_params - params(tied).total_params == 32000 * 3712 + 2 * block


def test_nemotron_heads_are_never_tied() -> None:
    spec = read_config({"model_type": "nemotron_h", "tie_word_embeddings": True})
    assert params(spec).lm_head_params == 131072 * 4096
    assert any("tie_word_embeddings = true is not read" in line for line in spec.assumptions)


def test_nemotron_latent_experts_work_in_a_narrower_width() -> None:
    small = {"model_type": "nemotron_h", "hybrid_override_pattern": "E", "n_routed_experts": 6, "moe_intermediate_size": 40}
    wide, latent = (read_config({**small, "moe_latent_size": width}) for width in (None, 512))
    assert params(wide).total_params - params(latent).total_params == 6 * 2 * 40 * (4096 - 512) - 2 * 4096 * 512


# --- FLOPs and state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3_5_text", "recurrent_gemma", "nemotron_h", "lfm2"])
def test_a_recurrence_costs_the_same_at_any_context(name: str) -> None:
    spec = read_config({"model_type": name})
    rows = {context: [r for r in ledger(spec, Pass(phase="decode", context=context)) if r.op != "attention"] for context in (9, 9000)}
    assert total(rows[9], "flops") == total(rows[9000], "flops")
    assert kvcache(spec, Pass(context=9)).state_bytes == kvcache(spec, Pass(context=9000)).state_bytes


def test_a_state_space_reads_its_state_once_a_token() -> None:
    rows = {
        row.path: row
        for row in ledger(read_config({"model_type": "mamba", "hidden_size": 24, "num_hidden_layers": 1}), Pass(batch=3, context=7))
    }
    assert rows["decoder/mamba/scan"].flops == 2 * 21 * 48 * 16
    assert rows["decoder/mamba/conv"].flops == 2 * 21 * 48 * 4


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"model_type": "mamba2", "num_heads": 64}, "must be the same", id="heads that do not make up the width"),
        pytest.param({"model_type": "bamba", "mamba_d_head": 32}, "must be the same", id="Bamba's likewise"),
        pytest.param({"model_type": "jamba", "attn_layer_offset": 8}, "must be smaller", id="an offset beyond the period"),
        pytest.param({"model_type": "zamba", "num_hidden_layers": 2}, "fewer than the three", id="too few layers for the pattern"),
        pytest.param({"model_type": "zamba", "n_mamba_heads": 3}, "3 does not divide", id="heads of the inner width"),
        pytest.param({"model_type": "nemotron_h", "hybrid_override_pattern": "MXM"}, "names", id="an unknown letter"),
        pytest.param({"model_type": "recurrent_gemma", "lru_width": 2561}, "10 does not divide lru_width", id="gates a head"),
        pytest.param({"model_type": "qwen3_next", "linear_num_key_heads": 12}, "does not divide", id="key heads of the delta rule"),
        pytest.param({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "1 entries for 48", id="a short list"),
        pytest.param({"model_type": "lfm2", "layer_types": ["recurrent"] * 32}, "known are full_attention, conv", id="a kind of others"),
        pytest.param({"model_type": "lfm2_moe"}, "layer_types is missing", id="LFM2-MoE has no pattern of its own"),
        pytest.param({"model_type": "mamba", "expand": 0.0001}, "it must be from 1", id="no inner width"),
        pytest.param({"model_type": "mamba", "time_step_rank": "half"}, "whole number", id="a word that is not auto"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        read_config(given)
