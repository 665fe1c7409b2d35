"""Dense decoders: published models by their sizes, and the options that their families read."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.estimators.kvcache import growth
from tfm.estimators.ledger import ledger, total
from tfm.estimators.params import params
from tfm.estimators.work import Pass
from tfm.presets.errors import UnreadableError
from tfm.presets.huggingface import read_config
from tfm.presets.spec import Alibi, Attention, Local, ModelSpec, Rope, Sliding

Facts = tuple[int, int, int]  # parameters; cache bytes a token (bf16) inside every window, and beyond every window


def sizes(kind: str, vocab: int, d_model: int, d_ff: int, layers: int, heads: int, kv: int | None = None, **more: Any) -> dict[str, Any]:
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
    return params(spec).total_params, growth(spec, Pass(context=16)), growth(spec, Pass(context=2**22))


# Sizes are those of the published files; the counts are those the library (5.24) builds from them, as tables of the field
# have them: Llama-2-70B 68,976,648,192, Qwen1.5-72B 72,287,920,128, Qwen3-4B 4,022,468,096, GPT-2 124,439,808.
PUBLISHED = [
    pytest.param(sizes("llama", 32000, 4096, 11008, 32, 32), (6738415616, 524288, 524288), id="Llama-2-7B"),
    pytest.param(sizes("llama", 32000, 8192, 28672, 80, 64, 8), (68976648192, 327680, 327680), id="Llama-2-70B"),
    pytest.param(sizes("llama", 128256, 2048, 8192, 16, 32, 8, tie_word_embeddings=True), (1235814400, 32768, 32768), id="Llama-3.2-1B"),
    pytest.param(sizes("mistral", 32000, 4096, 14336, 32, 32), (7241732096, 131072, 0), id="Mistral-7B: a window unless null"),
    pytest.param(
        sizes("mistral", 131072, 5120, 14336, 40, 32, head_dim=128, sliding_window=None), (12247782400, 163840, 163840), id="Mistral-Nemo"
    ),
    pytest.param(sizes("phi3", 32064, 3072, 8192, 32, 32, sliding_window=2047), (3821079552, 393216, 0), id="Phi-3-mini"),
    pytest.param(sizes("phi", 51200, 2560, 10240, 32, 32), (2779683840, 327680, 327680), id="Phi-2: a bias in the head"),
    pytest.param(sizes("qwen", 151936, 4096, 22016, 32, 32), (7721324544, 524288, 524288), id="Qwen-7B: two halves in one size"),
    pytest.param(sizes("qwen2", 152064, 8192, 24576, 80, 64, 64), (72287920128, 2621440, 2621440), id="Qwen1.5-72B"),
    pytest.param(sizes("qwen2", 152064, 8192, 29568, 80, 64, 8), (72706203648, 327680, 327680), id="Qwen2.5-72B"),
    pytest.param(sizes("qwen3", 151936, 2560, 9728, 36, 32, 8, tie_word_embeddings=True), (4022468096, 147456, 147456), id="Qwen3-4B"),
    pytest.param(sizes("gemma", 256000, 2048, 16384, 18, 8, 1), (2506172416, 18432, 18432), id="Gemma-2B"),
    pytest.param(sizes("gemma2", 256000, 4608, 36864, 46, 32, 16, head_dim=128), (27227128320, 376832, 188416), id="Gemma-2-27B"),
    pytest.param(sizes("gemma3_text", 262144, 1152, 6912, 26, 4, 1), (999885952, 26624, 4096), id="Gemma-3-1B"),
    pytest.param({"model_type": "gpt2"}, (124439808, 36864, 36864), id="GPT-2: all defaults"),
    pytest.param({"model_type": "gpt_neo"}, (1315575808, 196608, 98304), id="GPT-Neo-1.3B: every other layer local"),
    pytest.param({"model_type": "gptj"}, (6050882784, 458752, 458752), id="GPT-J-6B: all defaults"),
    pytest.param(sizes("gpt_neox", 50304, 768, 3072, 12, 12), (162322944, 36864, 36864), id="Pythia-160M"),
    pytest.param({"model_type": "falcon"}, (6921720704, 8192, 8192), id="Falcon-7B: one key head"),
    pytest.param(
        {"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8}
        | {"new_decoder_architecture": True},
        (41303293952, 122880, 122880),
        id="Falcon-40B: two norms, groups",
    ),
    pytest.param({"model_type": "bloom", "n_embed": 1024, "n_head": 16, "n_layer": 24}, (559214592, 98304, 98304), id="BLOOM-560M"),
    pytest.param(
        {"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
        | {"word_embed_proj_dim": 512, "do_layer_norm_before": False},
        (331196416, 98304, 98304),
        id="OPT-350M: a narrow table, norms after",
    ),
    pytest.param(
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432},
        (6649286656, 524288, 524288),
        id="MPT-7B",
    ),
    pytest.param(sizes("starcoder2", 49152, 3072, 12288, 30, 24), (3030371328, 30720, 30720), id="StarCoder2-3B"),
    pytest.param(sizes("cohere", 256000, 8192, 22528, 40, 64), (34980831232, 1310720, 1310720), id="Command-R: tied"),
    pytest.param(sizes("cohere2", 256000, 4096, 14336, 32, 32, 8), (8028033024, 131072, 32768), id="Command-R7B: one of four is full"),
    pytest.param(sizes("stablelm", 50304, 2560, 6912, 32, 32), (2795443200, 327680, 327680), id="StableLM-3B"),
    pytest.param(sizes("olmo", 50304, 4096, 11008, 32, 32), (6888095744, 524288, 524288), id="OLMo-7B: norms without weights"),
    pytest.param(sizes("olmo2", 100352, 5120, 27648, 64, 40, 8), (32234279936, 262144, 262144), id="OLMo-2-32B"),
    pytest.param(sizes("olmo3", 100278, 4096, 11008, 32, 32), (7298011136, 524288, 131072), id="OLMo-3-7B"),
    pytest.param(sizes("exaone4", 102400, 5120, 27392, 64, 40, 8), (32003216384, 262144, 65536), id="EXAONE-4-32B"),
    pytest.param(sizes("glm", 151552, 4096, 13696, 40, 32), (9399951360, 40960, 40960), id="GLM-4-9B"),
    pytest.param(
        {"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True},
        (6243584000, 28672, 28672),
        id="ChatGLM3-6B",
    ),
    pytest.param(sizes("baichuan", 125696, 4096, 11008, 32, 32), (7505973248, 524288, 524288), id="Baichuan2-7B"),
    pytest.param(sizes("minicpm", 122753, 2304, 5760, 40, 36), (2724880896, 368640, 368640), id="MiniCPM-2B: tied unless said"),
    pytest.param(sizes("orion", 84608, 5120, 15360, 40, 40), (14498703360, 819200, 819200), id="Orion-14B: layer norms"),
    pytest.param(sizes("ernie4_5", 103424, 1024, 3072, 18, 16), (360748032, 18432, 18432), id="ERNIE-4.5-0.3B"),
    pytest.param(sizes("seed_oss", 155136, 5120, 27648, 64, 80), (36151104512, 262144, 262144), id="Seed-OSS-36B"),
    pytest.param(sizes("apertus", 131072, 4096, 21504, 32, 32, 8), (8053338176, 131072, 131072), id="Apertus-8B: xIELU learns two numbers"),
]


@pytest.mark.parametrize(("config", "expected"), PUBLISHED)
def test_published_models(config: dict[str, Any], expected: Facts) -> None:
    assert facts(read_config(config)) == expected


# --- options --------------------------------------------------------------------------------------------------------

V, D, F, L, N, K, H = 97, 48, 100, 6, 6, 2, 8


def small(kind: str, **more: Any) -> ModelSpec:
    return read_config({**sizes(kind, V, D, F, L, N, K), **more})


def layer_windows(spec: ModelSpec) -> list[int | None]:
    """The window of every layer's attention."""
    masks = [layer.sublayers[0].mixer.mask for layer in spec.main.layers() if isinstance(layer.sublayers[0].mixer, Attention)]
    return [mask.window if isinstance(mask, Sliding) else None for mask in masks]


