"""The budgets of a run: what there is to know of each kind, once.

The first budget that is used up ends a run, with the step that reaches it, and learning rates span
all of them. A new kind is one more row of :data:`KINDS`, with its field in :class:`Budgets`, and
its line in ``conf/train/default.yaml``. A kind that neither steps nor seconds nor bytes measure
names its :class:`Rate`, and a module of ``elman.training`` computes that. Runs, suites and reports
read the rest here. Imports no torch, so that ``elman --cfg`` can import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from elman.sections.section import Count, Positive, Section

UNSAID_MINUTES = 1.0
"""``train.minutes`` if no budget is set."""


class Budgets(Section):
    """The keys of group ``train`` that limit a run; with none of them it lasts one minute.

    Args:
        minutes: Minutes of training; validation and checkpoints do not count.
        steps: Optimizer steps.
        bytes: Bytes to learn from: those predicted in all steps, over all ranks, each as often as
            it is read; of subword tokens the bytes that the predicted ones stand for; of a task the
            positions read.
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

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The rates that the limits of the run need."""
        return tuple(rate for rate in RATES if rate.key in self.limits)


@dataclass(frozen=True)
class Rate:
    """How much of a kind one byte or one second takes.

    Args:
        key: The key of the kind.
        name: Its name in ``metrics.jsonl``, and of the function that computes it.
        of: What it is multiplied with: a field of :class:`Effort`. Where a token is no byte, what
            is called a byte here is a token.
        module: Where that function is. It takes the groups ``model`` and ``train``, and raises
            UserError if it cannot be computed. Named, and not imported: it imports torch.
        each: One of what it is multiplied with, in words.
    """

    key: str
    name: str
    of: Literal["seconds", "bytes"]
    module: str
    each: str


@dataclass(frozen=True)
class Effort:
    """What steps have taken.

    Args:
        steps: Optimizer steps.
        seconds: Seconds of training, without validation and checkpoints.
        bytes: Bytes predicted in them, over all ranks; of a task the positions read.
        tokens: Tokens predicted in them; None if a token is a byte.
        measured: How much of the kinds with a rate, by key, as far as it is counted.
    """

    steps: float
    seconds: float
    bytes: float
    tokens: float | None = None
    measured: Mapping[str, float | None] = field(default_factory=dict)

    def rated(self, rates: Mapping[str, float | None]) -> Effort:
        """Return the same with what it takes at some rates, given by name."""
        tokens = self.bytes if self.tokens is None else self.tokens
        amounts = {"seconds": self.seconds, "bytes": tokens}
        found = {
            rate.key: each * amounts[rate.of]
            for rate in RATES
            if (each := rates.get(rate.name)) is not None
        }
        return replace(self, measured=found)

    def state_dict(self) -> dict[str, Any]:
        """Return it for a checkpoint."""
        plain = {"steps": self.steps, "seconds": self.seconds, "bytes": self.bytes}
        plain |= {} if self.tokens is None else {"tokens": self.tokens}
        return plain | {rate.key: self.measured.get(rate.key) for rate in RATES}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Effort:
        """Return the effort of a checkpoint, which may be older than a kind."""
        measured = {rate.key: state.get(rate.key) for rate in RATES}
        sizes = (state["steps"], state["seconds"], state["bytes"], state.get("tokens"))
        return cls(*sizes, measured)


@dataclass(frozen=True)
class BudgetKind:
    """One kind of budget.

    Args:
        key: Its key in group ``train``.
        unit: The word behind a number of it.
        axis: What reports call it: losses are compared at equal ``axis``.
        label: What an axis of a picture says.
        form: How a limit is formatted.
        spent_form: How an amount is formatted that a run has spent.
        of: The field of :class:`Effort` that measures it.
        size: How many of these are one of it.
        rate: Measures it in place of ``of``.
        equal_steps: Whether models that are given equally much of it take equally many steps.
        since: Date and commit that brought it, if there are older runs.
    """

    key: str
    unit: str
    axis: str
    label: str
    form: str
    spent_form: str = ",.0f"
    of: Literal["steps", "seconds", "bytes"] = "steps"
    size: float = 1
    rate: Rate | None = None
    equal_steps: bool = False
    since: str | None = None

    def used(self, effort: Effort) -> float | None:
        """Return how much of it an effort is; None if nobody has counted it."""
        if self.rate is not None:
            return effort.measured.get(self.key)
        amount: float = getattr(effort, self.of)
        return amount if self.size == 1 else amount / self.size

    @property
    def takes_time(self) -> bool:
        """Whether a run on a busy machine gets less done with the same budget."""
        return (self.of if self.rate is None else self.rate.of) == "seconds"

    def text(self, limit: object) -> str:
        """Return a limit in words: ``10 min``."""
        number = f"{limit:{self.form}}" if isinstance(limit, int | float) else f"{limit}"
        return f"{number} {self.unit}"


_FLOPS = Rate(
    key="flops",
    name="flops_per_byte",
    of="bytes",
    module="elman.training.flops",
    each="a byte",
)
KINDS = (
    BudgetKind(
        key="minutes",
        unit="min",
        axis="minutes",
        label="minutes of training",
        form="g",
        spent_form=",.3f",
        of="seconds",
        size=60,
    ),
    BudgetKind(
        key="steps",
        unit="steps",
        axis="steps",
        label="optimizer steps",
        form="",
        of="steps",
        equal_steps=True,
    ),
    BudgetKind(
        key="bytes",
        unit="bytes",
        axis="bytes",
        label="predicted bytes",
        form=",",
        of="bytes",
        equal_steps=True,
        since="2026-11-23, b47bba9",
    ),
    BudgetKind(
        key="flops",
        unit="FLOPs",
        axis="FLOPs",
        label="floating-point operations",
        form="g",
        spent_form=".4g",
        rate=_FLOPS,
        since="2026-11-23, b47bba9",
    ),
)
BUDGETS = tuple(kind.key for kind in KINDS)
"""Keys of group ``train`` that limit a run; the first that is used up ends it."""
RATES = tuple(kind.rate for kind in KINDS if kind.rate is not None)
"""The rates of the kinds that have one."""
MINUTES = KINDS[0]
"""The kind that limits a run if no budget is set."""


def limits(train: Mapping[str, float | None]) -> dict[str, float]:
    """Return what limits a run by key, as :attr:`Budgets.limits`.

    Args:
        train: Group ``train`` of its configuration, or the budgets in it.
    """
    known = {key: value for key in BUDGETS if (value := train.get(key)) is not None}
    return known or {"minutes": UNSAID_MINUTES}


def limiting_kinds(train: Mapping[str, float | None]) -> list[BudgetKind]:
    """Return the kinds that limit a run, as in :func:`limits`; what is counted comes first."""
    known = limits(train)
    kinds = sorted(KINDS, key=lambda kind: kind is MINUTES)
    return [kind for kind in kinds if kind.key in known]


def typed_limit(limit: float | None) -> str:
    """Return a limit as people type it: ``5`` for 5.0 minutes, ``null`` for none."""
    return "null" if limit is None else f"{limit:g}" if isinstance(limit, float) else f"{limit}"


def limits_text(train: Mapping[str, float | None]) -> str:
    """Return what limits a run in words, as ``40 steps or 10 min``; arguments as :func:`limits`."""
    known = limits(train)
    return " or ".join(kind.text(known[kind.key]) for kind in limiting_kinds(train))


def used(limits: Mapping[str, float], effort: Effort) -> dict[str, float]:
    """Return how much of each limit an effort is, by key; 0 of what nobody has counted."""
    sizes = {kind.key: kind.used(effort) for kind in KINDS if kind.key in limits}
    return {key: 0.0 if size is None else size for key, size in sizes.items()}


def used_share(limits: Mapping[str, float], effort: Effort) -> float:
    """Return the used share of the budget that is used most, 1 once it is used up."""
    return min(max(size / limits[key] for key, size in used(limits, effort).items()), 1.0)
