"""The same as functions of the package."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tfm
from tfm.kernels.generation import Sampler, beam_search
from tfm.kernels.model import Model
from tfm.kernels.shrink import shrink
from tfm.presets.loader import load_model

ModelOf = Callable[..., Model]
PROMPTS = [[1, 5, 3], [7, 2, 9, 4]]


def test_generate_takes_a_description_or_a_module(model_of: ModelOf) -> None:
    found = tfm.generate(shrink(load_model("gpt-2")), PROMPTS, new=5)
    assert [len(tokens) for tokens in found.tokens] == [5, 5]
    module = model_of("mamba")
    drawn = tfm.generate(module, PROMPTS, new=5, sampler=Sampler(temperature=1.0), seed=3)
    assert drawn == drawn.__class__(tokens=drawn.tokens, log_probs=drawn.log_probs, steps=drawn.steps)
    best = tfm.generate(module, PROMPTS, new=5, beams=3, length_penalty=0.6)
    assert best.tokens == tuple(beam_search(module, prompt, new=5, beams=3, length_penalty=0.6)[0].tokens for prompt in PROMPTS)


def test_speculation_and_control() -> None:
    found = tfm.speculation("llama-2-70b", "llama-7b", "h100-80gb-sxm", acceptance=0.8, draft_tokens=4, context=4096)
    assert round(found.speed_up, 2) == 2.33
    look = tfm.control("openvla-7b", "a100-80gb-sxm")
    assert look is not None
    assert round(look.control_hz, 1) == 19.0
    assert look == tfm.control("openvla-7b", "a100-80gb-sxm", context=280)
    with pytest.raises(tfm.UsageError, match="says no actions"):
        tfm.control("llama-7b", "a100-80gb-sxm")
