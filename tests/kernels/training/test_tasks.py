"""Strings: disjoint, repeatable, of the lengths asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tfm.kernels.training.tasks import COPY, REVERSE, SPECIAL, Example, Task, held_out, task_of, training_examples, unseen_examples
from tfm.presets.errors import UnreadableError


def test_unseen_strings_are_never_trained_on() -> None:
    task = Task()
    trained = {one.letters for step in range(20) for seed in (0, 1) for one in training_examples(task, 64, seed=seed, step=step)}
    unseen = {one.letters for seed in (0, 1) for one in unseen_examples(task, 200, seed=seed)}
    assert not trained & unseen
    assert all(map(held_out, unseen))
    assert not any(map(held_out, trained))


def test_a_step_has_its_own_strings_and_always_the_same() -> None:
    task = Task(name="copy")
    assert training_examples(task, 9, seed=4, step=7) == training_examples(task, 9, seed=4, step=7)
    assert training_examples(task, 9, seed=4, step=7) != training_examples(task, 9, seed=4, step=8)
    assert training_examples(task, 9, seed=4, step=7) != training_examples(task, 9, seed=5, step=7)


@pytest.mark.parametrize(("name", "orders"), [("copy", {COPY}), ("reverse", {REVERSE}), ("both", {COPY, REVERSE})])
def test_orders_and_lengths(name: Any, orders: set[int]) -> None:
    task = Task(name=name, letters="abcde", shortest=2, longest=6)
    examples = training_examples(task, 500, seed=0, step=0)
    assert {one.order for one in examples} == orders
    assert {len(one.letters) for one in examples} == set(range(2, 7))
    assert {letter for one in examples for letter in one.letters} == set(range(len(SPECIAL), len(SPECIAL) + 5))


def test_unseen_examples_are_different_and_end_where_there_are_no_more() -> None:
    task = Task(name="copy", letters="ab", shortest=1, longest=4)
    found = unseen_examples(task, 500, seed=0)
    assert 0 < len(found) == len(set(found)) < 30


def test_answers_and_text() -> None:
    task = Task()
    one = Example(order=REVERSE, letters=(6, 7, 8))
    assert one.answer == (8, 7, 6)
    assert task.text(one.letters) == "abc"
    assert Example(order=COPY, letters=(6, 7)).answer == (6, 7)


def test_a_task_survives_saving() -> None:
    task = Task(name="reverse", letters="xyz", shortest=3, longest=5)
    assert task_of(task.extra()) == task


@pytest.mark.parametrize("wrong", [{}, {"task": "sort"}, {"longest": 0}, {"vocabulary": []}, {"letters": 3}], ids=repr)
def test_what_is_no_task_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UnreadableError, match="task"):
        task_of({**Task().extra(), **wrong} if wrong else {})
