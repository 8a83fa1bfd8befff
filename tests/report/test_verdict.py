"""The verdict on arms: by hand on small examples, and its error rates on fabricated sweeps."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from elman.report.comparison.statistics import quantile
from elman.report.comparison.verdict import METHOD, Arm, Goal, judge, more_seeds_words

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "verdict_coverage.py"
PAGE = ROOT / "docs" / "verdict.md"
SWEEPS = 1000


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdict_coverage", SCRIPT)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def arm(label: str, *scores: float) -> Arm:
    return Arm(label, dict(enumerate(scores, 1)))


def test_the_noise_of_all_arms_and_the_interval_are_those_computed_by_hand() -> None:
    # Means 2, 3 and 7, seeds without an effect; residuals 0, then -1, 1, 0, and 1, -1, 0.
    verdict = judge([arm("c", 8.0, 6.0, 7.0), arm("a", 2.0, 2.0, 2.0), arm("b", 2.0, 4.0, 3.0)])
    assert [(one.arm.label, one.outcome) for one in verdict.standings] == [
        ("a", "leads"),
        ("b", "not distinguishable"),
        ("c", "worse"),
    ]
    c = verdict.standings[2].pair
    assert c is not None
    # Four squared residuals of 1 over (3 - 1)(3 - 1) degrees of freedom: noise 1.
    assert (c.common.value, c.common.df, c.common.noise) == (5.0, 4, pytest.approx(1.0))
    assert c.common.error == pytest.approx(math.sqrt(2 / 3))
    # The largest of three pairs is tested at 5 % / 3. The own noise of the pair is 1, too.
    wide = quantile(1 - 0.05 / 3, 4) * math.sqrt(2 / 3)
    own = quantile(0.95, 2) * 1 / math.sqrt(3)
    assert c.alpha == pytest.approx(0.05 / 3)
    assert c.interval == (pytest.approx(5 - max(wide, own)), pytest.approx(5 + max(wide, own)))


def test_an_effect_of_the_seed_is_no_noise() -> None:
    verdict = judge([arm("a", 1.0, 5.0, 9.0), arm("b", 1.1, 5.1, 9.12)])
    assert verdict.is_decided
    assert verdict.standings[1].outcome == "worse"


def test_an_arm_must_differ_by_its_own_noise_too() -> None:
    quiet = [arm(f"quiet {n}", *(1 + 0.001 * n + 0.002 * math.sin(n * s) for s in range(3)))
             for n in range(12)]  # fmt: skip
    noisy = judge([*quiet, arm("noisy", 1.0, 1.1, 1.2)]).of("noisy")
    assert noisy is not None
    assert noisy.pair is not None
    assert noisy.pair.p < 0.05  # by the noise of all arms alone it would be worse
    assert noisy.outcome == "not distinguishable"
    assert noisy.pair.interval[0] < 0 < noisy.pair.interval[1]


@pytest.mark.parametrize(("goal", "order"), [("minimize", "abc"), ("maximize", "cba")])
def test_the_leader_is_best_by_the_goal(goal: Goal, order: str) -> None:
    arms = [arm("b", 0.5, 0.51, 0.49), arm("c", 0.9, 0.91, 0.9), arm("a", 0.1, 0.11, 0.1)]
    verdict = judge(arms, goal)
    assert "".join(one.arm.label for one in verdict.standings) == order
    assert [one.outcome for one in verdict.standings] == ["leads", "worse", "worse"]


def test_arms_without_two_seeds_get_no_verdict_and_a_reason() -> None:
    verdict = judge(
        [
            arm("a", 1.0, 1.01, 1.02),
            arm("one", 0.5),
            Arm("edge", {1: 0.9, 2: 0.9}, "at the edge", "wider"),
            Arm("none", {}),
            Arm("others", {7: 1.0, 8: 1.2}),
            arm("b", 2.0, 2.01, 2.02),
        ]
    )
    assert {one.arm.label: one.arm.why_not for one in verdict.left_out} == {
        "one": "one seed, so its noise is unknown",
        "edge": "at the edge",
        "none": "no confirmed run",
        "others": "it has fewer than two seeds of a",
    }
    assert [one.arm.label for one in verdict.compared] == ["a", "b"]
    assert judge([arm("a", 1.0, 1.1)]).leader is None


def test_the_page_describes_the_method() -> None:
    assert "\n\n".join(METHOD) in PAGE.read_text()


def test_equal_scores_are_not_told_apart_and_certain_ones_are() -> None:
    assert not judge([arm("a", 1.0, 1.1), arm("b", 1.0, 1.1)]).is_distinguished
    assert judge([arm("a", 1.0, 1.1), arm("b", 2.0, 2.1)]).is_decided


def test_how_many_more_seeds_would_decide_is_said() -> None:
    pair = judge([arm("a", 1.0, 1.4, 0.7), arm("b", 1.3, 1.45, 1.3)]).standings[1].pair
    assert pair is not None
    assert pair.more_seeds is not None
    assert more_seeds_words(pair) == f"about {pair.more_seeds} more seeds would decide"
    equal = judge([arm("a", 1.0, 1.4), arm("b", 1.4, 1.0001)]).standings[1].pair
    assert equal is not None
    assert more_seeds_words(equal).endswith("take them as equal")


MANY = [pytest.param(15, seeds, marks=pytest.mark.slow) for seeds in (2, 3, 5)]


@pytest.mark.parametrize(("arms", "seeds"), [(3, 2), (3, 3), (3, 5), (5, 3), *MANY])
def test_equal_arms_are_not_told_apart_in_95_of_100_sweeps(
    script: ModuleType, arms: int, seeds: int
) -> None:
    """With fresh seeds; with the scores of the best trials in their place, they are."""
    share = script.share_undecided(script.fresh, arms, seeds, SWEEPS)
    assert share >= 0.95
    biased = script.share_undecided(script.best_trials, arms, seeds, SWEEPS)
    assert biased < 0.95
    row = next(line for line in PAGE.read_text().splitlines() if f"| {arms} | {seeds} |" in line)
    for shown in (share, biased):
        assert f" {shown:.1%} |".replace("%", " %") in row


@pytest.mark.parametrize(
    ("arms", "seeds"), [(3, 3), (3, 5), (5, 3), pytest.param(15, 5, marks=pytest.mark.slow)]
)
def test_two_standard_deviations_are_found_as_often_as_the_power_says(
    script: ModuleType, arms: int, seeds: int
) -> None:
    least, most = script.power_between(arms, seeds)
    found = script.share_found(arms, seeds, SWEEPS)
    error = 3 * math.sqrt(most * (1 - most) / SWEEPS)
    assert least - error <= found <= most + error
