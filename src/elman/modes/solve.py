"""``mode=solve``: the size at which a model has a wanted number of parameters."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from elman.config import RunConfig
from elman.errors import ExitStatus
from elman.kernels.backends import AUTO, best_backend
from elman.launch import session
from elman.models import registry
from elman.models.sizing import SIZES, Sized, Solution, solve
from elman.report.solve_table import print_solution
from elman.report.standard_table import standard_rows, standard_table
from elman.report.sweep_table import wide_console
from elman.schema.model import ModelConfig
from elman.training.quick_memory import quick_memory


def run(config: RunConfig, folder: Path | None) -> ExitStatus:
    """Print the nearest size, its neighbours, its memory and the command that trains it.

    Returns:
        ``OK``, or ``FAILED`` if the target lies outside what was searched.

    Raises:
        UserError: the cell cannot be built at any size.
    """
    assert folder is None
    assert config.solve is not None
    settings, state, console = config.solve, session.current(), wide_console()
    if settings.standard:
        console.print(standard_table(standard_rows()))
        return ExitStatus.OK
    assert settings.params is not None
    model = config.model.model_copy(update={"depth": settings.depth or config.model.depth})
    solution = solve(model, settings.params, settings.over, config.kernels.backend)
    result = _result(config, solution)
    state.results.append(result)
    if not state.sweeping:
        print_solution(result, console)
    return ExitStatus.OK if solution.reached else ExitStatus.FAILED


def _result(config: RunConfig, solution: Solution) -> dict[str, Any]:
    """Return the answer as plain data, for the tables."""
    assert config.solve is not None
    nearest, sizes = solution.nearest, SIZES[solution.over]
    state = session.current()
    typed = state.job.overrides if state.job else ()
    command = training_command(config, nearest, [*state.config_flags, *typed])
    return {
        "status": "ok" if solution.reached else "not reached",
        "model": config.model.name,
        "over": solution.over,
        "searched": (sizes[0], sizes[-1]),
        "target": config.solve.params,
        "nearest": _plain(nearest),
        "below": _plain(solution.below) if solution.below else None,
        "above": _plain(solution.above) if solution.above else None,
        "memory_bytes": quick_memory(_as_trained(config, nearest.config)),
        "batch_size": config.train.batch_size,
        "chunk_size": config.train.chunk_size,
        "command": command,
    }


def _as_trained(config: RunConfig, model: ModelConfig) -> RunConfig:
    """Return the configuration of the run that is offered, with the backend that it will choose.

    Kernels keep less than plain loops do. A package's kernels cannot be walked through without a
    GPU: their plain form stands for them.
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
        "params": sized.params,
        "error": sized.error,
    }


def training_command(config: RunConfig, found: Sized, typed: Sequence[str]) -> str:
    """Return the command that trains the model at the size that was found.

    Args:
        config: What was typed, composed: the model before it was resized.
        found: The size.
        typed: Flags and overrides of the command that looked for it.
    """
    of_solve = ("mode=", "solve.")
    kept = [text for text in typed if not text.startswith(of_solve)]
    if not any(text.startswith("model=") for text in kept):
        kept.insert(0, f"model={config.model.name}")
    before, after = config.model, found.config
    sizes = {
        "dim": (before.dim, after.dim),
        "depth": (before.depth, after.depth),
    } | {name: (before.options[name], value) for name, value in after.options.items()}
    # What is as in the model's YAML is left out.
    changed = [f"model.{name}={new}" for name, (old, new) in sizes.items() if new != old]
    return shlex.join(["elman", *kept, *changed])
