"""Builds a sweep's models without memory before the first job runs, and compares their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from elman.base.errors import UserError
from elman.base.live_line import QUIET_SECONDS, LiveLine
from elman.config.run_config import MODES, RunConfig
from elman.launchers.job import SweepJob
from elman.sections.launching import SweepConfig
from elman.sweeps.job_list import JobList, named_job


def check_sizes(job_list: JobList, sizes: SweepConfig, known: dict[str, int]) -> list[str]:
    """Build every model of a sweep without memory; return the notes about their sizes.

    Args:
        job_list: The jobs.
        sizes: What the sweep claims about the sizes.
        known: As for :func:`count_params`.

    Raises:
        UserError: a model cannot be built, or a claim does not hold.
    """
    jobs = job_list.jobs
    if not jobs:
        return []
    mode = MODES[jobs[0].config.mode]
    if mode.in_process or not builds_a_model(jobs[0].config):
        return []
    params: list[int] = []
    with LiveLine(quiet=QUIET_SECONDS) as line:
        for job in jobs:
            line.show(f"building the models of the jobs: {len(params)} of {len(jobs)}")
            with named_job(job.number, len(jobs), job.swept or job.overrides):
                params.append(count_params(job.config, known))
                check_countable(job.config, known)
    notes = _spread_notes(jobs, params, sizes) if mode.compares else []
    lines = zip(jobs, _size_lines(jobs, params), strict=True)
    wanted = [text for job, text in lines if job.number in job_list.wanted]
    return wanted + notes


def builds_a_model(config: RunConfig) -> bool:
    """Whether a job's model comes from its own configuration, not from a checkpoint."""
    return "model" in MODES[config.mode].reads


def count_params(config: RunConfig, known: dict[str, int]) -> int:
    """Return the parameters of a job's model, built on the meta device.

    Args:
        config: The job.
        known: Counts by what they depend on; a new count is added here.

    Raises:
        UserError: the model cannot be built, or its size is not the one that its file states.
    """
    from elman.models.build import build_model

    key = f"{config.kernels.backend} {config.model.model_dump_json()}"
    if key not in known:
        model = build_model(config.model, backend=config.kernels.backend, device="meta")
        known[key] = model.num_params()
    return known[key]


def check_countable(config: RunConfig, known: dict[str, int]) -> None:
    """Raise UserError if a job has a budget that cannot be counted, as operations of some cells.

    Args:
        config: The job.
        known: As for :func:`count_params`.
    """
    key = f"rates of {config.model.model_dump_json()}"
    if config.train.rates and key not in known:
        from elman.training.budget import Budget  # it imports torch

        Budget(config.train, config.model, config.optim.warmup_steps)
        known[key] = 0


def _size_lines(jobs: Sequence[SweepJob], params: Sequence[int]) -> list[str]:
    """Return a line for each job with its model and the model's size."""
    labels = [" ".join(job.swept or job.overrides) for job in jobs]
    return [
        f"job {job.number}: {job.config.model.name}, {count:,} parameters"
        + (f" ({label})" if label else "")
        for job, count, label in zip(jobs, params, labels, strict=True)
    ]


def _spread_notes(
    jobs: Sequence[SweepJob], params: Sequence[int], settings: SweepConfig
) -> list[str]:
    """Return the notes on sizes that differ; of a ladder the models of one size are compared."""
    steps: dict[object, list[tuple[SweepJob, int]]] = {}
    for job, count in zip(jobs, params, strict=True):
        steps.setdefault((job.tuning or {}).get("size"), []).append((job, count))
    found = [
        _spread_note([job for job, _ in own], [count for _, count in own], settings)
        for own in steps.values()
    ]
    return [note for note in found if note]


def _spread_note(
    jobs: Sequence[SweepJob], params: Sequence[int], settings: SweepConfig
) -> str | None:
    """Return a note for the reader if the models' sizes differ too much.

    Raises:
        UserError: the sweep claims models of one size, and their sizes differ.
    """
    by_size = sorted(zip(params, jobs, strict=True), key=lambda pair: pair[0])
    (least, smallest), (most, largest) = by_size[0], by_size[-1]
    if not least or most / least - 1 <= settings.max_params_spread:
        return None
    line = (
        f"sizes differ by {most / least - 1:.0%}: job {smallest.number} "
        f"({smallest.config.model.name}) has {least:,} parameters, job {largest.number} "
        f"({largest.config.model.name}) {most:,}"
    )
    ends = [(one.config.model, count) for count, one in (by_size[0], by_size[-1])]
    if ends[0][0].vocab_size != ends[1][0].vocab_size:
        rest = " and ".join(f"{count - one.vocab_size * one.dim:,}" for one, count in ends)
        line += f" (without the embedding of their tokens {rest})"
    limit = f"sweep.max_params_spread={settings.max_params_spread:g}"
    if settings.equal_size:
        raise UserError(
            f"{limit}: {line}; resize one with mode=solve, or mark the table with "
            "sweep.equal_size=false"
        )
    return f"note: {line}, more than {limit}"
