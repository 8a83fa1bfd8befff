"""Whether trials keep the order of whole runs."""

from __future__ import annotations

import random

import pytest
from scipy.stats import spearmanr

from elman.sections.tune import TuneConfig
from elman.tuning.ranks import confirmed_pairs, rank_correlation, spearman
from elman.tuning.trials import Arm, Tuned

from .made import trial

SPACE = {"lr": {"low": 1e-4, "high": 1e-2, "log": True}}


def test_the_rank_correlation_is_that_of_scipy():
    draw = random.Random(1)
    for _ in range(20):
        one = [draw.randrange(6) for _ in range(8)]
        two = [draw.random() for _ in range(8)]
        assert spearman(one, two) == pytest.approx(spearmanr(one, two).statistic)


def test_fewer_than_three_or_equal_scores_have_none():
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_a_setting_is_paired_with_the_mean_of_its_whole_runs():
    runs = [
        trial(2.0, 1e-3, 1),
        trial(2.2, 2e-3, 2),
        trial(2.1, 3e-4, 3),
        trial(2.9, 9e-3, 4),
        trial(1.0, 1e-3, 5, phase="best"),
        trial(1.2, 1e-3, 6, phase="best"),
        trial(1.5, 3e-4, 7, phase="second"),
        trial(1.6, 2e-3, 8, phase="common"),
    ]
    arm = Arm("e1", "e1", "e1", {"lr": 2e-3})
    tuned = Tuned(TuneConfig(space=SPACE), "val_bpb", "minimize", (arm,), trials=tuple(runs))
    pairs = {pair.trial.number: (pair.confirmed, pair.seeds) for pair in confirmed_pairs(tuned)}
    assert pairs == {1: (pytest.approx(1.1), 2), 2: (1.6, 1), 3: (1.5, 1)}
    ranks = rank_correlation(tuned)
    assert ranks.rho == pytest.approx(1.0)
    assert (ranks.same, ranks.reverse, ranks.tau) == (3, 0, 1.0)
