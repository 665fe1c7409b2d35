"""The loop: repeatable, resumed as if never stopped, and it learns."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm.kernels.saved import load_saved, read_saved, save_model
from tfm.kernels.training.demo import prepared, trained
from tfm.kernels.training.exact_match import answers, exact_match, until_end
from tfm.kernels.training.optimizers import OPTIMIZERS
from tfm.kernels.training.tasks import BOS, EOS, Task, unseen_examples
from tfm.kernels.training.teacher import prompt_of, source_of
from tfm.kernels.training.tiny import MODELS
from tfm.kernels.training.trainer import Plan, Trainer, begin, has_encoder, resume, save, with_seed
from tfm.presets.errors import TfmError, UnreadableError, UsageError

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = Task(name="copy", letters="abcd", longest=4)
PLAN = Plan(batch=8, warmup=5)


def started(model: str, steps: int, plan: Plan = PLAN) -> Trainer:
    trainer = begin(model, TASK, plan)
    assert len(list(trainer.run(steps))) == steps
    return trainer


@pytest.mark.parametrize("model", MODELS)
def test_same_seed_same_losses(model: str) -> None:
    assert started(model, 4).losses == started(model, 4).losses
    assert started(model, 4).losses != started(model, 4, with_seed(PLAN, 1)).losses


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_run_is_the_uninterrupted_one(model: str, optimizer: str, tmp_path: Path) -> None:
    plan = replace(PLAN, optimizer=optimizer)
    whole = started(model, 7, plan)
    half = resume(save(started(model, 3, plan), tmp_path / "half.safetensors"))
    list(half.run(7))
    assert half.losses == whole.losses
    for ours, theirs in ((half.model, whole.model), (half.mean, whole.mean)):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_what_is_saved_answers_as_it_did(tmp_path: Path) -> None:
    trainer = started("decoder-only", 5)
    spec, model, extra = load_saved(save(trainer, tmp_path / "m.safetensors"))
    assert spec == trainer.spec
    assert extra["step"] == 5 and extra["vocabulary"] == list(TASK.vocabulary) and extra["plan"] == asdict(PLAN)
    examples = unseen_examples(TASK, 20, seed=0)
    assert exact_match(model, examples) == exact_match(trainer.mean, examples)


def test_stopping_between_steps() -> None:
    trainer = begin("decoder-only", TASK, PLAN)
    assert len(list(trainer.run(9, stop=lambda: trainer.step == 2))) == 2


def test_the_average_follows_the_weights() -> None:
    trainer = started("encoder-decoder", 1, replace(PLAN, average=0.0))
    assert all(torch.equal(a, b) for a, b in zip(trainer.mean.parameters(), trainer.model.parameters(), strict=True))


def test_it_learns() -> None:
    losses = started("decoder-only", 120, Plan(batch=32, warmup=40)).losses
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]


@pytest.mark.parametrize("model", MODELS)
def test_answers_with_the_cache_are_those_without(model: str) -> None:
    trainer = started(model, 30)
    examples = [one for one in unseen_examples(TASK, 60, seed=0) if len(one.letters) == 3]
    assert len(examples) > 2
    for one, said in zip(examples, answers(trainer.mean, examples), strict=True):
        prompt: list[int] = [BOS] if has_encoder(trainer.spec) else list(prompt_of(one))
        given: dict[str, Any] = {"source": torch.tensor([source_of(one)])} if has_encoder(trainer.spec) else {}
        found: list[int] = []
        while len(found) < 5 and EOS not in found:
            with torch.no_grad():
                found.append(int(trainer.mean(torch.tensor([prompt + found]), **given)["lm_head"][0, -1].argmax()))
        assert until_end(found) == said


def test_an_answer_without_an_end_is_wrong() -> None:
    assert until_end([7, 8, EOS, 9]) == (7, 8)
    assert until_end([7, 8]) == (7, 8, EOS)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_model_alone_is_no_training(tmp_path: Path) -> None:
    trainer = started("decoder-only", 1)
    path = save_model(tmp_path / "m.safetensors", trainer.spec, trainer.model, TASK.extra())
    with pytest.raises(UnreadableError, match="no training"):
        resume(path)


@pytest.mark.parametrize(
    "change",
    [{"plan": None}, {"plan": {"seed": "0"}}, {"plan": {**asdict(PLAN), "rate": None}}, {"longest": 10**9}],
    ids=["no plan", "half a plan", "a rate that is none", "endless strings"],
)
def test_a_changed_file_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    found = read_saved(save(started("decoder-only", 1), tmp_path / "m.safetensors"))
    path = save_model(tmp_path / "n.safetensors", found.spec, found.model, found.extra | change, state=found.state)
    with pytest.raises(UnreadableError):
        resume(path)


def test_a_state_of_another_shape_is_refused(tmp_path: Path) -> None:
    found = read_saved(save(started("decoder-only", 1), tmp_path / "m.safetensors"))
    name = next(name for name in found.state if name.startswith("weights/"))
    for state in ({**found.state, name: torch.zeros(3)}, {key: value for key, value in found.state.items() if key != name}):
        with pytest.raises(UnreadableError, match="go on from"):
            resume(save_model(tmp_path / "n.safetensors", found.spec, found.model, found.extra, state=state))


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"task": "reverse"}, "--task reverse: the saved training is one of copy"),
        ({"model": "encoder-decoder"}, "--model encoder-decoder: the saved training is one of decoder-only"),
        ({"seed": 4}, "--seed 4"),
    ],
    ids=["task", "model", "seed"],
)
def test_a_resumed_training_stays_what_it_was(asked: dict[str, Any], match: str, tmp_path: Path) -> None:
    path = str(save(started("decoder-only", 1), tmp_path / "m.safetensors"))
    with pytest.raises(UsageError, match=match):
        prepared(**({"model": None, "task": None, "seed": None} | asked), path=path)
    assert prepared("decoder-only", "copy", 0, path)[0].step == 1


def test_fewer_steps_than_are_done_are_refused() -> None:
    with pytest.raises(UsageError, match="3 are done already"):
        trained(started("decoder-only", 3), 2)


@pytest.mark.parametrize(("model", "task"), [("decoder", None), ("both", "sort")])
def test_unknown_names(model: str, task: str | None) -> None:
    with pytest.raises(TfmError, match="unknown"):
        prepared(model, task, None, None)
