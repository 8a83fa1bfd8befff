"""The slots of this machine for jobs: GPUs, groups of GPUs, or workers on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from elman.base.errors import UserError
from elman.devices.nvml import Gpu
from elman.devices.nvml_client import asked_driver
from elman.devices.visible import usable_gpus
from elman.launchers.gpus.group import Pool
from elman.launchers.gpus.shared import shared_slots
from elman.launchers.gpus.slot import CpuSlot, GpuSlot, Slot
from elman.sections.launching import GpusLauncher


def checked_gpus(settings: GpusLauncher, wanted: bool) -> tuple[list[Gpu], str]:
    """Return the GPUs for the jobs and, if there are none, the reason.

    Args:
        settings: Settings of the launcher.
        wanted: Whether any job takes a GPU.

    Raises:
        UserError: a job asks for more GPUs than there are, or the settings name a wrong one.
    """
    gpus, reason = usable_gpus(asked_driver(), settings, wanted=wanted)
    each = settings.gpus_per_job
    if not wanted:
        return [], "these jobs ask for the CPU" if gpus else reason
    if each > 1 and not gpus:
        raise UserError(
            f"launcher.gpus_per_job={each}: {reason}; drop it, or type train.device=cpu for {each} "
            "ranks on the CPU"
        )
    if each > len(gpus) > 0:
        there = ", ".join(f"GPU {gpu.index}" for gpu in gpus)
        raise UserError(
            f"launcher.gpus_per_job={each}: more than there are to use ({there}); type "
            f"launcher.gpus_per_job={len(gpus)} or less"
        )
    return gpus, reason


def machine_slots(settings: GpusLauncher, wanted: bool, say: Callable[[str], None]) -> list[Slot]:
    """Return the slots in which jobs can run, and say which.

    Args:
        settings: Settings of the launcher.
        wanted: Whether any job takes a GPU.
        say: Prints one line.

    Raises:
        UserError: as :func:`checked_gpus`.
    """
    gpus, reason = checked_gpus(settings, wanted)
    each = settings.gpus_per_job
    if not gpus:
        number, ranks = settings.workers, f", {each} ranks each" if each > 1 else ""
        jobs = "jobs" if number > 1 else "job"
        say(f"on the CPU ({reason}): {number} {jobs} at a time{ranks}")
        return [CpuSlot(n) for n in range(1, number + 1)]
    said = "on " + ", ".join(f"GPU {gpu.index} ({gpu.name})" for gpu in gpus)
    slots = [GpuSlot(gpu, asked_driver()) for gpu in gpus]
    if settings.jobs_per_gpu > 1:
        say(f"{said}: {settings.jobs_per_gpu} jobs at a time on each")
        return list(shared_slots(slots, settings, say))
    if each == 1:
        say(said)
        return list(slots)
    groups = Pool(slots, each).slots()
    say(f"{said}: {each} for each job, {len(groups)} at a time")
    return list(groups)
