"""How far a sweep that runs has come, and when it will be done."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from elman.base.exit_status import RunStatus
from elman.report.comparison.runs import NOT_ENDED, WAITS, Run
from elman.report.comparison.sources import Source
from elman.runs.state import RUNNING
from elman.sections.budget import BUDGETS, Effort, limits, used_share

ESTIMATE = (
    "Time left: a running job needs what is left of train.minutes, or of another budget at its own "
    "speed. A waiting job takes train.minutes, or as long as the median job of its model that "
    "ended, or else of any model. As many jobs run at a time as run now."
)


@dataclass(frozen=True)
class JobProgress:
    """One job of a sweep.

    Args:
        run: Its run.
        spent: Seconds that it has run, start-up and pauses included where they are known.
        share: How much of its budget is spent, from 0 to 1; None if it is not running.
        left: Seconds that it still needs; 0 once it has ended, None if nobody can tell.
    """

    run: Run
    spent: float
    share: float | None
    left: float | None


@dataclass(frozen=True)
class Progress:
    """All jobs of a sweep.

    Args:
        jobs: Each job.
    """

    jobs: tuple[JobProgress, ...]

    def count(self, *states: str) -> int:
        """Return how many jobs have one of some states."""
        return sum(job.run.status in states for job in self.jobs)

    @property
    def failed(self) -> int:
        """How many jobs have ended in another way than ok."""
        return len(self.jobs) - self.count(RunStatus.OK, *NOT_ENDED)

    @property
    def spent(self) -> float:
        """Seconds that the jobs have taken, added up."""
        return sum(job.spent for job in self.jobs)

    @property
    def left(self) -> float:
        """Seconds that the other jobs still need, added up, without jobs of unknown length."""
        return sum(job.left or 0.0 for job in self.jobs)

    @property
    def unknown(self) -> int:
        """How many jobs there are of which nobody can tell how long they take."""
        return sum(job.left is None for job in self.jobs)

    @property
    def seconds(self) -> float:
        """Seconds until the last job ends, if as many jobs run at a time as run now."""
        places = [job.left or 0.0 for job in self.jobs if job.run.status == RUNNING] or [0.0]
        heapq.heapify(places)
        for job in self.jobs:
            if job.run.status in WAITS:
                heapq.heappush(places, heapq.heappop(places) + (job.left or 0.0))
        return max(places)

    @property
    def on_gpus(self) -> bool:
        """Whether a job that ended ran on a GPU."""
        results = [job.run.result for job in self.jobs if job.run.result is not None]
        return any((result.environment.device or "").startswith("cuda") for result in results)


def progress_of(source: Source) -> Progress:
    """Return how far each job of a sweep has come."""
    usual: Mapping[str, Any] = next(
        (run.config["train"] for run in source.runs if run.config is not None), {}
    )
    took: dict[str, list[float]] = {}
    for run in source.runs:
        if run.status == RunStatus.OK:
            took.setdefault(run.model, []).append(_spent(run))
    return Progress(tuple(_job(run, usual, took) for run in source.runs))


def _job(run: Run, usual: Mapping[str, Any], took: Mapping[str, Sequence[float]]) -> JobProgress:
    spent = _spent(run)
    if run.status not in NOT_ENDED:
        return JobProgress(run, spent, None, 0.0)
    budget = _budget(run, usual)
    share = _share(run, spent, budget)
    if share:
        left = spent * (1 - share) / share
        return JobProgress(run, spent, share if run.status == RUNNING else None, left)
    every = [seconds for times in took.values() for seconds in times]
    known = took.get(run.model) or every
    total = 60 * budget["minutes"] if [*budget] == ["minutes"] else None
    if known:
        total = median(known) if total is None else max(total, median(known))
    return JobProgress(run, spent, 0.0 if run.status == RUNNING else None, total)


def _share(run: Run, spent: float, budget: Mapping[str, float]) -> float:
    """Return how much of its budget a run has spent; the part that ends first counts."""
    metrics = run.metrics
    if metrics is None or not metrics.window_steps.size:
        return 0.0
    steps = metrics.window_steps[-1:]
    sizes = float(metrics.bytes_at(steps, run.grad_accum)[0])
    return used_share(budget, Effort(float(steps[0]), spent, sizes).rated(metrics.rates))


def _spent(run: Run) -> float:
    """Return the seconds that a run has taken, without its start-up."""
    if run.result is not None and run.status != RUNNING:
        seconds = run.result.seconds
        return sum(filter(None, (seconds.train, seconds.validation, seconds.checkpoint)))
    if run.metrics is None or not run.metrics.window_seconds.size:
        return 0.0
    return float(run.metrics.window_seconds[-1])


def _budget(run: Run, usual: Mapping[str, Any]) -> dict[str, float]:
    """Return by name the budgets that end a run; a run without one lasts one minute."""
    train = dict(run.config["train"] if run.config is not None else usual)
    if run.config is None:
        for text in run.overrides:
            key, _, value = text.partition("=")
            section, _, name = key.partition(".")
            if section == "train" and name in BUDGETS:
                train[name] = _number(value)
    values = {name: train.get(name) for name in BUDGETS}
    numbers = {name: float(one) for name, one in values.items() if isinstance(one, int | float)}
    return limits({name: limit for name, limit in numbers.items() if limit > 0})


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
