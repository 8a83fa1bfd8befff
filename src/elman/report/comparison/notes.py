"""What a reader must know before comparing the rows, and which runs failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from elman.base.exit_status import RunStatus
from elman.base.quoting import pasteable
from elman.config.suite_rates import RATE, by_rate, rate_words
from elman.report.comparison.conditions import (
    IN_WARM_UP,
    LONG_WARM_UP,
    begins_from,
    budget_kinds,
    remarks,
    run_marks,
    warm_up_share,
    warm_up_words,
)
from elman.report.comparison.rows import Row
from elman.report.comparison.runs import TRIAL, WAITS, Run
from elman.report.comparison.sources import Source
from elman.runs.state import RUNNING
from elman.sections.launching import SweepConfig

_MOST_NAMES = 4


def comparison_notes(rows: Sequence[Row]) -> list[str]:
    """Return one line for each difference between rows, whether it spoils the comparison or not."""
    counted = [row for row in rows if row.counted]
    notes = []
    names = list(dict.fromkeys(name for row in counted for name in row.conditions))
    for name in names:
        places: dict[str, list[str]] = {}
        for row in counted:
            place = f"set {row.set}"
            listed = places.setdefault(row.conditions[name], [])
            if place not in listed:
                listed.append(place)
        if len(places) > 1:
            notes.append(f"not comparable: different {name}: {_listing(places)}")
    notes += [*_budgets(counted), *_sizes(counted), *_remarks(counted), *_repeats(counted)]
    notes += [*_warm_ups(counted), *_beginnings(counted)]
    if counted and all(len(row.counted) == 1 for row in counted):
        notes.append(
            "n=1: one seed a row, so the noise between seeds is unknown; "
            "train.seed=1,2,3 measures it"
        )
    return notes


def rate_notes(sources: Sequence[Source]) -> list[str]:
    """Return a line for each suite whose models nobody tuned, with their rates."""
    notes = []
    for source in sources:
        begun = [(run, rate) for run in source.runs if (rate := _rate(run)) is not None]
        if source.benchmark is None or not begun or any(run.tuning for run in source.runs):
            continue
        typed = any(_sets_rate(run) for run, _ in begun) and RATE not in source.suite_keys
        swept = typed and len({rate for _, rate in begun}) > 1
        if not swept:
            rates = by_rate((run.overrides, rate) for run, rate in begun)
            notes.append(rate_words(rates, published=not typed))
    return notes


def _rate(run: Run) -> float | None:
    rate = run.section("optim").get("lr")
    return float(rate) if isinstance(rate, int | float) else None


def _sets_rate(run: Run) -> bool:
    return any(text.partition("=")[0] == RATE for text in run.overrides)


def _budgets(rows: Sequence[Row]) -> list[str]:
    """Say which budget made the rows comparable, if it was neither time nor steps."""
    durations = {row.conditions["duration"] for row in rows}
    if len(rows) < 2 or len(durations) > 1:
        return []
    (duration,) = durations
    usual = ("minutes", "steps")
    units = [kind.unit for kind in budget_kinds(rows[0].counted[0]) if kind.key not in usual]
    return [f"equal {' or '.join(units)}: every run had {duration}"] if units else []


def _sizes(rows: Sequence[Row]) -> list[str]:
    """Return a note if the models' sizes differ by more than a sweep allows without a note."""
    sizes = {row.label: row.counted[0].result.params for row in rows if row.counted[0].result}
    known = {label: size for label, size in sizes.items() if size}
    if not known:
        return []
    small, large = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    spread = (known[large] - known[small]) / known[small]
    if spread <= SweepConfig().max_params_spread:
        return []
    ends = " to ".join(f"{known[label]:,} in {label}" for label in (small, large))
    return [f"differs too: params by {spread:.0%}: {ends}"]


def _warm_ups(rows: Sequence[Row]) -> list[str]:
    """Say how long the warm-up of a row was, where it is marked and not the same in all rows."""
    shares = {row.label: warm_up_share(row.counted[0]) for row in rows}
    if len(set(shares.values())) < 2:
        return []
    marked = [row for row in rows if {IN_WARM_UP, LONG_WARM_UP} & {*_marks(row)}]
    shown = [f"{row.label}: {warm_up_words(row.counted[0])}" for row in marked[:_MOST_NAMES]]
    more = f"; and {len(marked) - len(shown)} rows more" if len(marked) > len(shown) else ""
    return [f"not the same warm-up: {'; '.join(shown)}{more}"] if shown else []


