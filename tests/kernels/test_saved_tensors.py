"""What autograd keeps: by hand for one product, then every preset against the ledger, with and without recomputation."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
import torch

from tfm.estimators.memory import Recipe, Recompute, memory
from tfm.estimators.work import Pass
from tfm.kernels.cut import cut, kinds_of
from tfm.kernels.inputs import random_inputs
from tfm.kernels.model import build_model
from tfm.kernels.saved_tensors import LOSS, saved_tensors
from tfm.kernels.training.loss import loss_of
from tfm.kernels.training_validation import tolerance_bytes
from tfm.presets.dtypes import DTYPES
from tfm.presets.loader import load_model, model_names
from tfm.presets.spec import ModelSpec

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}
NAMES = model_names()


def shortened(name: str) -> ModelSpec:
    """One layer of each kind, two where there is one kind."""
    spec = load_model(name)
    return cut(spec, max(2, *(kinds_of(stack) for stack in spec.stacks)))


def work_for(spec: ModelSpec, dtype: str) -> Pass:
    kind = DTYPES[dtype]
    towers = any(stack.tokens == "image" for stack in spec.stacks)
    context = min(700 if towers else 150, spec.main.max_positions or 700)
    images = 1 if towers else None
    return Pass(phase="train", batch=3, context=context, images=images, full_attention=True, weight_dtype=kind, activation_dtype=kind)


BOTH = ("gpt-2", "gemma-2-9b", "t5-small", "deepseek-v3")


@pytest.mark.parametrize(("name", "dtype"), [*((name, "bf16") for name in NAMES), *((name, "fp32") for name in BOTH)])
def test_every_preset(name: str, dtype: str) -> None:
    spec = shortened(name)
    work = work_for(spec, dtype)
    model = build_model(spec, device="meta", dtype=FORMATS[dtype])
    for recompute in get_args(Recompute):
        observed = saved_tensors(model, work, recompute).total
        predicted = memory(spec, work, Recipe(recompute=recompute)).activation_bytes
        assert abs(predicted - observed) <= tolerance_bytes(spec, work, observed), recompute


def test_by_hand() -> None:
    """gpt-2, one layer, fp32: B·T·D = 2·5·768 elements of 4 bytes; what is beside the ledger's figure is named."""
    spec = cut(load_model("gpt-2"), 1)
    model = build_model(spec, device="meta", dtype=torch.float32)
    found = saved_tensors(model, Pass(phase="train", batch=2, context=5), "selective").by_path
    state, position = 2 * 5 * 768 * 4, 2 * 5 * 8
    assert found == Counter(
        {
            "decoder/embedding/token": position,  # the ids
            "decoder/embedding/position": 5 * 8,
            "decoder/attention/norm": state + position,  # its input, mean and 1 / deviation
            "decoder/attention/q_proj": state,  # the same tensor serves k and v
            "decoder/attention/scores": 3 * state,
            "decoder/attention/o_proj": state,
            "decoder/feed_forward/norm": state + position,
            "decoder/feed_forward/up_proj": state,
            "decoder/feed_forward/gelu_tanh": 4 * state,
            "decoder/feed_forward/down_proj": 4 * state,
            "decoder/final/norm": state + position,
            "lm_head/weight": state,
            LOSS: found[LOSS],
        }
    )
    logits = 2 * 5 * 50257 * 4
    assert logits < found[LOSS] < logits + 2 * 5 * 16


def test_no_parameter_is_counted_and_nothing_twice() -> None:
    spec = cut(load_model("llama-7b"), 2)
    model = build_model(spec, device="meta", dtype=torch.bfloat16)
    one, two = (saved_tensors(model, Pass(phase="train", batch=batch, context=40), "none").total for batch in (1, 2))
    tables, mask = 2 * 40 * 128 * 2, 40 * 40  # cosines and sines, and what hides the future, do not depend on the batch
    assert 2 * one - two == pytest.approx(tables + 2 * mask, abs=10)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["transformer-toy", "t5-small", "gpt-2", "vit-b-16"])
def test_recomputation_changes_no_gradient(name: str, recompute: Recompute) -> None:
    spec = cut(load_model(name), 2)
    model = build_model(spec, dtype=torch.float64)
    torch.manual_seed(0)
    inputs = random_inputs(model, Pass(phase="train", batch=2, context=6, source=5))

    def gradients(**how: object) -> list[torch.Tensor]:
        model.zero_grad()
        loss_of(spec, model(**inputs, **how)).backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    kernel = {"none": "folded", "selective": "recomputed", "full": "folded"}[recompute]
    for ours, plain in zip(gradients(kernel=kernel, recompute=recompute == "full"), gradients(kernel="eager"), strict=True):
        torch.testing.assert_close(ours, plain)


def test_fused_attention_keeps_what_selective_recomputation_does() -> None:
    """On real tensors: q, k, v and, beside, one log-sum-exp a query and head; the output is kept for the product after it anyway."""
    spec = cut(load_model("gpt-2"), 1)
    model = build_model(spec, dtype=torch.float32)
    work = Pass(phase="train", batch=2, context=32)
    fused, selective = saved_tensors(model, work, "selective", kernel="sdpa"), saved_tensors(model, work, "selective")
    sums = 2 * 12 * 32 * 4
    assert fused.total - selective.total == sums
    assert fused.by_path["decoder/attention/scores"] + fused.by_path["decoder/attention/o_proj"] == 4 * 2 * 32 * 768 * 4 + sums
