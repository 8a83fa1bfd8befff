"""How an engine that has several kernels for a call chooses among them. Imports no torch.

A form is one way to run a call. Each has a function that says what speaks against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Shape = TypeVar("Shape")


@dataclass(frozen=True)
class Form:
    """The form that was chosen.

    Args:
        name: Its name in the engine.
        why: What it does, and why no faster one: a sentence for people.
    """

    name: str
    why: str


def first_that_runs(
    reasons: Mapping[str, Callable[[Shape], str | None]],
    shape: Shape,
    work: Callable[[str, Shape], str],
) -> Form:
    """Return the fastest form that runs a call.

    Args:
        reasons: By form, the fastest first: returns what speaks against it for a call, or None.
        shape: The call.
        work: Returns what a form does in a call.
    """
    against: list[str] = []
    for name, reason in reasons.items():
        said = reason(shape)
        if said is None:
            return Form(name, "; ".join([f"{name}: {work(name, shape)}", *against]))
        against.append(f"not {name}: {said}")
    raise AssertionError(shape)


def runs_every_call(shape: object) -> None:
    """Return that nothing speaks against a form."""
