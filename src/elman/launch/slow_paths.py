"""Before a suite takes a GPU: which of its models would run there as plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from elman.config import RunConfig
from elman.errors import UserError
from elman.kernels.backends import AUTO, REFERENCE, best_backend
from elman.kernels.packages import installation_problem
from elman.launch.planned import SweepJob, wants_gpu
from elman.models import registry
from elman.schema.launching import GpusLauncher, LauncherConfig, SlurmLauncher


def refuse_slow_paths(suite: str, jobs: Sequence[SweepJob], launcher: LauncherConfig) -> None:
    """Raise UserError if a training suite holds a slow path on a GPU and was not told to.

    A table that sets a kernel beside a loop in Python compares nothing. On a CPU, and with
    ``baseline.allow_slow=true``, such rows are marked.

    Args:
        suite: Its name.
        jobs: Its jobs.
        launcher: What would run them.
    """
    asked = [
        job.config
        for job in jobs
        if job.config.mode == "train" and wants_gpu(job.config) and not _allowed(job.config)
    ]
    if not asked or not _has_gpu(launcher):
        return
    reasons = {config.model.name: reason for config in asked if (reason := _slow(config))}
    if not reasons:
        return
    listing = ", ".join(reasons)
    others = [config.model.name for config in asked if config.model.name not in reasons]
    rest = f", or benchmark.only={','.join(dict.fromkeys(others))}" if others else ""
    why = next(iter(reasons.values()))
    raise UserError(
        f"benchmark={suite}: on a GPU {listing} would run as plain PyTorch ({why}); "
        f"add baseline.allow_slow=true, which marks the rows{rest}"
    )


def _allowed(config: RunConfig) -> bool:
    return config.baseline.allow_slow


def _has_gpu(launcher: LauncherConfig) -> bool:
    """Whether the jobs would find a GPU; a cluster's have one each."""
    if isinstance(launcher, SlurmLauncher):
        return True
    from elman.launch.gpus.asking import asked_driver
    from elman.launch.gpus.visible import usable_gpus

    # The other launchers leave the choice to torch, which sees what is visible here.
    settings = launcher if isinstance(launcher, GpusLauncher) else GpusLauncher(name="gpus")
    return bool(usable_gpus(asked_driver(), settings)[0])


def _slow(config: RunConfig) -> str | None:
    """Return why a model would run on its slow path on a GPU, or None."""
    cell = registry.cell(config.model.cell).under(config.model.options)
    if config.kernels.backend == REFERENCE:
        return "kernels.backend=reference asks for it"
    if config.kernels.backend == AUTO and best_backend(cell, "cuda") == REFERENCE:
        return cell.reason or f"cell {cell.name} has no kernel for a GPU"
    return installation_problem(cell.package) if cell.package is not None else None