@pytest.mark.parametrize(
    ("kind", "more", "difference"),
    [
        pytest.param("llama", {"attention_bias": True}, L * (N * H + 2 * K * H + D), id="biases on all four projections"),
        pytest.param("llama", {"mlp_bias": True}, L * (2 * F + D), id="biases on all three of the feed-forward"),
        pytest.param("llama", {"head_dim": 16}, L * 2 * D * (N + K) * 8, id="heads twice as wide as d_model / heads"),
        pytest.param("llama", {"num_key_value_heads": None}, L * 2 * D * (N - K) * H, id="null: as many as heads"),
        pytest.param("seed_oss", {"attention_out_bias": True}, L * D, id="only the output's bias"),
        pytest.param("gemma2", {"tie_word_embeddings": False}, V * D, id="tied unless said"),
        pytest.param("qwen2", {"attention_bias": False}, 0, id="no key switches Qwen 2's biases"),
        pytest.param("arcee", {"mlp_bias": True}, L * (F + D), id="two matrices, two biases"),
        pytest.param("cohere", {"use_qk_norm": True}, L * (N + K) * H, id="a weight for every head's every element"),
        pytest.param("stablelm", {"qk_layernorm": True}, L * (N + K) * H, id="likewise"),
        pytest.param("stablelm", {"use_parallel_residual": True}, -L * 2 * D, id="one norm less"),
        pytest.param("phi", {"qk_layernorm": True}, L * 4 * H, id="weight and bias, for queries and for keys"),
        pytest.param("apertus", {"hidden_act": "silu"}, -2 * L, id="an activation that learns nothing"),
        pytest.param("gpt_neox", {"use_parallel_residual": False}, 0, id="two norms either way"),
        pytest.param("hunyuan_v1_dense", {"head_dim": 16}, L * (2 * D * (N + K) * 8 + 2 * 8), id="norms follow the head's width"),
    ],
)
def test_what_an_option_adds(kind: str, more: dict[str, Any], difference: int) -> None:
    usual = {"num_key_value_heads": K} if kind != "gpt_neox" else {}
    base = sizes(kind, V, D, F, L, N) | usual
    assert params(read_config({**base, **more})).total_params - params(read_config(base)).total_params == difference


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        pytest.param("mistral", {}, [4096] * L, id="absent: the class's default"),
        pytest.param("mistral", {"sliding_window": None}, [None] * L, id="null: none"),
        pytest.param("phi3", {}, [None] * L, id="another default"),
        pytest.param("qwen2", {"sliding_window": 32}, [None] * L, id="not used unless use_sliding_window"),
        pytest.param(
            "qwen3", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 4}, [None] * 4 + [32] * 2, id="upper layers"
        ),
        pytest.param("gemma2", {"sliding_window": 32}, [32, None] * 3, id="implied by the family"),
        pytest.param("gemma3_text", {"sliding_window": 32}, [32] * 5 + [None], id="five of six"),
        pytest.param("gemma3_text", {"sliding_window": 32, "sliding_window_pattern": 3}, [32, 32, None] * 2, id="by pattern"),
        pytest.param(
            "gemma3_text",
            {"sliding_window": 32, "layer_types": ["full_attention"] * 4 + ["sliding_attention"] * 2},
            [None] * 4 + [32] * 2,
            id="by list",
        ),
        pytest.param("olmo3", {"sliding_window": 32}, [32, 32, 32, None, 32, 32], id="three of four"),
        pytest.param("exaone4", {"sliding_window": 32, "sliding_window_pattern": "LLG"}, [32, 32, None] * 2, id="by letters"),
        pytest.param("exaone4", {"sliding_window": None}, [None] * L, id="no window, no pattern"),
        pytest.param("cwm", {"sliding_window": 32, "head_dim": H}, [None, 32, 32, 32, None, 32], id="the first of four is full"),
        pytest.param(
            "smollm3", {"sliding_window": 32, "use_sliding_window": True}, [None, None, None, 32, None, None], id="where nothing rotates"
        ),
        pytest.param("gemma4_text", {"sliding_window": 32}, [32] * 5 + [None], id="Gemma 4"),
        pytest.param(
            "gemma4_text", {"sliding_window": 32, "layer_types": ["sliding_attention"] * L}, [32] * 5 + [None], id="the last is full"
        ),
    ],
)
def test_windows(kind: str, more: dict[str, Any], expected: list[int | None]) -> None:
    assert layer_windows(small(kind, **more)) == expected


