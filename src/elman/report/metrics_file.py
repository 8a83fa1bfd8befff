"""Reads ``metrics.jsonl`` of a run back as arrays."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic_core import from_json

from elman.base import run_files
from elman.evaluation.records import KINDS, Record
from elman.sections.budget import RATES

Floats = npt.NDArray[np.float64]
# Lines parsed at a time, so that a run of a million steps fits into memory.
_BLOCK_BYTES = 1 << 21
_CUT = object()


@dataclass(frozen=True)
class Metrics:
    """The records of one run, by optimizer step; if a step is repeated, the later record counts.

    Args:
        steps: Steps whose update was applied, ascending.
        losses: Nats per predicted byte at each of these steps.
        window_steps: Last step of each window of steps.
        window_seconds: Training time at that step.
        validation_steps: Steps that were followed by a validation.
        validation_bpb: Bits per held-out byte at these steps.
        sessions: First step and predicted bytes per micro-batch of each start or resumption.
        rates: What a byte or a second takes of the run's budgets, as the last session counts it.
        problems: What could not be read, one line each.
    """

    steps: Floats
    losses: Floats
    window_steps: Floats
    window_seconds: Floats
    validation_steps: Floats
    validation_bpb: Floats
    sessions: tuple[tuple[int, float], ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def seconds_at(self, steps: Floats) -> Floats:
        """Return the training time at each of ``steps``, linear between the windows' ends."""
        seconds: Floats = np.interp(steps, [0, *self.window_steps], [0.0, *self.window_seconds])
        return seconds

    def bytes_at(self, steps: Floats, grad_accum: int) -> Floats:
        """Return the predicted bytes up to each of ``steps``; a resume may change the batch."""
        starts = np.array([step for step, _ in self.sessions] or [0], dtype=np.float64)
        sizes = np.array([size for _, size in self.sessions] or [0], dtype=np.float64) * grad_accum
        before = np.concatenate([[0.0], np.cumsum(np.diff(starts) * sizes[:-1])])
        place = np.clip(np.searchsorted(starts, steps, side="left") - 1, 0, None)
        amounts: Floats = before[place] + (steps - starts[place]) * sizes[place]
        return amounts


def read_metrics(folder: Path) -> Metrics:
    """Return the records of the run in ``folder``; leave out and name what cannot be read."""
    books = _Books()
    return books.metrics(_read(folder, books))


def read_records(folder: Path) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Return every record of the run in ``folder`` by its kind, and what could not be read.

    If a step is repeated, the later record counts.
    """
    whole = _Whole()
    return whole.kinds, _read(folder, whole)


def _read(folder: Path, books: _Reader) -> list[str]:
    """Let ``books`` take every record; return what cannot be read, one line each."""
    problems = []
    try:
        for records in _blocks(folder / run_files.METRICS):
            books.take_all(records)
    except (FileNotFoundError, NotADirectoryError):
        problems.append(f"no {run_files.METRICS}: no curve")
    except OSError as error:
        problems.append(f"{run_files.METRICS}: cannot be read ({error.strerror}): no curve")
    if books.cut:
        problems.append(f"{run_files.METRICS}: its last line is cut off; left out")
    if books.damaged:
        problems.append(f"{run_files.METRICS}: {books.damaged} lines cannot be read; left out")
    return problems


@dataclass
class _Reader:
    """What takes records while they are read, and counts what is not in a run's form."""

    damaged: int = field(default=0, kw_only=True)
    cut: bool = field(default=False, kw_only=True)

    def take_all(self, records: Iterable[Any]) -> None:
        """Add records, some of which may not be in the form that a run writes."""
        for record in records:
            if record is _CUT:
                self.cut = True
                continue
            try:
                self.take(record)
            except (KeyError, TypeError, ValueError, OverflowError):
                self.damaged += 1

    def take(self, record: dict[str, Any]) -> None:
        """Add one record.

        Raises:
            KeyError, TypeError, ValueError, OverflowError: it does not have a run's form.
        """
        raise NotImplementedError


