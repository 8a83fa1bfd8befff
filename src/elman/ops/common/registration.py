"""The door through which a package outside this one adds its step to an engine."""

from __future__ import annotations

from typing import TypeVar

from elman.base.errors import UserError

Step = TypeVar("Step")


def register_step(steps: dict[str, Step], name: str, step: Step) -> None:
    """Add a step to an engine's table, from which a layer then calls it by name.

    Args:
        steps: ``STEPS`` of the engine's reference.
        name: Name of the step; best the cell's own.
        step: What the table holds, as its module says.

    Raises:
        UserError: another step has this name.
    """
    if name in steps:
        raise UserError(f"step {name}: the engine has one of that name; use another name")
    steps[name] = step
