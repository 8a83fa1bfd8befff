"""What a tuned sweep found: each arm's trials, its confirmed runs, and the two verdicts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from elman.base import run_files
from elman.base.errors import UserError
from elman.base.quoting import pasteable
from elman.report.comparison.blocks import one_line
from elman.report.comparison.conditions import conditions
from elman.report.comparison.next_seeds import MORE_OF_ONE, add_seeds
from elman.report.comparison.runs import BEST, COMMON, NOT_ENDED, Run
from elman.report.comparison.sources import Source
from elman.report.comparison.verdict import ONE_SEED, Arm, Verdict, judge
from elman.tuning.choice import best
from elman.tuning.edges import Side, edges
from elman.tuning.ranks import RankCorrelation, rank_correlation
from elman.tuning.trials import Arm as TunedArm
from elman.tuning.trials import Trial, Tuned, trials_of
from elman.tuning.windows import Window, window

# A wider range reaches farther by this factor. A value within the other one of the end of the range
# is at that end.
_WIDER, _NEAR = 10.0, 2.0


@dataclass(frozen=True)
class ArmFacts:
    """One arm of a tuned sweep.

    Args:
        arm: The arm.
        trials: Its trials.
        first: Its best trial; None if none ended well.
        windows: The window of each key that has an order.
        edges: The keys whose best value is at an edge of what was tried, with the side.
    """

    arm: TunedArm
    trials: tuple[Trial, ...]
    first: Trial | None
    windows: Mapping[str, Window]
    edges: Mapping[str, Side]


@dataclass(frozen=True)
class TunedSweep:
    """What a tuned sweep found.

    Args:
        source: Its folder.
        tuned: Its tuning, as its folder records it.
        arms: Its arms.
        best: The verdict at each one's best setting.
        common: The verdict at the published setting.
        ranks: Whether trials order settings as whole runs do.
    """

    source: Source
    tuned: Tuned
    arms: tuple[ArmFacts, ...]
    best: Verdict
    common: Verdict
    ranks: RankCorrelation


def tuned_sweep(source: Source) -> TunedSweep | str | None:
    """Return what a sweep found; None if it was not tuned, and a line if its record is damaged."""
    tuned = tuning_of(source)
    if not isinstance(tuned, Tuned):
        return tuned
    at_edges = edges(tuned)
    facts = tuple(_facts(arm, tuned, at_edges.get(arm.label, {})) for arm in tuned.arms)
    return TunedSweep(
        source,
        tuned,
        facts,
        best=judge(_comparable(_arms(source, tuned, facts, BEST), source, BEST), tuned.goal),
        common=judge(_comparable(_arms(source, tuned, facts, COMMON), source, COMMON), tuned.goal),
        ranks=rank_correlation(tuned),
    )


def tuning_of(source: Source) -> Tuned | str | None:
    """Return what a sweep's folder says of its tuning; else as :func:`tuned_sweep`."""
    try:
        tuned = trials_of(source.folder) if source.is_sweep else None
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        return f"what {run_files.SWEEP} says of its tuning cannot be read ({one_line(error)})"
    return tuned if tuned is not None and tuned.arms else None


def to_decide(sweep: TunedSweep) -> tuple[list[str], str]:
    """Return the arms that more seeds would tell from the leader, and the command for those seeds.

    Every arm gets them, because all arms tell the noise. The command is empty while the sweep runs.
    """
    pairs = {one.arm.label: one.pair for one in sweep.best.compared if one.pair is not None}
    more = {label: pair.more_seeds for label, pair in pairs.items()}
    known = {label: count for label, count in more.items() if count is not None}
    if not known or sweep.source.living:
        return [*known], ""
    first = 1 + max(seed for one in sweep.best.compared for seed in one.arm.scores)
    return [*known], add_seeds(sweep.source, range(first, first + max(known.values())))


def why_unjudged(source: Source, label: str) -> tuple[str, str]:
    """Return why the best setting of an arm is not judged, and what to type; else empty texts."""
    sweep = tuned_sweep(source)
    if not isinstance(sweep, TunedSweep):
        return "", ""
    for one in sweep.arms:
        if one.arm.label == label:
            runs = confirmed_runs(source, label, BEST)
            return _why_not(source, sweep.tuned, one, runs, BEST)
    return "", ""


def _facts(arm: TunedArm, tuned: Tuned, at_edges: Mapping[str, Side]) -> ArmFacts:
    trials = tuned.of(arm.label)
    windows = {
        key: own
        for key in tuned.bounds
        if (own := window(trials, key, tuned.config.window, tuned.goal)) is not None
    }
    return ArmFacts(arm, tuple(trials), best(trials, tuned.goal), windows, at_edges)


