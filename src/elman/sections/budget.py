"""The budgets of a run: the key, the unit, the measure and the text of each kind.

The first budget that is used up ends a run, with the step that reaches it, and learning rates span
all of them. A new kind is one more row of :data:`KINDS`, with its field in :class:`Budgets`, and
its line in ``conf/train/default.yaml``. Where nothing measures it yet, it also is a field of
:class:`Effort`, which ``elman.training.budget`` fills. Imports no torch, so that ``elman --cfg``
can import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elman.sections.section import Count, Positive, Section

UNSAID_MINUTES = 1.0
"""``train.minutes`` if no budget is set."""


@dataclass(frozen=True)
class Effort:
    """What steps have taken; None is what nobody has counted.

    Args:
        steps: Optimizer steps.
        seconds: Seconds of training, without validation and checkpoints.
        bytes: Bytes predicted in them, over all ranks; of a task the positions read.
        flops: Floating-point operations, as ``flops_per_byte`` in result.json counts them.
    """

    steps: float
    seconds: float
    bytes: float
    flops: float | None = None


class Budgets(Section):
    """The keys of group ``train`` that limit a run; with none of them it lasts one minute.

    Args:
        minutes: Minutes of training; validation and checkpoints do not count.
        steps: Optimizer steps.
        bytes: Bytes to learn from: those predicted in all steps, over all ranks, each as often as
            it is read; of a task the positions read.
        flops: Floating-point operations, counted by ``elman.training.flops``.
    """

    minutes: Positive | None = None
    steps: Count | None = None
    bytes: Count | None = None
    flops: Positive | None = None

    @property
    def limits(self) -> dict[str, float]:
        """What limits the run, by key: what is set, or else one minute."""
        return limits({kind.key: getattr(self, kind.key) for kind in KINDS})

    @property
    def budget_minutes(self) -> float | None:
        """Minutes that limit the run; one minute if no budget is set."""
        return self.limits.get("minutes")


@dataclass(frozen=True)
class BudgetKind:
    """One kind of budget.

    Args:
        key: Its key in group ``train``.
        unit: The word behind a number of it.
        form: How such a number is formatted.
        used: Returns how much of it an effort is.
    """

    key: str
    unit: str
    form: str
    used: Callable[[Effort], float | None]

    def text(self, limit: object) -> str:
        """Return a limit in words: ``10 min``."""
        number = f"{limit:{self.form}}" if isinstance(limit, int | float) else f"{limit}"
        return f"{number} {self.unit}"


KINDS = (
    BudgetKind("minutes", "min", "g", lambda effort: effort.seconds / 60),
    BudgetKind("steps", "steps", "", lambda effort: effort.steps),
    BudgetKind("bytes", "bytes", ",", lambda effort: effort.bytes),
    BudgetKind("flops", "FLOPs", "g", lambda effort: effort.flops),
)
BUDGETS = tuple(kind.key for kind in KINDS)
"""Keys of group ``train`` that limit a run; the first that is used up ends it."""


def limits(train: Mapping[str, float | None]) -> dict[str, float]:
    """Return what limits a run by key, as :attr:`Budgets.limits`.

    Args:
        train: Group ``train`` of its configuration, or the budgets in it.
    """
    known = {key: value for key in BUDGETS if (value := train.get(key)) is not None}
    return known or {"minutes": UNSAID_MINUTES}


def used(limits: Mapping[str, float], effort: Effort) -> dict[str, float]:
    """Return how much of each limit an effort is, by key; 0 of what nobody has counted."""
    sizes = {kind.key: kind.used(effort) for kind in KINDS if kind.key in limits}
    return {key: 0.0 if size is None else size for key, size in sizes.items()}


def used_share(limits: Mapping[str, float], effort: Effort) -> float:
    """Return the used share of the budget that is used most, 1 once it is used up."""
    return min(max(size / limits[key] for key, size in used(limits, effort).items()), 1.0)
