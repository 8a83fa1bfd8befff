"""How much of a run was the warm-up of its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elman.report.comparison.runs import Run

IN_WARM_UP, LONG_WARM_UP = "never left warm-up", "long warm-up"
"""The marks of such runs."""
LONG = 0.2
"""A warm-up that takes a larger share of a run's steps is long: 1 to 10 % are usual."""
MEANING = (
    f"{IN_WARM_UP}: the run ended before its learning rate had reached optim.lr; {LONG_WARM_UP}: "
    f"it rose for more than {LONG:.0%} of the steps. With a budget of time a slower model takes "
    "fewer steps, so that the same optim.warmup_steps leave it the smaller rate"
)


def share(run: Run) -> float | None:
    """Return the share of a run's steps that its warm-up needed, above 1 if it had fewer.

    None if the run has no step, or none of these settings.
    """
    optim: Mapping[str, Any] = (run.config or {}).get("optim") or {}
    given, steps = optim.get("warmup_share"), run.result.steps if run.result is not None else None
    if isinstance(given, int | float):
        return float(given)
    needed = optim.get("warmup_steps")
    return needed / steps if isinstance(needed, int) and steps else None


def only_warmed_up(run: Run) -> bool:
    """Whether a run that ended well never left its warm-up."""
    found = share(run) if run.counts else None
    return found is not None and found >= 1


def warmed_up_long(run: Run) -> bool:
    """Whether a run that ended well left its warm-up, but late."""
    found = share(run) if run.counts else None
    return found is not None and LONG < found < 1


def told(run: Run) -> str:
    """Say how much of a run was warm-up, and how far its rate came."""
    optim, found = (run.config or {}).get("optim") or {}, share(run)
    steps = run.result.steps if run.result is not None else None
    if found is None or not steps:
        return ""
    needed = f"{optim.get('warmup_steps'):,} steps of warm-up, and the run had {steps:,}"
    return f"{needed}: its rate reached {1 / found:.0%} of optim.lr" if found >= 1 else needed
