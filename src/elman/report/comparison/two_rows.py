"""One row against another: better, worse, or undecided, corrected for all tries of a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from elman.base import run_files
from elman.base.errors import UserError, did_you_mean
from elman.config.catalog import Place
from elman.report.comparison.conditions import conditions
from elman.report.comparison.next_seeds import with_commands
from elman.report.comparison.rows import Row, make_rows
from elman.report.comparison.sources import Source, load_sources
from elman.report.comparison.statistics import LEVEL, MOST_SEEDS
from elman.report.comparison.tuned import why_unjudged
from elman.report.comparison.wins import Comparison, Group, Wins, rows_called, who_wins
from elman.sections.reporting import VerdictConfig

Outcome = Literal["better", "worse", "undecided"]
CORRECTION = "Bonferroni"
_MOST_LABELS = 8


@dataclass(frozen=True)
class Answer:
    """Whether row ``a`` is better than row ``b``.

    Args:
        group: Row ``a`` against row ``b``, in one challenger.
        tries: How many rows of the family were tried against ``b``; 1 without a family.
        family: The folders of the family, as typed.
    """

    group: Group
    tries: int = 1
    family: tuple[str, ...] = ()

    @property
    def a(self) -> Row:
        """The row that is judged."""
        return self.group.challengers[0].row

    @property
    def b(self) -> Row:
        """The row that it is compared with."""
        return self.group.reference

    @cached_property
    def line(self) -> Comparison:
        """The number that decides, its level corrected for all tries."""
        return self.group.decisive(self.group.challengers[0])

    @property
    def outcome(self) -> Outcome:
        """What is said of row ``a``."""
        if not self.line.decided or self.line.difference is None:
            return "undecided"
        return "better" if self.line.difference.value < 0 else "worse"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval that excludes zero if the answer is decided; None for one seed."""
        difference = self.line.difference
        return difference.interval_at(self.line.alpha) if difference is not None else None

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that train the seeds that would decide."""
        return self.group.challengers[0].to_decide or self.group.to_measure

    def sentences(self) -> list[str]:
        """Return the answer in a line, and a line for each command."""
        difference, number = self.line.difference, self.line.number
        assert difference is not None
        shown = f"{number.name} {difference.value:{number.form}}"
        if self.interval is not None:
            low, high = self.interval
            shown += f" ({low:{number.form}} to {high:{number.form}})"
        parts = [f"{shown} at equal {self.group.axis}", self._seeds]
        if difference.interval is not None:
            parts.append(f"p {self.line.p:.2g}")
        if self.family:
            parts.append(f"corrected for {self.tries} tries ({CORRECTION})")
        begun = {
            "better": f"better: {self.a.label} is better than {self.b.label}",
            "worse": f"worse: {self.a.label} is worse than {self.b.label}",
            "undecided": f"undecided: {self.a.label} against {self.b.label}",
        }[self.outcome]
        end = f"; {self._needed}" if self.outcome == "undecided" else ""
        lines = [f"{begun}: {', '.join(parts)}{end}"]
        return [*lines, *(f"to decide it: {command}" for command in self.commands)]

    @property
    def _seeds(self) -> str:
        difference = self.line.difference
        assert difference is not None
        first, second = difference.n
        many = f"{first} seeds" if first == second else f"{first} and {second} seeds"
        return f"{many}, {difference.method}" if max(difference.n) > 1 else "one seed"

    @property
    def _needed(self) -> str:
        difference, more = self.line.difference, self.line.more_seeds
        assert difference is not None
        if difference.interval is None:
            return "a row of one seed has unknown noise; two more seeds of each are a beginning"
        if difference.value == 0 and difference.error == 0:
            return "equal in every seed"
        if more is None:
            return f"more than {MOST_SEEDS} more seeds would be needed: take them as equal"
        return f"about {more} more {'seed' if more == 1 else 'seeds'} of each would decide"

    def record(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        difference = self.line.difference
        assert difference is not None
        return {
            "verdict": self.outcome,
            "a": self.a.label,
            "b": self.b.label,
            "number": self.line.number.key,
            "at_equal": self.group.axis,
            "difference": difference.value,
            "interval": list(self.interval) if self.interval is not None else None,
            "level": 1 - self.line.alpha,
            "p": difference.p,
            "p_corrected": self.line.p,
            "tries": self.tries,
            "correction": CORRECTION if self.family else None,
            "method": difference.method,
            "seeds": list(difference.n),
            "more_seeds": self.line.more_seeds,
            "commands": list(self.commands),
        }


def answer(config: VerdictConfig, places: Sequence[Place]) -> Answer:
    """Return whether row ``a`` is better than row ``b``.

    Args:
        config: Which rows, and of which family.
        places: Where to look for the file of a suite that a sweep has not recorded.

    Raises:
        UserError: there is no such row, or the rows are not comparable.
    """
    shelf = _Shelf(config, places)
    a, b = (replace(shelf.row(key), set=None) for key in ("a", "b"))
    if _same(a, b):
        raise UserError(f"verdict.b={config.b}: the same row as verdict.a; name another one")
    if a.label == b.label:
        a, b = (replace(row, label=f"{row.label} ({row.counted[0].name})") for row in (a, b))
    _refuse_unequal(a, b)
    shelf.refuse_unjudged(a)
    shelf.refuse_unjudged(b)
    wins = who_wins([a, b], b.label)
    (group,) = wins.groups
    line = group.decisive(group.challengers[0])
    if line.difference is None:
        raise UserError(
            f"verdict.a={config.a}: cannot be compared with {b.label}: {line.number.name} is "
            f"{line.why_not}"
        )
    tries = shelf.tries(a, b)
    (group,) = with_commands(Wins((_corrected(group, tries),)), shelf.sources).groups
    return Answer(group, tries, tuple(_listed(config.family)))


def _corrected(group: Group, tries: int) -> Group:
    """Return a comparison of two rows with its levels corrected for so many tries."""
    (one,) = group.challengers
    lines = tuple(
        replace(
            line,
            p=None if line.p is None else min(1.0, line.p * tries),
            alpha=(1 - LEVEL) / tries,
        )
        for line in one.lines
    )
    return replace(group, challengers=(replace(one, lines=lines),))


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _folders(row: Row) -> set[Path]:
    return {run.folder.resolve() for run in row.runs if run.folder is not None}


def _same(one: Row, other: Row) -> bool:
    return bool(_folders(one) & _folders(other))


def _conditions(row: Row) -> Mapping[str, str]:
    return conditions(row.counted[0])


def _refuse_unequal(a: Row, b: Row) -> None:
    """Raise UserError if two rows were not trained under the same conditions."""
    first, second = _conditions(a), _conditions(b)
    differing = [
        f"{key} ({first[key]}; {second[key]})" for key in first if first[key] != second[key]
    ]
    if differing:
        raise UserError(
            f"{a.label} and {b.label} are not comparable: they differ in {', '.join(differing)}; "
            "name rows of equal conditions"
        )


@dataclass
class _Shelf:
    """Where rows are looked up; each folder is read once."""

    config: VerdictConfig
    places: Sequence[Place]
    _read: dict[Path, list[Source]] = field(default_factory=dict)

    @property
    def sources(self) -> list[Source]:
        """What was read so far."""
        return [source for sources in self._read.values() for source in sources]

    def load(self, name: str | Path, key: str) -> list[Source]:
        """Return the runs of a folder."""
        folder = Path(name).expanduser().absolute()
        if folder not in self._read:
            self._read[folder] = load_sources([folder], self.places, f"verdict.{key}")
        return self._read[folder]

    def row(self, key: Literal["a", "b"]) -> Row:
        """Return the row that a key names.

        Raises:
            UserError: there is none, or several.
        """
        name = self.config.a if key == "a" else self.config.b
        typed = f"verdict.{key}={name}"
        folder = Path(str(name)).expanduser().absolute()
        if isinstance(name, str) and folder.is_dir():
            matches, others = self._in_folder(folder, key)
        elif self.config.dir is None:
            raise UserError(
                f"{typed}: no such folder; name a run or a sweep, or add verdict.dir=<sweep "
                "folder> to name a row of it"
            )
        else:
            rows = _rows(s for one in _listed(self.config.dir) for s in self.load(one, "dir"))
            matches, others = rows_called(rows, name), rows
        if len(matches) != 1:
            hint = did_you_mean(str(name), [row.model for row in others])
            what = f"{len(matches)} rows" if matches else f"no such row{hint}"
            raise UserError(f"{typed}: {what}; name one, as in {_labels(matches or others)}")
        if not matches[0].counted:
            raise UserError(
                f"{typed}: no run of this row ended with ok ({matches[0].status}); name another row"
            )
        return matches[0]

    def _in_folder(self, folder: Path, key: str) -> tuple[list[Row], list[Row]]:
        """Return the rows that a folder stands for, and those of its sweep."""
        sweep = folder.parent if (folder.parent / run_files.SWEEP).is_file() else folder
        rows = _rows(self.load(sweep, key))
        if sweep is folder:
            return rows, rows
        own = [row for row in rows if folder.resolve() in _folders(row)]
        if not own:
            raise UserError(
                f"verdict.{key}={folder}: is not compared, because it is a trial of a tuned sweep, "
                "or not of a run in it; name a confirmed run"
            )
        return own, rows

    def refuse_unjudged(self, row: Row) -> None:
        """Raise UserError if a row is an arm of a tuned sweep that gets no verdict."""
        tuning = row.counted[0].tuning
        home = next((one for one in self.sources if row.counted[0] in one.runs), None)
        if tuning is None or home is None:
            return
        why, command = why_unjudged(home, tuning.arm)
        if why:
            typed = f"; type {command}" if command else ""
            raise UserError(f"{row.label}: no verdict on this row: {why}{typed}")

    def tries(self, a: Row, b: Row) -> int:
        """Return how many rows were tried against ``b``: of the family, with ``a`` itself."""
        rows = _rows(s for one in _listed(self.config.family) for s in self.load(one, "family"))
        tried = [
            row
            for row in rows
            if row.counted and not _same(row, b) and _conditions(row) == _conditions(b)
        ]
        return len(tried) + (not any(_same(row, a) for row in tried))


def _rows(sources: Any) -> list[Row]:
    return make_rows([run for source in sources for run in source.compared])


def _labels(rows: Sequence[Row]) -> str:
    shown = ", ".join(row.label for row in rows[:_MOST_LABELS])
    return shown + (", ..." if len(rows) > _MOST_LABELS else "")
