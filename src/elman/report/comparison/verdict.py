"""The verdict on several arms: which one leads, and which others are told from it.

Its statistics know nothing of files: arms are names with scores by seed.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal

from elman.report.comparison.statistics import (
    LEVEL,
    MOST_SEEDS,
    Difference,
    difference,
    holm,
    pooled,
    quantile,
)

Outcome = Literal["leads", "worse", "not distinguishable", "no verdict"]
ONE_SEED = "one seed, so its noise is unknown"
"""Why an arm of one seed gets no verdict."""
Goal = Literal["minimize", "maximize"]

METHOD = (
    "Only runs at full budget with fresh seeds count. A trial never does, because a setting is "
    "chosen for having a good trial.",
    "The arm with the best mean leads. It may lead by luck, so a difference has to hold among all "
    "pairs of arms, and not only against the leader. For this its p is adjusted by Holm (1979) "
    "over all pairs, and has to stay below 5 %. This corrects for the number of comparisons, and "
    "for having chosen the leader by its result.",
    "Arms are paired by seed. The noise is that of all arms together, as in a block design "
    "(Tukey 1953).",
    "An arm may be noisier than the others. So the two arms' own seeds must say the same, by "
    "Student's paired t (1908) at 5 %.",
    "Each of these two tests has an interval, and the wider one is given. It excludes zero if, and "
    "only if, the difference is told from noise.",
)
"""How arms are compared, in paragraphs."""


@dataclass(frozen=True)
class Arm:
    """What is compared.

    Args:
        label: Its name.
        scores: Its confirmed scores by seed.
        why_not: Why it gets no verdict; empty if it may get one.
        command: What to type then; empty if nothing helps.
    """

    label: str
    scores: Mapping[int, float]
    why_not: str = ""
    command: str = ""

    @property
    def mean(self) -> float | None:
        """The mean of its scores; None if it has none."""
        return statistics.fmean(self.scores.values()) if self.scores else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of its mean, by its own seeds; None for fewer than two."""
        n, mean = len(self.scores), self.mean
        if n < 2 or mean is None:
            return None
        error = statistics.stdev(self.scores.values()) / n**0.5
        reach = quantile(LEVEL, n - 1) * error
        return mean - reach, mean + reach


