"""Chooses the implementation of a recurrence, for ``kernels.backend``.

Imports no torch, so that a wrong choice is refused before torch is loaded.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from elman.base.errors import UserError, did_you_mean
from elman.base.output import note
from elman.kernels import flash_qla
from elman.kernels.compiler import compiler_problem
from elman.kernels.packages import (
    GPU,
    device_type,
    installation_problem,
    installed_version,
    package_problem,
)
from elman.kernels.triton_version import interpreted, torch_is_for_rocm, triton_problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from elman.models.cells.declaration import Cell, Value

REFERENCE = "reference"
# PyTorch's own layers (cuDNN, fused attention), for the baselines made of them.
TORCH = "torch"
AUTO = "auto"
PLAIN_PATH = "plain PyTorch, chunked"
_FOR_AMD = "this torch is built for AMD GPUs (ROCm) and the {} kernels are for NVIDIA's"
_FOR_NVIDIA = ("cuda", flash_qla.NAME)
# Device types of each backend; the reference and PyTorch's own layers run on every device.
_DEVICES: dict[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "cuda": ("cuda",),
    "triton": ("cuda",),
    flash_qla.NAME: ("cuda",),
}


def check_name(requested: str) -> str:
    """Return ``requested`` if it is ``auto`` or the name of a backend.

    Raises:
        UserError: no backend has this name.
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
    known = (*cell.backends, *cell.on_request)
    if requested not in (AUTO, *known):
        *others, last = known
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

    Without a C++ compiler, ``auto`` does not use the CPU kernels and says so once per process. On a
    GPU, missing kernels are an error, because the reference would waste the GPU.

    Args:
        cell: The cell; its ``backends`` are in order of speed, fastest last.
        requested: ``auto`` or the name of a backend.
        device_type: ``cpu``, ``cuda``, and so on. On ``meta``, where only shapes are computed, a
            named backend is accepted without a check; the reference stands for one on request.

    Raises:
        UserError: the requested backend does not exist for this cell or this device, or its
            compiler or driver is missing.
    """
    if device_type == "meta":
        if check_backend(cell, requested) in cell.on_request:
            return cell.backends[0]
    else:
        check_runs_on(cell, requested, device_type)
    usable = [name for name in cell.backends if _runs_on(name, device_type)]
    if requested == AUTO:
        return _fastest(cell, usable)
    if requested in usable or device_type != "meta":
        _require(cell, requested, cell.backends[0])
    return requested


def check_runs_on(cell: Cell, requested: str, device_type: str) -> None:
    """Raise UserError if a backend is requested by name, and a type of device cannot run it.

    Args:
        cell: The cell.
        requested: As ``kernels.backend``.
        device_type: ``cpu`` or ``cuda``.
    """
    check_backend(cell, requested)
    usable = [name for name in cell.backends if _runs_on(name, device_type)]
    if requested in (AUTO, *usable) or _interpretable(cell, requested, device_type):
        return
    if requested in cell.on_request and _runs_on(requested, device_type):
        return
    raise UserError(
        f"kernels.backend={requested}: {_elsewhere(requested, device_type)}; "
        f"use kernels.backend={usable[-1]} or kernels.backend=auto"
    )


def norm_backend(requested: str, device_type: str) -> str:
    """Return the backend for the norms of the residual stream: ``cpu``, ``cuda`` or ``reference``.

    The schedule-free update has the same one, and no kernel on a CPU. Both belong to no cell, and
    models without kernels have them, too. So it is an error that their kernels cannot run only if
    the backend is requested by name. Otherwise PyTorch computes them and a line says so.

    Args:
        requested: ``auto`` or the name of a backend; ``reference`` and ``torch`` are plain PyTorch.
        device_type: ``cpu``, ``cuda``, and so on.

    Raises:
        UserError: as :func:`choose_backend`, for the device's own backend by name.
    """
    if requested in (REFERENCE, TORCH):
        return REFERENCE
    if device_type == "cpu" and requested in (AUTO, "cpu"):
        return _own_kernel(requested, "cpu", compiler_problem())
    if device_type == "cuda":
        from elman.kernels.driver import cuda_problem

        problem = _FOR_AMD.format("cuda") if torch_is_for_rocm() else cuda_problem()
        return _own_kernel(requested, "cuda", problem)
    return REFERENCE


def _own_kernel(requested: str, backend: str, problem: str | None) -> str:
    """Return a device's own backend, or the reference if a problem stands against it."""
    if requested == backend:
        _refuse(requested, problem)
    elif problem is not None:
        _say_slow(problem)
        return REFERENCE
    return backend


