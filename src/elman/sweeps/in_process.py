"""Jobs of a sweep in its own process, one after another: for modes that end in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from elman.base.exit_status import interrupted_status
from elman.launchers.job import SweepJob
from elman.launchers.request import Launched
from elman.sweeps.request import SweepRequest


def launch(
    request: SweepRequest, jobs: Sequence[SweepJob]
) -> tuple[Launched, list[dict[str, Any] | None]]:
    """Run the jobs in order; return how each ended, with its result.

    A job that fails does not stop the others. After Ctrl-C no further job starts: the returns of
    the jobs that never started keep the status UNKNOWN.
    """
    returns: list[JobReturn] = []
    results: list[dict[str, Any] | None] = []
    interrupted = False
    for job in jobs:
        returned = JobReturn(overrides=list(job.overrides))
        prepared = replace(request.composer.prepared(job), config_flags=request.config_flags)
        if not interrupted:
            print(f"[{job.number}/{len(jobs)}] {' '.join(job.overrides)}", flush=True)
            try:
                returned.return_value = request.run(prepared)
            except KeyboardInterrupt:
                interrupted, returned.return_value = True, int(interrupted_status())
            returned.status = JobStatus.COMPLETED
        returns.append(returned)
        results.append(prepared.result)
    return Launched(returns, interrupted), results