def _beginnings(rows: Sequence[Row]) -> list[str]:
    """Name the trained weights that rows began from."""
    places: dict[str, list[str]] = {}
    for row in rows:
        if (place := begins_from(row.counted[0])) is not None:
            places.setdefault(place, []).append(row.label)
    return [f"began from trained weights (train.init_from): {_listing(places)}"] if places else []


def _marks(row: Row) -> Iterator[str]:
    for run in row.counted:
        yield from run_marks(run)


def _repeats(rows: Sequence[Row]) -> list[str]:
    """Name the runs that repeat a seed: a mean counts each seed once."""
    return [
        f"{row.label}: {len(row.repeated)} more with a repeated seed, not in the means: "
        + ", ".join(_named(run) for run in row.repeated[:_MOST_NAMES])
        + (" ..." if len(row.repeated) > _MOST_NAMES else "")
        for row in rows
        if row.repeated
    ]


def _remarks(rows: Sequence[Row]) -> list[str]:
    swept = {text.split("=", 1)[0] for row in rows for text in row.runs[0].swept}
    remarks_by_row = [remarks(row.counted[0]) for row in rows]
    notes = []
    for key in dict.fromkeys(key for one in remarks_by_row for key in one):
        if key in swept or key.split(".")[0] in swept:
            continue
        places: dict[str, list[str]] = {}
        for row, one in zip(rows, remarks_by_row, strict=True):
            places.setdefault(one.get(key, "not set"), []).append(row.label)
        if len(places) > 1:
            notes.append(f"differs too: {key}: {_listing(places)}")
    return notes


def _listing(places: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{value} in {_named_rows(where)}" for value, where in places.items())


def _named_rows(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} rows"


def run_notes(runs: Sequence[Run]) -> list[str]:
    """Return one line for each run that did not end well, and for each problem of a run."""
    notes = []
    for run in runs:
        if run.status != RunStatus.OK:
            notes.append(f"{_named(run)}: {ending(run)}")
        elif run.reason:
            notes.append(f"{_named(run)}: {run.reason}")
        notes += [f"{_named(run)}: {problem}" for problem in run.problems if problem != run.reason]
    return notes


def ending(run: Run) -> str:
    """Return how a run ended, where, and why."""
    steps = run.result.steps if run.result is not None else None
    where = f" after {steps:,} steps" if steps else ""
    return f"{run.status}{where}" + (f": {run.reason}" if run.reason else "")


def _named(run: Run) -> str:
    seed = f", seed {run.seed}" if run.seed is not None else ""
    name = f"{run.name}{seed}"
    return name if run.job is None else f"job {run.job} ({name})"


# What a lone run cannot get over by going on from its checkpoint.
_NOT_AGAIN = (RunStatus.NAN, RunStatus.REFUSED)


@dataclass(frozen=True)
class Failure:
    """Runs that ended in the same way.

    Args:
        words: How, where and why.
        runs: The runs.
    """

    words: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Failures:
    """The runs of one folder that failed.

    Args:
        groups: Each way in which they ended, with its runs.
        when: When to type the command, in words.
        command: The command that runs them again; empty if there is none.
    """

    groups: tuple[Failure, ...]
    when: str
    command: str


def failures_of(source: Source) -> Failures | None:
    """Return the runs of a folder that failed; None if there are none.

    A trial that failed is part of what a tuned sweep learned, and its table counts it.
    """
    good = {RunStatus.OK, RUNNING, *(WAITS if source.living else ())}
    confirmed = [run for run in source.runs if run.tuning is None or run.tuning.phase != TRIAL]
    failed = [run for run in confirmed if run.status not in good]
    if not failed:
        return None
    groups: dict[str, list[Run]] = {}
    for run in failed:
        groups.setdefault(ending(run), []).append(run)
    failures = tuple(Failure(words, tuple(runs)) for words, runs in groups.items())
    when = "To run them again"
    if source.living:
        when = "Once the sweep has ended, to run them again"
    return Failures(failures, when, _command(source, failed))


def _command(source: Source, failed: Sequence[Run]) -> str:
    if source.is_sweep:
        return f"elman -m {pasteable('sweep.resume', str(source.folder))}"
    (first, *others) = failed
    if others or first.folder is None or first.status in _NOT_AGAIN:
        return ""
    return f"elman {pasteable('train.resume', str(first.folder))}"
