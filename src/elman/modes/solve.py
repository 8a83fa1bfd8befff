"""``mode=solve``: the size at which a model comes nearest to a target, or the largest that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from elman.base.consoles import table_console
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.base.live_line import QUIET_SECONDS, LiveLine
from elman.base.quoting import shell_line
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
from elman.models.mixed import cell_of, joined
from elman.models.shape_search import RULE, Shaped, Shapes, search
from elman.models.sizing import Sized, Solution, solve
from elman.models.state_bytes import state_size
from elman.report.tables.solve import print_shapes, print_solution
from elman.report.tables.standard import standard_rows, standard_table
from elman.runs.prepared import PreparedRun
from elman.sections.model import ModelConfig
from elman.sections.solve import FLOPS, PARAMS, Size, SolveConfig, Target
from elman.training.flops import flops_per_byte


def _params(model: ModelConfig, config: RunConfig) -> int:
    return count_params(model, config.kernels.backend)


def _flops(model: ModelConfig, config: RunConfig) -> float:
    _params(model, config)  # it refuses what the backend of the run refuses
    return flops_per_byte(model, config.train)


COUNTS: Mapping[Target, Callable[[ModelConfig, RunConfig], float]] = {
    PARAMS: _params,
    FLOPS: _flops,
}
"""Count a model for each target, with the settings of the run that would train it."""


def run(job: PreparedRun) -> ExitStatus:
    """Print the nearest size, its neighbors, its memory and the command that trains it.

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
    target, over = settings.target, settings.over
    if target is None:
        return _result(job, PARAMS, _largest(config, settings, seen))
    number, count = settings.number_of(target), _counter(target, config)
    assert number is not None
    if len(over) == 1:
        return _result(job, target, solve(config.model, count, number, over[0], seen))
    return _shapes_result(job, target, search(config.model, count, number, over, seen))


def _counter(target: Target, config: RunConfig) -> CountOf:
    return lambda model: COUNTS[target](model, config)


def _largest(config: RunConfig, settings: SolveConfig, seen: Seen) -> Solution:
    """Return the largest size whose training step fits into the GPUs that the settings name.

    Where the count falls with the size, the size with the most parameters is the largest.

    Raises:
        UserError: not even the smallest fits.
    """
    over, gpu_gb = settings.over[0], settings.gpu_gb
    assert gpu_gb is not None
    low, largest, count = 0, 0.0, _counter(PARAMS, config)
    sizes = _smallest_first(config, over, seen)
    high = len(sizes)
    while low < high:  # memory grows with the parameters
        middle = (low + high) // 2
        model = resized_to(config.model, {over: sizes[middle]})
        if rank_memory(_as_trained(config, model), settings.ranks).fits(gpu_gb) is None:
            high = middle
        else:
            largest, low = count(model), middle + 1
    if not largest:
        raise UserError(
            f"solve.gpu_gb={gpu_gb:g}: no {over} of {config.model.name} fits into "
            f"{settings.ranks} such GPUs at train.batch_size={config.train.batch_size}; lower "
            "that, or add GPUs by solve.ranks"
        )
    return replace(solve(config.model, count, largest, over, seen), reached=True)


def _smallest_first(config: RunConfig, over: Size, seen: Seen) -> list[Number]:
    """Return the sizes that the cell takes, those with the fewest parameters first.

    Raises:
        UserError: the cell takes none; the message gives the largest one's reason.
    """
    counts = Counts(config.model, _counter(PARAMS, config), seen)
    sizes = {}
    for size in values_of(config.model, over):
        if size and (params := counts.at({over: size})) is not None:
            sizes[size] = params
    if not sizes:
        counts.refuse({over: SIZES[over][-1]})
    return sorted(sizes, key=sizes.__getitem__)


