"""Which number decides who wins: the bits of held-out bytes, or the loss on trained bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from elman.evaluation.metrics import LOSS_WINDOW
from elman.report.comparison.conditions import budget_kinds
from elman.report.comparison.curves import (
    EQUAL_STEPS,
    LOSS_SHARE,
    UNEQUAL_STEPS,
    Axis,
    ends,
    spent,
    training_loss,
)
from elman.report.comparison.rows import LOSS as LOSS_COLUMN
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.rows import VAL_BPB as VAL_BPB_COLUMN
from elman.report.comparison.statistics import Spread, spread

LARGE_SHARE = 0.1
"""The last 100 steps do not decide where they are a larger share of a run than this."""
_MOST_NAMES = 4


@dataclass(frozen=True)
class Compared:
    """A number that is compared.

    Args:
        key: Its name in files.
        name: What a reader calls it.
        form: Format of a difference, or of a ratio.
        is_ratio: Whether rows are compared by a ratio: the mean of logarithms is compared then.
        better: The word for a row whose number is smaller, and for one whose number is larger.
    """

    key: str
    name: str
    form: str
    is_ratio: bool
    better: tuple[str, str]


LOSS = Compared("loss", "loss", "+.4f", False, ("better", "worse"))
VAL_BPB = Compared("val_bpb", "val bpb", "+.4f", False, ("better", "worse"))
SPEED = Compared("tok_s", "tok/s", ".3f", True, ("slower", "faster"))
MEMORY = Compared("peak_memory_gb", "memory", ".3f", True, ("smaller", "larger"))


@dataclass(frozen=True)
class Deciding:
    """What decides among comparable rows.

    Args:
        number: The loss, or ``val_bpb``.
        axis: At equal what.
        why: Why this number, after its name: ``decides, for ...``.
    """

    number: Compared
    axis: Axis
    why: str

    @property
    def told(self) -> str:
        """Return it as a sentence."""
        return f"{self.number.name} at equal {self.axis} decides: {self.why}"

    @property
    def other(self) -> Compared:
        """The number that is named beside it."""
        return LOSS if self.number is VAL_BPB else VAL_BPB


@dataclass(frozen=True)
class Height:
    """How a row is placed: in the order of rows, and in pictures.

    Args:
        name: What the number is called.
        label: The same with its unit, for an axis.
        over: Returns it over the runs of a row that count; None if one of them lacks it.
    """

    name: str
    label: str
    over: Callable[[Row], Spread | None]

    @property
    def title(self) -> str:
        """Its name at the beginning of a heading."""
        return self.name[0].upper() + self.name[1:]

    def shown(self, value: float | None) -> str:
        """Return a value as text."""
        return NONE if value is None else f"{value:.4f}"


LOSS_HEIGHT = Height("loss", "loss, nats per byte", lambda row: row.over_runs(LOSS_COLUMN.of))
_HELD_OUT = Height(
    "val bpb", "val bpb, bits per held-out byte", lambda row: row.over_runs(VAL_BPB_COLUMN.of)
)


def height_of(by: Deciding) -> Height:
    """Return the number of whole runs that decides, as a height."""
    if by.number is VAL_BPB:
        return _HELD_OUT
    if by.axis not in UNEQUAL_STEPS:
        return LOSS_HEIGHT
    label = f"loss over the last {LOSS_SHARE:.0%} of the {by.axis}, nats per byte"
    return Height(
        "loss",
        label,
        lambda row: spread([training_loss(run).final[by.axis] for run in row.counted]),
    )


RULE = (
    "One number decides among comparable rows: their order, the row that the others are compared "
    "with, the sentences, the commands for more seeds, and the pictures of what was swept. The "
    "budget and the steps choose it, never its values. "
    f"With a budget of {' or '.join(UNEQUAL_STEPS)} it is "
    "val bpb: models take different numbers of steps there, so that the last 100 steps reach "
    "farther back in the run that takes fewer, and its mean is higher though its loss is as low "
    f"at every moment. With a budget of {' or '.join(EQUAL_STEPS)} it is the loss, "
    "but val bpb where the last "
    "100 steps are more than a tenth of a run, as in every run of fewer than 1,000 steps: such a "
    "mean tells the start of training as much as its end. If val bpb is missing where it would "
    "decide, the loss decides for all rows alike, and the report says so. The sentence names both "
    "numbers and says whether they agree: whether both tell the rows apart, and in the same order."
)
"""Which number decides, in one paragraph."""


def by_rule(rows: Sequence[Row]) -> Deciding:
    """Return what decides among comparable rows, by their budget and steps alone."""
    axis = budget_axis(rows)
    if axis in UNEQUAL_STEPS:
        return Deciding(
            VAL_BPB,
            axis,
            f"with a budget of {axis} models take different numbers of steps, so the last "
            f"{LOSS_WINDOW} steps are not an equal share of their runs",
        )
    steps = [count for row in rows for run in row.counted if (count := ends(run).get("steps"))]
    share = LOSS_WINDOW / min(steps) if steps else 1.0
    if share > LARGE_SHARE:
        return Deciding(
            VAL_BPB,
            axis,
            f"the last {LOSS_WINDOW} steps, over which the loss is the mean, are more than "
            f"{LARGE_SHARE:.0%} of the shortest run",
        )
    return Deciding(
        LOSS,
        axis,
        f"the last {LOSS_WINDOW} steps, over which it is the mean, are {share:.2g} of the "
        "shortest run or less",
    )


def deciding(rows: Sequence[Row]) -> Deciding:
    """Return what decides among comparable rows: by the rule, if every run has that number."""
    found = by_rule(rows)
    if found.number is VAL_BPB and (lacking := [*_lacking(rows)]):
        names = ", ".join(lacking[:_MOST_NAMES]) + (", ..." if len(lacking) > _MOST_NAMES else "")
        return instead(found, f"is missing in {names}")
    return found


def instead(rule: Deciding, why_not: str) -> Deciding:
    """Return the other number as what decides, given why that of the rule cannot."""
    other, window = rule.other, ""
    if other is LOSS:
        window = "; "
        window += (
            f"it is the mean over the last {LOSS_SHARE:.0%} of the {rule.axis} of each run"
            if rule.axis in UNEQUAL_STEPS
            else f"it is the mean over the last {LOSS_WINDOW} steps, a large share of a run here"
        )
    return Deciding(
        other, rule.axis, f"{rule.number.name} would, but it {why_not}{window}".rstrip("; ")
    )


def deciding_for_all(rows: Sequence[Row]) -> Deciding | None:
    """Return what decides among rows that are not comparable: pictures show them side by side.

    It is val bpb if it decides for one of them; None if no run counts.
    """
    counted = [row for row in rows if row.counted]
    by = [by_rule([row]) for row in counted]
    held_out = [one for one in by if one.number is VAL_BPB]
    if held_out and (lacking := [*_lacking(counted)]):
        return instead(held_out[0], f"is missing in {lacking[0]}")
    return next(iter(held_out or by), None)


def _lacking(rows: Sequence[Row]) -> Iterator[str]:
    """Yield each row of which a run has no ``val_bpb``, with how many of its runs."""
    for row in rows:
        known = [run.result is not None and run.result.val_bpb is not None for run in row.counted]
        if not all(known):
            count = known.count(False)
            yield row.label if len(known) == 1 else f"{row.label} ({count} of {len(known)} runs)"


def budget_axis(rows: Sequence[Row]) -> Axis:
    """Return what bounded the runs; of several budgets the one that every run spent."""
    given = [kind.axis for kind in budget_kinds(rows[0].counted[0])]
    runs = [run for row in rows for run in row.counted]
    return next((axis for axis in given if all(spent(run, axis) for run in runs)), given[0])