@dataclass(frozen=True)
class Pair:
    """An arm less the leader.

    Args:
        common: The difference with the noise of all arms.
        own: The difference with the noise of these two.
        p: The probability of ``common`` if there is no difference, adjusted for all pairs.
        alpha: The level that its probability had to stay under.
    """

    common: Difference
    own: Difference
    p: float
    alpha: float

    @property
    def is_decided(self) -> bool:
        """Whether the difference is told from noise."""
        own = self.own.p
        return self.p < 1 - LEVEL and own is not None and own < 1 - LEVEL

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that excludes zero if the difference is told from noise."""
        ends = [self.common.interval_at(self.alpha), self.own.interval]
        known = [pair for pair in ends if pair is not None]
        return min(low for low, _ in known), max(high for _, high in known)

    @property
    def more_seeds(self) -> int | None:
        """About how many more seeds would decide; None if it is decided, or if too many would."""
        if self.is_decided:
            return None
        needs = [
            test.seeds_to_decide(alpha)
            for test, alpha in ((self.common, self.alpha), (self.own, 1 - LEVEL))
        ]
        known = [need for need in needs if need is not None]
        return max(known) if len(known) == len(needs) else None


@dataclass(frozen=True)
class Standing:
    """How one arm stands.

    Args:
        arm: The arm.
        outcome: What is said of it.
        pair: It less the leader; None of the leader, and of an arm without a verdict.
    """

    arm: Arm
    outcome: Outcome
    pair: Pair | None = None


@dataclass(frozen=True)
class Verdict:
    """How several arms stand.

    Args:
        standings: The arms with a verdict, the best first, then those without one.
        goal: Whether a lower score is better.
        pairs: How many pairs of arms the levels are corrected for.
    """

    standings: tuple[Standing, ...]
    goal: Goal = "minimize"
    pairs: int = 0

    @cached_property
    def compared(self) -> tuple[Standing, ...]:
        """The arms with a verdict, the leader first."""
        return tuple(one for one in self.standings if one.outcome != "no verdict")

    @property
    def left_out(self) -> tuple[Standing, ...]:
        """The arms without a verdict."""
        return tuple(one for one in self.standings if one.outcome == "no verdict")

    @property
    def leader(self) -> Standing | None:
        """The arm that leads; None if no two arms are compared."""
        return next(iter(self.compared), None)

    @property
    def is_distinguished(self) -> bool:
        """Whether any arm is told from the leader."""
        return any(one.outcome == "worse" for one in self.compared)

    @property
    def is_decided(self) -> bool:
        """Whether every arm is told from the leader."""
        others = self.compared[1:]
        return bool(others) and all(one.outcome == "worse" for one in others)

    def of(self, label: str) -> Standing | None:
        """Return how an arm stands; None if it is none of the arms."""
        return next((one for one in self.standings if one.arm.label == label), None)


def judge(arms: Sequence[Arm], goal: Goal = "minimize") -> Verdict:
    """Return how arms stand.

    Args:
        arms: The arms. One with fewer than two seeds, or without two that it shares with the
            leader, gets no verdict.
        goal: Whether a lower score is better.
    """
    known = [arm for arm in arms if not arm.why_not and len(arm.scores) >= 2]
    sign = 1.0 if goal == "minimize" else -1.0
    known.sort(key=lambda arm: sign * (arm.mean or 0.0))
    others = [_unjudged(arm) for arm in arms if all(arm is not one for one in known)]
    if len(known) < 2:
        alone = [_unjudged(replace(arm, why_not="no other arm has a verdict")) for arm in known]
        return Verdict((*alone, *others), goal)
    pairs = contrasts(known, combinations(range(len(known)), 2))
    standings = [Standing(known[0], "leads")]
    for place, arm in enumerate(known[1:], 1):
        if (0, place) not in pairs:
            why = f"it has fewer than two seeds of {known[0].label}"
            others.append(_unjudged(replace(arm, why_not=why)))
            continue
        pair = pairs[0, place]
        # A worse arm has the worse mean of the shared seeds, too.
        behind = sign * pair.common.value > 0
        outcome: Outcome = "worse" if pair.is_decided and behind else "not distinguishable"
        standings.append(Standing(arm, outcome, pair))
    return Verdict((*standings, *others), goal, len(pairs))


def contrasts(
    arms: Sequence[Arm], places: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Pair]:
    """Return the second of each two arms less the first, corrected for all of them.

    Args:
        arms: The arms, each with at least two seeds. All of them tell the noise.
        places: The places of each two. Two that share fewer than two seeds are left out.
    """
    differences = pooled([arm.scores for arm in arms])
    known = [pair for pair in places if pair in differences]
    levels = holm([differences[second, first].p or 0.0 for first, second in known])
    return {
        (first, second): Pair(
            differences[second, first], difference(*_shared(arms[second], arms[first])), *level
        )
        for (first, second), level in zip(known, levels, strict=True)
    }


def _unjudged(arm: Arm) -> Standing:
    if arm.why_not:
        return Standing(arm, "no verdict")
    why = ONE_SEED if arm.scores else "no confirmed run"
    return Standing(replace(arm, why_not=why), "no verdict")


def _shared(*arms: Arm) -> list[dict[int | None, float]]:
    """Return the scores of two arms with the seeds that both have."""
    seeds = [seed for seed in arms[0].scores if all(seed in arm.scores for arm in arms)]
    return [{seed: arm.scores[seed] for seed in seeds} for arm in arms]


def more_seeds_words(pair: Pair) -> str:
    """Say how many more seeds would decide an undecided pair."""
    more = pair.more_seeds
    if more is None:
        return f"more than {MOST_SEEDS} more seeds would be needed: take them as equal"
    return f"about {more} more {'seed' if more == 1 else 'seeds'} would decide"
