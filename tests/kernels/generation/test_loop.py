"""Token after token: with the cache as without it, side by side as one by one, for every kind of memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch

from tfm.kernels.generation.beam import beam_search
from tfm.kernels.generation.loop import generate
from tfm.kernels.generation.prefix import shared_prefix
from tfm.kernels.generation.reader import Step, position_rows
from tfm.kernels.generation.sampling import Sampler
from tfm.kernels.generation.speculative import speculate
from tfm.kernels.inputs import one_input
from tfm.kernels.model import Model, build_model
from tfm.kernels.shrink import shrink
from tfm.presets.errors import UsageError
from tfm.presets.loader import load_model

from .conftest import KINDS

ModelOf = Callable[..., Model]
PROMPTS = ([1, 5, 3], [7, 2, 9, 4, 6, 1, 8], [3, 3])
WARM = Sampler(temperature=0.9, top_k=7)


@pytest.mark.parametrize("sampler", [Sampler(), WARM], ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_equals_uncached_token_by_token(kind: str, sampler: Sampler, model_of: ModelOf) -> None:
    """Also prompts of different lengths side by side, and each of them alone."""
    model = model_of(kind)
    found = generate(model, PROMPTS, new=9, sampler=sampler, seed=3)
    plain = generate(model, PROMPTS, new=9, sampler=sampler, seed=3, cached=False)
    assert found.tokens == plain.tokens
    assert found.log_probs == pytest.approx(plain.log_probs)
    alone = [generate(model, [prompt], new=9, sampler=sampler, seed=3 + i) for i, prompt in enumerate(PROMPTS)]
    assert found.tokens == tuple(one.tokens[0] for one in alone)


def test_greedy_is_the_largest_logit_of_a_whole_pass(model_of: ModelOf) -> None:
    model, known = model_of("llama-3-8b"), [2, 4]
    found = generate(model, [known], new=5)
    for token in found.tokens[0]:
        with torch.inference_mode():
            assert int(model(torch.tensor([known]))["lm_head"][0, -1].argmax()) == token
        known = [*known, token]


@pytest.mark.parametrize("name", ["t5-small", "whisper-large-v3"])
def test_an_encoder_decoder_reads_its_source_once(name: str) -> None:
    model = build_model(shrink(load_model(name)), dtype=torch.float64)
    encoder = next(stack for stack in model.spec.stacks if stack.tokens == "source")
    torch.manual_seed(1)
    source = one_input(encoder, 2, encoder.default_tokens or 7, model.make)
    found = generate(model, [[0], [0, 5]], new=6, source=source)
    assert found.tokens == generate(model, [[0], [0, 5]], new=6, source=source, cached=False).tokens
    assert found.tokens[1] == generate(model, [[0, 5]], new=6, source=source[1:]).tokens[0]


def test_sources_of_different_lengths_are_padded(model_of: ModelOf) -> None:
    model = build_model(shrink(load_model("t5-small")), dtype=torch.float64)
    source = torch.tensor([[3, 5, 2, 0, 0], [4, 6, 1, 7, 2]])
    padding = torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    found = generate(model, [[0], [0]], new=6, source=source, source_padding=padding)
    assert found.tokens[0] == generate(model, [[0]], new=6, source=source[:1, :3]).tokens[0]


def test_a_model_that_sees(model_of: ModelOf) -> None:
    """An image's tokens stand at the head of the prompt."""
    model = build_model(shrink(load_model("openvla-7b")), dtype=torch.float64)
    torch.manual_seed(2)
    images = torch.randn(1, 3, 4, 6, dtype=torch.float64)
    prompt = [0] * 6 + [4, 2, 7]
    found = generate(model, [prompt], new=7, images=images)
    assert found.tokens == generate(model, [prompt], new=7, images=images, cached=False).tokens
    assert found.log_probs != generate(model, [prompt], new=7, images=-images).log_probs


def test_an_end_token_ends_its_sequence_alone(model_of: ModelOf) -> None:
    model = model_of("llama-3-8b")
    free = generate(model, PROMPTS, new=9, sampler=WARM, seed=3)
    eos = free.tokens[0][3]
    found = generate(model, PROMPTS, new=9, sampler=WARM, seed=3, eos=eos)
    for all_of_it, part in zip(free.tokens, found.tokens, strict=True):
        end = all_of_it.index(eos) + 1 if eos in all_of_it else len(all_of_it)
        assert part == all_of_it[:end]


