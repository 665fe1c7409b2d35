"""One look of a robot's policy: the sum of its passes, chunks, and all actions at once."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from tfm.estimators.latency import generation, roofline
from tfm.estimators.policy import Control, control, image_tokens, usual_context
from tfm.estimators.work import Pass
from tfm.presets.device import load_device
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model

VLA, A100 = load_model("openvla-7b"), load_device("a100-80gb-sxm")
WORK = Pass(context=280)


def ask(chunk: int = 1, *, parallel: bool = False, **changes: object) -> Control:
    found = control(VLA, replace(WORK, **changes), A100, chunk=chunk, parallel=parallel)
    assert found is not None
    return found


@pytest.mark.parametrize(("images", "expected"), [(0, 0), (1, 256), (3, 768)])
def test_tokens_of_images(images: int, expected: int) -> None:
    assert image_tokens(VLA, images) == expected
    assert usual_context(VLA, images) == expected + 24
    assert image_tokens(load_model("gemma-3-27b"), images) == expected  # 4,096 patches, 16 to a token
    assert usual_context(load_model("gemma-3-27b"), images) is None


@pytest.mark.parametrize("chunk", [0, -1])
def test_a_look_without_an_action(chunk: int) -> None:
    with pytest.raises(UsageError, match="at least 1 action"):
        ask(chunk)


@pytest.mark.parametrize("chunk", [1, 8])
def test_a_look_is_prefill_and_steps(chunk: int) -> None:
    found = ask(chunk)
    whole = generation(VLA, WORK, A100, 7 * chunk)
    assert whole is not None
    assert found.look_s == pytest.approx(whole.total_s)
    assert found.vision_s + found.prompt_s == pytest.approx(roofline(VLA, WORK, A100).floor_s)
    assert (found.control_hz, found.actions_per_s) == (pytest.approx(1 / whole.total_s), pytest.approx(chunk / whole.total_s))


def test_the_image_costs_what_it_costs_without_words() -> None:
    seeing, blind = (float(roofline(VLA, replace(WORK, images=n), A100).floor_s or 0) for n in (1, 0))
    assert ask().vision_s == pytest.approx(seeing - blind)


def test_a_chunk_shares_its_look_and_in_parallel_its_pass() -> None:
    one, eight, at_once = ask(), ask(8), ask(8, parallel=True)
    assert one.actions_per_s < eight.actions_per_s < at_once.actions_per_s
    assert eight.control_hz < one.control_hz < at_once.control_hz
    work = replace(WORK, context=280 + 56, full_attention=True)
    assert at_once.look_s == pytest.approx(roofline(VLA, work, A100).floor_s)
    assert (at_once.decode_s, at_once.tokens) == (0, 56)


def test_nothing_that_was_measured_is_faster() -> None:
    """On an A100: 4.2 actions/s one by one, 109.7 in parallel in chunks of 8 (Kim et al. 2025, arXiv:2502.19645, table II)."""
    assert ask().actions_per_s > 4.2
    assert ask(8, parallel=True).actions_per_s > 109.7


def test_arrays_are_their_points() -> None:
    found = ask(batch=np.array([1, 4]), context=np.array([280, 300]))
    points = [ask(batch=1), ask(batch=4, context=300)]
    for name in Control.__struct_fields__:
        assert list(getattr(found, name)) == [getattr(point, name) for point in points]


def test_no_peak_no_rate() -> None:
    assert control(VLA, WORK, replace(A100, peak_flops_per_s={})) is None


@pytest.mark.parametrize("context", [7, 256])
def test_images_have_to_fit_the_prompt(context: int) -> None:
    with pytest.raises(UsageError, match="256 tokens of the context"):
        ask(context=context)


def test_a_language_model_is_no_policy() -> None:
    with pytest.raises(UsageError, match="says no actions"):
        control(load_model("llama-7b"), WORK, A100)
