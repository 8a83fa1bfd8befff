"""What a ladder found: each family's law, its line of rates, its prediction, and the crossings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from elman.report.comparison.runs import BEST, Run
from elman.report.comparison.sources import Source
from elman.report.comparison.tuned import TunedSweep, confirmed_runs
from elman.report.comparison.verdict import Arm as JudgedArm
from elman.report.comparison.verdict import Verdict, judge
from elman.sections.tune import RATE
from elman.tuning.choice import best
from elman.tuning.edges import Side, at_edge
from elman.tuning.ladder import MILLION, checked_arm, held_out, rate_of
from elman.tuning.power_law import Crossing, Fit, Point, crossing, fit
from elman.tuning.trials import Arm, Line, Prediction, Trial, Tuned, same_values
from elman.tuning.windows import Window, window

PETA = 1e15
"""The unit of operations in a law over compute."""
BY_SIZE = ("params", "steps", "bytes", "minutes", "flops", "trials", "trial_budget")
"""The rows of an audit that differ between the sizes of a ladder by its plan."""


@dataclass(frozen=True)
class Step:
    """One size of a family.

    Args:
        arm: Its arm.
        scores: The scores of its whole runs by seed.
        flops: The mean operations of these; None if they are not counted.
        rate: The rate of its whole runs; None if there is none.
        is_tuned: Whether that is the best of its own trials, not one of the line.
        failed: How its other whole runs ended, in words; empty if none failed.
        waits: How many of its whole runs have not ended.
        window: The window of its rate; None if it has no trials.
        edge: The side on which its best rate is the outermost one.
    """

    arm: Arm
    scores: Mapping[int, float]
    flops: float | None
    rate: float | None
    is_tuned: bool
    failed: str
    waits: int
    window: Window | None = None
    edge: Side | None = None

    @property
    def mean(self) -> float | None:
        """The mean score of its seeds; None if it has none."""
        return sum(self.scores.values()) / len(self.scores) if self.scores else None


@dataclass(frozen=True)
class LineCheck:
    """How far the rate of a line is from the best of some trials.

    Args:
        step: Where it was looked at.
        best: The best trial there.
        at_line: The trial at the rate of the line; None if it has no score.
        edge: The side on which the best one is the outermost one.
    """

    step: Step
    best: Trial
    at_line: Trial | None
    edge: Side | None

    @property
    def rate(self) -> float:
        """The best rate."""
        return float(self.best.values[RATE])

    @property
    def factor(self) -> float:
        """The rate of the line over the best one."""
        return (self.step.rate or math.nan) / self.rate

    @property
    def cost(self) -> float | None:
        """How much worse the rate of the line scores than the best one."""
        if self.at_line is None or self.at_line.score is None or self.best.score is None:
            return None
        return self.at_line.score - self.best.score


@dataclass(frozen=True)
class Family:
    """One family of a ladder.

    Args:
        name: Its name.
        steps: Its sizes, ascending.
        last: The size that was held out; None if there is one size only.
        line: The line of its rates; None before its trials have ended.
        check: How far the line is off; None if no trial says so.
        law: The law through all sizes that have scores; None for fewer than two.
        of_compute: The law over operations in place of parameters.
        prediction: What was recorded of the largest size before it was trained.
    """

    name: str
    steps: tuple[Step, ...]
    last: Step | None
    line: Line | None
    check: LineCheck | None
    law: Fit | None
    of_compute: Fit | None
    prediction: Prediction | None

    @property
    def missed(self) -> float | None:
        """The score of the largest size less what was predicted; None if one is not known."""
        known = self.prediction is not None and self.prediction.score is not None
        if not known or self.last is None or self.last.mean is None:
            return None
        assert self.prediction is not None
        return self.last.mean - (self.prediction.score or 0.0)

    @property
    def is_inside(self) -> bool | None:
        """Whether the largest size scored inside the interval of its prediction."""
        one = self.prediction
        if self.missed is None or one is None or one.low is None or one.high is None:
            return None
        assert self.last is not None
        assert self.last.mean is not None
        return one.low <= self.last.mean <= one.high


@dataclass(frozen=True)
class Ladder:
    """What a ladder found.

    Args:
        source: Its folder.
        tuned: Its record.
        families: Its families.
        crossings: For each pair of families whether their laws cross, if both have one.
        verdict: The order at the largest size that all families have.
        top: That size, as in the names of the models; None if the largest sizes differ.
    """

    source: Source
    tuned: Tuned
    families: tuple[Family, ...]
    crossings: Mapping[tuple[str, str], Crossing]
    verdict: Verdict
    top: int | None


def ladder_of(sweep: TunedSweep) -> Ladder:
    """Return what a sweep found that is a ladder."""
    tuned, source = sweep.tuned, sweep.source
    families = tuple(_family(name, arms, tuned, source) for name, arms in tuned.families.items())
    found = {}
    for one, other in combinations(families, 2):
        if one.law is not None and other.law is not None:
            pair = crossing(one.law, other.law)
            if pair is not None:
                found[one.name, other.name] = pair
    tops = {family.steps[-1].arm.size for family in families}
    top = next(iter(tops)) if len(tops) == 1 else None
    return Ladder(source, tuned, families, found, _judged(families, top), top)


def _judged(families: Sequence[Family], top: int | None) -> Verdict:
    """Return the order at the largest size, by the families' names."""
    arms = []
    for family in families:
        step = family.steps[-1]
        why = step.failed or (f"{step.waits} of its runs have not ended" if step.waits else "")
        why = why if top is not None else "the families' largest sizes differ"
        if not why and not step.scores:
            why = "it was not trained there"
        arms.append(JudgedArm(family.name, dict(step.scores), why))
    return judge(arms)


