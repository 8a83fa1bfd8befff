"""May a job have so many ranks? This file decides it, and words every refusal. Imports no torch.

A rank is one of the processes that train one model together. torchrun starts them, or a launcher
that is asked for several GPUs for one job.
"""

from __future__ import annotations

from enum import StrEnum

from elman.base.errors import UserError
from elman.base.rank_place import is_rank
from elman.config.run_config import RunConfig
from elman.sections.parallel import ParallelConfig
from elman.sections.solve import SolveConfig
from elman.sections.tasks import TaskConfig
from elman.sections.training import DataConfig

GPUS_PER_JOB = "launcher.gpus_per_job"


class Where(StrEnum):
    """Who says how many ranks there are."""

    SETTINGS = "settings"  # nobody yet: only what is true of any number is checked
    PROCESS = "process"  # the environment of this process, as torchrun sets it
    LAUNCHER = "launcher"  # launcher.gpus_per_job


def check_ranks(config: RunConfig, where: Where = Where.SETTINGS, ranks: int = 1) -> None:
    """Raise UserError unless a job may have so many ranks.

    Args:
        config: The job's configuration.
        where: Who says how many ranks there are.
        ranks: How many; not read with ``Where.SETTINGS``.
    """
    if config.solve is not None and config.mode == "solve":
        _check_solved(config.solve, config.train.batch_size)
    if config.mode != "train":
        if ranks > 1:
            raise UserError(_one_process(config.mode, where, ranks))
        return
    _check_task(config, ranks)
    _check_streams(config, ranks)
    _check_parallel(config)
    if where is not Where.SETTINGS:
        check_rows(config.parallel, config.train.batch_size, ranks)


