"""Chance of a task: what the best blind guess reaches, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from elman.data.tasks.blind import chance
from elman.sections.tasks import TASKS


def found(name: str, length: int, **settings: object) -> float:
    return chance(TASKS[name].model_validate({"task": name, "lengths": [40], **settings}), length)


def open_brackets(length: int, depth: int) -> np.ndarray:
    """Return how probable each number of open brackets is after each bracket."""
    steps = np.zeros((depth + 1, depth + 1))
    for now in range(depth + 1):
        up = 1.0 if now == 0 else 0.0 if now == depth else 0.5
        if up:
            steps[now, now + 1] = up
        if up < 1:
            steps[now, now - 1] = 1 - up
    at, told = np.eye(depth + 1)[0], []
    for _ in range(length):
        at = at @ steps
        told.append(at)
    return np.array(told)


@pytest.mark.parametrize("length", [40, 128])
def test_brackets_are_guessed_by_the_position(length: int) -> None:
    best = open_brackets(length, 8).max(axis=1).mean()
    assert found("dyck1", length) == pytest.approx(best, abs=0.006)


@pytest.mark.parametrize("length", [40, 128])
def test_what_was_never_written_is_the_most_frequent_answer(length: int) -> None:
    writes, other = (length - 1) // 2, 15 / 16
    after_reset = np.mean([other**count for count in range(writes)])
    none = (other**writes + after_reset) / 2
    assert found("reset_recall", length) == pytest.approx(none, abs=0.01)


@pytest.mark.parametrize("length", [40, 128])
def test_a_square_plus_a_number_is_guessed_by_the_number(length: int) -> None:
    """Two of the five states have the square 1, two have 4, one has 0; the first state is 0."""
    assert found("modular_quadratic", length) == pytest.approx(0.4 - 0.4 / length, abs=0.008)


def test_a_register_that_nobody_set_is_zero() -> None:
    """After an order that is no set order its value is as probable as any other, or 0 still."""
    untouched = (7 / 8) ** 19
    assert found("keyed_fsm", 40) == pytest.approx(untouched + (1 - untouched) / 8, abs=0.01)


def test_an_even_number_of_swaps_is_known_by_the_position() -> None:
    assert found("s3", 512) == pytest.approx(1 / 3, abs=0.005)
    assert found("s5", 512) == pytest.approx(1 / 60, abs=0.004)
    assert found("s3", 512, generators="all") == pytest.approx(1 / 6, abs=0.005)


def test_many_positions_do_not_look_like_knowledge() -> None:
    """A guess for each of 4,096 positions, judged by the rows it came from, would be at 0.53."""
    assert found("parity", 4096) == pytest.approx(0.5, abs=0.004)
    assert found("recall", 40) == pytest.approx(1 / 16, abs=0.004)
