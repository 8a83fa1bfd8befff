"""Laws of scores over size: known answers, intervals that cover, and data that has no law."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from elman.tuning.power_law import Law, Point, crossing, fit

UNIT = 1e6
SIZES = (5e6, 1e7, 2.5e7, 5e7, 1e8)
TRUE = Law(0.8, 1.0, 0.35, UNIT)


def points(law: Law, sizes: Sequence[float] = SIZES, seeds: int = 1, sd: float = 0, seed: int = 0):
    """Return what a law gives at some sizes, with noise."""
    rng = np.random.default_rng(seed)
    return [Point(x, tuple(law.at(x) + rng.normal(0, sd, seeds))) for x in sizes]


@pytest.mark.parametrize("number", [3, 4, 5])
def test_points_without_noise_give_their_law_back(number: int) -> None:
    found = fit(points(TRUE, SIZES[:number]), UNIT, draws=10)
    assert found is not None
    assert found.falls
    for name in ("limit", "factor", "exponent"):
        assert getattr(found.law, name) == pytest.approx(getattr(TRUE, name), rel=1e-3)


def test_intervals_cover_what_the_scores_were_made_of() -> None:
    names, sets = ("limit", "factor", "exponent"), 40
    inside = dict.fromkeys((*names, "held out"), 0)
    for seed in range(sets):
        found = fit(points(TRUE, SIZES[:4], seeds=3, sd=0.004, seed=seed), UNIT, draws=200)
        assert found is not None
        for name in names:
            low, high = found.interval(name)
            inside[name] += low <= getattr(TRUE, name) <= high
        low, high = found.prediction(SIZES[4], seeds=3)
        fresh = points(TRUE, SIZES[4:], seeds=3, sd=0.004, seed=1000 + seed)[0].mean
        inside["held out"] += low <= fresh <= high
    assert min(inside.values()) >= 0.9 * sets, inside


def test_an_interval_is_wider_with_more_noise_and_farther_away() -> None:
    quiet, loud = (fit(points(TRUE, seeds=3, sd=sd), UNIT) for sd in (0.001, 0.02))
    assert quiet is not None
    assert loud is not None
    wide = [np.ptp(one.prediction(1e8, 3)) for one in (quiet, loud)]
    assert wide[0] < wide[1]
    assert np.ptp(loud.band(1e8)) < np.ptp(loud.band(1e10))


def test_two_sizes_leave_the_limit_open_and_bracket_what_follows() -> None:
    found = fit(points(TRUE, SIZES[:2]), UNIT)
    assert found is not None
    assert found.is_open
    low, high = found.prediction(SIZES[2], seeds=1)
    pure = TRUE.at(SIZES[1]) ** 2 / TRUE.at(SIZES[0])
    assert low < TRUE.at(SIZES[2]) < high < TRUE.at(SIZES[1])
    assert low > pure * 0.9


def test_scores_that_rise_or_stay_have_a_flat_law() -> None:
    for scores in ((2.0, 2.1, 2.2), (2.0, 2.0, 2.0), (2.0, 2.2)):
        found = fit([Point(x, (y,)) for x, y in zip(SIZES, scores, strict=False)], UNIT)
        assert found is not None
        assert not found.falls
        assert found.law.at(1e9) == pytest.approx(sum(scores) / len(scores))


def test_fewer_than_two_sizes_have_no_law() -> None:
    assert fit([], UNIT) is None
    assert fit([Point(5e6, (2.0, 2.1))], UNIT) is None
    assert fit([Point(5e6, (2.0,)), Point(5e6, (2.1,))], UNIT) is None
    assert fit([Point(5e6, (2.0,)), Point(1e7, ())], UNIT) is None


def test_laws_that_cross_say_where() -> None:
    slow, fast = Law(0.8, 1.0, 0.2, UNIT), Law(0.8, 1.6, 0.36, UNIT)
    at = UNIT * 1.6 ** (1 / 0.16)
    one = fit(points(slow, seeds=3, sd=0.002, seed=1), UNIT)
    other = fit(points(fast, seeds=3, sd=0.002, seed=2), UNIT)
    assert one is not None
    assert other is not None
    found = crossing(one, other)
    assert found is not None
    assert found.is_certain
    assert found.at == pytest.approx(at, rel=0.1)
    assert found.interval is not None
    assert found.interval[0] < at < found.interval[1]
    assert not found.first  # the faster one is ahead at the end


def test_laws_that_do_not_cross_in_the_ladder_say_so() -> None:
    better, worse = Law(0.7, 1.0, 0.3, UNIT), Law(0.9, 1.0, 0.3, UNIT)
    one, other = (fit(points(law, seeds=3, sd=0.001), UNIT) for law in (better, worse))
    assert one is not None
    assert other is not None
    found = crossing(one, other)
    assert found is not None
    assert (found.share, found.at, found.interval, found.first) == (0, None, None, True)
    apart = fit(points(worse, (2e8, 4e8, 8e8)), UNIT)
    assert apart is not None
    assert crossing(one, apart) is None  # no size that both have
