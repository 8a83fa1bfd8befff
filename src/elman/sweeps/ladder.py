"""The jobs of a ladder: those of a tuned sweep, by the steps of :mod:`elman.tuning.ladder`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from elman.base.errors import UserError
from elman.base.units import duration
from elman.launchers.job import SweepJob
from elman.sections.tune import RATE
from elman.sweeps.tuned import TunedSource
from elman.sweeps.tuned_arms import ArmJobs
from elman.tuning.ladder import (
    checked_arm,
    held_out,
    line_of,
    most_checks,
    next_check,
    predicted_next,
    prediction_of,
)
from elman.tuning.schedule import most_runs
from elman.tuning.study import Proposal
from elman.tuning.trials import Arm, Prediction, Tuned

_YARDSTICK = 1e14
"""FLOPs a second by which the time of a ladder is named: a fraction of a GPU of 2023."""
_MINUTE = 60
_PREDICTABLE = 3
"""Sizes of a family of which the largest can be predicted: a law takes two others."""


class LadderSource(TunedSource):
    """Makes the jobs of a ladder while its jobs run."""

    def check(self, known: dict[str, int]) -> list[str]:
        """Count the arms' parameters; return the steps of the ladder, and what it trains."""
        super().check(known)
        return list(ladder_lines(list(self._arms.values()), self._tuned))

    def _whole(self, number: int) -> list[SweepJob]:
        """Return up to so many whole runs, and trials that check a line, recorded."""
        self._draw_lines()
        self._predict()
        jobs = super()._whole(number)  # a prediction waits for these, and nothing for a check
        while len(jobs) < number and (chosen := next_check(self._tuned)):
            jobs.append(self._check(*chosen))
        return jobs

    def _draw_lines(self) -> None:
        """Record the line of rates of every family that has none."""
        known = dict(self._tuned.lines)
        for family in self._tuned.families:
            if family not in known and (line := line_of(self._tuned, family, _now())) is not None:
                known[family] = line
        if known != self._tuned.lines:
            self._tuned = replace(self._tuned, lines=known)
            self._record.add([], self.head())

    def _predict(self) -> None:
        """Record what the largest sizes will score, before one of them is trained."""
        due = predicted_next(self._tuned)
        if due:
            made = {arm.label: prediction_of(self._tuned, arm, _now()) for arm in due}
            self._tuned = replace(self._tuned, predictions={**self._tuned.predictions, **made})
            self._record.add([], self.head())
            for label, one in made.items():
                print(f"ladder: {_prediction_words(label, one)}", flush=True)

    def _check(self, arm: Arm, rate: float) -> SweepJob:
        """Return a trial that checks a line, recorded."""
        number = len(self._tuned.of(arm.label)) + 1
        if self._journal.waiting(arm, number - 1) is None:
            self._journal.ask(arm, Proposal({RATE: rate}), self._tuned.bounds)
        job = self._trial_job(arm, number, 0, {RATE: rate}, self._next_number)
        return self._add(job, "confirming")


def _prediction_words(label: str, one: Prediction) -> str:
    if one.score is None:
        return f"{label} is trained without a prediction: too few smaller sizes have a score"
    return (
        f"{label} will score {one.score:.4f} ({one.low:.4f} to {one.high:.4f}) by the law of its "
        "smaller sizes, and is trained now"
    )


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def ladder_lines(arms: Sequence[ArmJobs], tuned: Tuned) -> Iterator[str]:
    """Yield the steps of a ladder, and what they train."""
    config = tuned.config.ladder
    assert config is not None
    families, searched = tuned.families, len(tuned.searched)
    sizes = len({arm.size for arm in tuned.arms})
    _, growths, whole = most_runs(tuned)
    last = [arm for family in families if (arm := held_out(tuned, family)) is not None]
    held = sum(len(arm.seeds) for arm in last)
    yield (
        f"tune={tuned.choice}: {'family' if len(families) == 1 else 'families'} "
        f"{', '.join(families)} at {sizes} sizes; optim.lr by val_bpb, lower is better"
    )
    edge = f", and at most {growths} more if a best value is at the edge" if growths else ""
    yield f"1. trials of the smallest sizes: {searched} x {tuned.config.trials}{edge}"
    checks = most_checks(tuned)
    yield (
        "2. a line of log rate over log width gives the rates of the larger sizes; "
        + (f"trials at the next size that check it: {checks}" if checks else "no trial checks it")
    )
    yield f"3. whole runs of all sizes but the largest: {whole - held}"
    yield f"4. the largest size of each family is predicted, then trained: {held}"
    for family, own in families.items():
        if len(own) < _PREDICTABLE:
            number = f"{len(own)} size{'s' * (len(own) > 1)}"
            yield f"{family}: no prediction from {number}; type at least {_PREDICTABLE}"
    yield from _amounts(arms, tuned)


def _amounts(arms: Sequence[ArmJobs], tuned: Tuned) -> Iterator[str]:
    """Yield how many bytes and operations a ladder takes at most."""
    config = tuned.config
    assert config.ladder is not None
    trials = config.trials + config.grow * config.grow_trials
    checked = [checked_arm(tuned, family) for family in tuned.families]
    total, operations = [0.0, 0.0], 0.0
    known = True
    for own in arms:
        counts = [trials if own.arm in tuned.searched else 0, len(own.arm.seeds)]
        counts[0] += config.ladder.check_trials if own.arm in checked else 0
        size = own.whole.train.limits["bytes"]
        total = [sum_ + size * count for sum_, count in zip(total, counts, strict=True)]
        each = _flops_per_byte(own)
        known &= each is not None
        operations += (each or 0.0) * size * sum(counts)
    yield (
        f"bytes at most: {total[0]:.3g} in trials and {total[1]:.3g} in whole runs, "
        f"{config.ladder.bytes_per_param:g} for each parameter of the size in a model's name"
    )
    if known:
        seconds, speed = operations / _YARDSTICK, f"{_YARDSTICK / 1e12:g} TFLOP/s"
        time = f", which take {duration(seconds)} of one place at {speed}; small models are slower"
        yield f"FLOPs at most: {operations:.3g}{time if seconds > _MINUTE else ''}"


def _flops_per_byte(own: ArmJobs) -> float | None:
    """Return the operations for a byte of an arm; None if they cannot be counted."""
    from elman.training.flops import flops_per_byte  # it imports torch

    try:
        return flops_per_byte(own.whole.model, own.whole.train)
    except UserError:
        return None
