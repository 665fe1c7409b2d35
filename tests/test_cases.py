"""What users of other tools reported as wrong, each with the right value.

The number in an id is that of the complaint in the order they were collected: cache, parameters, FLOPs, mixtures,
latency, units and weights, training.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import tfm
from tfm.estimators.counts import attended_pairs, matmul_flops
from tfm.estimators.latency import roofline
from tfm.estimators.memory import fit, memory
from tfm.estimators.sizes import bytes_of
from tfm.presets import spec as s
from tfm.presets.device import load_device
from tfm.presets.dtypes import DTYPES
from tfm.presets.huggingface import read_config

A100 = load_device("a100-80gb-sxm")
FP16 = DTYPES["fp16"]


def config(**fields: Any) -> s.ModelSpec:
    """A configuration as people have it."""
    return read_config(fields)


QWEN3_4B = {
    "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
QWEN2 = {"model_type": "qwen2", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64}
QWEN15_72B = QWEN2 | {"num_key_value_heads": 64, "intermediate_size": 24576, "vocab_size": 152064, "tie_word_embeddings": False}
QWEN25_72B = QWEN2 | {"num_key_value_heads": 8, "intermediate_size": 29568, "vocab_size": 152064, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("name", "context", "policy", "expected"),
    [
        pytest.param("llama-2-70b", 4096, "minimal", 1_342_177_280, id="1 Llama-2-70B: 8 KV heads, keys and values"),
        pytest.param("deepseek-v3", 8192, "minimal", 61 * (512 + 64) * 2 * 8192, id="4 DeepSeek-V3: the latent, 0.576 GB at 8192"),
        pytest.param("gpt-oss-120b", 1, "minimal", 73_728, id="7 gpt-oss-120b: both keys and values"),
        pytest.param("gemma-2-27b", 8192, "minimal", 2_315_255_808, id="8 Gemma-2: half the layers stop at 4096"),
        pytest.param("gemma-3-27b", 131_072, "minimal", 11_173_625_856, id="9 Gemma-3: 10 of 62 layers are full"),
        pytest.param("gemma-3-27b", 131_072, "full", 66_571_993_088, id="9 Gemma-3: at full length"),
        pytest.param("whisper-large-v3", 448, "minimal", 73_400_320, id="11 Whisper: 448 tokens of its own"),
    ],
)
def test_cache(name: str, context: int, policy: str, expected: int) -> None:
    assert tfm.kvcache(name, context=context, kv_dtype=FP16).policies[policy] == expected


def test_02_a_step_reads_kv_heads_once() -> None:
    assert roofline(tfm.model("llama-2-70b"), tfm.Pass(phase="decode", context=4096), A100).kv_read_bytes == 1_342_177_280


def test_03_head_dim_is_a_field_of_its_own() -> None:
    assert tfm.kvcache(config(**QWEN3_4B), context=1).kv_bytes == 147_456


def test_05_keys_and_values_of_different_width_and_kv_heads_by_layer() -> None:
    spec = tfm.model("llama-7b")
    block = spec.stacks[0].blocks[0]
    attention = block.pattern[0].sublayers[0]

    def layer(kv_heads: int, value_dim: int) -> s.Layer:
        mixer = replace(attention.mixer, kv_heads=kv_heads, value_dim=value_dim)
        return s.Layer(name=f"kv{kv_heads}", sublayers=(replace(attention, mixer=mixer),))

    stack = replace(spec.stacks[0], blocks=(s.Block(pattern=(layer(4, 64), layer(8, 96)), repeat=3),))
    found = tfm.kvcache(replace(spec, stacks=(stack,), total_params=None), context=10)
    assert found.kv_bytes == 10 * 2 * 3 * (4 * (128 + 64) + 8 * (128 + 96))


def test_06_cache_blocks() -> None:
    assert (bytes_of(32, DTYPES["q8_0"]), bytes_of(32, DTYPES["q4_0"])) == (34, 18)


def test_10_layers_of_linear_attention_keep_a_constant_state() -> None:
    spec = config(
        model_type="qwen3_next", hidden_size=2048, num_hidden_layers=48, num_attention_heads=16, num_key_value_heads=2, head_dim=256,
        intermediate_size=5120, moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts=512, num_experts_per_tok=10,
        vocab_size=151936, linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_value_head_dim=128, full_attention_interval=4, tie_word_embeddings=False,
    )  # fmt: skip
    found = tfm.kvcache(spec, context=262_144)
    assert found.kv_bytes == 6_442_450_944
    assert found.state_bytes == 77_856_768


def test_11_whispers_cross_attention() -> None:
    assert tfm.kvcache("whisper-large-v3", context=1, kv_dtype=FP16).cross_kv_bytes == 245_760_000
    turbo = config(
        model_type="whisper", d_model=1280, encoder_layers=32, decoder_layers=4, encoder_attention_heads=20, decoder_attention_heads=20,
        encoder_ffn_dim=5120, decoder_ffn_dim=5120, vocab_size=51866, num_mel_bins=128, num_hidden_layers=32,
    )  # fmt: skip
    assert tfm.kvcache(turbo, context=1, kv_dtype=FP16).cross_kv_bytes == 30_720_000


def test_12_the_largest_context_is_piecewise_where_layers_have_windows() -> None:
    spec, capacity = tfm.model("gemma-3-27b"), 70 * 2**30
    found = fit(spec, tfm.Pass(phase="decode"), capacity).largest_context
    left = capacity - memory(spec, tfm.Pass(phase="decode", context=1)).total_bytes
    assert found > 4 * left // 507_904  # what one division by the bytes of a first token would allow
    for context, fits in ((found, True), (found + 1, False)):
        assert (memory(spec, tfm.Pass(phase="decode", context=context)).total_bytes <= capacity) is fits


def test_13_an_encoder_needs_no_cache() -> None:
    assert tfm.kvcache("bert-base", context=512, batch=64).kv_bytes == 0


@pytest.mark.parametrize(
    ("fields", "total"),
    [
        pytest.param(QWEN15_72B, 72_287_920_128, id="14 Qwen1.5-72B"),
        pytest.param(QWEN3_4B, 4_022_468_096, id="14 Qwen3-4B, tied"),
        pytest.param(QWEN25_72B, 72_706_203_648, id="14 Qwen2.5-72B"),
    ],
)
def test_parameters(fields: dict[str, Any], total: int) -> None:
    found = tfm.params(config(**fields))
    assert found.total_params == total
    assert found.embedding_params == fields["vocab_size"] * fields["hidden_size"]
    assert found.non_embedding_params == total - found.embedding_params - found.lm_head_params


def test_15_gpt_2s_tied_head_counts_once() -> None:
    assert tfm.params("gpt-2").total_params == 124_439_808
    assert tfm.params("gpt-2").lm_head_params == 0


def test_16_a_mixture_in_all_and_its_untied_head() -> None:
    found = tfm.params("mixtral-8x7b")
    assert (found.total_params, found.active_params, found.lm_head_params) == (46_702_792_704, 12_879_925_248, 131_072_000)


def test_17_two_norms_a_block_and_a_final_one() -> None:
    assert sum(row.params * row.copies for row in tfm.ledger("llama-7b") if row.op == "norm") == 4096 * (2 * 32 + 1)


def test_18_attention_of_one_batch_twelve_heads_64_by_64() -> None:
    assert matmul_flops(12 * attended_pairs(s.Full(), 64, 64), 64, 1) * 2 == 12_582_912


def test_19_more_keys_than_queries_aligned_bottom_right() -> None:
    pairs = attended_pairs(s.Causal(), 4, 10)
    assert pairs == 34
    assert matmul_flops(pairs, 8, 1) + matmul_flops(pairs, 1, 16) == 1632


def test_20_flops_are_not_linear_in_the_context() -> None:
    short, long = (tfm.flops("llama-3.1-405b", context=n).total_flops for n in (8192, 16384))
    assert long > 2 * short


def test_21_a_look_up_is_free_and_the_head_is_not() -> None:
    for name, width in (("gpt-2", 768), ("llama-7b", 4096)):
        rows = tfm.ledger(name, context=7)
        head = next(row for row in rows if row.path == "lm_head/weight")
        assert head.flops == 2 * 7 * head.dims["n"] * width
        assert all(row.flops == 0 for row in rows if row.op == "embedding")


def test_22_the_width_of_the_feed_forward_changes_the_answer() -> None:
    wide = config(**QWEN3_4B | {"intermediate_size": 9729})
    narrow = config(**QWEN3_4B)
    assert tfm.flops(wide, context=8).total_flops - tfm.flops(narrow, context=8).total_flops == 36 * 3 * 2 * 8 * 2560
    assert tfm.params(wide).total_params - tfm.params(narrow).total_params == 36 * 3 * 2560


def test_23_a_step_reads_what_always_runs_the_distinct_experts_and_the_cache() -> None:
    spec, work = tfm.model("mixtral-8x7b"), tfm.Pass(phase="decode", batch=3, context=500)
    found = roofline(spec, work, A100)
    always = sum(row.params * row.copies for row in found.rows if row.op not in ("experts", "embedding"))
    expert = 3 * 4096 * 14336
    assert found.weight_read_bytes == 2 * (always + 32 * 4.625 * expert)
    assert found.kv_read_bytes == tfm.kvcache(spec, work).kv_bytes


def by_hand(bandwidth: float, peak: float) -> tfm.Device:
    return replace(A100, memory_bytes_per_s=bandwidth, peak_flops_per_s={"bf16": peak, "int8": peak})


def test_24_mixtral_at_batch_1_reads_two_of_eight_experts() -> None:
    found = roofline(tfm.model("mixtral-8x7b"), tfm.Pass(phase="decode", context=1), by_hand(4e12, 624e12))
    assert found.weight_read_bytes == pytest.approx(25.5e9, rel=1e-2)
    assert round((found.floor_s or 0) * 1e3, 1) == 6.4


def test_25_which_step_and_whose_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    from tfm.cli.app import run

    assert run("latency llama-7b --hardware a100-80gb-sxm --ctx 100 --new 50 --batch 4".split()) == 0
    out = capsys.readouterr().out
    assert all(words in out for words in ("first step", "last step", "mean step", "of one sequence", "of all sequences"))


def test_26_a_share_of_bandwidth() -> None:
    assert pytest.approx(0.35) == 700e9 / 2e12
    from tfm.cli.units import format_percent, parse_bandwidth

    assert format_percent(parse_bandwidth("700GB/s") / parse_bandwidth("2TB/s")).startswith("35")


def test_27_a_70b_model_at_4_5_bits_on_273_gb_per_s() -> None:
    assert round(1 / (bytes_of(70_000_000_000, DTYPES["nvfp4"]) / 273e9), 1) == 6.9


def test_28_a_textbooks_worked_answers() -> None:
    """30e9 parameters in int8, 819e6 bytes of cache a sequence, 16 chips: cache first, then the larger of the two."""
    attention = s.Attention(heads=1, kv_heads=1, head_dim=50_000, mask=s.Causal())
    feed_forward = s.FeedForward(d_ff=14_900_000, activation="relu")
    layer = s.Layer(sublayers=(s.Sublayer(name="attention", mixer=attention), s.Sublayer(name="feed_forward", mixer=feed_forward)))
    stack = s.Stack(name="decoder", role="decoder", d_model=1000, blocks=(s.Block(pattern=(layer,)),))
    spec = s.ModelSpec(name="textbook", source=("made up to hold 30e9 parameters",), stacks=(stack,))
    assert tfm.params(spec).total_params == 30_000_000_000
    int8 = DTYPES["int8"]
    work = tfm.Pass(phase="decode", context=8190, weight_dtype=int8, kv_dtype=int8)
    assert tfm.kvcache(spec, work).kv_bytes == 819_000_000
    chips = by_hand(16 * 8.1e11, 16 * 1.97e14)
    for batch, milliseconds in ((4, 2.57), (256, 21.05)):
        assert round((roofline(spec, replace(work, batch=batch), chips).floor_s or 0) * 1e3, 2) == milliseconds


def test_29_gb_and_gib() -> None:
    from tfm.cli.units import format_bytes

    assert format_bytes(70e9 * 2) == "130 GiB"


@pytest.mark.parametrize(
    ("name", "bits"), [("nvfp4", 4.5), ("mxfp4", 4.25), ("int4", 4.125), ("q4_0", 4.5), ("q8_0", 8.5)], ids=lambda value: f"30 {value}"
)
def test_bits_with_scales(name: str, bits: float) -> None:
    assert DTYPES[name].bits_per_element == bits


def test_32_a_nested_text_config_is_read_and_a_config_that_only_names_another_is_refused() -> None:
    text = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 50,
    }
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "image_size": 28, "patch_size": 14, "projection_dim": 16,
    }  # fmt: skip
    found = config(model_type="llava", text_config=text, vision_config=vision, image_token_index=1)
    assert {stack.name for stack in found.stacks} == {"decoder", "vision"}
    with pytest.raises(tfm.TfmError, match="model_type"):
        config(_name_or_path="somebody/else", text_config="somebody/else")


def test_33_a_training_step_names_its_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    from tfm.cli.app import run

    assert run("memory gpt-2 --phase train".split()) == 0
    assert "16 bytes a parameter" in " ".join(capsys.readouterr().out.split())
    assert run("memory gpt-2 --phase train --gradient-dtype fp32".split()) == 0
    assert "18 bytes a parameter" in " ".join(capsys.readouterr().out.split())
