"""The command line with sweeps that grow: ``growing_sweep.py -m launcher=... train.steps=3``.

Every job is the command's job with another seed: 1,000 times the number of jobs that had ended when
it was made, and its own number. There are STUB_JOBS of them, and then one more, which is made when
all others have ended. STUB_ASKS names a file that gets a line for each question.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elman.cli.main import main
from elman.launchers import slurm
from elman.launchers.job import SweepJob
from elman.runs.state import NOT_STARTED, RUNNING, UNFINISHED
from elman.sweeps import jobs as plans
from elman.sweeps.job_list import JobList, in_sweep
from elman.sweeps.jobs import PlannedSweep, planned_sweep
from elman.sweeps.request import SweepRequest
from elman.sweeps.source import GrowingRecord

JOBS, ASKS = int(os.environ["STUB_JOBS"]), Path(os.environ["STUB_ASKS"])


class Source:
    """Makes jobs by how many have ended."""

    def __init__(self, request: SweepRequest, typed: Sequence[str]) -> None:
        self._request, self._typed = request, typed

    stand_ins: Sequence[SweepJob] = ()
    complete = True

    def check(self, known: dict[str, int]) -> Sequence[str]:
        """Say nothing."""
        return ()

    def head(self) -> Mapping[str, Any]:
        """Return what sweep.json says at the start."""
        return {"source": {"state": "trials"}}

    def begin(self, record: GrowingRecord) -> None:
        """Keep the record."""
        self._record = record

    def more(self, number: int) -> Sequence[SweepJob]:
        """Return jobs, and note the question."""
        before = self._record.jobs
        states = [self._record.status_of(job.number) for job in before]
        ended = sum(state not in (NOT_STARTED, RUNNING, UNFINISHED) for state in states)
        jobs = [self._job(len(before) + n, ended) for n in range(1, number + 1)]
        jobs = [job for job in jobs if job.number <= JOBS]
        if not jobs and ended == len(before) == JOBS:
            jobs = [self._job(JOBS + 1, ended)]
            self._record.add(jobs, {"source": {"state": "confirming"}})
        elif jobs:
            self._record.add(jobs)
        ask = {"number": number, "came": len(jobs), "waiting": states.count(NOT_STARTED)}
        with ASKS.open("a") as stream:
            stream.write(json.dumps(ask | {"running": states.count(RUNNING)}) + "\n")
        return jobs

    def _job(self, number: int, ended: int) -> SweepJob:
        texts = (*self._typed, f"train.seed={1000 * ended + number}")
        config = self._request.composer.config(texts)
        tuning = {"arm": "one", "phase": "best" if number > JOBS else "trial"}
        job = SweepJob(number, max(JOBS, number), texts, texts[-1:], config, tuning=tuning)
        assert self._record.folder is not None
        return in_sweep(job, self._record.folder)


def growing(request: SweepRequest) -> PlannedSweep:
    """Return the plan of a sweep that starts without jobs, or goes on with those that it has."""
    plan = planned_sweep(request)
    typed = plan.earlier.arguments if plan.earlier is not None else request.overrides
    if plan.earlier is None:
        plan = replace(plan, job_list=JobList.whole([]))
    return replace(plan, source=Source(request, typed))


if __name__ == "__main__":
    slurm.POLL_SECONDS = 0.5
    plans.planned_sweep = growing
    sys.exit(main())
