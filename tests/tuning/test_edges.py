"""Best values at the edge of what was tried."""

from __future__ import annotations

import pytest

from elman.tuning.edges import at_edge

from .made import NAN, OOM, trials

LOW, HIGH = 1e-4, 1e-2


def test_a_best_value_between_worse_ones_is_at_no_edge():
    found = trials({1e-4: 2.2, 1e-3: 2.0, 1e-2: 2.5})
    assert at_edge(found, "lr", LOW, HIGH, "minimize") is None


@pytest.mark.parametrize(("rate", "side"), [(1e-4, "low"), (1e-2, "high")])
def test_the_outermost_value_that_is_best_is_at_the_edge(rate, side):
    found = trials({1e-4: 2.2, 1e-3: 2.1, 1e-2: 2.2, rate: 2.0})
    assert at_edge(found, "lr", LOW, HIGH, "minimize") == side


def test_a_value_far_inside_the_range_is_at_the_edge_if_nothing_was_tried_beyond_it():
    assert at_edge(trials({1e-4: 2.2, 5e-4: 2.0}), "lr", LOW, HIGH, "minimize") == "high"


def test_a_run_that_diverged_beyond_the_best_value_proves_that_the_range_reaches_far_enough():
    found = trials({1e-4: 2.2, 1e-3: 2.0, 1e-2: NAN})
    assert at_edge(found, "lr", LOW, HIGH, "minimize") is None


def test_a_run_out_of_memory_beyond_the_best_value_proves_nothing():
    found = trials({1e-4: 2.2, 1e-3: 2.0, 1e-2: OOM})
    assert at_edge(found, "lr", LOW, HIGH, "minimize") == "high"


def test_an_equal_score_beyond_the_best_value_proves_nothing():
    found = trials({1e-4: 2.2, 1e-3: 2.0, 1e-2: 2.0})
    assert at_edge(found, "lr", LOW, HIGH, "minimize") == "high"


def test_a_higher_score_is_better_where_that_is_the_goal():
    found = trials({1e-4: 0.2, 1e-3: 0.5, 1e-2: 0.9})
    assert at_edge(found, "lr", LOW, HIGH, "maximize") == "high"
    assert at_edge(found, "lr", LOW, HIGH, "minimize") == "low"


def test_zero_is_no_edge_of_a_range_that_begins_there():
    found = trials({0.0: 2.0, 0.1: 2.1})
    assert at_edge(found, "lr", 0.0, 0.5, "minimize") is None


def test_a_single_score_is_at_the_nearer_edge():
    assert at_edge(trials({2e-4: 2.0}), "lr", LOW, HIGH, "minimize") == "low"
    assert at_edge(trials({9e-3: 2.0}), "lr", LOW, HIGH, "minimize") == "high"


def test_without_a_score_there_is_no_best_value():
    assert at_edge(trials({1e-3: NAN}), "lr", LOW, HIGH, "minimize") is None
