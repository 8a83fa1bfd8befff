"""What computes the layers of a model: a backend for each of its cells. Imports no torch.

A model of one cell has one backend. A mixed stack has one for each of its parts
(:meth:`~elman.sections.model.ModelConfig.parts`), and their names are joined by ``+`` where they
differ, as in ``triton+cuda``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elman.base.errors import UserError
from elman.models.backends import (
    AUTO,
    REFERENCE,
    TORCH,
    check_backend,
    check_name,
    computation_path,
    resolve_backend,
    slow_note,
    slow_reason,
)
from elman.models.cells import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from elman.models.cells.declaration import Cell
    from elman.sections.model import ModelConfig

JOIN = "+"


def cell_of(part: ModelConfig) -> Cell:
    """Return the cell of a part under its options."""
    return registry.cell(part.cell).under(part.options)


def requested_backends(model: ModelConfig, requested: str) -> list[str]:
    """Return for each part of a model which backend is requested for it.

    In a mixed stack a name holds for the cells that have such a backend; the others choose theirs
    as ``auto`` does. ``reference`` is the plain form of every cell. Several names joined by ``+``
    are those of the parts, in order.

    Args:
        model: Group ``model``.
        requested: As ``kernels.backend``.

    Raises:
        UserError: no part has such a backend, it does not compute a part's sizes, or the names are
            as many as no parts.
    """
    parts = model.parts()
    names = _requested(model, parts, requested)
    for part, name in zip(parts, names, strict=True):
        registry.cell(part.cell).check_request(name, part.dim, part.options)
    return names


def _requested(model: ModelConfig, parts: Sequence[ModelConfig], requested: str) -> list[str]:
    if not model.mixed or requested == AUTO:
        return [requested] * len(parts)
    names = requested.split(JOIN)
    if len(names) == len(parts) > 1:
        return names
    if len(names) > 1:
        raise UserError(
            f"kernels.backend={requested}: {len(names)} names, and the layers of {model.name} are "
            f"of {len(parts)} kinds; use kernels.backend=auto"
        )
    cells = [cell_of(one) for one in parts]
    if check_name(requested) == REFERENCE:
        return [cell.backends[0] for cell in cells]
    having = [requested in (*cell.backends, *cell.on_request) for cell in cells]
    if not any(having):
        check_backend(cells[0], requested)
    return [requested if has else AUTO for has in having]


def shared_backend(requested: str) -> str:
    """Return the backend for what belongs to no cell, such as the norms between the layers."""
    names = set(requested.split(JOIN))
    if len(names) == 1:
        return requested
    return REFERENCE if names <= {REFERENCE, TORCH} else AUTO


def joined(names: list[str]) -> str:
    """Return the names of the parts' backends as one."""
    return names[0] if len(set(names)) == 1 else JOIN.join(names)


def resolved_backends(
    model: ModelConfig, requested: str, device: torch.device | str, *, allow_slow: bool = False
) -> str:
    """Return the backends that run a model, joined, after checking that they can run here.

    Args:
        model: Group ``model``.
        requested: As ``kernels.backend``.
        device: Where the model runs.
        allow_slow: As ``baseline.allow_slow``.

    Raises:
        UserError: as :func:`~elman.models.backends.resolve_backend`.
    """
    pairs = zip(model.parts(), requested_backends(model, requested), strict=True)
    return joined(
        [resolve_backend(cell_of(one), name, device, allow_slow=allow_slow) for one, name in pairs]
    )


def slow_path(model: ModelConfig, requested: str, device: torch.device | str) -> str | None:
    """Return why a part of a model runs as plain PyTorch on a device; None if none does."""
    pairs = zip(model.parts(), requested_backends(model, requested), strict=True)
    return next(
        filter(None, (slow_reason(cell_of(one), name, device) for one, name in pairs)), None
    )


def slow_notes(
    model: ModelConfig, requested: str, device: torch.device | str, resolved: str
) -> list[str]:
    """Return a warning for each cell that runs as plain PyTorch.

    Args:
        model: Group ``model``.
        requested: As ``kernels.backend``.
        device: Where the model runs.
        resolved: As :func:`resolved_backends` returned it.
    """
    parts, asked = model.parts(), requested_backends(model, requested)
    found = requested_backends(model, resolved)
    notes = (
        slow_note(cell_of(one), name, device, backend)
        for one, name, backend in zip(parts, asked, found, strict=True)
    )
    return [*dict.fromkeys(filter(None, notes))]


def paths(
    model: ModelConfig, resolved: str, *, device_type: str = "", precision: str = ""
) -> str | None:
    """Return in words what computes the baselines among the parts; None if there are none.

    Args:
        model: Group ``model``.
        resolved: As :func:`resolved_backends` returned it.
        device_type: As of :func:`~elman.models.backends.computation_path`.
        precision: As there.
    """
    pairs = zip(model.parts(), requested_backends(model, resolved), strict=True)
    found = (
        computation_path(
            registry.cell(one.cell),
            backend,
            one.options,
            device_type=device_type,
            precision=precision,
        )
        for one, backend in pairs
    )
    return "; ".join(dict.fromkeys(filter(None, found))) or None
