"""Losses of a run at a given effort: optimizer steps, minutes, predicted bytes, or operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from elman.evaluation.metrics import LOSS_WINDOW
from elman.report.comparison.curves import grad_accum
from elman.report.comparison.runs import Run
from elman.report.metrics_file import Floats

Axis = Literal["steps", "minutes", "bytes", "FLOPs"]
AXES: tuple[Axis, ...] = ("steps", "minutes", "bytes")
"""The axes of every comparison; runs with a budget of FLOPs are compared at equal FLOPs, too."""
NEAR = 0.02
"""Efforts that differ by less count as equal where there is no curve between them."""
_SAME = 1e-6


@dataclass(frozen=True)
class Reading:
    """One loss of a run along its training.

    Args:
        x: Efforts at which it was recorded, by axis, ascending.
        y: What was recorded there.
        end: The effort of the whole run, by axis; an axis may be unknown.
        final: The loss at the end, as the table has it.
    """

    x: dict[Axis, Floats]
    y: Floats
    end: dict[Axis, float]
    final: float | None

    def at(self, axis: Axis, effort: float) -> float | None:
        """Return the loss at an effort, linear between two records; None if nothing is near."""
        end = self.end.get(axis)
        if end is not None and self.final is not None and abs(end - effort) <= _SAME * effort:
            return self.final
        x = self.x[axis]
        if x.size and x[0] <= effort <= x[-1]:
            return float(np.interp(effort, x, self.y))
        near = [(abs(x[place] - effort), self.y[place]) for place in (0, -1) if x.size]
        if end is not None and self.final is not None:
            near.append((abs(end - effort), self.final))
        distance, value = min(near, default=(np.inf, None))
        return float(value) if value is not None and distance <= NEAR * effort else None


def training_loss(run: Run) -> Reading:
    """Return the loss of the table along a run: the mean over the last 100 steps up to a point."""
    metrics, result = run.metrics, run.result
    steps = metrics.steps if metrics is not None else np.empty(0)
    means = _trailing_mean(metrics.losses) if metrics is not None else np.empty(0)
    return Reading(_efforts(run, steps), means, ends(run), result.loss if result else None)


def held_out_loss(run: Run) -> Reading:
    """Return ``val_bpb`` along a run, at its validations."""
    metrics, result = run.metrics, run.result
    steps = metrics.validation_steps if metrics is not None else np.empty(0)
    losses = metrics.validation_bpb if metrics is not None else np.empty(0)
    return Reading(_efforts(run, steps), losses, ends(run), result.val_bpb if result else None)


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
