"""Jobs of a sweep in its own process, one after another: for modes that end in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import TaskFunction
from omegaconf import DictConfig

from elman.base.errors import ExitStatus
from elman.cli import session
from elman.runs.prepare import job_overrides

if TYPE_CHECKING:
    from elman.launchers.job import SweepJob

Ended = tuple[JobReturn, dict[str, Any] | None]


def launch(task: TaskFunction, config: DictConfig, jobs: Sequence[SweepJob]) -> list[Ended]:
    """Run the jobs in order and return how each ended and the result that it left.

    A job that fails does not stop the others. After Ctrl-C no other is started: its return keeps
    the status UNKNOWN.
    """
    state = session.current()
    state.sweeping = True
    HydraConfig.instance().set_config(config)
    # Where the user's own YAML files are is a setting of Hydra, the same for every job.
    search = [text for text in job_overrides(config) if text.startswith("hydra.")]
    ended: list[Ended] = []
    interrupted = False
    for job in jobs:
        returned, before = JobReturn(overrides=list(job.overrides)), len(state.results)
        if not interrupted:
            print(f"[{job.number}/{len(jobs)}] {' '.join(job.overrides)}", flush=True)
            state.job = session.Job(job.config, overrides=(*job.overrides, *search))
            try:
                returned.return_value = task(config)
            except KeyboardInterrupt:
                interrupted, returned.return_value = True, int(ExitStatus.INTERRUPTED)
            returned.status = JobStatus.COMPLETED
        ended.append((returned, next(iter(state.results[before:]), None)))
    # The task has set it to the status of its last job; the sweep's own is told by the rows.
    state.status = ExitStatus.INTERRUPTED if interrupted else ExitStatus.OK
    return ended
