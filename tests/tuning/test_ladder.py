"""What a ladder does next, by what it has recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elman.base.errors import UserError
from elman.sections.tune import RATE, TuneConfig
from elman.tuning.ladder import (
    check_families,
    family_and_size,
    ladder_runs,
    line_of,
    most_checks,
    next_check,
    predicted_next,
    prediction_of,
    rate_of,
)
from elman.tuning.schedule import grown, most_runs, next_trial
from elman.tuning.trials import Arm, Trial, Tuned

from .made import NAN, trial

WIDTHS = {1: 128, 2: 256, 4: 512, 8: 1024}
SEEDS = (1, 2)
NOW = "2026-11-28T00:00:00+00:00"


def arm(family: str, size: int) -> Arm:
    label = f"{family}_{size}m"
    return Arm(
        *(label, label, label, {RATE: 1e-3}, size * 1_000_000, SEEDS),
        family=family,
        size=size * 1_000_000,
        width=WIDTHS[size],
    )


def ladder(*trials: Trial, families: str = "a", sizes: tuple[int, ...] = (1, 2, 4, 8)) -> Tuned:
    """Return a ladder of some families with these jobs."""
    space = {"optim": {"lr": {"low": 1e-4, "high": 1e-1, "log": True}}}
    config = TuneConfig.model_validate(
        {"space": space, "trials": 4, "ladder": {"check_trials": 3}, "grow": 1}
    )
    arms = tuple(arm(family, size) for family in families for size in sizes)
    return Tuned(
        config, "val_bpb", "minimize", arms, ({RATE: {"low": 1e-4, "high": 1e-1}},), trials
    )


def tried(label: str, best: float) -> list[Trial]:
    """Return the trials of an arm, with its best rate."""
    scores = {best / 10: 2.5, best / 3: 2.2, best: 2.0, best * 3: 2.4}
    return [
        trial(score, {RATE: rate}, number, arm=label)
        for number, (rate, score) in enumerate(scores.items(), 1)
    ]


def whole(label: str, rate: float, score: float | str) -> list[Trial]:
    made = [trial(score, {RATE: rate}, arm=label, phase="best") for _ in SEEDS]
    return [replace(one, seed=seed) for one, seed in zip(made, SEEDS, strict=True)]


TRIED = (*tried("a_1m", 8e-3), *tried("a_2m", 4e-3))


def with_line(*jobs: Trial, **more: object) -> Tuned:
    tuned = ladder(*jobs, **more)  # type: ignore[arg-type]
    line = line_of(tuned, "a", NOW)
    assert line is not None
    return replace(tuned, lines={"a": line})


def test_a_name_says_family_and_size() -> None:
    assert family_and_size("fla-gdn_100m") == ("fla-gdn", 100_000_000)
    assert family_and_size("e88_h4_400k") == ("e88_h4", 400_000)
    for name in ("e88", "e88_384x10", "e88_m"):
        with pytest.raises(UserError, match="a model of a ladder is named <family>_<size>"):
            family_and_size(name)


def test_only_the_smallest_sizes_have_trials_and_let_the_range_grow() -> None:
    chosen = next_trial(ladder(), ())
    assert chosen is not None
    found = list[Trial]()
    while chosen := next_trial(ladder(*found), ()):
        found.append(trial("running", {RATE: 1e-3}, len(found), arm=chosen[0].label))
    assert [one.arm for one in found] == ["a_1m", "a_2m"] * 4
    edge = [replace(one, arm="a_4m") for one in tried("a_4m", 9e-2)[:3]]
    assert grown(ladder(*TRIED, *edge), lambda key, value: True) is None


def test_a_line_through_the_small_sizes_gives_the_rates_of_the_others() -> None:
    tuned = with_line(*TRIED)
    assert tuned.lines["a"].slope == pytest.approx(-1)
    rates = [rate_of(tuned, one) for one in tuned.families["a"]]
    assert rates == [8e-3, 4e-3, 2e-3, 1e-3]


def test_a_line_ends_at_the_bounds_of_the_range() -> None:
    steep = with_line(*tried("a_1m", 3e-2), *tried("a_2m", 1e-3))
    assert rate_of(steep, steep.families["a"][-1]) == 1e-4


def test_a_line_of_one_width_is_flat_and_one_without_scores_is_none() -> None:
    failed = [trial(NAN, {RATE: 1e-3}, arm="a_2m")]
    line = line_of(ladder(*tried("a_1m", 8e-3), *failed), "a", NOW)
    assert line is not None
    assert (line.slope, line.points) == (0.0, ((128, 8e-3),))
    assert line.rate(1024) == pytest.approx(8e-3)
    assert line_of(ladder(*failed), "a", NOW) is None


def test_the_largest_size_waits_until_it_is_predicted() -> None:
    tuned = with_line(*TRIED)
    runs = [(one.arm.label, one.seed) for one in ladder_runs(tuned)]
    assert runs == [("a_4m", 1), ("a_4m", 2), ("a_2m", 1), ("a_2m", 2), ("a_1m", 1), ("a_1m", 2)]
    assert predicted_next(tuned) == []
    small = [*whole("a_1m", 8e-3, 2.0), *whole("a_2m", 4e-3, 1.8)]
    assert predicted_next(with_line(*TRIED, *small)) == []
    ended = with_line(*TRIED, *small, *whole("a_4m", 2e-3, 1.7))
    (last,) = predicted_next(ended)
    assert last.label == "a_8m"
    told = prediction_of(ended, last, NOW)
    assert told.score is not None
    assert 1.6 < told.score < 1.7
    assert [params for params, _ in told.sizes] == [1_000_000, 2_000_000, 4_000_000]
    ended = replace(ended, predictions={"a_8m": told})
    assert predicted_next(ended) == []
    assert [one.arm.label for one in ladder_runs(ended)][:2] == ["a_8m", "a_8m"]


def test_a_largest_size_is_trained_though_too_few_smaller_ones_have_scores() -> None:
    failed = [run for label in ("a_1m", "a_2m", "a_4m") for run in whole(label, 1e-3, NAN)]
    tuned = with_line(*TRIED, *failed)
    (last,) = predicted_next(tuned)
    assert prediction_of(tuned, last, NOW).score is None


def test_a_line_is_checked_around_its_rate_at_the_next_size() -> None:
    tuned, found = with_line(*TRIED), []
    while chosen := next_check(tuned):
        found.append((chosen[0].label, chosen[1]))
        checked = trial(2.0, {RATE: chosen[1]}, len(found), arm="a_4m")
        tuned = replace(tuned, trials=(*tuned.trials, checked))
    assert found == [("a_4m", 2e-3), ("a_4m", 4e-3), ("a_4m", 1e-3)]


def test_a_held_out_size_is_checked_after_its_whole_runs() -> None:
    three = {"sizes": (1, 2, 4)}
    assert next_check(with_line(*TRIED, **three)) is None
    chosen = next_check(with_line(*TRIED, *whole("a_4m", 2e-3, 1.7), **three))
    assert chosen is not None
    assert chosen[0].label == "a_4m"


def test_what_a_ladder_does_at_most_is_known_before() -> None:
    tuned = ladder(families="ab")
    assert most_checks(tuned) == 6
    assert most_runs(tuned) == (2 * 2 * 4 + 6, 2 * 2 * 2, 2 * 4 * 2)


def test_families_of_one_or_two_sizes_run_without_a_line_to_check() -> None:
    one = ladder(*tried("a_1m", 8e-3), sizes=(1,))
    assert most_checks(one) == 0
    assert [run.arm.label for run in ladder_runs(one)] == ["a_1m"] * 2
    assert predicted_next(one) == []
    with pytest.raises(UserError, match="model=a_1m: a ladder needs several sizes of a family"):
        check_families(one.arms)
    check_families([*one.arms, arm("b", 1), arm("b", 2)])
    two = with_line(*TRIED, *whole("a_1m", 8e-3, 2.0), sizes=(1, 2))
    (last,) = predicted_next(two)
    assert prediction_of(two, last, NOW).score is None
