"""The values that are nearly as good as the best."""

from __future__ import annotations

import pytest

from elman.tuning.windows import window

from .made import NAN, trial, trials


def test_the_window_has_the_values_within_a_share_of_the_best_score():
    found = window(
        trials({1e-4: 2.3, 3e-4: 2.015, 1e-3: 2.0, 3e-3: 2.02, 1e-2: 2.4}), "lr", 0.01, "minimize"
    )
    assert found is not None
    assert found.points == (3e-4, 1e-3, 3e-3)
    assert (found.low, found.best, found.high) == (3e-4, 1e-3, 3e-3)
    assert not found.open_low
    assert not found.open_high
    assert found.factor == pytest.approx(10)


def test_a_window_that_reaches_the_outermost_values_is_open():
    found = window(trials({1e-4: 2.01, 1e-3: 2.0, 1e-2: NAN}), "lr", 0.01, "minimize")
    assert found is not None
    assert found.open_low
    assert not found.open_high


def test_a_window_ends_where_a_run_diverged():
    found = window(trials({1e-3: 2.0, 2e-3: NAN, 3e-3: 2.0}), "lr", 0.01, "minimize")
    assert found is not None
    assert found.points == (1e-3,)


def test_with_several_keys_every_value_inside_counts():
    found = window(
        [
            trial(2.0, {"lr": 1e-3, "decay": 0.1}, 1),
            trial(2.5, {"lr": 2e-3, "decay": 9.0}, 2),
            trial(2.0, {"lr": 3e-3, "decay": 0.1}, 3),
        ],
        "lr",
        0.01,
        "minimize",
    )
    assert found is not None
    assert found.points == (1e-3, 3e-3)


def test_higher_scores_are_inside_where_that_is_the_goal():
    found = window(trials({1e-3: 0.9, 2e-3: 0.899, 3e-3: 0.5}), "lr", 0.01, "maximize")
    assert found is not None
    assert found.points == (1e-3, 2e-3)


def test_without_a_score_there_is_no_window():
    assert window(trials({1e-3: NAN}), "lr", 0.01, "minimize") is None
