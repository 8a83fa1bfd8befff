"""How a package outside this one adds a step or a kernel to an engine."""

from __future__ import annotations

from typing import TypeVar

from elman.base.errors import UserError

Step = TypeVar("Step")


def register_step(steps: dict[str, Step], name: str, step: Step) -> None:
    """Add a step, or its kernel, to an engine's table. A layer then calls it by its name.

    Args:
        steps: ``STEPS`` of the engine's steps.py, or ``CELLS`` of its recurrences.py.
        name: Name of the step, preferably the cell's own.
        step: A value of the table, as the table's module describes it.

    Raises:
        UserError: another step has this name.
    """
    if name in steps:
        raise UserError(f"step {name}: the engine has one of that name; use another name")
    steps[name] = step