def _family(name: str, arms: Sequence[Arm], tuned: Tuned, source: Source) -> Family:
    steps = tuple(_step(arm, tuned, source) for arm in arms)
    last = held_out(tuned, name)
    held = next((step for step in steps if step.arm is last), None)
    checked = checked_arm(tuned, name)
    return Family(
        name,
        steps,
        held,
        tuned.lines.get(name),
        next((_check(step, tuned) for step in steps if step.arm is checked), None),
        _law([(float(step.arm.params or 0), step) for step in steps], MILLION),
        _law([(step.flops or 0.0, step) for step in steps], PETA),
        None if last is None else tuned.predictions.get(last.label),
    )


def _law(pairs: Sequence[tuple[float, Step]], unit: float) -> Fit | None:
    points = [Point(x, tuple(step.scores.values())) for x, step in pairs if x > 0 and step.scores]
    return fit(points, unit)


def _step(arm: Arm, tuned: Tuned, source: Source) -> Step:
    runs = confirmed_runs(source, arm.label, BEST)
    counted = [run for run in runs if run.counts]
    ended = [one for one in tuned.of(arm.label, "best") if one.ended]
    failed = [one for one in ended if not one.scored]
    words = ", ".join(f"seed {one.seed}: {one.status}" for one in failed)
    trials, tried = tuned.of(arm.label), arm in tuned.searched
    low, high = tuned.bounds[RATE]
    return Step(
        arm,
        _scores(counted, tuned.score),
        _mean([run.result.flops for run in counted if run.result is not None]),
        rate_of(tuned, arm),
        tried,
        f"{len(failed)} of its runs failed ({words})" if failed else "",
        len(tuned.of(arm.label, "best")) - len(ended),
        window(trials, RATE, tuned.config.window, tuned.goal) if tried else None,
        at_edge(trials, RATE, low, high, tuned.goal) if tried else None,
    )


def _scores(runs: Sequence[Run], key: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for run in runs:
        score = getattr(run.result, key)
        if score is not None and run.seed is not None:
            found.setdefault(run.seed, float(score))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _check(step: Step, tuned: Tuned) -> LineCheck | None:
    trials = tuned.of(step.arm.label)
    first = best(trials, tuned.goal)
    if first is None or step.rate is None:
        return None
    at_line = [one for one in trials if same_values(one.values, {RATE: step.rate}) and one.scored]
    rates = [float(one.values[RATE]) for one in trials]
    edge = at_edge(trials, RATE, min(rates), max(rates), tuned.goal)
    return LineCheck(step, first, next(iter(at_line), None), edge)