def resolve_backend(
    cell: Cell, requested: str, device: torch.device | str, *, allow_slow: bool = False
) -> str:
    """Return the backend that runs a model of ``cell``, after checking that it can run here.

    As :func:`choose_backend`, but for a packaged baseline on a GPU the package is checked, too. The
    baseline is refused if it would run as plain PyTorch.

    Args:
        cell: The cell.
        requested: As ``kernels.backend``.
        device: Where the model runs.
        allow_slow: As ``baseline.allow_slow``.

    Raises:
        UserError: no such backend here, or the package is missing or known to be wrong here.
    """
    chosen = choose_backend(cell, requested, device_type(device))
    if cell.package is None or device_type(device) != GPU:
        return chosen
    if chosen == REFERENCE:
        if allow_slow:
            return chosen
        raise UserError(
            f"kernels.backend={requested}: plain PyTorch is the slow path of baseline {cell.name} "
            "on a GPU; drop it or add baseline.allow_slow=true, which marks the result"
        )
    problem = package_problem(cell.package, device)
    if chosen == flash_qla.NAME and (missing := package_problem(flash_qla.PACKAGE, device)):
        raise UserError(f"kernels.backend={chosen}: {missing}")
    if problem is None:
        return chosen
    if requested == AUTO and allow_slow:
        return REFERENCE
    raise UserError(
        f"model.cell={cell.name} on a GPU: {problem}"
        + (", or add baseline.allow_slow=true (plain PyTorch, marked)" if requested == AUTO else "")
    )


def slow_reason(cell: Cell, requested: str, device: torch.device | str) -> str | None:
    """Return why a cell runs as plain PyTorch on a device, or None if kernels run it.

    Args:
        cell: The cell, under its options.
        requested: As ``kernels.backend``.
        device: Where the model runs.
    """
    kind = device_type(device)
    where = "a GPU" if kind == GPU else "a CPU"
    if requested == REFERENCE:
        return "requested by kernels.backend=reference"
    if cell.package is not None and kind == GPU:
        return installation_problem(cell.package)
    if requested != AUTO:
        return None
    if cell.package is not None:
        return f"the package's kernels do not run on {where}"
    fastest = best_backend(cell, kind)
    if fastest == REFERENCE:
        return f"no kernel for {where}" + (f", {cell.reason}" if cell.reason else "")
    return compiler_problem() if fastest == "cpu" else None


def slow_note(cell: Cell, requested: str, device: torch.device | str, backend: str) -> str | None:
    """Return the warning that a model runs as plain PyTorch, and why; None if it does not.

    Args:
        cell: The cell, under its options.
        requested: As ``kernels.backend``.
        device: Where the model runs.
        backend: The backend that runs it, as :func:`resolve_backend` returned it.
    """
    if not on_slow_path(backend):
        return None
    reason = slow_reason(cell, requested, device)
    return f"slow path: plain PyTorch runs cell {cell.name}" + (f" ({reason})" if reason else "")


def refused_slow_path(cell: Cell, requested: str, *, allow_slow: bool) -> bool:
    """Whether :func:`resolve_backend` refuses a cell on a GPU because of :func:`slow_reason`.

    Args:
        cell: The cell.
        requested: As ``kernels.backend``.
        allow_slow: As ``baseline.allow_slow``.
    """
    return cell.package is not None and not (allow_slow and requested in (AUTO, REFERENCE))