def _result(job: PreparedRun, target: Target, solution: Solution) -> dict[str, Any]:
    """Return the answer as plain data, for the tables."""
    over, sizes = solution.over, SIZES[solution.over]
    option = registry.cell(solution.nearest.config.cell).options.get(over)
    return (
        _shared(job, target, solution.nearest, reached=solution.reached)
        | {
            "largest": job.config.solve is not None and job.config.solve.target is None,
            "over": over,
            "searched": (sizes[0], sizes[-1]),
            "rule_of_cell": option.doc if option and not solution.nearest.size else None,
        }
        | {
            name: {"size": one.size} | _numbers(job, target, one) if one else None
            for name, one in (
                ("nearest", solution.nearest),
                ("below", solution.below),
                ("above", solution.above),
            )
        }
    )


def _shapes_result(job: PreparedRun, target: Target, shapes: Shapes) -> dict[str, Any]:
    """Return the best of several sizes as plain data, for the tables."""
    best = [{"sizes": dict(one.sizes)} | _numbers(job, target, one) for one in shapes.best]
    return _shared(job, target, shapes.best[0], reached=shapes.reached) | {
        "over": list(shapes.over),
        "best": best,
        "rule": RULE,
        "nearest": best[0],
        "below": None,
        "above": None,
    }


def _numbers(job: PreparedRun, target: Target, one: Sized | Shaped) -> dict[str, Any]:
    """Return the numbers of one model of the answer, by the keys of the result."""
    params = one.count if target is PARAMS else _params(one.config, job.config)
    numbers = {PARAMS.result: params, target.result: one.count}
    size = state_size(one.config)
    state = {
        "state_bytes": size and size.fixed,
        "state_bytes_per_byte": size and size.per_byte,
    }
    return {"depth": one.config.depth} | numbers | {"error": one.error} | state


def _shared(
    job: PreparedRun, target: Target, answer: Sized | Shaped, *, reached: bool
) -> dict[str, Any]:
    """Return the part that every answer has: the target, the memory and the training command."""
    config, model = job.config, answer.config
    assert config.solve is not None
    settings, trained = config.solve, _as_trained(config, model)
    memory = rank_memory(trained, settings.ranks)
    shard = memory.fits(settings.gpu_gb) if settings.gpu_gb is not None else "none"
    command = training_command(config, model, [*job.config_flags, *job.overrides])
    if settings.ranks > 1:
        command += f" launcher.gpus_per_job={settings.ranks}"
    if shard == "full":
        command += " parallel.shard=full"
    return {
        "status": "ok" if reached else "not reached",
        "model": config.model.name,
        "target": answer.target,
        "target_key": target.key,
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
    kernels, device = config.kernels, config.train.device
    if kernels.backend == AUTO:
        on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        cells = [cell_of(part) for part in model.parts()]
        best = [
            best_backend(cell, "cuda" if on_gpu else "cpu") if cell.package is None else AUTO
            for cell in cells
        ]
        kernels = kernels.model_copy(update={"backend": joined(best)})
    return config.model_copy(update={"model": model, "kernels": kernels})


def training_command(config: RunConfig, answer: ModelConfig, typed: Sequence[str]) -> str:
    """Return the command that trains the model at the size that was found.

    Args:
        config: What was typed, composed: the model before it was resized.
        answer: The model at the size that was found.
        typed: Flags and overrides of the command that looked for it.
    """
    of_solve = ("mode=", "solve.")
    overrides = [text for text in typed if not text.startswith(of_solve)]
    if not any(text.startswith("model=") for text in overrides):
        overrides.insert(0, f"model={config.model.name}")
    before, after = config.model, answer
    sizes = {
        "dim": (before.dim, after.dim),
        "depth": (before.depth, after.depth),
    } | {name: (before.options[name], value) for name, value in after.options.items()}
    # Settings that equal those of the model's YAML are left out.
    changed = [f"model.{name}={new}" for name, (old, new) in sizes.items() if new != old]
    return shell_line(["elman", *overrides, *changed])
