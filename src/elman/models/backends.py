"""Which implementation of a recurrence runs: the choice behind ``kernels.backend``.

Imports no torch, so that a wrong choice is refused before torch is loaded.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from elman.base.errors import UserError, did_you_mean
from elman.kernels.compiler import compiler_problem

if TYPE_CHECKING:
    from elman.models.cells.declaration import Cell

REFERENCE = "reference"
# PyTorch's own layers (cuDNN, fused attention), for the baselines made of them.
TORCH = "torch"
AUTO = "auto"
# Device types that a backend runs on; the reference and PyTorch's own layers run on every one.
_DEVICES: dict[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "cuda": ("cuda",),
    "triton": ("cuda",),
}


def check_name(requested: str) -> str:
    """Return ``requested`` if it is ``auto`` or the name of a backend.

    Raises:
        UserError: there is none of this name.
    """
    known = (AUTO, REFERENCE, *_DEVICES, TORCH)
    if requested not in known:
        raise UserError(
            f"kernels.backend={requested}: no such backend{did_you_mean(requested, known)}; "
            f"backends: {', '.join(known)}"
        )
    return requested


def check_backend(cell: Cell, requested: str) -> str:
    """Return ``requested`` if it is ``auto`` or a backend that ``cell`` has.

    Raises:
        UserError: the backend does not exist, or this cell has no kernel for it.
    """
    check_name(requested)
    if requested not in (AUTO, *cell.backends):
        *others, last = cell.backends
        has = f"{', '.join(others)} and {last}" if others else last
        why = f" ({cell.reason})" if cell.reason else ""
        named = "" if others else f"kernels.backend={last} or "
        raise UserError(
            f"kernels.backend={requested}: cell {cell.name} has only {has}{why}; "
            f"use {named}kernels.backend=auto"
        )
    return requested


def choose_backend(cell: Cell, requested: str, device_type: str) -> str:
    """Return the backend that runs ``cell`` on this type of device.

    Without a C++ compiler ``auto`` leaves the CPU's kernels out and says so, once in a process. On
    a GPU the reference would waste it: what stands in the kernels' way there is an error.

    Args:
        cell: The cell; its ``backends`` stand in order of speed, fastest last.
        requested: ``auto`` or the name of a backend.
        device_type: ``cpu``, ``cuda``, and so on; on ``meta``, where only shapes are computed,
            a named backend is taken at its word.

    Raises:
        UserError: the requested backend does not exist for this cell or this device, or needs a
            compiler or a driver that is not there.
    """
    check_backend(cell, requested)
    usable = [name for name in cell.backends if _runs_on(name, device_type)]
    if requested == AUTO:
        return _fastest(usable)
    if requested in usable:
        _require(requested)
    elif device_type != "meta":
        raise UserError(
            f"kernels.backend={requested}: does not run on a {device_type} device; "
            f"use kernels.backend={usable[-1]} or kernels.backend=auto"
        )
    return requested


def norm_backend(requested: str, device_type: str) -> str:
    """Return what computes the norms of the residual stream: ``cuda`` or ``reference``.

    They are no cell's, and models without kernels of their own have them. So only where ``cuda`` is
    asked for by name is it an error that none can run on a GPU; otherwise PyTorch runs and says so.

    Args:
        requested: ``auto`` or the name of a backend; ``reference`` and ``torch`` are plain PyTorch.
        device_type: ``cpu``, ``cuda``, and so on.

    Raises:
        UserError: as :func:`choose_backend`, for ``cuda`` on a GPU.
    """
    if device_type != "cuda" or requested in (REFERENCE, TORCH):
        return REFERENCE
    if requested == "cuda":
        _require(requested)
        return requested
    from elman.kernels.nvrtc import cuda_problem

    if problem := cuda_problem():
        _say_slow(problem)
        return REFERENCE
    return "cuda"


def best_backend(cell: Cell, device_type: str) -> str:
    """Return the fastest backend that a cell has for a type of device, built here or not."""
    return [name for name in cell.backends if _runs_on(name, device_type)][-1]


def _fastest(usable: list[str]) -> str:
    chosen = usable[-1]
    if chosen == "cpu" and (problem := compiler_problem()):
        _say_slow(problem)
        return usable[-2]
    _require(chosen)
    return chosen


def _require(backend: str) -> None:
    """Raise UserError if kernels of ``backend`` cannot be built or run here."""
    problem = compiler_problem() if backend == "cpu" else None
    if backend == "cuda":
        from elman.kernels.nvrtc import cuda_problem

        problem = cuda_problem()
    if problem is not None:
        raise UserError(f"kernels.backend={backend}: {problem}, or use kernels.backend={REFERENCE}")


@cache
def _say_slow(problem: str) -> None:
    """Say it once: the reference is several times slower than a kernel."""
    print(f"elman: plain PyTorch runs, slowly: {problem}", file=sys.stderr, flush=True)


def _runs_on(backend: str, device_type: str) -> bool:
    return backend in (REFERENCE, TORCH) or device_type in _DEVICES[backend]
