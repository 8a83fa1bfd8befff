"""Losses of a run at a given effort: optimizer steps, minutes, predicted bytes, or operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from elman.evaluation.metrics import LOSS_WINDOW
from elman.report.comparison.curves import grad_accum, mean_of_last_share
from elman.report.comparison.runs import Run
from elman.report.metrics_file import Floats
from elman.sections.budget import limits

Axis = Literal["steps", "minutes", "bytes", "FLOPs"]
AXES: tuple[Axis, ...] = ("steps", "minutes", "bytes")
"""The axes of every comparison; runs with a budget of FLOPs are compared at equal FLOPs, too."""
NEAR = 0.02
"""Efforts that differ by less count as equal where there is no curve between them. A run of which
less is left counts as ended: with 2 % left a cosine is within 0.1 % of its range from its end."""
_SAME = 1e-6
UNEQUAL_STEPS: tuple[Axis, ...] = ("minutes", "FLOPs")
"""Models that are given equally much of these take different numbers of steps."""
_KEYS: dict[Axis, str] = {"steps": "steps", "minutes": "minutes", "bytes": "bytes"}
_KEYS |= {"FLOPs": "flops"}


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
    x, means = _efforts(run, steps), _trailing_mean(losses)
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
    x = _efforts(run, steps)
    final: dict[Axis, float | None] = dict.fromkeys(x, result.val_bpb if result else None)
    return Reading(x, dict.fromkeys(x, losses), ends(run), final)


def spent(run: Run, axis: Axis) -> bool:
    """Whether a run took all that its budget gave it of an axis; False if it had no such budget."""
    train = (run.config or {}).get("train") or {}
    budget = limits(train).get(_KEYS[axis])
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
    seconds = result.seconds.train
    known: dict[Axis, float | None] = {
        "steps": result.steps,
        "minutes": seconds / 60 if seconds is not None else None,
        "bytes": result.tokens,
        "FLOPs": result.flops,
    }
    return {axis: float(value) for axis, value in known.items() if value}


def _efforts(run: Run, steps: Floats) -> dict[Axis, Floats]:
    if run.metrics is None:
        return dict.fromkeys((*AXES, "FLOPs"), np.empty(0))
    sizes = run.metrics.bytes_at(steps, grad_accum(run))
    each = run.result.flops_per_byte if run.result is not None else None
    return {
        "steps": steps,
        "minutes": run.metrics.seconds_at(steps) / 60,
        "bytes": sizes,
        "FLOPs": np.empty(0) if each is None else each * sizes,
    }


def _trailing_mean(losses: Floats) -> Floats:
    """Return at each step the mean over the last steps up to it, as ``loss`` is defined."""
    total = np.concatenate([[0.0], np.cumsum(losses)])
    ends_ = np.arange(1, losses.size + 1)
    starts = np.maximum(0, ends_ - LOSS_WINDOW)
    mean: Floats = (total[ends_] - total[starts]) / (ends_ - starts)
    return mean
