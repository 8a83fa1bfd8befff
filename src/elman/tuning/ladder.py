"""The steps of a ladder: trials at small sizes, a line of rates, runs, a prediction, the last size.

A family is one kind of model at several sizes. What comes next follows from the record alone, as in
:mod:`elman.tuning.schedule`; lines and predictions are part of the record, each with its time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from elman.base.errors import UserError
from elman.sections.tune import RATE
from elman.tuning.choice import best
from elman.tuning.trials import Arm, Line, Prediction, Tuned, WholeRun

if TYPE_CHECKING:
    from elman.tuning.power_law import Point

MILLION = 1e6
"""The unit of sizes in a law over parameters."""
_FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125)
"""The rates of the trials that check a line, over the rate of the line."""
MOST_CHECKS = len(_FACTORS)
_NAME = re.compile(r"(?P<family>.+)_(?P<number>\d+)(?P<unit>[kmb])")
_UNITS = {"k": 1_000, "m": 1_000_000, "b": 1_000_000_000}


def family_and_size(model: str) -> tuple[str, int]:
    """Return the family of a model of a ladder, and the size in its name: ``e88f_5m``.

    Raises:
        UserError: its name has no size.
    """
    found = _NAME.fullmatch(model)
    if found is None:
        raise UserError(
            f"model={model}: a model of a ladder is named <family>_<size>, as in e88f_5m or "
            "e88f_400k, so that its family and its budget are known; give it such a name, or type "
            "tune=rates"
        )
    return found["family"], int(found["number"]) * _UNITS[found["unit"]]


def check_families(arms: Iterable[Arm]) -> None:
    """Raise UserError unless a family has several sizes, and each size of a family one arm."""
    families: dict[str, dict[int | None, Arm]] = {}
    for arm in arms:
        sizes = families.setdefault(arm.family, {})
        if (same := sizes.setdefault(arm.size, arm)) is not arm:
            raise UserError(
                f"model={arm.model}: a ladder has one run of each size, and these are two: "
                f"'{same.label}' and '{arm.label}'; type a ladder for each, or tune=rates"
            )
    if all(len(sizes) < 2 for sizes in families.values()):
        family, sizes = next(iter(families.items()))
        raise UserError(
            f"model={next(iter(sizes.values())).model}: a ladder needs several sizes of a family; "
            f"add others of {family} (elman mode=models models.sizes=true models.filter=ladder "
            "lists some), or type tune=rates"
        )


def line_of(tuned: Tuned, family: str, at: str) -> Line | None:
    """Return the line through the best rates of a family's trials; None if no trial has a score.

    One width gives no slope: then the line is flat.

    Args:
        tuned: The sweep, whose trials have ended.
        family: The family.
        at: The time now.
    """
    points = []
    for arm in tuned.families[family]:
        first = best(tuned.of(arm.label), tuned.goal) if arm in tuned.searched else None
        if first is not None and arm.width is not None:
            points.append((arm.width, float(first.values[RATE])))
    if not points:
        return None
    logs = [(math.log(width), math.log(rate)) for width, rate in points]
    x_mean, y_mean = (sum(one) / len(logs) for one in zip(*logs, strict=True))
    spread = sum((x - x_mean) ** 2 for x, _ in logs)
    slope = sum((x - x_mean) * (y - y_mean) for x, y in logs) / spread if spread > 0 else 0.0
    return Line(tuple(points), slope, at)


def rate_of(tuned: Tuned, arm: Arm) -> float | None:
    """Return the rate of an arm's whole runs: of its best trial, or of the line of its family.

    A line ends at the bounds of the range that was searched.
    """
    if arm in tuned.searched:
        first = best(tuned.of(arm.label), tuned.goal)
        return None if first is None else float(first.values[RATE])
    line = tuned.lines.get(arm.family)
    if line is None or arm.width is None:
        return None
    low, high = tuned.bounds[RATE]
    return float(f"{min(max(line.rate(arm.width), low), high):.4g}")


def held_out(tuned: Tuned, family: str) -> Arm | None:
    """Return the largest size of a family, which is predicted; None if there is one size only."""
    arms = tuned.families[family]
    return arms[-1] if len(arms) > 1 else None


def ladder_runs(tuned: Tuned) -> list[WholeRun]:
    """Return every whole run that may start now; those that take longest come first.

    A largest size is trained when what it will score has been recorded.
    """
    found = [run for family in tuned.families for run in _runs_of(tuned, family)]
    return sorted(found, key=lambda run: (-(run.arm.size or 0), run.arm.seeds.index(run.seed)))


def _runs_of(tuned: Tuned, family: str) -> Iterator[WholeRun]:
    last = held_out(tuned, family)
    for arm in tuned.families[family]:
        rate = rate_of(tuned, arm)
        if rate is None or (arm is last and arm.label not in tuned.predictions):
            continue
        for seed in arm.seeds:
            yield WholeRun(arm, "best", {RATE: rate}, seed, common=False)


def checked_arm(tuned: Tuned, family: str) -> Arm | None:
    """Return the smallest size that has the rate of the line; None if there is none."""
    arms = [arm for arm in tuned.families[family] if arm not in tuned.searched]
    return arms[0] if arms else None


def next_check(tuned: Tuned) -> tuple[Arm, float] | None:
    """Return the next trial that checks a line: an arm and a rate; None if there is none now.

    A largest size is tried after its whole runs alone, so that its prediction comes before both.
    """
    assert tuned.config.ladder is not None
    for family in tuned.lines:
        arm = checked_arm(tuned, family)
        if arm is None or (arm is held_out(tuned, family) and not _has_ended(tuned, arm)):
            continue
        rate, number = rate_of(tuned, arm), len(tuned.of(arm.label))
        if rate is not None and number < tuned.config.ladder.check_trials:
            return arm, float(f"{rate * _FACTORS[number]:.4g}")
    return None


def most_checks(tuned: Tuned) -> int:
    """Return the number of trials that check lines; 0 without a ladder."""
    if tuned.config.ladder is None:
        return 0
    checked = [family for family in tuned.families if checked_arm(tuned, family) is not None]
    return len(checked) * tuned.config.ladder.check_trials


def _has_ended(tuned: Tuned, arm: Arm) -> bool:
    """Whether the whole runs of an arm have all ended."""
    runs = tuned.of(arm.label, "best")
    return {one.seed for one in runs} >= set(arm.seeds) and all(one.ended for one in runs)


def predicted_next(tuned: Tuned) -> list[Arm]:
    """Return the largest sizes whose smaller ones have all ended, and that are not predicted."""
    found = []
    for family, arms in tuned.families.items():
        last = held_out(tuned, family)
        if last is None or last.label in tuned.predictions or rate_of(tuned, last) is None:
            continue
        if all(_has_ended(tuned, arm) for arm in arms[:-1] if rate_of(tuned, arm) is not None):
            found.append(last)
    return found


def prediction_of(tuned: Tuned, last: Arm, at: str) -> Prediction:
    """Return what the law through the smaller sizes of a family says of its largest one.

    Args:
        tuned: The sweep.
        last: The arm of the largest size.
        at: The time now.
    """
    from elman.tuning.power_law import fit  # it imports numpy

    points = [points_of(tuned, arm) for arm in tuned.families[last.family] if arm is not last]
    known = [one for one in points if one is not None]
    law = fit(known, MILLION)
    sizes = tuple((int(one.x), one.mean) for one in known)
    if law is None or last.params is None:
        return Prediction(None, None, None, sizes, at)
    low, high = law.prediction(last.params, len(last.seeds))
    return Prediction(float(law.law.at(last.params)), low, high, sizes, at, law.is_open)


def points_of(tuned: Tuned, arm: Arm) -> Point | None:
    """Return the scores of an arm's whole runs by its parameters; None if none has a score."""
    from elman.tuning.power_law import Point

    scores = [one.score for one in tuned.of(arm.label, "best") if one.scored]
    found = tuple(score for score in scores if score is not None)
    return Point(arm.params, found) if found and arm.params is not None else None
