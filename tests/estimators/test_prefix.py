"""A shared prefix by hand; PyTorch's own counts stand in tests/kernels/generation."""

from __future__ import annotations

from tfm.estimators.latency import roofline
from tfm.estimators.prefix import saving
from tfm.estimators.work import Pass
from tfm.presets.device import load_device
from tfm.presets.loader import load_model

SPEC = load_model("llama-2-7b")
A100 = load_device("a100-80gb-sxm")


def test_by_hand() -> None:
    """8 prompts of 1000 + 24: linear layers over 8 x 1024 or 1000 + 8 x 24 tokens; weights once or twice; copies."""
    found = saving(SPEC, Pass(), prefix=1000, rest=24, requests=8)
    linear = 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000)
    pairs = 8 * (1024 * 1025 // 2), (1000 * 1001 // 2) + 8 * (24 * 1024 - 24 * 23 // 2)
    assert found.apart_flops == 8 * 1024 * linear + 32 * 2 * 32 * pairs[0] * 256
    assert found.shared_flops == (1000 + 8 * 24) * linear + 32 * 2 * 32 * pairs[1] * 256
    token = 2 * 32 * 32 * 128 * 2
    assert found.copied_bytes == 9 * 1000 * token
    weights = roofline(SPEC, Pass(phase="decode"), A100).weight_read_bytes
    assert found.apart_bytes == weights + 8 * 1024 * token
    assert found.shared_bytes == 2 * weights + 1000 * token + 8 * 1024 * token + found.copied_bytes


def test_one_request_saves_nothing() -> None:
    found = saving(SPEC, Pass(), prefix=10, rest=5, requests=1)
    assert found.apart_flops == found.shared_flops
    assert found.shared_bytes > found.apart_bytes
