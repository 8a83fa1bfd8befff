"""Groups ``launcher`` and ``sweep``: settings of a whole sweep, which no single job reads."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from elman.base.errors import UserError
from elman.sections.section import Count, Positive, Section, rounded
from elman.sections.tune import TuneConfig

GpuName = int | str
"""A GPU as a user names it: its number in PCI order, or the beginning of its UUID."""


class GpusLauncher(Section):
    """``launcher=gpus``: one job per GPU of this machine; without a GPU, workers on the CPU.

    Args:
        gpus_per_job: GPUs of one job; with more than one, a process (rank) of the job for each.
        jobs_per_gpu: Jobs of this sweep that share a GPU. Their speeds are then not their own, so
            it is refused where the budget is time. With MPS a job that fails on the GPU can take
            the others there with it; they are reported as failed, and ``sweep.resume`` runs them.
        gpus: GPUs to use; null is every one that CUDA_VISIBLE_DEVICES allows.
        exclude: GPUs to leave alone.
        workers: Jobs at a time if there is no GPU, each with its share of the threads.
        wait_minutes: Longest wait for a GPU while no job of the sweep runs.
        save_seconds: Time that a job gets to save and end after Ctrl-C, before it is killed.
        detach: Let running jobs go on if the launcher is killed; otherwise they save and end.
    """

    name: Literal["gpus"]
    gpus_per_job: Count = 1
    jobs_per_gpu: Count = 1
    gpus: Annotated[list[GpuName], Field(min_length=1)] | None = None
    exclude: list[GpuName] = Field(default_factory=list)
    workers: Count = 1
    wait_minutes: Positive = 60
    save_seconds: Positive = 120
    detach: bool = False

    @model_validator(mode="after")
    def _whole_gpus_for_ranks(self) -> Self:
        if self.gpus_per_job > 1 and self.jobs_per_gpu > 1:
            raise UserError(
                f"launcher.jobs_per_gpu={self.jobs_per_gpu}: a job on several GPUs "
                f"(launcher.gpus_per_job={self.gpus_per_job}) has each of them alone; type "
                "launcher.jobs_per_gpu=1"
            )
        return self


class LocalLauncher(Section):
    """``launcher=local``: one job after another in this terminal, on the device torch picks."""

    name: Literal["local"]


class SlurmLauncher(Section):
    """``launcher=slurm``: an array of jobs with one GPU each, through submitit.

    Args:
        gpus_per_job: GPUs of one job, over all its nodes; one task (rank) for each.
        nodes: Nodes of one job; it must divide ``gpus_per_job``.
        minutes: Time limit of a job; null is the longest ``train.minutes`` plus ``margin``.
        margin: Minutes added to ``train.minutes`` for the start, validation and the last save.
        jobs: Jobs that may run at a time.
        requeues: How often a job that reached its time limit is started again.
        save_seconds: How long before its limit, or its preemption, a job is told to save.
        cpus: CPUs of a job; null is the cluster's default.
        mem_gb: Main memory of a job in GB; null is the cluster's default.
        partition: As sbatch.
        account: As sbatch.
        qos: As sbatch.
        constraint: As sbatch.
        exclude: Nodes to leave alone, as sbatch.
    """

    name: Literal["slurm"]
    gpus_per_job: Count = 1
    nodes: Count = 1
    minutes: Count | None = None
    margin: Count = 15
    jobs: Count = 256
    requeues: Annotated[int, rounded, Field(ge=0)] = 3
    save_seconds: Count = 120
    cpus: Count | None = None
    mem_gb: Count | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None

    @model_validator(mode="after")
    def _same_on_every_node(self) -> Self:
        if self.gpus_per_job % self.nodes:
            raise UserError(
                f"launcher.gpus_per_job={self.gpus_per_job}: does not divide by "
                f"launcher.nodes={self.nodes}, and every node has the same number of ranks; "
                f"type launcher.gpus_per_job={self.nodes * -(-self.gpus_per_job // self.nodes)}"
            )
        return self

    @property
    def gpus_per_node(self) -> int:
        """GPUs, and so ranks, of one job on each of its nodes."""
        return self.gpus_per_job // self.nodes


LauncherConfig = GpusLauncher | LocalLauncher | SlurmLauncher
LAUNCHERS: dict[str, type[LauncherConfig]] = {
    "gpus": GpusLauncher,
    "local": LocalLauncher,
    "slurm": SlurmLauncher,
}
"""Every launcher by its name in YAML."""


def ranks_of(launcher: LauncherConfig) -> int:
    """Return how many processes, one for each GPU, a launcher starts for one job."""
    return 1 if isinstance(launcher, LocalLauncher) else launcher.gpus_per_job


class SweepConfig(Section):
    """Group ``sweep``.

    Args:
        resume: Folder of an earlier sweep; its jobs that are not ok run again.
        add: Folder of an earlier sweep; this command adds jobs to it.
        job: Folder of one job of a sweep; the command is this job alone, as the sweep recorded it.
        allow_changed_code: Whether jobs may be added by other code than the earlier jobs ran.
        dry_run: Check all jobs and print the command of each, but run none.
        max_params_spread: Largest spread of the jobs' parameter counts, (largest - smallest) /
            smallest, without a note.
        equal_size: Whether the sweep claims models of one size; a larger spread then stops it.
    """

    resume: str | None = None
    add: str | None = None
    job: str | None = None
    allow_changed_code: bool = False
    dry_run: bool = False
    max_params_spread: Positive = 0.15
    equal_size: bool = False


class SweepSettings(Section):
    """The settings of a whole sweep; ``tune`` is None if nothing is tuned."""

    launcher: LauncherConfig
    sweep: SweepConfig
    tune: TuneConfig | None = None
