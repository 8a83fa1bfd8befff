"""The content of a report, before it is turned into text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elman.config.catalog import SHIPPED, Place
from elman.config.suites import SuiteFigures
from elman.report.comparison.audit.audit import Audit, audit_of
from elman.report.comparison.audit.finding import Subject
from elman.report.comparison.columns import Column, shown_columns
from elman.report.comparison.components import Components, components_of
from elman.report.comparison.deciding import LOSS_HEIGHT, Height, deciding_for_all, height_of
from elman.report.comparison.ladder import BY_SIZE, Ladder, ladder_of
from elman.report.comparison.next_seeds import with_commands
from elman.report.comparison.notes import comparison_notes, run_notes
from elman.report.comparison.published_figures import Beside, beside, published_only
from elman.report.comparison.rows import NONE, Row, make_rows
from elman.report.comparison.runs import Run
from elman.report.comparison.sources import Source, load_sources
from elman.report.comparison.tasks import Tasks, make_tasks, styled
from elman.report.comparison.tuned import TunedSweep, tuned_sweep
from elman.report.comparison.wins import Wins, who_wins


@dataclass(frozen=True)
class Report:
    """A report.

    Args:
        sources: The folders that it covers.
        rows: Its rows, in the order of the runs.
        published: The published figures of their models.
        wins: How much better or worse each row is than another.
        places: Where to look for the files of its models.
        allow: Rows of the audit that may be unequal.
    """

    sources: tuple[Source, ...]
    rows: tuple[Row, ...]
    published: Beside
    wins: Wins
    places: Sequence[Place] = (SHIPPED,)
    allow: tuple[str, ...] = ()

    @cached_property
    def audit(self) -> Audit:
        """What was held equal between its rows."""
        by = self.wins.by or deciding_for_all(self.rows)
        records = tuple(self.published.records)
        subject = Subject(self.sources, self.rows, records, self.tasks, by, self.places)
        found = audit_of(subject).allowing(self.allow)
        return found.allowing(BY_SIZE, "the sizes of a ladder") if self.ladders else found

    @cached_property
    def tuned(self) -> tuple[TunedSweep, ...]:
        """What its tuned sweeps found; a ladder compares families and not its arms."""
        every = [one for _, one in self._tuned if isinstance(one, TunedSweep)]
        return tuple(one for one in every if one.tuned.config.ladder is None)

    @cached_property
    def ladders(self) -> tuple[Ladder, ...]:
        """What its ladders found."""
        every = [one for _, one in self._tuned if isinstance(one, TunedSweep)]
        return tuple(ladder_of(one) for one in every if one.tuned.config.ladder is not None)

    @cached_property
    def components(self) -> tuple[Components, ...]:
        """What the components gain that suites of its tuned sweeps name."""
        return tuple(gains for one in self.tuned if (gains := components_of(one)) is not None)

    @cached_property
    def _tuned(self) -> list[tuple[Source, TunedSweep | str | None]]:
        return [(source, tuned_sweep(source)) for source in self.sources]

    @cached_property
    def tasks(self) -> Tasks:
        """What its rows show about tasks."""
        return make_tasks(self.rows)

    @cached_property
    def height(self) -> Height:
        """What its pictures show: the number that decides in the largest group of rows."""
        by = self.wins.by or deciding_for_all(self.rows)
        return LOSS_HEIGHT if by is None else height_of(by)

    @property
    def runs(self) -> list[Run]:
        """Every run, in the order of the rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def columns(self) -> list[Column]:
        """The columns of its table."""
        return shown_columns(self.rows, self.published.records)

    @property
    def cells(self) -> list[list[str]]:
        """The cells of its table; published rows that no run repeats come last."""
        pairs = list(zip(self.rows, self.published.by_row, strict=True))
        lines = [[column.cell(*pair) for column in self.columns] for pair in pairs]
        for record in self.published.not_run:
            texts = published_only(record)
            lines.append([texts.get(column.head, NONE) for column in self.columns])
        return lines

    @property
    def comparison(self) -> list[str]:
        """What a reader must know before comparing the rows."""
        return comparison_notes(self.rows)

    @property
    def problems(self) -> list[str]:
        """Runs that did not end well, and files that could not be read."""
        of_sources = [f"{s.folder}: {problem}" for s in self.sources for problem in s.problems]
        of_sources += [f"{s.folder}: {one}" for s, one in self._tuned if isinstance(one, str)]
        return [*of_sources, *run_notes(self.runs)]


def make_report(
    folders: Sequence[Path],
    places: Sequence[Place] = (SHIPPED,),
    against: str | int | None = None,
    allow: Sequence[str] = (),
) -> Report:
    """Return the report on some folders of sweeps and runs.

    Args:
        folders: The folders.
        places: Where to look for the file of a suite that its sweep has not recorded.
        against: The row with which the others are compared; see :func:`~.wins.who_wins`. None is
            the one that a suite names, if a run of it counts.
        allow: Rows of the audit that may be unequal.

    Raises:
        UserError: a folder holds neither a sweep nor a run, or there is no row ``against``.
    """
    sources = load_sources(folders, places)
    rows = styled(make_rows([run for source in sources for run in source.compared]))
    suites = [source.suite for source in sources if source.suite is not None]
    if against is None:
        against = _named(rows, suites)
    wins = with_commands(who_wins(rows, against), sources)
    return Report(
        tuple(sources), tuple(rows), beside(rows, suites), wins, tuple(places), tuple(allow)
    )


def _named(rows: Sequence[Row], suites: Sequence[SuiteFigures]) -> str | None:
    """Return the model that a suite compares with, if exactly one row that counts is of it."""
    for suite in suites:
        of_it = [row for row in rows if suite.against is not None and row.model == suite.against]
        if len(of_it) == 1 and of_it[0].counted:
            return suite.against
    return None
