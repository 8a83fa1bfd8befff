"""``mode=solve``: the size at which a model has a wanted number of parameters."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from elman.base.consoles import table_console
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.base.live_line import QUIET_SECONDS, LiveLine
from elman.bench.rank_memory import rank_memory
from elman.config.run_config import RunConfig
from elman.models.backends import AUTO, best_backend
from elman.models.cells import registry
from elman.models.counts import (
    SIZES,
    CountOf,
    Counts,
    Number,
    Seen,
    count_params,
    resized_to,
    values_of,
)
from elman.models.shape_search import RULE, Shapes, search
from elman.models.sizing import Sized, Solution, solve
from elman.report.tables.solve import print_shapes, print_solution
from elman.report.tables.standard import standard_rows, standard_table
from elman.runs.prepared import PreparedRun
from elman.sections.model import ModelConfig
from elman.sections.modes import Size, SolveConfig


def run(job: PreparedRun) -> ExitStatus:
    """Print the nearest size, its neighbours, its memory and the command that trains it.

    Returns:
        ``OK``, or ``FAILED`` if the target lies outside what was searched.

    Raises:
        UserError: the cell cannot be built at any size.
    """
    config = job.config
    assert job.folder is None
    assert config.solve is not None
    settings, console = config.solve, table_console()
    if settings.standard:
        standard_table(standard_rows()).print(console)
        return ExitStatus.OK
    model = config.model.model_copy(update={"depth": settings.depth or config.model.depth})
    config = config.model_copy(update={"model": model})
    with LiveLine(quiet=QUIET_SECONDS) as line:
        result = _answer(
            job, config, settings, lambda n: line.show(f"counting sizes: {n:,} so far")
        )
    job.result = result
    if not job.in_sweep:
        (print_solution if len(settings.over) == 1 else print_shapes)(result, console)
    return ExitStatus.OK if result["status"] == "ok" else ExitStatus.FAILED


def _answer(
    job: PreparedRun, config: RunConfig, settings: SolveConfig, seen: Seen
) -> dict[str, Any]:
    """Return the answer as plain data."""
    over, count = settings.over, _params_of(config)
    if settings.params is None:
        return _result(job, _largest(config, settings, seen))
    if len(over) == 1:
        return _result(job, solve(config.model, count, settings.params, over[0], seen))
    return _shapes_result(job, search(config.model, count, settings.params, over, seen))


def _params_of(config: RunConfig) -> CountOf:
    return partial(count_params, backend=config.kernels.backend)


def _largest(config: RunConfig, settings: SolveConfig, seen: Seen) -> Solution:
    """Return the largest size whose training step fits into the GPUs that the settings name.

    Where the count falls with the size, the size with the most parameters is the largest.

    Raises:
        UserError: not even the smallest fits.
    """
    over, gpu_gb = settings.over[0], settings.gpu_gb
    assert gpu_gb is not None
    low, found, count = 0, 0.0, _params_of(config)
    sizes = _smallest_first(config, over, seen)
    high = len(sizes)
    while low < high:  # memory grows with the parameters
        middle = (low + high) // 2
        model = resized_to(config.model, {over: sizes[middle]})
        if rank_memory(_as_trained(config, model), settings.ranks).fits(gpu_gb) is None:
            high = middle
        else:
            found, low = count(model), middle + 1
    if not found:
        raise UserError(
            f"solve.gpu_gb={gpu_gb:g}: no {over} of {config.model.name} fits into "
            f"{settings.ranks} such GPUs at train.batch_size={config.train.batch_size}; lower "
            "that, or add GPUs by solve.ranks"
        )
    return replace(solve(config.model, count, found, over, seen), reached=True)


def _smallest_first(config: RunConfig, over: Size, seen: Seen) -> list[Number]:
    """Return the sizes that the cell takes, those with the fewest parameters first.

    Raises:
        UserError: the cell takes none; the message gives the largest one's reason.
    """
    counts = Counts(config.model, _params_of(config), seen)
    found = {}
    for size in values_of(config.model, over):
        if size and (params := counts.at({over: size})) is not None:
            found[size] = params
    if not found:
        counts.refuse({over: SIZES[over][-1]})
    return sorted(found, key=found.__getitem__)


def _result(job: PreparedRun, solution: Solution) -> dict[str, Any]:
    """Return the answer as plain data, for the tables."""
    over, sizes = solution.over, SIZES[solution.over]
    option = registry.cell(solution.nearest.config.cell).options.get(over)
    return _shared(job, solution.nearest.config, reached=solution.reached) | {
        "largest": job.config.solve is not None and job.config.solve.params is None,
        "over": over,
        "searched": (sizes[0], sizes[-1]),
        "rule_of_cell": option.doc if option and not solution.nearest.size else None,
        "nearest": _plain(solution.nearest),
        "below": _plain(solution.below) if solution.below else None,
        "above": _plain(solution.above) if solution.above else None,
    }


def _shapes_result(job: PreparedRun, shapes: Shapes) -> dict[str, Any]:
    """Return the best of several sizes as plain data, for the tables."""
    best = [
        {
            "sizes": dict(one.sizes),
            "depth": one.config.depth,
            "params": one.count,
            "error": one.error,
        }
        for one in shapes.best
    ]
    return _shared(job, shapes.best[0].config, reached=shapes.reached) | {
        "over": list(shapes.over),
        "best": best,
        "rule": RULE,
        "nearest": best[0],
        "below": None,
        "above": None,
    }


def _shared(job: PreparedRun, found: ModelConfig, *, reached: bool) -> dict[str, Any]:
    """Return the part that every answer has: the target, the memory and the training command."""
    config = job.config
    assert config.solve is not None
    settings, trained = config.solve, _as_trained(config, found)
    memory = rank_memory(trained, settings.ranks)
    shard = memory.fits(settings.gpu_gb) if settings.gpu_gb is not None else "none"
    command = training_command(config, found, [*job.config_flags, *job.overrides])
    if settings.ranks > 1:
        command += f" launcher.gpus_per_job={settings.ranks}"
    if shard == "full":
        command += " parallel.shard=full"
    return {
        "status": "ok" if reached else "not reached",
        "model": config.model.name,
        "target": settings.params or count_params(found, config.kernels.backend),
        "memory_bytes": memory.whole,
        "sharded_bytes": memory.sharded,
        "gpus": settings.ranks,
        "gpu_gb": settings.gpu_gb,
        "fits": shard,
        "rows": memory.rows,
        "batch_size": config.train.batch_size,
        "chunk_size": config.train.chunk_size,
        "command": command,
    }


def _as_trained(config: RunConfig, model: ModelConfig) -> RunConfig:
    """Return the configuration of the proposed run, with the backend that it will choose.

    Kernels keep less memory than plain loops do. The memory of a package's kernels cannot be
    estimated without a GPU, so that of their plain form is estimated instead.
    """
    cell, kernels = registry.cell(model.cell).under(model.options), config.kernels
    if kernels.backend == AUTO and cell.package is None:
        wanted = config.train.device
        on_gpu = wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available())
        backend = best_backend(cell, "cuda" if on_gpu else "cpu")
        kernels = kernels.model_copy(update={"backend": backend})
    return config.model_copy(update={"model": model, "kernels": kernels})


def _plain(sized: Sized) -> dict[str, Any]:
    return {
        "size": sized.size,
        "depth": sized.config.depth,
        "params": sized.count,
        "error": sized.error,
    }


def training_command(config: RunConfig, found: ModelConfig, typed: Sequence[str]) -> str:
    """Return the command that trains the model at the size that was found.

    Args:
        config: What was typed, composed: the model before it was resized.
        found: The model at the size that was found.
        typed: Flags and overrides of the command that looked for it.
    """
    of_solve = ("mode=", "solve.")
    kept = [text for text in typed if not text.startswith(of_solve)]
    if not any(text.startswith("model=") for text in kept):
        kept.insert(0, f"model={config.model.name}")
    before, after = config.model, found
    sizes = {
        "dim": (before.dim, after.dim),
        "depth": (before.depth, after.depth),
    } | {name: (before.options[name], value) for name, value in after.options.items()}
    # Settings that equal those of the model's YAML are left out.
    changed = [f"model.{name}={new}" for name, (old, new) in sizes.items() if new != old]
    return shlex.join(["elman", *kept, *changed])
