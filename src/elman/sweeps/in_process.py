"""Jobs of a sweep in its own process, one after another: for modes that end in seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from elman.base.exit_status import interrupted_status
from elman.launchers.job import SweepJob
from elman.launchers.request import Launched
from elman.runs.prepare import job_overrides, without_folder
from elman.runs.prepared import PreparedRun


def launch(
    run: Callable[[PreparedRun], int],
    config: DictConfig,
    jobs: Sequence[SweepJob],
    config_flags: tuple[str, ...],
) -> tuple[Launched, list[dict[str, Any] | None]]:
    """Run the jobs in order; return how each ended, with its result.

    A job that fails does not stop the others. After Ctrl-C no further job starts: the returns of
    the jobs that never started keep the status UNKNOWN.

    Args:
        run: Runs one job in its mode.
        config: The sweep's composed tree.
        jobs: The jobs.
        config_flags: Flags of the command that say where YAML files are found.
    """
    # A setting of Hydra says where the user's own YAML files are; it is the same for every job.
    search = [text for text in job_overrides(config) if text.startswith("hydra.")]
    returns: list[JobReturn] = []
    results: list[dict[str, Any] | None] = []
    interrupted = False
    for job in jobs:
        returned = JobReturn(overrides=list(job.overrides))
        prepared = replace(
            without_folder(config, job.config),
            overrides=(*job.overrides, *search),
            config_flags=config_flags,
            in_sweep=True,
        )
        if not interrupted:
            print(f"[{job.number}/{len(jobs)}] {' '.join(job.overrides)}", flush=True)
            try:
                returned.return_value = run(prepared)
            except KeyboardInterrupt:
                interrupted, returned.return_value = True, int(interrupted_status())
            returned.status = JobStatus.COMPLETED
        returns.append(returned)
        results.append(prepared.result)
    return Launched(returns, interrupted), results
