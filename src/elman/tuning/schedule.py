"""What a tuned sweep does next: a trial, a growth of the range, whole runs, or nothing.

It follows from what the sweep has recorded alone, so a killed sweep goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from elman.tuning.choice import ranked
from elman.tuning.edges import edges
from elman.tuning.ladder import ladder_runs, most_checks
from elman.tuning.space import widened
from elman.tuning.trials import Arm, Trial, Tuned, WholeRun, same_values


def trials_in(tuned: Tuned, growth: int) -> int:
    """Return how many trials of each arm belong to a growth of the range; 0: before any."""
    return tuned.config.grow_trials if growth else tuned.config.trials


def next_trial(tuned: Tuned, exhausted: Container[tuple[str, int]]) -> tuple[Arm, int] | None:
    """Return the arm that gets the next trial, and for which growth; None if all have theirs.

    It is the arm with the fewest trials, so that trial 1 of every arm comes before trial 2 of any.

    Args:
        tuned: The sweep.
        exhausted: The arms that have no new point left, with the growth.
    """
    for arm in sorted(tuned.searched, key=lambda arm: len(tuned.of(arm.label))):
        for growth in range(len(tuned.ranges)):
            own = [one for one in tuned.of(arm.label) if one.growth == growth]
            if len(own) < trials_in(tuned, growth) and (arm.label, growth) not in exhausted:
                return arm, growth
    return None


def grown(tuned: Tuned, may: Callable[[str, float], bool]) -> dict[str, dict[str, float]] | None:
    """Return the ranges after another growth; None if none is needed, allowed or possible.

    A range grows for all arms alike, if one of them has its best value at the edge.

    Args:
        tuned: The sweep, whose trials have all ended.
        may: Whether every arm can have a value of a key.
    """
    if len(tuned.ranges) > tuned.config.grow:
        return None
    leaves, ranges = tuned.config.leaves, dict(tuned.bounds)
    found = {(key, side) for own in edges(tuned).values() for key, side in own.items()}
    for key, side in sorted(found):
        low, high = ranges[key]
        wider = widened(leaves[key], low, high, side)
        if may(key, wider[side == "high"]):
            ranges[key] = wider
    if ranges == tuned.bounds:
        return None
    return {key: {"low": low, "high": high} for key, (low, high) in ranges.items()}


def whole_runs(tuned: Tuned) -> list[WholeRun]:
    """Return every run that the confirmation needs, those of one seed of all arms first.

    An arm without a score has none. A ladder has its own order (:mod:`elman.tuning.ladder`).
    """
    if tuned.config.ladder is not None:
        return ladder_runs(tuned)
    found = [one for arm in tuned.arms for one in _of_arm(tuned, arm)]
    places = {"best": 0, "common": 1, "second": 2}
    return sorted(found, key=lambda one: (places[one.phase], one.arm.seeds.index(one.seed)))


def _of_arm(tuned: Tuned, arm: Arm) -> list[WholeRun]:
    order = ranked(tuned.of(arm.label), tuned.goal)
    if not order:
        return []
    config, published = tuned.config, arm.published
    first = order[0].values
    is_common = same_values(first, published)
    found = [WholeRun(arm, "best", first, seed, is_common) for seed in arm.seeds]
    if not is_common:
        count = len(arm.seeds) if config.common_seeds is None else config.common_seeds
        found += [WholeRun(arm, "common", published, seed, True) for seed in arm.seeds[:count]]
    for second in order[1:2]:
        if not same_values(second.values, published) or config.common_seeds == 0:
            seeds = arm.seeds[: config.second_seeds]
            found += [WholeRun(arm, "second", second.values, seed, False) for seed in seeds]
    return found


def most_runs(tuned: Tuned) -> tuple[int, int, int]:
    """Return the numbers of trials, of trials of all growths, and of whole runs at most."""
    config, arms, searched = tuned.config, tuned.arms, len(tuned.searched)
    trials = searched * config.trials + most_checks(tuned)
    growths = searched * config.grow * config.grow_trials
    if config.ladder is not None:
        return trials, growths, sum(len(arm.seeds) for arm in arms)
    common = [len(arm.seeds[: config.common_seeds]) for arm in arms]
    second = [len(arm.seeds[: config.second_seeds]) for arm in arms]
    return trials, growths, sum(len(arm.seeds) for arm in arms) + sum(common) + sum(second)


def matching(run: WholeRun, trials: list[Trial]) -> Trial | None:
    """Return the run of the sweep that is this one, whatever it was for; None if there is none."""
    for one in trials:
        if one.phase == "trial" or one.arm != run.arm.label or one.seed != run.seed:
            continue
        if same_values(one.values, run.values):
            return one
    return None
