"""The best and the second best setting of an arm."""

from __future__ import annotations

from elman.tuning.choice import best, second

from .made import NAN, trial, trials


def test_the_best_score_wins_and_the_next_one_is_second():
    found = trials({1e-3: 2.1, 2e-3: 2.0, 3e-3: 2.2, 4e-3: NAN})
    assert best(found, "minimize").values == {"lr": 2e-3}
    assert second(found, "minimize").values == {"lr": 1e-3}
    assert best(found, "maximize").values == {"lr": 3e-3}


def test_the_second_best_is_another_setting():
    found = [trial(2.0, 1e-3, 1), trial(2.01, 1e-3, 2), trial(2.5, 2e-3, 3)]
    assert second(found, "minimize").values == {"lr": 2e-3}


def test_of_equal_scores_the_earlier_one_is_best():
    assert best([trial(2.0, 1e-3, 1), trial(2.0, 2e-3, 2)], "minimize").number == 1


def test_a_run_that_diverged_is_never_chosen():
    found = trials({1e-3: NAN, 2e-3: 2.0})
    assert best(found, "minimize").values == {"lr": 2e-3}
    assert second(found, "minimize") is None
    assert best(trials({1e-3: NAN}), "minimize") is None
