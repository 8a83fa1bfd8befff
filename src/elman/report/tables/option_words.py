"""A cell's options in words, for the terminal and for the pages of ``docs``."""

from __future__ import annotations

from collections.abc import Callable

from elman.models.cells.declaration import Option, Value

Mark = Callable[[str], str]
"""Marks text that a user types: with backticks, or not at all."""


def as_typed(value: Value) -> str:
    """Return a value as a user types it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def values_of(option: Option, mark: Mark = str) -> str:
    """Return the values that an option takes."""
    if option.choices:
        return ", ".join(mark(choice) for choice in option.choices)
    if isinstance(option.default, bool):
        return f"{mark('true')}, {mark('false')}"
    kind = "whole number" if isinstance(option.default, int) else "number"
    bounds = []
    if option.minimum is not None:
        bounds.append(f"at least {option.minimum:g}")
    if option.above is not None:
        bounds.append(f"above {option.above:g}")
    if option.maximum is not None:
        bounds.append(f"at most {option.maximum:g}")
    return ", ".join([kind, *bounds])


def read_when(option: Option, mark: Mark = str) -> str:
    """Return the values of other options that make a cell read an option."""
    needs = []
    for name, needed in option.needs.items():
        values = needed if isinstance(needed, tuple) else (needed,)
        needs.append(" or ".join(mark(f"{name}={as_typed(value)}") for value in values))
    return " and ".join(needs) or "always"