def confirmed_runs(source: Source, arm: str, phase: str) -> list[Run]:
    """Return the runs of an arm at full budget, of its best setting or of its published one."""
    return [
        run
        for run in source.runs
        if run.tuning is not None
        and run.tuning.arm == arm
        and (run.tuning.phase == phase or (phase == COMMON and run.tuning.common))
    ]


def _arms(source: Source, tuned: Tuned, facts: Sequence[ArmFacts], phase: str) -> list[Arm]:
    arms = []
    for one in facts:
        runs = confirmed_runs(source, one.arm.label, phase)
        scores: dict[int, float] = {}
        for run in runs:
            score = getattr(run.result, tuned.score) if run.counts else None
            if score is not None and run.seed is not None:
                scores.setdefault(run.seed, float(score))
        why, command = _why_not(source, tuned, one, runs, phase)
        if not why and len(scores) == 1:
            first = max(scores) + 1
            why, command = ONE_SEED, add_seeds(source, range(first, first + MORE_OF_ONE))
        arms.append(Arm(one.arm.label, scores, why, command))
    return arms


def _why_not(
    source: Source, tuned: Tuned, facts: ArmFacts, runs: Sequence[Run], phase: str
) -> tuple[str, str]:
    """Return why an arm gets no verdict, and what to type; two empty texts if it may get one."""
    again = "" if source.living else f"elman -m {pasteable('sweep.resume', str(source.folder))}"
    if not runs:
        tried = "its trials have not ended" if facts.first else "no trial of it has ended well"
        return (tried if phase == BEST else "it was not trained there"), again
    waits = [run for run in runs if run.status in NOT_ENDED]
    if waits:
        return f"{len(waits)} of its {len(runs)} confirmed runs have not ended", again
    failed = [run for run in runs if not run.counts]
    if failed:
        ends = ", ".join(f"seed {run.seed}: {run.status}" for run in failed)
        return f"{len(failed)} of its {len(runs)} confirmed runs failed ({ends})", again
    if facts.edges and phase == BEST:
        return _edge_words(facts), _beyond(source, facts, tuned)
    return "", ""


def _edge_words(facts: ArmFacts) -> str:
    sides = {"low": "lower", "high": "upper"}
    ends = [f"the {sides[side]} edge of {key}" for key, side in facts.edges.items()]
    return f"its best value is at {' and at '.join(ends)}, so a better one may lie beyond"


def _beyond(source: Source, facts: ArmFacts, tuned: Tuned) -> str:
    """Return the command that looks beyond an edge, for all arms alike.

    These are more trials if the range goes on beyond the best value, or else a wider range, which
    is another sweep.
    """
    texts = []
    for key, side in facts.edges.items():
        value = facts.first.values.get(key) if facts.first is not None else None
        low, high = tuned.bounds[key]
        if not isinstance(value, int | float) or not tuned.config.leaves[key].is_range or not low:
            return ""
        if (high / value if side == "high" else value / low) < _NEAR:
            farther = high * _WIDER if side == "high" else low / _WIDER
            texts.append(f"tune.space.{key}.{side}={farther:.3g}")
    if not texts:
        add = pasteable("sweep.add", str(source.folder))
        return f"elman -m {add} tune.trials={2 * tuned.config.trials}"
    try:
        typed = shlex.split(source.command)
    except ValueError:
        return ""
    command = [text for text in typed if not text.startswith("hydra.sweep.dir=")]
    return shlex.join([*command, *texts]) if command else ""


def _comparable(arms: Sequence[Arm], source: Source, phase: str) -> list[Arm]:
    """Take the verdict from arms whose runs have other conditions than most arms' runs."""
    known = {
        arm.label: conditions(confirmed_runs(source, arm.label, phase)[0])
        for arm in arms
        if arm.scores and not arm.why_not
    }
    sets = [tuple(one.values()) for one in known.values()]
    if len(set(sets)) < 2:
        return list(arms)
    most = max(sets, key=sets.count)
    comparable = []
    for arm in arms:
        own = known.get(arm.label, {})
        differing = [
            key for (key, value), usual in zip(own.items(), most, strict=False) if value != usual
        ]
        why = f"its runs have other conditions ({', '.join(differing)})" if differing else ""
        comparable.append(replace(arm, why_not=why) if why else arm)
    return comparable
