"""The numbers that are compared: each at equal effort, and which of them decides who wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elman.evaluation.metrics import LOSS_WINDOW
from elman.evaluation.result import RunResult
from elman.report.comparison.columns import LOSS as LOSS_COLUMN
from elman.report.comparison.columns import VAL_BPB as VAL_BPB_COLUMN
from elman.report.comparison.conditions import budget_kinds
from elman.report.comparison.rows import NONE, Row
from elman.report.comparison.runs import Run
from elman.report.comparison.statistics import Spread, spread
from elman.report.metrics_file import Floats
from elman.sections.budget import KINDS, BudgetKind, limits

Axis = str
"""At equal what losses are compared: ``axis`` of a kind of budget."""
KIND_OF: dict[Axis, BudgetKind] = {
    kind.axis: kind for kind in sorted(KINDS, key=lambda kind: kind.key != "steps")
}
"""The kinds of budgets by axis, in the order in which reports compare at them."""
AXES: tuple[Axis, ...] = tuple(axis for axis, kind in KIND_OF.items() if kind.rate is None)
"""The axes of every comparison; runs with another budget are compared at equal parts of it, too."""
UNEQUAL_STEPS: tuple[Axis, ...] = tuple(k.axis for k in KIND_OF.values() if not k.equal_steps)
"""Models that are given equally much of these take different numbers of steps."""
EQUAL_STEPS: tuple[Axis, ...] = tuple(axis for axis in KIND_OF if axis not in UNEQUAL_STEPS)
LOSS_SHARE = 0.1
"""Share of what :data:`UNEQUAL_STEPS` name so far over which a loss at equal parts is the mean."""
NEAR = 0.02
"""Efforts that differ by less count as equal where there is no curve between them. A run of which
less is left counts as ended: with 2 % left a cosine is within 0.1 % of its range from its end."""
_SAME = 1e-6
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
    def sentence(self) -> str:
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
    "One number decides among comparable rows. It decides their order, the row that the others are "
    "compared with, the sentences, the commands for more seeds, and the pictures of what was "
    "swept. The budget and the steps choose it, never its values.",
    f"With a budget of {' or '.join(UNEQUAL_STEPS)} it is val bpb. Models take different numbers "
    "of steps there. The last 100 steps then reach farther back in the run that takes fewer, so "
    "their mean is higher there, though its loss is as low at every moment.",
    f"With a budget of {' or '.join(EQUAL_STEPS)} it is the loss, with two exceptions. Runs of "
    "different tokens (data.tokenizer) are compared by val bpb: no losses of different tokens are "
    "compared. So are runs in which the last 100 steps are more than a tenth, as in every run of "
    "fewer than 1,000 steps: such a mean tells the start of training as much as its end.",
    "If val bpb is missing where it would decide, the loss decides for all rows alike, and the "
    "report says so. The sentence names both numbers. They agree if both tell the rows apart, in "
    "the same order; the sentence says whether they do.",
)
"""Which number decides, in paragraphs."""


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
    if different_tokens(rows):
        return Deciding(VAL_BPB, axis, "of different tokens only bits per byte are compared")
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


def different_tokens(rows: Sequence[Row]) -> bool:
    """Whether runs have different tokens: then their losses are means over different things."""
    return len(frozenset[str]().union(*(row.tokens for row in rows))) > 1


def deciding(rows: Sequence[Row]) -> Deciding:
    """Return what decides among comparable rows: by the rule, if every run has that number."""
    rule = by_rule(rows)
    if different_tokens(rows):
        return rule
    if rule.number is VAL_BPB and (lacking := [*_lacking(rows)]):
        names = ", ".join(lacking[:_MOST_NAMES]) + (", ..." if len(lacking) > _MOST_NAMES else "")
        return instead(rule, f"is missing in {names}")
    return rule


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
    if different_tokens(counted):
        return by_rule(counted)
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
    axes = [kind.axis for kind in budget_kinds(rows[0].counted[0])]
    runs = [run for row in rows for run in row.counted]
    return next((axis for axis in axes if all(spent(run, axis) for run in runs)), axes[0])


@dataclass(frozen=True)
class Reading:
    """One loss of a run along its training.

    Args:
        x: Efforts at which it was recorded, by axis, ascending.
        y: What was recorded there, by axis.
        end: The effort of the whole run, by axis; an axis may be unknown.
        final: The loss at the end, by axis.
    """

    x: dict[Axis, Floats]
    y: dict[Axis, Floats]
    end: dict[Axis, float]
    final: dict[Axis, float | None]

    def at(self, axis: Axis, effort: float) -> float | None:
        """Return the loss at an effort, linear between two records; None if nothing is near."""
        end, final = self.end.get(axis), self.final[axis]
        if end is not None and final is not None and abs(end - effort) <= _SAME * effort:
            return final
        x, y = self.x[axis], self.y[axis]
        if x.size and x[0] <= effort <= x[-1]:
            return float(np.interp(effort, x, y))
        near = [(abs(x[place] - effort), y[place]) for place in (0, -1) if x.size]
        if end is not None and final is not None:
            near.append((abs(end - effort), final))
        distance, value = min(near, default=(np.inf, None))
        return float(value) if value is not None and distance <= NEAR * effort else None


def training_loss(run: Run) -> Reading:
    """Return the loss on trained bytes along a run: a mean over the steps before each point.

    At equal steps and bytes it is that over the last 100 steps, as in the table. At equal minutes
    and FLOPs it is that over the last tenth of them: 100 steps would be a larger share of a run
    of slower steps, and so its mean would be higher though its loss is as low at every moment.
    """
    metrics, result = run.metrics, run.result
    steps = metrics.steps if metrics is not None else np.empty(0)
    losses = metrics.losses if metrics is not None else np.empty(0)
    x, means = efforts_at(run, steps), _trailing_mean(losses)
    y = dict.fromkeys(x, means)
    final: dict[Axis, float | None] = dict.fromkeys(x, result.loss if result else None)
    for axis in UNEQUAL_STEPS:
        if x[axis].size:
            y[axis] = mean_of_last_share(x[axis], losses)
        final[axis] = float(y[axis][-1]) if x[axis].size else None
    return Reading(x, y, ends(run), final)


def held_out_loss(run: Run) -> Reading:
    """Return ``val_bpb`` along a run, at its validations."""
    metrics, result = run.metrics, run.result
    steps = metrics.validation_steps if metrics is not None else np.empty(0)
    losses = metrics.validation_bpb if metrics is not None else np.empty(0)
    x = efforts_at(run, steps)
    final: dict[Axis, float | None] = dict.fromkeys(x, result.val_bpb if result else None)
    return Reading(x, dict.fromkeys(x, losses), ends(run), final)


def spent(run: Run, axis: Axis) -> bool:
    """Whether a run took all that its budget gave it of an axis; False if it had no such budget."""
    train = run.section("train")
    budget = limits(train).get(KIND_OF[axis].key)
    end = ends(run).get(axis)
    return isinstance(budget, int | float) and end is not None and end >= budget * (1 - _SAME)


def goes_on(run: Run, axis: Axis, effort: float) -> bool:
    """Whether much of a run comes after an effort: more than 2 % of it, and more than one step."""
    known = ends(run)
    end, steps = known.get(axis, 0.0), known.get("steps")
    return end - effort > max(NEAR * end, end / steps if steps else 0.0)


def ends(run: Run) -> dict[Axis, float]:
    """Return the effort of a whole run by axis, without those that are unknown."""
    result = run.result
    if result is None:
        return {}
    sizes = {"steps": result.steps, "seconds": result.seconds.train, "bytes": result.tokens}
    known = {axis: _end(kind, result, sizes) for axis, kind in KIND_OF.items()}
    return {axis: float(value) for axis, value in known.items() if value}


def _end(kind: BudgetKind, result: RunResult, sizes: Mapping[str, float | None]) -> float | None:
    """Return how much of a kind a whole run took; None if it is unknown."""
    if kind.rate is None:
        amount = sizes[kind.of]
        return None if amount is None else amount / kind.size
    own: float | None = getattr(result, kind.key, None)  # known without such a budget, too
    return result.budget.get(kind.key, {}).get("spent") if own is None else own


def efforts_at(run: Run, steps: Floats) -> dict[Axis, Floats]:
    """Return how much of each kind a run had taken at some steps; nothing of what is unknown."""
    if run.metrics is None:
        return dict.fromkeys(KIND_OF, np.empty(0))
    sizes = {
        "steps": steps,
        "seconds": run.metrics.seconds_at(steps),
        "bytes": run.metrics.bytes_at(steps, run.grad_accum),
    }
    return {axis: _effort(kind, run, sizes) for axis, kind in KIND_OF.items()}


def _effort(kind: BudgetKind, run: Run, sizes: Mapping[str, Floats]) -> Floats:
    if kind.rate is None:
        return sizes[kind.of] if kind.size == 1 else sizes[kind.of] / kind.size
    recorded = run.metrics.rates.get(kind.rate.name) if run.metrics is not None else None
    each = getattr(run.result, kind.rate.name, recorded)
    return np.empty(0) if each is None else each * sizes[kind.rate.of]


def mean_of_last_share(efforts: Floats, losses: Floats) -> Floats:
    """Return at each effort the mean of a curve over the last tenth of the effort so far.

    The curve is straight between its points and level before the first, so that the mean does not
    depend on how many points it has.

    Args:
        efforts: Where the points are, ascending, at least one.
        losses: How high they are.
    """
    x, y = np.concatenate([[0.0], efforts]), np.concatenate([losses[:1], losses])
    below = np.concatenate([[0.0], np.cumsum(np.diff(x) * (y[1:] + y[:-1]) / 2)])
    starts = (1 - LOSS_SHARE) * efforts
    place = np.searchsorted(x, starts, side="right") - 1
    before = below[place] + (starts - x[place]) * (y[place] + np.interp(starts, x, y)) / 2
    spans = LOSS_SHARE * efforts
    mean: Floats = np.divide(below[1:] - before, spans, out=losses.copy(), where=spans > 0)
    return mean


def _trailing_mean(losses: Floats) -> Floats:
    """Return at each step the mean over the last steps up to it, as ``loss`` is defined."""
    total = np.concatenate([[0.0], np.cumsum(losses)])
    ends_ = np.arange(1, losses.size + 1)
    starts = np.maximum(0, ends_ - LOSS_WINDOW)
    mean: Floats = (total[ends_] - total[starts]) / (ends_ - starts)
    return mean
