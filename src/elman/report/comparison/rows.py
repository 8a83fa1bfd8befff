"""The rows of the table: each has the runs of one experiment, which differ only in their seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from elman.report.comparison.conditions import conditions, experiment, measured, settings
from elman.report.comparison.runs import Result, Run
from elman.report.comparison.statistics import Spread, spread

_SHOWN_SETTINGS = 4
_MARKS: dict[str, Callable[[Result], bool]] = {
    "contended": lambda result: bool(result.contended),
    "slow path": lambda result: bool(result.slow_path),
}


@dataclass(frozen=True)
class Row:
    """The runs of one model in one configuration, over its seeds.

    Args:
        model: Name of the model.
        runs: All its runs, failed ones too.
        label: The model, and the settings that distinguish the row from the other rows.
        set: Rows with the same number are comparable; None if no run counts.
    """

    model: str
    runs: tuple[Run, ...]
    label: str = ""
    set: int | None = None
    _counted: tuple[Run, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # A second run with a seed says nothing about the noise between seeds: the first counts.
        first: dict[int | None, Run] = {}
        for run in self.runs:
            if run.counts:
                first.setdefault(run.seed, run)
        object.__setattr__(self, "_counted", tuple(first.values()))

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs whose numbers are in the means: one for each seed."""
        return self._counted

    @property
    def repeated(self) -> tuple[Run, ...]:
        """The runs that ended well but repeat another run's seed, and so do not count."""
        return tuple(run for run in self.runs if run.counts and run not in self._counted)

    def over_runs(self, number: Callable[[Result], float | None]) -> Spread | None:
        """Return a number over the runs that count; None if no run counts, or one lacks it."""
        return spread([number(run.result) for run in self.counted if run.result is not None])

    def first(self, fact: Callable[[Result], object]) -> object:
        """Return the first known value of a fact that is the same in every run."""
        found = (fact(run.result) for run in self.runs if run.result is not None)
        return next((value for value in found if value is not None), None)

    @property
    def seeds(self) -> str:
        """The seeds that are in the means."""
        known = [run.seed for run in self.counted]
        return ", ".join(map(str, sorted(seed for seed in known if seed is not None))) or "-"

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions that must agree with those of another row, by name."""
        first = self.counted[0]
        return {"seeds": self.seeds, **conditions(first)}

    @property
    def status(self) -> str:
        """How its runs ended, with the marks of the runs that count."""
        ends = Counter(run.status for run in self.runs)
        if len(self.runs) == 1:
            words = [self.runs[0].status]
        else:
            many = len(ends) > 1 or len(self.runs) > len(self.counted) > 0
            words = [f"{n} {status}" if many else status for status, n in ends.items()]
        return ", ".join([*words, *self.marks])

    @property
    def marks(self) -> list[str]:
        """What a reader must know about how its runs were computed."""
        found = []
        for mark, holds in _MARKS.items():
            count = sum(run.result is not None and holds(run.result) for run in self.runs)
            if count:
                found.append(mark if count == len(self.runs) else f"{count} {mark}")
        if not all(run.version_is_known for run in self.runs):
            found.append("unknown metric version")
        if self.repeated:
            found.append(f"{len(self.repeated)} repeated")
        return found

    @property
    def jobs(self) -> str:
        """The numbers of its jobs in their sweep."""
        return ", ".join(str(run.job) for run in self.runs if run.job is not None) or "-"


def make_rows(runs: Sequence[Run]) -> list[Row]:
    """Return the rows in the order of their first runs, labelled, in comparable sets."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for key, run in _keyed(runs):
        grouped.setdefault(key, []).append(run)
    rows = [Row(group[0].model, tuple(group)) for group in grouped.values()]
    return _numbered(_labelled(rows))


def _keyed(runs: Sequence[Run]) -> Iterator[tuple[tuple[str, str], Run]]:
    """Yield each run with the key of its row.

    A job without a configuration of its own gets that of a job whose overrides differ only in the
    seed. A run without numbers joins the first row that has numbers.
    """
    by_overrides = {
        _experiment_typed(run): experiment(run) for run in runs if run.config and run.overrides
    }
    ways: dict[str, list[str]] = {}
    found = []
    for run in runs:
        known = run.config is not None
        key = experiment(run) if known else by_overrides.get(_experiment_typed(run))
        key = experiment(run) if key is None else key
        if run.counts:
            ways.setdefault(key, []).append(measured(run))
        found.append((key, run))
    for key, run in found:
        first = next(iter(ways.get(key, [])), "")
        yield (key, measured(run) if run.counts else first), run


def _experiment_typed(run: Run) -> str:
    return experiment(replace(run, config=None))


def _labelled(rows: Sequence[Row]) -> list[Row]:
    """Label each row: its model, what its sweep swept, and what differs from rows of that label."""
    labels = [" ".join([row.model, *_swept(row)]) for row in rows]
    told = [settings(row.runs[0]) for row in rows]
    for label in [label for label, count in Counter(labels).items() if count > 1]:
        same = [n for n, other in enumerate(labels) if other == label]
        keys = {key for n in same for key in told[n]}
        differing = [key for key in sorted(keys) if len({told[n].get(key) for n in same}) > 1]
        for n in same:
            shown = [f"{key}={told[n].get(key, '-')}" for key in differing[:_SHOWN_SETTINGS]]
            more = len(differing) - len(shown)
            labels[n] = " ".join([label, *shown, *([f"and {more} more"] if more else [])])
    counts: Counter[str] = Counter()
    for n, label in enumerate(labels):
        counts[label] += 1
        if counts[label] > 1:
            labels[n] = f"{label} #{counts[label]}"
    return [replace(row, label=label) for row, label in zip(rows, labels, strict=True)]


def _swept(row: Row) -> list[str]:
    """Return the swept settings that all its runs share, without the seed and logging settings."""
    first, *others = row.runs
    shared = [text for text in first.swept if all(text in run.swept for run in others)]
    return [text for text in shared if not text.startswith(("model=", "train.seed="))]


def _numbered(rows: Sequence[Row]) -> list[Row]:
    numbers: dict[tuple[str, ...], int] = {}
    found = []
    for row in rows:
        number = None
        if row.counted:
            key = tuple(row.conditions.values())
            number = numbers.setdefault(key, 1 + len(numbers))
        found.append(replace(row, set=number))
    return found
