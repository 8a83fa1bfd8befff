"""What a tuned sweep does next, by what it has recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elman.sections.tune import TuneConfig
from elman.tuning.schedule import grown, most_runs, next_trial, whole_runs
from elman.tuning.trials import Arm, Trial, Tuned

from .made import NAN, trial

LR = {"low": 1e-4, "high": 1e-2, "log": True}
ARMS = tuple(Arm(name, name, name, {"lr": 1e-3}, seeds=(1, 2, 3)) for name in ("e1", "e42"))
FIRST = {"lr": {"low": 1e-4, "high": 1e-2}}
WIDER = {"lr": {"low": 1e-4, "high": 1e-1}}


def tuned(trials: list[Trial], *ranges: dict[str, Any], **more: Any) -> Tuned:
    """Return a sweep of two arms with these trials."""
    settings = TuneConfig(**({"space": {"lr": LR}, "trials": 4, "quasi_random": 2} | more))
    return Tuned(settings, "val_bpb", "minimize", ARMS, ranges or (FIRST,), tuple(trials))


def of(arm: str, scores: dict[float, float | str], growth: int = 0) -> list[Trial]:
    found = [trial(score, rate, n, arm=arm) for n, (rate, score) in enumerate(scores.items(), 1)]
    return [replace(one, growth=growth) for one in found]


INSIDE = {1e-4: 2.2, 1e-3: 2.0, 3e-3: 2.1, 1e-2: 2.3}
AT_HIGH = {1e-4: 2.3, 1e-3: 2.2, 3e-3: 2.1, 1e-2: 2.0}


def test_the_trials_of_the_arms_take_turns() -> None:
    found: list[Trial] = []
    order = []
    while chosen := next_trial(tuned(found), ()):
        order.append(chosen[0].label)
        found.append(trial("running", 1e-3, len(found), arm=chosen[0].label))
    assert order == ["e1", "e42"] * 4


def test_an_arm_without_new_points_does_not_stop_the_other() -> None:
    chosen = next_trial(tuned([]), {("e1", 0)})
    assert chosen is not None
    assert chosen[0].label == "e42"
    assert next_trial(tuned([]), {("e1", 0), ("e42", 0)}) is None


def test_a_new_arm_gets_the_trials_of_every_growth() -> None:
    old = of("e1", AT_HIGH) + of("e1", {2e-2: 2.2, 5e-2: 2.3}, growth=1)
    found, growths = list(old), []
    while chosen := next_trial(tuned(found, FIRST, WIDER), ()):
        growths.append((chosen[0].label, chosen[1]))
        found.append(replace(trial("ok", 1e-3, arm=chosen[0].label), growth=chosen[1]))
    assert growths == [("e42", 0)] * 4 + [("e42", 1)] * 2


def test_the_range_grows_for_all_arms_if_one_is_at_the_edge() -> None:
    found = of("e1", INSIDE) + of("e42", AT_HIGH)
    assert grown(tuned(found), lambda key, value: True) == WIDER
    assert grown(tuned(found, grow=0), lambda key, value: True) is None
    assert grown(tuned(found), lambda key, value: False) is None
    assert grown(tuned(of("e1", INSIDE) + of("e42", INSIDE)), lambda key, value: True) is None


def test_a_range_that_has_grown_often_enough_grows_no_more() -> None:
    found = of("e1", INSIDE) + of("e42", AT_HIGH)
    assert grown(tuned(found, FIRST, WIDER, grow=1), lambda key, value: True) is None


def test_a_rate_that_diverged_beyond_the_best_is_proof_enough() -> None:
    found = of("e1", INSIDE) + of("e42", {**AT_HIGH, 1e-2: NAN, 1e-4: 2.4})
    assert grown(tuned(found), lambda key, value: True) is None


def test_whole_runs_are_of_the_best_the_published_and_the_second_best_setting() -> None:
    found = of("e1", AT_HIGH) + of("e42", INSIDE)
    runs = whole_runs(tuned(found))
    told = [(one.arm.label, one.phase, one.values["lr"], one.seed, one.common) for one in runs]
    best = [("e1", "best", 1e-2, seed, False) for seed in (1, 2, 3)]
    # The best setting of the second arm is its published one.
    best += [("e42", "best", 1e-3, seed, True) for seed in (1, 2, 3)]
    common = [("e1", "common", 1e-3, seed, True) for seed in (1, 2, 3)]
    second = [(arm, "second", 3e-3, 1, False) for arm in ("e1", "e42")]
    assert sorted(told) == sorted(best + common + second)
    assert [one.phase for one in runs][:6] == ["best"] * 6
    assert [one.seed for one in runs][:6] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(("seeds", "count"), [(0, 0), (1, 1), (None, 3)])
def test_fewer_seeds_of_the_published_setting_can_be_asked_for(
    seeds: int | None, count: int
) -> None:
    runs = whole_runs(tuned(of("e1", AT_HIGH), common_seeds=seeds))
    assert [one.phase for one in runs].count("common") == count


def test_an_arm_without_a_score_is_not_confirmed() -> None:
    runs = whole_runs(tuned(of("e1", INSIDE) + of("e42", {1e-3: NAN})))
    assert {one.arm.label for one in runs} == {"e1"}


def test_the_most_that_a_sweep_runs_is_known_at_its_start() -> None:
    assert most_runs(tuned([])) == (8, 8, 6 + 6 + 2)
