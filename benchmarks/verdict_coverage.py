"""Measures how often the verdict on a tuned sweep is wrong, and how often it finds a difference.

    python benchmarks/verdict_coverage.py [--sweeps 1000]

The scores are fabricated: normal noise with standard deviation 1, and an effect of the seed that
all arms share. Every setting of every arm is equally good, so what differs between trials is noise.
Each sweep chooses the best of 8 trials for each arm, and confirms it with fresh seeds. For
comparison, the same verdict is given on the scores of trials. To find a difference, one arm is
better than all others by two standard deviations.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from scipy.special import chdtri, ndtr

from elman.report.comparison.statistics import quantile
from elman.report.comparison.verdict import Arm, Verdict, judge

ARMS, SEEDS, TRIALS = (3, 5, 15), (2, 3, 5), 8
SEED_EFFECT, GAP, NOISIER = 0.5, 2.0, 3.0
_NODES = 400

Scheme = Callable[[np.random.Generator, int, int], Verdict]


def verdict_on(scores: np.ndarray) -> Verdict:
    """Return the verdict on scores by arm and seed; the first arm is called 0."""
    return judge([Arm(str(arm), dict(enumerate(row))) for arm, row in enumerate(scores.tolist())])


def confirmed(random: np.random.Generator, chosen: np.ndarray, seeds: int) -> np.ndarray:
    """Return scores of fresh runs of settings that are in truth as good as ``chosen``."""
    shared = SEED_EFFECT * random.normal(size=seeds)
    return chosen[:, None] + shared + random.normal(size=(len(chosen), seeds))


def fresh(random: np.random.Generator, arms: int, seeds: int, gap: float = 0.0) -> Verdict:
    """Choose the best of all trials of each arm, and judge fresh runs of it."""
    truth = np.zeros((arms, TRIALS))
    truth[0] -= gap
    trials = truth + random.normal(size=truth.shape)
    chosen = np.take_along_axis(truth, trials.argmin(1)[:, None], 1)[:, 0]
    return verdict_on(confirmed(random, chosen, seeds))


def noisy_arm(random: np.random.Generator, arms: int, seeds: int) -> Verdict:
    """Judge equal arms, the first of which has ``NOISIER`` times the noise of the others."""
    scores = confirmed(random, np.zeros(arms), seeds)
    scores[0] *= NOISIER
    return verdict_on(scores)


def best_trials(random: np.random.Generator, arms: int, seeds: int) -> Verdict:
    """Judge each arm by its best trials, as if they were runs of its best setting."""
    trials = random.normal(size=(arms, TRIALS))
    return verdict_on(np.sort(trials, axis=1)[:, :seeds])


def share_undecided(scheme: Scheme, arms: int, seeds: int, sweeps: int) -> float:
    """Return the share of sweeps in which no arm is told from the leader."""
    random = np.random.default_rng([arms, seeds])
    told = [scheme(random, arms, seeds).is_distinguished for _ in range(sweeps)]
    return 1 - sum(told) / sweeps


def share_found(arms: int, seeds: int, sweeps: int) -> float:
    """Return the share of sweeps that tell one arm from the one that is better by ``GAP``."""
    random = np.random.default_rng([arms, seeds, 1])
    found = 0
    for _ in range(sweeps):
        verdict = fresh(random, arms, seeds, GAP)
        standing = verdict.of("1")
        leads = verdict.leader is not None and verdict.leader.arm.label == "0"
        found += leads and standing is not None and standing.outcome == "worse"
    return found / sweeps


def power_of(arms: int, seeds: int, pairs: int) -> float:
    """Return the probability that both tests of a pair find ``GAP``.

    The noise of two arms is a part of the noise of all: a chi-squared variable with ``seeds - 1``
    degrees of freedom, beside an independent one with the others.

    Args:
        arms: How many arms.
        seeds: How many seeds each has.
        pairs: For how many pairs the level is corrected.
    """
    own_df, df = seeds - 1, (arms - 1) * (seeds - 1)
    shares = (np.arange(_NODES) + 0.5) / _NODES
    own = chdtri(own_df, shares)[:, None]
    others = chdtri(df - own_df, shares)[None, :] if df > own_df else np.zeros((1, 1))
    effect = GAP * np.sqrt(seeds / 2)
    limit = np.maximum(
        quantile(0.95, own_df) * np.sqrt(own / own_df),
        quantile(1 - 0.05 / pairs, df) * np.sqrt((own + others) / df),
    )
    return float(ndtr(effect - limit).mean())


def power_between(arms: int, seeds: int) -> tuple[float, float]:
    """Return the least and the largest probability that one of the equal pairs is found.

    Holm corrects for all pairs at first, and for one fewer after each pair that is found. As many
    pairs as there are worse arms differ.
    """
    pairs = arms * (arms - 1) // 2
    return power_of(arms, seeds, pairs), power_of(arms, seeds, pairs - (arms - 2))


def luck_of_the_best(draws: int = 100_000) -> float:
    """Return by how many standard deviations the best of the trials is better than its setting."""
    return -float(np.random.default_rng(0).normal(size=(draws, TRIALS)).min(1).mean())


def lines(sweeps: int, arms: Sequence[int] = ARMS, seeds: Sequence[int] = SEEDS) -> list[str]:
    """Return the table as Markdown."""
    found = [
        "| arms | seeds | no difference: fresh seeds | one arm 3 times as noisy "
        "| the best trials as seeds | 2 sd: found | 2 sd: power |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for many, n in product(arms, seeds):
        schemes: tuple[Scheme, ...] = (fresh, noisy_arm, best_trials)
        shares = [share_undecided(scheme, many, n, sweeps) for scheme in schemes]
        cells = [f"{one:.1%}" for one in (*shares, share_found(many, n, sweeps))]
        cells.append(" to ".join(f"{one:.1%}" for one in power_between(many, n)))
        found.append(f"| {many} | {n} | " + " | ".join(cells) + " |")
    return [line.replace("%", " %") for line in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sweeps", type=int, default=1000)
    print("\n".join(lines(parser.parse_args().sweeps)))
    print(f"The best of {TRIALS} trials is {luck_of_the_best():.2f} sd better than its setting.")


if __name__ == "__main__":
    main()
