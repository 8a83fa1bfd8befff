"""The registry of cells: one torch-free module per cell, plus cells from other packages.

Each folder next to this file holds the cells of one engine. A module there that defines ``CELL`` (a
:class:`~elman.models.cells.declaration.Cell`) declares a cell. Its layer is in the module of the
same name plus ``_layer``, which imports torch and so is not imported here. Another package adds a
cell through an entry point of the group ``elman.cells`` that names such an object.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import get_args

from elman.base.errors import UserError, did_you_mean
from elman.models.cells.declaration import Cell, Engine, Option

__all__ = ["Cell", "Option", "cell", "cells"]


@cache
def cells() -> dict[str, Cell]:
    """Return every known cell by name."""
    found: dict[str, Cell] = {}
    for module in _declarations():
        if isinstance(declared := getattr(module, "CELL", None), Cell):
            found[declared.name] = declared
    for entry in entry_points(group="elman.cells"):
        declared = _loaded(entry)
        if not isinstance(declared, Cell):
            raise UserError(
                f"entry point elman.cells:{entry.name} is a {type(declared).__name__}, not a Cell; "
                f"fix or uninstall the package that declares {entry.value}"
            )
        if declared.name in found:
            raise UserError(
                f"cell {declared.name} is declared twice (again by {entry.value}); "
                "uninstall one of the two packages"
            )
        found[declared.name] = declared
    return dict(sorted(found.items()))


def _loaded(entry: EntryPoint) -> object:
    """Return what an entry point names.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return entry.load()
    except UserError:
        raise
    except Exception as error:  # it is another package's code
        from elman.base.crash import error_line_with_traceback

        package = entry.dist.name if entry.dist is not None else entry.value
        raise UserError(
            f"entry point elman.cells:{entry.name} = {entry.value} cannot be loaded: "
            f"{error_line_with_traceback(error)}; fix the package {package}, or uninstall it "
            f"(pip uninstall {package})"
        ) from error


def _declarations() -> Iterator[ModuleType]:
    """Import and yield every torch-free module of the engines' folders."""
    for engine in get_args(Engine):
        folder = importlib.import_module(f"{__package__}.{engine}")
        for info in pkgutil.iter_modules(folder.__path__):
            if not info.name.endswith("_layer"):
                yield importlib.import_module(f"{folder.__name__}.{info.name}")


def cell(name: str) -> Cell:
    """Return the cell ``name``, or raise UserError with the most similar name."""
    known = cells()
    if name not in known:
        hint = did_you_mean(name, known)
        raise UserError(f"model.cell={name}: unknown cell{hint}; cells: {', '.join(known)}")
    return known[name]
