"""Where the jobs of a sweep come from that come into being while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from elman.launchers.job import SweepJob


class GrowingRecord(Protocol):
    """The record of a sweep, as whoever makes its further jobs sees it."""

    @property
    def folder(self) -> Path | None:
        """The sweep's folder; None if it has none."""

    @property
    def jobs(self) -> Sequence[SweepJob]:
        """Every job of the sweep so far, in order."""

    def status_of(self, number: int) -> str:
        """Return the word for the state of a job, or for how it ended."""

    def add(self, jobs: Sequence[SweepJob], head: Mapping[str, Any] | None = None) -> None:
        """Record new jobs, before they can start, and change what the record says beside them.

        Args:
            jobs: The jobs, with their folders (:func:`~elman.sweeps.job_list.in_sweep`); their
                numbers follow those of the others. None, if only the head changes.
            head: What ``sweep.json`` says from now on beside the jobs, by key.
        """

    def relabel(self, jobs: Sequence[SweepJob]) -> None:
        """Record other facts of jobs that the sweep has: what they are for has changed."""


class JobSource(Protocol):
    """Makes further jobs of a sweep while its jobs run."""

    @property
    def stand_ins(self) -> Sequence[SweepJob]:
        """Jobs that are checked in place of those that it will make; none of them is run."""

    def check(self, known: dict[str, int]) -> Sequence[str]:
        """Check what the stand-ins do not show; return what a reader is told before the first job.

        Args:
            known: Sizes of models, as for :func:`~elman.sweeps.sizes.count_params`.
        """

    def head(self) -> Mapping[str, Any]:
        """Return what ``sweep.json`` says of the source before the first job, by key."""

    def begin(self, record: GrowingRecord) -> None:
        """Learn of the sweep's record; called once, when it is written and no job has started."""

    def more(self, number: int) -> Sequence[SweepJob]:
        """Return up to so many further jobs, all of them recorded; empty if there is none now.

        A launcher asks when jobs could start: see :class:`~elman.launchers.request.LaunchRequest`.
        The ends of all earlier jobs are in the record by then.
        """

    @property
    def complete(self) -> bool:
        """Whether it has made all jobs that the sweep needs, and they have led to an answer."""
