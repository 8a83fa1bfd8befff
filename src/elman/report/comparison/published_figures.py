"""The published figures beside the rows, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elman.config.suites import SuiteFigures
from elman.published import PublishedResult, published_for
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.runs import task_of

Records = Sequence[PublishedResult]
WARNING = (
    "Published losses have other definitions than ours (each stands beside its figure) and come "
    "from other data, hardware and code: compare published figures only within one suite, and "
    "never with a measured number."
)


@dataclass(frozen=True)
class Beside:
    """The published figures of a report's models.

    Args:
        by_row: For each row the records of its model; the first one is shown.
        not_run: Records of the suite that no row repeats.
    """

    by_row: tuple[tuple[PublishedResult, ...], ...]
    not_run: tuple[PublishedResult, ...]

    @property
    def records(self) -> list[PublishedResult]:
        """Every record, once."""
        records = [record for records in self.by_row for record in records]
        return list({id(record): record for record in [*records, *self.not_run]}.values())


def beside(rows: Sequence[Row], suites: Sequence[SuiteFigures]) -> Beside:
    """Return the published records of the rows' models; for a suite's models, that suite's."""
    by_row = tuple(tuple(_records(row, suites)) for row in rows)
    models = {row.model for row in rows}
    # A suite's own figures come first. Only those can be missing, not figures of other suites.
    own = [r for suite in suites for r in suite.published if r.of == suite.published[0].of]
    missing = [record for record in own if record.figures.model not in models]
    never = [record for suite in suites for record in suite.published_only]
    # Several sweeps of one suite have the same records.
    return Beside(by_row, tuple(dict.fromkeys((*missing, *never))))


def _records(row: Row, suites: Sequence[SuiteFigures]) -> list[PublishedResult]:
    """Return a row's records: those of a suite in the suite's order, others newest first.

    Figures of a task stand beside runs of that task, and others beside runs of text.
    """
    task = next((task for task in map(task_of, row.runs) if task), "")
    of_suites = [record for suite in suites for record in suite.published_for(row.model)]
    records = of_suites or published_for(row.model)[::-1]
    records = [record for record in records if record.figures.task == task]
    # Records with a loss come before records without.
    return sorted(records, key=lambda record: record.figures.loss is None)


def published_words(record: PublishedResult, params: int | None = None) -> str:
    """Return a record as text; ``params`` is the size of the row that it stands beside."""
    figures = record.figures
    number = "no loss"
    if figures.accuracy is not None:
        number = f"accuracy {figures.accuracy:.3f} on {figures.task} at {figures.length:,}"
    elif figures.loss is not None:
        number = f"{figures.loss:.4f}"
    elif figures.tok_s is not None:
        number = f"{figures.tok_s:,.0f} tok/s"
    elif figures.step_us is not None:
        number = f"{figures.step_us:g} us a step"
    if figures.withdrawn:
        number += ", withdrawn"
    other_size = params is not None and figures.params not in (None, params)
    size = f" at {(figures.params or 0) / 1e6:.1f}M" if other_size else ""
    return f"{number}{size} ({record.of.suite}, {record.of.date})"


def published_only(record: PublishedResult) -> dict[str, str]:
    """Return the cells, by heading, of a published row that no run repeats."""
    figures = record.figures
    return {
        "model": figures.model,
        "params": NONE if figures.params is None else f"{figures.params:,}",
        "published": published_words(record),
        "status": "published only",
    }
