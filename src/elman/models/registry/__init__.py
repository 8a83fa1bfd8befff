"""The registry of cells: one torch-free module per cell, plus cells from other packages.

A module of this package that defines ``CELL`` (a :class:`~elman.models.registry.spec.Cell`) is a
cell. Another package adds its own through an entry point of the group ``elman.cells`` that names
such an object.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

from elman.errors import UserError, did_you_mean
from elman.models.registry.spec import Cell, Option

__all__ = ["Cell", "Option", "cell", "cells"]


@cache
def cells() -> dict[str, Cell]:
    """Return every known cell by name."""
    found: dict[str, Cell] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if isinstance(declared := getattr(module, "CELL", None), Cell):
            found[declared.name] = declared
    for entry in entry_points(group="elman.cells"):
        declared = entry.load()
        if not isinstance(declared, Cell):
            raise UserError(
                f"entry point elman.cells:{entry.name} is a {type(declared).__name__}, not a Cell; "
                f"mend or uninstall the package that declares {entry.value}"
            )
        if declared.name in found:
            raise UserError(
                f"cell {declared.name} is declared twice (again by {entry.value}); "
                "uninstall one of the two packages"
            )
        found[declared.name] = declared
    return dict(sorted(found.items()))


def cell(name: str) -> Cell:
    """Return the cell ``name``, or raise UserError with the nearest name."""
    known = cells()
    if name not in known:
        hint = did_you_mean(name, known)
        raise UserError(f"model.cell={name}: unknown cell{hint}; cells: {', '.join(known)}")
    return known[name]
