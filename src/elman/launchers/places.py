"""What each launcher has for the jobs of a sweep, as far as it is known before the first one runs.

A further launcher answers these four questions here. It also has its settings in
``sections/launching.py`` and its class in ``hydra_plugins/elman_launcher``, where Hydra finds it.
"""

from __future__ import annotations

from collections.abc import Sequence

from elman.config.run_config import Mode
from elman.launchers.job import SweepJob, wants_gpu
from elman.sections.launching import GpusLauncher, LauncherConfig, SlurmLauncher


def check_places(
    jobs: Sequence[SweepJob], mode: Mode, launcher: LauncherConfig, save_seconds: int | None
) -> list[str]:
    """Check that there are the GPUs, or the cluster, that jobs need; return notes.

    Args:
        jobs: The jobs that start now.
        mode: Their mode.
        launcher: The settings of the launcher.
        save_seconds: How long before its limit a cluster tells a job to save; None elsewhere.

    Raises:
        UserError: the launcher could not start them.
    """
    if isinstance(launcher, GpusLauncher) and not mode.in_process:
        from elman.launchers.gpus.slots import checked_gpus

        checked_gpus(launcher, any(wants_gpu(job.config) for job in jobs))
    elif isinstance(launcher, SlurmLauncher):
        from elman.launchers.slurm import limit_note, refuse_without_folder, refuse_without_slurm

        assert save_seconds is not None
        refuse_without_folder(jobs, mode)
        note = limit_note(jobs, launcher, save_seconds)
        refuse_without_slurm()
        return [note] if note else []
    return []


def count_places(launcher: LauncherConfig, wanted: bool) -> int:
    """Return how many jobs run at a time; ``wanted``: whether any of them wants a GPU."""
    if isinstance(launcher, SlurmLauncher):
        return launcher.jobs
    if not isinstance(launcher, GpusLauncher):
        return 1
    from elman.launchers.gpus.slots import checked_gpus

    gpus, _ = checked_gpus(launcher, wanted)
    if not gpus:
        return launcher.workers
    return max(1, len(gpus) // launcher.gpus_per_job * launcher.jobs_per_gpu)


def has_gpus(launcher: LauncherConfig) -> bool:
    """Whether the jobs would find a GPU; on a cluster each job has one."""
    if isinstance(launcher, SlurmLauncher):
        return True
    from elman.devices.nvml_client import asked_driver
    from elman.devices.visible import usable_gpus

    # The other launchers leave the choice to torch, which sees the GPUs that are visible here.
    if isinstance(launcher, GpusLauncher):
        return bool(usable_gpus(asked_driver(), launcher)[0])
    return bool(usable_gpus(asked_driver(), GpusLauncher(name="gpus"), parts=True)[0])


def keeps_queue(launcher: LauncherConfig) -> bool:
    """Whether jobs wait in a queue that outlives the command, and can be followed there again."""
    return isinstance(launcher, SlurmLauncher)
