"""FLOPs of passes against published and hand-worked figures."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tfm.estimators.flops import flops
from tfm.estimators.work import Pass
from tfm.presets.loader import load_model


def test_llama_2_7b_prefill_of_4096() -> None:
    work = Pass(context=4096)
    found = flops(load_model("llama-2-7b"), work)
    assert found.linear_flops == 2 * 4096 * 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert found.attention_flops == 32 * 32 * 4 * 128 * (4096 * 4097 // 2)
    assert found.head_flops == 2 * 4096 * 4096 * 32000
    assert round(found.linear_flops / 1e12, 2) == 53.05
    assert round(found.attention_flops / 1e12, 2) == 4.40
    assert round(flops(load_model("llama-2-7b"), replace(work, full_attention=True)).attention_flops / 1e12, 2) == 8.80
    assert round(found.head_flops / 1e12, 2) == 1.07
    assert found.total_flops == found.linear_flops + found.attention_flops + found.head_flops


@pytest.mark.parametrize("name", ["llama-7b", "gpt-2", "t5-small", "mixtral-8x7b", "bert-base"])
def test_training_is_three_forward_passes_where_every_input_needs_a_gradient(name: str) -> None:
    spec = load_model(name)
    assert flops(spec, Pass(phase="train", context=96, batch=3)).total_flops == 3 * flops(spec, Pass(context=96, batch=3)).total_flops


def test_pixels_need_no_gradient() -> None:
    spec = load_model("vit-b-16")
    forward, train = flops(spec, Pass()), flops(spec, Pass(phase="train"))
    patches = 2 * 196 * 768 * 768
    assert train.total_flops == 3 * forward.total_flops - patches


def test_the_head_at_one_position() -> None:
    spec = load_model("llama-7b")
    assert flops(spec, Pass(context=77, batch=3, last_logits=True)).head_flops == 2 * 3 * 4096 * 32000


def test_flops_are_not_linear_in_the_context() -> None:
    spec = load_model("llama-3-8b")
    assert flops(spec, Pass(context=16384)).total_flops > 2 * flops(spec, Pass(context=8192)).total_flops


def test_the_rules_and_how_far_they_are_off() -> None:
    found = flops(load_model("llama-7b"), Pass(phase="train", context=128, batch=2))
    assert found.rule_flops == 6 * 6_738_415_616 * 256
    assert found.rule_error == pytest.approx(found.rule_flops / found.total_flops - 1)


def test_a_mixture_counts_the_experts_that_run() -> None:
    spec = load_model("mixtral-8x7b")
    experts = [row for row in flops(spec, Pass(context=10)).rows if row.op == "experts"]
    assert sum(row.flops * row.repeat for row in experts) == 32 * 3 * 2 * 10 * 2 * 4096 * 14336


def test_an_encoder_decoder_runs_source_and_target() -> None:
    spec = load_model("transformer-base")
    short, long = (flops(spec, Pass(context=10, source=length)) for length in (20, 40))
    assert short.head_flops == long.head_flops
    assert short.linear_flops < long.linear_flops