def test_gpt_neo_writes_its_kinds_out() -> None:
    base = {"model_type": "gpt_neo", "num_layers": 4, "hidden_size": D, "num_heads": N, "window_size": 32}
    assert layer_windows(read_config({**base, "attention_types": [[["global"], 1], [["local", "global"], 1], [["local"], 1]]})) == [
        None, 32, None, 32,
    ]  # fmt: skip
    for wrong in ([[["global"], 3]], [["global", 4]], [[["odd"], 4]], "global", [[["global", "local"], -2]]):
        with pytest.raises(UnreadableError, match="attention_types"):
            read_config({**base, "attention_types": wrong})


def test_layers_without_rotation() -> None:
    positions = [layer.sublayers[0].mixer.position for layer in small("smollm3").main.layers()]  # type: ignore[union-attr]
    assert [position is None for position in positions] == [False, False, False, True, False, False]
    full = [layer.sublayers[0].mixer.position for layer in small("cohere2").main.layers()]  # type: ignore[union-attr]
    assert [position is None for position in full] == [False, False, False, True, False, False]


def test_partial_rotation_scaling_and_a_base_for_each_kind() -> None:
    spec = small("gemma3_text", rope_theta=5e5, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    kinds = {layer.name: layer.sublayers[0].mixer.position for layer in spec.main.layers()}  # type: ignore[union-attr]
    assert {name: position.theta for name, position in kinds.items() if isinstance(position, Rope)} == {"sliding": 1e4, "global": 5e5}
    half = small("glm", head_dim=H).main.blocks[0].pattern[0].sublayers[0].mixer
    assert isinstance(half, Attention)
    assert half.position == Rope(dims=H // 2, interleaved=True)
    alibi = read_config({"model_type": "falcon", "alibi": True, "hidden_size": 48, "num_attention_heads": 6})
    assert isinstance(alibi.main.blocks[0].pattern[0].sublayers[0].mixer, Attention)
    assert alibi.main.blocks[0].pattern[0].sublayers[0].mixer.position == Alibi()


def test_layers_that_share_a_cache_own_no_keys() -> None:
    base = {"num_key_value_heads": K, "head_dim": H, "global_head_dim": 16, "hidden_size_per_layer_input": 0, "num_hidden_layers": 12}
    alone, sharing = small("gemma4_text", **base), small("gemma4_text", **base, num_kv_shared_layers=6)
    keys = 5 * (2 * D * K * H + H) + (2 * D * K * 16 + 16)  # of the last six layers: five sliding, one full
    assert params(alone).total_params - params(sharing).total_params == keys
    assert growth(alone, Pass(context=16)) == 2 * growth(sharing, Pass(context=16))
    with pytest.raises(UnreadableError, match="num_kv_shared_layers 8 of 12"):
        small("gemma4_text", **base, num_kv_shared_layers=8)


def test_an_embedding_model_sees_both_ways_and_keeps_nothing() -> None:
    spec = small("gemma3_text", use_bidirectional_attention=True, sliding_window=32, architectures=["Gemma3TextModel"])
    assert not spec.decodes
    assert growth(spec, Pass(context=64)) == 0
    mixer = spec.main.blocks[0].pattern[0].sublayers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.mask == Local(reach=16)


def test_a_second_head_runs_once() -> None:
    base = {"model_type": "gpt2", "n_embd": D, "n_head": N, "n_layer": L, "vocab_size": V}
    one, two = read_config(base), read_config({**base, "architectures": ["GPT2DoubleHeadsModel"]})
    assert params(two).total_params - params(one).total_params == D + 1
    work = Pass(batch=3, context=10)
    assert total(ledger(two, work), "flops") - total(ledger(one, work), "flops") == 2 * 3 * D


def test_heads_that_do_not_divide_round_down_where_the_library_does() -> None:
    spec = small("glm", head_dim=None, hidden_size=50)
    assert any("8 as the library rounds it" in line for line in spec.assumptions)
    with pytest.raises(UnreadableError, match="does not divide hidden_size 50"):
        small("llama", hidden_size=50)


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        pytest.param("qwen", {"intermediate_size": 101, "num_key_value_heads": None}, "must be even", id="two halves"),
        pytest.param("gemma3_text", {"layer_types": ["full_attention"] * 5}, "5 entries for 6 layers", id="a list of another length"),
        pytest.param("gemma3_text", {"layer_types": ["odd"] * 6}, "layer_types names 'odd'; known are", id="a kind that is not known"),
        pytest.param("smollm3", {"no_rope_layers": [1, 0]}, "2 entries for 6 layers", id="a list of another length, again"),
        pytest.param("exaone4", {"sliding_window_pattern": "GGL"}, "must be letters", id="letters in another order"),
        pytest.param("mistral", {"layer_types": ["full_attention"] * 6}, "sliding_attention throughout", id="a list against the window"),
        pytest.param("mpt", {"attn_config": {"kv_n_heads": 4}}, "kv_n_heads 4 is not built", id="what the library leaves out"),
        pytest.param("gemma4_text", {"use_bidirectional_attention": "some"}, "known are null, vision and all", id="a word"),
    ],
)
def test_refused_by_name(kind: str, more: dict[str, Any], message: str) -> None:
    usual = sizes(kind, V, D, F, L, N, K) if kind != "mpt" else {"model_type": kind}
    with pytest.raises(UnreadableError, match=message):
        read_config({**usual, **more})