def computation_path(
    cell: Cell,
    backend: str,
    options: Mapping[str, Value] | None = None,
    *,
    device_type: str = "",
    precision: str = "",
) -> str | None:
    """Return in words what computes a baseline, for the result file; None for other cells.

    Args:
        cell: The cell.
        backend: The backend that runs it, as :func:`resolve_backend` returned it.
        options: The cell's options; without them only packages are described.
        device_type: Type of the device.
        precision: ``bf16`` or ``fp32``, as the run computes.
    """
    if cell.path is not None and options is not None and backend == TORCH:
        return cell.path(options, device_type, precision)
    if cell.package is None:
        return None
    if backend == REFERENCE:
        return PLAIN_PATH
    names = (flash_qla.PACKAGE, cell.package) if backend == flash_qla.NAME else (cell.package,)
    return ", ".join(f"{name} {installed_version(name) or 'of unknown version'}" for name in names)


def check_precision(backend: str, precision: str) -> None:
    """Raise UserError if a backend does not compute in a precision.

    Args:
        backend: The backend; of a mixed stack those of its parts, joined by ``+``.
        precision: ``bf16`` or ``fp32``, as the run computes.
    """
    if flash_qla.NAME in backend.split("+") and precision != "bf16":
        raise UserError(f"kernels.backend={flash_qla.NAME}: {flash_qla.BF16_ALONE}")


def calls_package(backend: str) -> bool:
    """Whether a packaged baseline's layer calls its package, and not plain PyTorch."""
    return backend in ("triton", flash_qla.NAME)


def tuning_note(path: str | None, backend: str) -> str | None:
    """Return why the first calls of a packaged baseline take long, or None if they do not.

    Args:
        path: What :func:`computation_path` returned.
        backend: The backend that runs it.
    """
    if path is None or "triton" not in backend.split("+"):
        return None
    return "Triton compiles and tunes the package's kernels first, which takes up to a minute"


def on_slow_path(backend: str) -> bool:
    """Return whether a cell runs as plain PyTorch without kernels, so its row gets a mark.

    Args:
        backend: The backend; of a mixed stack those of its parts, joined by ``+``.
    """
    return REFERENCE in backend.split("+")


def best_backend(cell: Cell, device_type: str) -> str:
    """Return a cell's fastest backend for a device type, even if it cannot be built here."""
    return [name for name in cell.backends if _runs_on(name, device_type)][-1]


def _fastest(cell: Cell, usable: list[str]) -> str:
    chosen = usable[-1]
    if chosen == "cpu" and (problem := compiler_problem()):
        _say_slow(problem)
        return usable[-2]
    _require(cell, chosen, usable[0])
    if chosen == "triton" and "cuda" in cell.backends:
        _say_other(f"kernels.backend=auto: triton, because {_FOR_AMD.format('cuda')}")
    return chosen


def _require(cell: Cell, backend: str, plain: str = REFERENCE) -> None:
    """Raise UserError if kernels of ``backend`` cannot be built or run here, but ``plain`` can."""
    problem = compiler_problem() if backend == "cpu" else None
    if backend == "cuda":
        from elman.kernels.driver import cuda_problem

        problem = cuda_problem()
    if backend == "triton" and cell.package is None:  # a package's needs are the package's to say
        problem = triton_problem()
    _refuse(backend, problem, plain)


def _refuse(backend: str, problem: str | None, plain: str = REFERENCE) -> None:
    if problem is not None:
        raise UserError(f"kernels.backend={backend}: {problem}, or use kernels.backend={plain}")


@cache
def _say_slow(problem: str) -> None:
    """Print the problem once: the reference is several times slower than a kernel."""
    note(f"using plain PyTorch, which is slow: {problem}")


@cache
def _say_other(choice: str) -> None:
    """Print once that ``auto`` takes another backend than on most GPUs."""
    note(choice)


def _runs_on(backend: str, device_type: str) -> bool:
    if backend in _FOR_NVIDIA and torch_is_for_rocm():  # its device is called cuda, too
        return False
    return backend in (REFERENCE, TORCH) or device_type in _DEVICES[backend]


def _interpretable(cell: Cell, requested: str, device_type: str) -> bool:
    """Whether Triton's interpreter runs elman's own kernels on a CPU, if they are asked for."""
    return (requested, device_type, cell.package) == ("triton", "cpu", None) and interpreted()


def _elsewhere(backend: str, device_type: str) -> str:
    """Return why a backend does not run on a type of device."""
    if backend in _FOR_NVIDIA and device_type == GPU:
        return _FOR_AMD.format(backend)
    return f"does not run on a {device_type} device"
