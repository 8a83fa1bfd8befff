"""Finds the function that prints a sweep's table, by the mode of its jobs. Imports no torch."""

from __future__ import annotations

from importlib import import_module

from elman.config.run_config import Mode
from elman.sweeps.row import PrintTable


def sweep_table_of(mode: Mode) -> PrintTable:
    """Import and return the function that a mode names."""
    module, _, name = mode.table.partition(":")
    print_table: PrintTable = getattr(import_module(module), name)
    return print_table