def check_rows(parallel: ParallelConfig, batch_size: int, ranks: int) -> None:
    """Raise UserError unless so many ranks can share the rows of a batch.

    Args:
        parallel: Group ``parallel``.
        batch_size: Rows of a batch, over all ranks.
        ranks: How many processes train the model.
    """
    _check_number(parallel, ranks)
    if is_exact(parallel, batch_size, ranks):
        shards = parallel.virtual_shards
        if shards % ranks:
            fewer = 1 << (min(ranks, shards).bit_length() - 1)
            raise UserError(
                f"parallel.exact=true: {ranks} ranks cannot share {shards} virtual shards equally; "
                f"start {fewer} ranks, or use parallel.exact=false"
            )
        _refuse_uneven(shards, batch_size)
    elif batch_size % ranks:
        near = max(ranks, batch_size // ranks * ranks)
        raise UserError(
            f"train.batch_size={batch_size}: {ranks} ranks cannot share its rows equally; "
            f"use {near} or {near + ranks}"
        )


def is_exact(parallel: ParallelConfig, batch_size: int, ranks: int) -> bool:
    """Whether losses and weights have the same bits on any number of ranks.

    Args:
        parallel: Group ``parallel``.
        batch_size: Rows of a batch, over all ranks.
        ranks: How many processes train the model.
    """
    if parallel.exact != "auto":
        return parallel.exact
    plain = parallel.shard == "none" and not parallel.average_every
    # One virtual shard for each rank: the same passes as without, and as many bytes to exchange.
    fits = ranks == parallel.virtual_shards and batch_size % ranks == 0
    return ranks > 1 and plain and fits


def refuse_sweep_in_rank() -> None:
    """Raise UserError if this process is a rank, and its command asks for a sweep."""
    if is_rank():
        raise UserError(
            "-m: a sweep starts the processes of its jobs itself, and here torchrun starts several "
            f"of it; drop torchrun and add {GPUS_PER_JOB}=<GPUs of one job>"
        )


def starts_ranks(ranks: int | None, typed: bool) -> bool:
    """Whether a single command has processes of its own started for its ranks.

    Args:
        ranks: Its ``launcher.gpus_per_job``.
        typed: Whether this was typed.

    Raises:
        UserError: it asks for one, or it is a rank itself.
    """
    if ranks == 1 and typed:
        raise UserError(
            f"{GPUS_PER_JOB}=1: a single command uses one GPU anyway; add -m or drop it"
        )
    if ranks in (1, None):
        return False
    if is_rank() and typed:
        raise UserError(
            f"{GPUS_PER_JOB}={ranks}: torchrun has started this process as a rank already; drop "
            f"{GPUS_PER_JOB}, or start it without torchrun"
        )
    return not is_rank()


def _one_process(mode: str, where: Where, ranks: int) -> str:
    if where is Where.LAUNCHER:
        return f"{GPUS_PER_JOB}={ranks}: mode={mode} runs in one process; drop it"
    return f"mode={mode}: runs in one process, not in {ranks} ranks; start it without torchrun"


def _check_task(config: RunConfig, ranks: int) -> None:
    if not isinstance(config.data, TaskConfig):
        return
    if ranks > 1:
        what, instead = f"{ranks} ranks", "use one, or a GPU for each seed: -m train.seed=1,2"
    elif config.parallel.exact is True:
        what, instead = "parallel.exact=true", "drop it"
    else:
        return
    raise UserError(
        f"data={config.data.task}: a task is trained on one rank, not with {what}: its models "
        f"are small, and a part of a batch may have fewer answers than another; {instead}"
    )


def _check_streams(config: RunConfig, ranks: int) -> None:
    """Raise UserError if several ranks would have to know where each other's streams end."""
    data = config.data
    if ranks > 1 and config.train.tbptt and isinstance(data, DataConfig) and not data.has_bytes:
        raise UserError(
            f"train.tbptt=true: streams of data.tokenizer={data.tokenizer} end at different "
            f"places, which {ranks} ranks do not tell each other; start one, or type "
            "train.tbptt=false"
        )


def _check_parallel(config: RunConfig) -> None:
    """Raise UserError on settings of ranks that do not go with those of the training."""
    parallel, optim = config.parallel, config.optim.name
    if parallel.exact is True:
        _refuse_uneven(parallel.virtual_shards, config.train.batch_size)
    if parallel.average_every and optim == "schedulefree":
        raise UserError(
            f"parallel.average_every={parallel.average_every}: optim=schedulefree trains two sets "
            "of weights, which one mean does not keep together; choose optim=adamw"
        )
    if parallel.shard == "none":
        return
    cut = f"parallel.shard={parallel.shard}"
    if optim in ("muon", "schedulefree"):
        raise UserError(f"{cut}: optim={optim} needs whole weights; choose optim=adamw")
    for name, used in (("compile", config.train.compile), ("graph", config.train.graph is True)):
        if used:
            raise UserError(
                f"train.{name}=true: cannot be combined with {cut}, whose weights come and go in "
                "a pass; drop one of them"
            )


def _check_number(parallel: ParallelConfig, ranks: int) -> None:
    """Raise UserError if settings need another number of ranks."""
    if parallel.data not in ("auto", ranks):
        there = f"{ranks} ranks" if ranks > 1 else "one process"
        raise UserError(
            f"parallel.data={parallel.data}: the run has {there}; drop it, or start "
            f"torchrun --nproc_per_node={parallel.data} -m elman ..."
        )
    if ranks > 1:
        return
    several = {"shard": parallel.shard != "none", "average_every": parallel.average_every > 0}
    for name, used in several.items():
        if used:
            raise UserError(
                f"parallel.{name}={getattr(parallel, name)}: needs several ranks, and this run is "
                "one process; drop it, or start torchrun --nproc_per_node=2 -m elman ..."
            )


def _refuse_uneven(shards: int, batch_size: int) -> None:
    """Raise UserError if a batch cannot be cut into equal virtual shards."""
    if batch_size % shards:
        fitting = batch_size & -batch_size
        above = (batch_size // shards + 1) * shards
        fewer = f"parallel.virtual_shards={fitting} or " if fitting > 1 else ""
        raise UserError(
            f"train.batch_size={batch_size}: cannot be cut into {shards} equal virtual shards; "
            f"use {fewer}train.batch_size={above}"
        )


def _check_solved(solve: SolveConfig, batch_size: int) -> None:
    """Raise UserError if the ranks of ``mode=solve`` could not share the rows of a batch."""
    if batch_size % solve.ranks:
        near = max(n for n in range(1, batch_size + 1) if batch_size % n == 0 and n <= solve.ranks)
        raise UserError(
            f"solve.ranks={solve.ranks}: cannot share the rows of train.batch_size={batch_size} "
            f"equally; use solve.ranks={near}, or another train.batch_size"
        )
