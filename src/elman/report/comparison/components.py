"""What each component of a suite gains: the score without it against the score with it.

A suite names the two models (``benchmark.components``), and a tuned sweep has an arm of each. The
gain is judged twice: at each arm's own best setting, and at the published one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from elman.report.comparison.statistics import LEVEL, difference, holm
from elman.report.comparison.tuned import TunedSweep
from elman.report.comparison.verdict import ONE_SEED, Arm, Goal, Pair, Verdict, contrasts

Outcome = Literal["gains", "costs", "not distinguishable", "no verdict"]
Sign = Literal["same", "differs", "differs beyond noise", "unknown"]


@dataclass(frozen=True)
class Effect:
    """What a component gains at one kind of setting.

    Args:
        with_it: The arm that has the component.
        without: The arm that lacks it.
        pair: By how much the score is better with it; None without a verdict.
        why_not: Why there is no verdict.
    """

    with_it: Arm
    without: Arm
    pair: Pair | None = None
    why_not: str = ""

    @property
    def by_seed(self) -> dict[int | None, float]:
        """What the arm without it has more, by seed."""
        one, other = self.with_it.scores, self.without.scores
        return {seed: other[seed] - one[seed] for seed in one if seed in other}

    @property
    def value(self) -> float | None:
        """The gain: above 0 if the component helps."""
        return None if self.pair is None else self.pair.common.value

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval that excludes zero if, and only if, the gain is beyond noise."""
        return None if self.pair is None else self.pair.interval

    @property
    def outcome(self) -> Outcome:
        """What is said of the component."""
        if self.pair is None:
            return "no verdict"
        if not self.pair.is_decided:
            return "not distinguishable"
        return "gains" if self.pair.common.value > 0 else "costs"


@dataclass(frozen=True)
class Gain:
    """What one component gains.

    Args:
        family: Whose component it is.
        component: Its name.
        models: The models with and without it.
        best: At each arm's own best setting.
        common: At the published setting.
        p_change: The probability of so large a difference between these two gains if there is
            none, adjusted for all components; None if it cannot be said.
    """

    family: str
    component: str
    models: tuple[str, str]
    best: Effect
    common: Effect
    p_change: float | None = None

    @property
    def name(self) -> str:
        """The component with its family."""
        return f"{self.family}: {self.component}"

    @property
    def sign(self) -> Sign:
        """Whether the gain has the same sign at both settings."""
        one, other = self.best.value, self.common.value
        if one is None or other is None:
            return "unknown"
        if one * other >= 0:
            return "same"
        clear = self.p_change is not None and self.p_change < 1 - LEVEL
        return "differs beyond noise" if clear else "differs"


@dataclass(frozen=True)
class Components:
    """The gains of all components of a tuned sweep.

    Args:
        sweep: The sweep.
        gains: The gains, in the order of the suite.
    """

    sweep: TunedSweep
    gains: tuple[Gain, ...]


def components_of(sweep: TunedSweep) -> Components | None:
    """Return the gains of the components that a sweep's suite names; None if it has none.

    A component whose models are not both in the sweep is left out (``benchmark.only``).
    """
    suite, models = sweep.source.suite, {arm.model for arm in sweep.tuned.arms}
    named = [
        (family, component, (pair["with"], pair["without"]))
        for family, own in (suite.components if suite is not None else {}).items()
        for component, pair in own.items()
        if models.issuperset(pair.values())
    ]
    if not named:
        return None
    pairs = [pair for _, _, pair in named]
    best, common = (
        effects(_by_model(sweep, verdict), pairs, sweep.tuned.goal)
        for verdict in (sweep.best, sweep.common)
    )
    lines = zip(named, best, common, _changes(best, common), strict=True)
    gains = (Gain(*names, one, other, p_change=p) for names, one, other, p in lines)
    return Components(sweep, tuple(gains))


def _changes(best: Sequence[Effect], common: Sequence[Effect]) -> list[float | None]:
    """Return the probability of each difference of two gains, adjusted for all (Holm 1979)."""
    changes = [_change(one, other) for one, other in zip(best, common, strict=True)]
    adjusted = iter(holm([p for p in changes if p is not None]))
    return [None if p is None else next(adjusted)[0] for p in changes]


def _change(best: Effect, common: Effect) -> float | None:
    """Return the p of the difference of a component's two gains, paired by seed."""
    one, other = best.by_seed, common.by_seed
    shared = [seed for seed in one if seed in other]
    if len(shared) < 2 or best.pair is None or common.pair is None:
        return None
    return difference({seed: one[seed] for seed in shared}, {s: other[s] for s in shared}).p


def _by_model(sweep: TunedSweep, verdict: Verdict) -> dict[str, Arm]:
    """Return the arm of each model; a model of several arms gets no verdict."""
    arms: dict[str, Arm] = {}
    for one in sweep.tuned.arms:
        standing = verdict.of(one.label)
        assert standing is not None
        several = Arm(one.model, {}, "several arms train it")
        arms[one.model] = several if one.model in arms else standing.arm
    return arms


def effects(arms: Mapping[str, Arm], pairs: Sequence[tuple[str, str]], goal: Goal) -> list[Effect]:
    """Return what each component gains, corrected for all of them.

    Args:
        arms: The arms by model.
        pairs: The models with and without each component.
        goal: Whether a lower score is better.
    """
    both = [(arms[one], arms[other]) for one, other in pairs]
    known = [arm for arm in arms.values() if not _why_not(arm)]
    places = {arm.label: place for place, arm in enumerate(known)}
    # A contrast is the second less the first, and what helps is to be above 0.
    order = [pair if goal == "minimize" else pair[::-1] for pair in both]
    at = [(places.get(one.label, -1), places.get(other.label, -1)) for one, other in order]
    judged = contrasts(known, [pair for pair in at if -1 not in pair])
    return [
        Effect(*pair, judged.get(place), "" if place in judged else _reason(*pair))
        for pair, place in zip(both, at, strict=True)
    ]


def _why_not(arm: Arm) -> str:
    return arm.why_not or ("" if len(arm.scores) >= 2 else ONE_SEED)


def _reason(*pair: Arm) -> str:
    reasons = [f"{arm.label}: {why}" for arm in pair if (why := _why_not(arm))]
    return "; ".join(reasons) or "its two arms share fewer than two seeds"
