"""Refuses a job, before it starts, whose device or kernels are not on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from elman.base.errors import UserError
from elman.config.run_config import RunConfig
from elman.launchers.job import SweepJob, device_of
from elman.launchers.places import has_gpus
from elman.models.backends import check_runs_on
from elman.models.mixed import cell_of, requested_backends
from elman.sections.launching import LauncherConfig
from elman.sweeps.job_list import named_job


def check_devices(jobs: Sequence[SweepJob], launcher: LauncherConfig) -> None:
    """Check the device of every job of a sweep; as :func:`check_device`, with the job's number."""
    gpu_problem = cache(partial(why_no_gpu, launcher))  # the driver is asked once
    for job in jobs:
        with named_job(job.number, job.total, job.swept or job.overrides):
            check_device(job.config, gpu_problem)


def check_device(config: RunConfig, gpu_problem: Callable[[], str | None]) -> None:
    """Check that a job would find the device and the kernels that it names.

    Args:
        config: The job's configuration.
        gpu_problem: Returns why there is no GPU for it; None if there is one.

    Raises:
        UserError: there is no GPU for it, or its device does not run its backend.
    """
    device = device_of(config)
    if device is None or (device == "auto" and config.kernels.backend == "auto"):
        return
    problem = None if device == "cpu" else gpu_problem()
    if device == "cuda" and problem is not None:
        key = f"{config.mode}.device"
        raise UserError(f"{key}=cuda: {problem}; use {key}=cpu or {key}=auto")
    if config.mode == "train":
        kind = "cpu" if device == "cpu" or problem is not None else "cuda"
        names = requested_backends(config.model, config.kernels.backend)
        for part, name in zip(config.model.parts(), names, strict=True):
            check_runs_on(cell_of(part), name, kind)


def why_no_gpu(launcher: LauncherConfig) -> str | None:
    """Return why jobs would find no GPU; None if they would find one."""
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is a CPU build"
    return None if has_gpus(launcher) else "there is no GPU here to use"
