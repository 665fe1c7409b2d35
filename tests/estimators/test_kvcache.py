"""Cache bytes against published figures (bf16 unless said)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tfm.estimators.kvcache import kvcache
from tfm.estimators.work import Pass
from tfm.presets.dtypes import DTYPES
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model, model_names
from tfm.presets.spec import Attention
from tfm.presets.variants import map_mixers, with_kv_heads

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "work", "policy", "expected"),
    [
        pytest.param("llama-2-7b", Pass(context=32768), "minimal", 16 * GIB, id="7B at 32k"),
        pytest.param("llama-2-70b", Pass(context=4096), "minimal", 1_342_177_280, id="8 KV heads, not 64, and both K and V"),
        pytest.param("deepseek-v3", Pass(context=65536), "minimal", 70_272 * 65536, id="MLA's latent"),
        pytest.param("deepseek-v3", Pass(context=65536), "decompressed", 327_491_256_320, id="MLA as full heads"),
        pytest.param("gemma-2-27b", Pass(context=8192), "minimal", 2_315_255_808, id="23 layers stop at 4096"),
        pytest.param("gemma-2-27b", Pass(context=8192), "full", 3_087_007_744, id="no window"),
        pytest.param("gpt-oss-120b", Pass(context=1), "minimal", 73_728, id="36 layers x 2,048"),
        pytest.param("gpt-oss-20b", Pass(context=8192, batch=32), "full", 12 * GIB, id="32 sequences"),
        pytest.param("gpt-oss-20b", Pass(context=8192, batch=32), "minimal", 6_543_114_240, id="32 sequences, 6.09 GiB"),
        pytest.param("gemma-3-27b", Pass(context=131_072), "minimal", 11_173_625_856, id="10 full layers, 52 of 1024"),
        pytest.param("gemma-3-27b", Pass(context=131_072), "full", 66_571_993_088, id="66.57 GB"),
        pytest.param("whisper-large-v3", Pass(context=448), "minimal", 73_400_320, id="self-attention of 448 tokens"),
        pytest.param("llama-7b", Pass(context=17), "paged", 32 * 524_288, id="17 tokens are two blocks"),
        pytest.param("llama-7b", Pass(context=64, kv_dtype=DTYPES["q8_0"]), "minimal", 64 * 262_144 * 34 // 32, id="q8_0"),
        pytest.param("llama-7b", Pass(context=64, kv_dtype=DTYPES["q4_0"]), "minimal", 64 * 262_144 * 18 // 32, id="q4_0"),
    ],
)
def test_bytes(name: str, work: Pass, policy: str, expected: int) -> None:
    assert kvcache(load_model(name), work).policies[policy] == expected


@pytest.mark.parametrize(("context", "growth"), [(1, 376_832), (4096, 376_832), (4097, 188_416), (8192, 188_416)])
def test_growth_halves_where_the_windows_close(context: int, growth: int) -> None:
    assert kvcache(load_model("gemma-2-27b"), Pass(context=context, batch=7)).kv_bytes_per_token == growth


def test_whispers_cross_attention_is_constant() -> None:
    found = [kvcache(load_model("whisper-large-v3"), Pass(context=n, kv_dtype=DTYPES["fp16"])).cross_kv_bytes for n in (1, 448)]
    assert found == [245_760_000, 245_760_000]


def test_an_encoder_keeps_nothing() -> None:
    found = kvcache(load_model("bert-base"), Pass(context=512, batch=4))
    assert (found.kv_bytes, found.kv_bytes_per_token, found.cross_kv_bytes, found.state_bytes) == (0, 0, 0, 0)
    assert set(found.policies.values()) == {0}


@pytest.mark.parametrize("name", model_names())
def test_policies_are_ordered_and_scale_with_the_batch(name: str) -> None:
    spec = load_model(name)
    one, five = (kvcache(spec, Pass(context=5000, batch=batch)) for batch in (1, 5))
    assert one.kv_bytes == one.policies["minimal"] <= min(one.policies[p] for p in ("full", "decompressed", "paged"))
    assert five.kv_bytes == 5 * one.kv_bytes
    assert five.cross_kv_bytes == 5 * one.cross_kv_bytes
    assert five.kv_bytes_per_token == one.kv_bytes_per_token


def test_grouped_heads_shrink_the_cache() -> None:
    spec = load_model("llama-7b")
    assert kvcache(with_kv_heads(spec, 8), Pass(context=32768)).kv_bytes == 4 * GIB
    assert kvcache(with_kv_heads(spec, 32), Pass(context=99)).kv_bytes == kvcache(spec, Pass(context=99)).kv_bytes
    with pytest.raises(UsageError, match="5 KV heads do not divide the 32 query heads of llama-7b; allowed: 1, 2, 4, 8, 16, 32"):
        with_kv_heads(spec, 5)
    with pytest.raises(UsageError, match="no grouped attention"):
        with_kv_heads(load_model("deepseek-v3"), 8)


def test_heads_that_do_not_divide_are_refused_at_once() -> None:
    """The divisors of the largest size are found without trying every number below it."""
    spec = load_model("llama-7b")
    wide = map_mixers(spec.main, lambda mixer: replace(mixer, heads=2**40, kv_heads=1) if isinstance(mixer, Attention) else mixer)
    with pytest.raises(UsageError, match=r"allowed: 1, 2, 4, .* \.\.\.$"):
        with_kv_heads(replace(spec, stacks=(wide,)), 3)
