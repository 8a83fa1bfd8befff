"""What to type next: the ``sweep.add`` commands whose seeds would decide a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from elman.base.quoting import pasteable, shell_line
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import NOT_ENDED, Run
from elman.report.comparison.sources import Source
from elman.report.comparison.wins import Challenger, Group, Wins

MORE_OF_ONE = 2
"""More seeds for a row of one seed: with three an interval begins to be of use."""
_SEED, _MODEL, _ONLY = "train.seed", "model", "benchmark.only"
# Seeds that are listed one by one; more in a row are a range.
_LISTED = 8
# Settings in which sweep.add wants whole paths.
_PATHS = ("data.path", "data.val_path", "train.init_from")


@dataclass(frozen=True)
class _Home:
    """A sweep, with the values that its jobs have for each key; None is a job without the key."""

    source: Source
    values: Mapping[str, set[str | None]]

    @classmethod
    def of(cls, source: Source) -> _Home:
        overrides = [_overrides(run) for run in source.compared]
        keys = dict.fromkeys(key for one in overrides for key in one)
        return cls(source, {key: {one.get(key) for one in overrides} for key in keys})


def with_commands(wins: Wins, sources: Sequence[Source]) -> Wins:
    """Return comparisons with the commands that would decide what is not decided.

    Args:
        wins: The comparisons.
        sources: The folders of the report: a command adds jobs to the sweep of a row.
    """
    sweeps = [_Home.of(source) for source in sources if source.is_sweep]
    homes = {id(run): home for home in sweeps for run in home.source.compared}
    return replace(wins, groups=tuple(_commanded(group, homes) for group in wins.groups))


def _commanded(group: Group, homes: Mapping[int, _Home]) -> Group:
    challengers = tuple(
        replace(one, to_decide=tuple(_to_decide(one, group, homes))) for one in group.challengers
    )
    rows = [group.reference, *(one.row for one in challengers)]
    alone = [row for row in rows if len(row.counted) == 1]
    if alone and len(group.reference.counted) > 1:
        alone.append(group.reference)
    measured = tuple(_commands(alone, MORE_OF_ONE, homes)) if alone else ()
    return replace(group, challengers=challengers, to_measure=measured)


def _to_decide(one: Challenger, group: Group, homes: Mapping[int, _Home]) -> Iterator[str]:
    more = group.decisive(one).more_seeds
    if more is not None:
        yield from _commands([one.row, group.reference], more, homes)


def _commands(rows: Sequence[Row], more: int, homes: Mapping[int, _Home]) -> Iterator[str]:
    """Yield a command for each sweep that has some of the rows.

    There is none if a row is of no sweep, or of one that runs: its seeds are not all there yet.
    """
    homes_of_rows = [homes.get(id(row.counted[0])) for row in rows]
    known = [home for home in homes_of_rows if home is not None]
    seeds = next_seeds(rows, more)
    if len(known) < len(rows) or not seeds or any(home.source.living for home in known):
        return
    for home in {id(home): home for home in known}.values():
        own = [row.counted[0] for row, its in zip(rows, known, strict=True) if its is home]
        yield add_seeds(home.source, seeds, _restricted(own, home))


def next_seeds(rows: Sequence[Row], more: int) -> list[int]:
    """Return so many seeds that not all rows have, those that some have first; empty if unknown.

    A seed with which a run failed is left out: it would probably fail again.
    """
    had = [{run.seed for run in row.counted if run.seed is not None} for row in rows]
    if not all(had):
        return []
    runs = [run for row in rows for run in row.runs if run.seed is not None]
    failed = {run.seed for run in runs if not run.counts and run.status not in NOT_ENDED}
    every = {seed for seeds in had for seed in seeds} - failed
    lacking = [seed for seed in every if any(seed not in seeds for seeds in had)]
    first = max(run.seed for run in runs if run.seed is not None) + 1
    return [*sorted(lacking), *range(first, first + more)][:more]


def add_seeds(source: Source, seeds: Sequence[int], others: Iterable[str] = ()) -> str:
    """Return the command that adds runs with some seeds to a sweep, behind other overrides."""
    add = pasteable("sweep.add", str(source.folder))
    return f"elman -m {add} {shell_line([*others, _seeds_override(seeds)])}"


def _seeds_override(seeds: Sequence[int]) -> str:
    """Return the override that names some seeds."""
    if len(seeds) > _LISTED and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{_SEED}=range({seeds[0]},{seeds[-1] + 1})"
    return f"{_SEED}={','.join(map(str, seeds))}"


def _restricted(runs: Sequence[Run], home: _Home) -> Iterator[str]:
    """Yield the overrides that leave, of all jobs of a sweep, those like some runs.

    What the runs of a suite set cannot be typed, but their models can be named. A tuned sweep gives
    seeds to all its arms.
    """
    if any(run.tuning is not None for run in runs):
        return
    own, suite_keys = [_overrides(run) for run in runs], home.source.suite_keys
    for key, values in home.values.items():
        own_values = {one.get(key): None for one in own}
        if key == _SEED or None in own_values or own_values.keys() >= values:
            continue
        texts = ",".join(map(str, own_values))
        if key in suite_keys:
            if key == _MODEL and _SEED not in suite_keys:
                yield f"{_ONLY}={texts}"
        elif key not in _PATHS:
            yield f"{key}={texts}"


def _overrides(run: Run) -> dict[str, str]:
    pairs = (text.partition("=") for text in run.overrides)
    return {key: value for key, _, value in pairs if not key.startswith(("hydra", "benchmark"))}
