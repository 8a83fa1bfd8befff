"""Which implementation of a recurrence runs: the choice behind ``kernels.backend``.

Imports no torch, so that a wrong choice is refused before torch is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elman.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from elman.models.registry.spec import Cell

REFERENCE = "reference"
AUTO = "auto"
# Device types that a backend runs on; the reference runs on every one.
_DEVICES: dict[str, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "cuda": ("cuda",),
    "triton": ("cuda",),
}


def check_backend(cell: Cell, requested: str) -> str:
    """Return ``requested`` if it is ``auto`` or a backend that ``cell`` has.

    Raises:
        UserError: the backend does not exist, or this cell has no kernel for it.
    """
    known = (AUTO, REFERENCE, *_DEVICES)
    if requested not in known:
        raise UserError(
            f"kernels.backend={requested}: no such backend{did_you_mean(requested, known)}; "
            f"backends: {', '.join(known)}"
        )
    if requested not in (AUTO, *cell.backends):
        has = " and ".join(cell.backends)
        raise UserError(
            f"kernels.backend={requested}: cell {cell.name} has only {has}; "
            f"use kernels.backend={cell.backends[-1]} or kernels.backend=auto"
        )
    return requested


def choose_backend(cell: Cell, requested: str, device_type: str) -> str:
    """Return the backend that runs ``cell`` on this type of device.

    Args:
        cell: The cell; its ``backends`` stand in order of speed, fastest last.
        requested: ``auto`` or the name of a backend.
        device_type: ``cpu``, ``cuda``, ``meta`` and so on.

    Raises:
        UserError: the requested backend does not exist for this cell or this device.
    """
    check_backend(cell, requested)
    usable = [name for name in cell.backends if _runs_on(name, device_type)]
    if requested == AUTO:
        return usable[-1]
    if requested not in usable:
        raise UserError(
            f"kernels.backend={requested}: does not run on a {device_type} device; "
            f"use kernels.backend={usable[-1]} or kernels.backend=auto"
        )
    return requested


def _runs_on(backend: str, device_type: str) -> bool:
    return backend == REFERENCE or device_type in _DEVICES[backend]