@dataclass
class _Whole(_Reader):
    """Whole records by their kind."""

    kinds: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {kind: [] for kind in KINDS}
    )

    def take(self, record: dict[str, Any]) -> None:
        """Add one record; a session drops the steps that it repeats."""
        kind, step = record["kind"], int(record["step"])
        form = KINDS.get(kind, Record)
        read = form.model_validate({k: v for k, v in record.items() if k != "kind"})
        if kind == "session":
            for known in self.kinds.values():
                del known[bisect_right(known, step, key=itemgetter("step")) :]
        self.kinds.setdefault(kind, []).append(read.model_dump())


@dataclass
class _Books(_Reader):
    """The numbers that curves are drawn from."""

    steps: tuple[list[float], ...] = field(default_factory=lambda: ([], []))
    windows: tuple[list[float], ...] = field(default_factory=lambda: ([], []))
    validations: tuple[list[float], ...] = field(default_factory=lambda: ([], []))
    sessions: list[tuple[int, int]] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)

    def take_all(self, records: Iterable[Any]) -> None:
        """Add records, some of which may not be in the form that a run writes."""
        steps, losses = self.steps
        for record in records:
            # Almost all records are of this kind: a long run has a hundred thousand.
            if (
                type(record) is dict
                and record.get("kind") == "step"
                and type(step := record.get("step")) is int
                and type(loss := record.get("loss")) is float
                and "applied" not in record
            ):
                steps.append(step)
                losses.append(loss)
            else:
                super().take_all((record,))

    def take(self, record: dict[str, Any]) -> None:
        """Add one record, as in the base class."""
        kind, step = record["kind"], int(record["step"])
        if kind == "step":
            if record["loss"] is not None and record.get("applied", True):
                self._add(self.steps, step, record["loss"])
        elif kind == "window":
            self._add(self.windows, step, record["train_seconds"])
        elif kind == "validation":
            self._add(self.validations, step, record["val_bpb"])
        elif kind == "session":
            size = int(record["batch_size"]) * int(record["chunk_size"])
            self._forget_after(step)
            self.sessions.append((step, size))
            known = {rate.name: record.get(rate.name) for rate in RATES}
            self.rates = {name: float(each) for name, each in known.items() if each is not None}

    def _add(self, to: tuple[list[float], ...], step: int, value: Any) -> None:
        number = float(value)
        to[0].append(step)
        to[1].append(number)

    def _forget_after(self, step: int) -> None:
        """Drop steps that a resumed run repeats: those after its last checkpoint."""
        self.sessions = [session for session in self.sessions if session[0] <= step]
        for columns in (self.steps, self.windows, self.validations):
            count = bisect_right(columns[0], step)
            for column in columns:
                del column[count:]

    def metrics(self, problems: list[str]) -> Metrics:
        """Return what was read."""
        steps, losses = _finite(*self.steps)
        window_steps, window_seconds = _finite(*self.windows)
        validation_steps, validation_bpb = _finite(*self.validations)
        return Metrics(
            steps=steps,
            losses=losses,
            window_steps=window_steps,
            window_seconds=window_seconds,
            validation_steps=validation_steps,
            validation_bpb=validation_bpb,
            sessions=tuple(self.sessions),
            rates=self.rates,
            problems=tuple(problems),
        )


def _finite(steps: list[float], values: list[float]) -> tuple[Floats, Floats]:
    """Return both as arrays without values that are not finite, which Python reads from JSON."""
    of_steps, of_values = np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64)
    good = np.isfinite(of_values)
    return of_steps[good], of_values[good]


def _blocks(path: Path) -> Iterator[list[Any]]:
    """Yield every record, many at a time; ``_CUT`` for a last line that is cut off."""
    with path.open("rb") as stream:
        while lines := stream.readlines(_BLOCK_BYTES):
            tail = [] if lines[-1].endswith(b"\n") else [_record(lines.pop(), _CUT)]
            try:
                # One call per block is four times as fast as one per line.
                records = from_json(b"[" + b",".join(lines) + b"]", cache_strings="keys")
            except ValueError:
                records = [_record(line, None) for line in lines]
            yield records + tail


def _record(line: bytes, otherwise: Any) -> Any:
    try:
        return from_json(line)
    except ValueError:
        return otherwise