def test_seeded_sampling_repeats(model_of: ModelOf) -> None:
    model = model_of("gpt-2")
    runs = [generate(model, PROMPTS, new=12, sampler=Sampler(temperature=2.0), seed=seed).tokens for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_every_step_is_told(model_of: ModelOf) -> None:
    told: list[Step] = []
    found = generate(model_of("llama-3-8b"), [[1, 5, 3], [7, 2, 9, 4]], new=3, told=told.append)
    assert tuple(told) == found.steps
    assert [(step.read, step.cache_length) for step in told] == [(3, 3), (1, 4), (1, 5), (1, 6)]
    assert [step.tokens[0] is None for step in told] == [False, False, False, True]
    assert [step.tokens[1] is None for step in told] == [True, False, False, False]
    assert all(step.seconds > 0 for step in told)
    # 2 layers, 2 sequences, keys and values, 8 bytes an element
    growth = {b.cache_bytes - a.cache_bytes for a, b in pairwise(told)}
    assert len(growth) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_shared_prefix_changes_no_token(kind: str, model_of: ModelOf) -> None:
    model, prefix = model_of(kind), [4, 1, 7, 7, 2, 5]
    prompts = [[*prefix, 3], [*prefix, 8, 2], [*prefix, 1, 1, 9]]
    cache = shared_prefix(model, prefix, 3, capacity=20)
    found = generate(model, prompts, new=6, prefix=cache)
    assert found.tokens == generate(model, prompts, new=6).tokens
    assert found.steps[0].read == 1


@pytest.mark.parametrize(
    ("prompts", "new", "words"),
    [
        pytest.param([], 3, "at least one token", id="no-prompt"),
        pytest.param([[]], 3, "at least one token", id="empty"),
        pytest.param([[1]], 0, "at least 1 token", id="nothing-new"),
        pytest.param([[1]], 1.5, "at least 1 token", id="half-a-token"),
        pytest.param([[-1]], 3, "-1 is no token", id="negative-id"),
        pytest.param([[1], [3, 10**6]], 3, "1000000 is no token.*from 0 to 12", id="id-beyond-the-table"),
        pytest.param([[1.5]], 3, "1.5 is no token", id="fraction"),
        pytest.param(["ab"], 3, "'a' is no token", id="text"),
    ],
)
def test_what_cannot_be_generated_is_refused(prompts: Any, new: Any, words: str, model_of: ModelOf) -> None:
    with pytest.raises(UsageError, match=words):
        generate(model_of("llama-3-8b"), prompts, new=new)


def test_an_encoder_decoder_needs_its_source(model_of: ModelOf) -> None:
    """Attention over no key at all would end the process."""
    model = build_model(shrink(load_model("t5-small")))
    for source in (None, torch.zeros(1, 0, dtype=torch.long)):
        with pytest.raises(UsageError, match="give its source"):
            generate(model, [[1]], new=2, source=source)
        with pytest.raises(UsageError, match="give its source"):
            beam_search(model, [1], new=2, source=source)
    with pytest.raises(UsageError, match="no encoder that reads a source"):
        generate(model_of("llama-3-8b"), [[1]], new=2, source=torch.ones(1, 3, dtype=torch.long))


def test_learned_positions_have_an_end() -> None:
    model = build_model(shrink(load_model("gpt-2")))
    rows = position_rows(model)
    assert rows is not None
    prompt = [1] * (rows - 1)
    assert len(generate(model, [prompt], new=2).tokens[0]) == 2  # the last token is not read
    with pytest.raises(UsageError, match=f"learned {rows} positions"):
        generate(model, [prompt], new=3)
    with pytest.raises(UsageError, match=f"learned {rows} positions"):
        beam_search(model, prompt, new=3)
    with pytest.raises(UsageError, match=f"learned {rows} positions"):
        speculate(model, model, prompt, new=3)
    assert len(speculate(model, model, prompt, new=2).tokens) == 2


def test_an_encoder_generates_nothing() -> None:
    with pytest.raises(UsageError, match="no decoder"):
        generate(build_model(shrink(load_model("bert-base"))), [[1]], new=1)


def test_a_prefix_leaves_something_to_read(model_of: ModelOf) -> None:
    model = model_of("llama-3-8b")
    with pytest.raises(UsageError, match="leaves nothing"):
        generate(model, [[1, 2]], new=2, prefix=shared_prefix(model, [1, 2], 1, capacity=9))
