"""What a tuned sweep will do and how long that takes at most, said before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elman.base.units import duration
from elman.sections.budget import limits_text
from elman.sections.optim import MuonConfig
from elman.sections.training import DataConfig
from elman.sections.tune import TuneConfig
from elman.sweeps.tuned_arms import ArmJobs
from elman.tuning.schedule import most_runs
from elman.tuning.trials import Tuned

_MATRIX_RATE = "optim.matrix_lr"


def cost_lines(arms: Sequence[ArmJobs], tuned: Tuned, places: int) -> list[str]:
    """Return what a sweep will do, and how long it trains at most in so many places."""
    config = tuned.config
    _, growths, whole = most_runs(tuned)
    count = len(arms)
    keys = [*config.leaves, *(["shape"] if config.shape is not None else [])]
    better = "lower" if config.goal == "minimize" else "higher"
    lines = [
        f"tune={tuned.choice}: {', '.join(keys)} of {_number(count, 'arm')} by {config.score}, "
        f"{better} is better",
        f"trials: {count} x {config.trials} of {_trial_budget(arms, config)}"
        + (f", and at most {growths} more if a best value is at the edge" if growths else ""),
        f"then whole runs: {whole} at most, of {_budgets(arms)}",
    ]
    notes = [*_warm_ups(arms, config), *_unequal_bytes(arms, config)]
    notes += _rates_of_matrices(arms, config)
    return [*lines, *_time(arms, tuned, places), *notes]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _trial_budget(arms: Sequence[ArmJobs], config: TuneConfig) -> str:
    return limits_text(own) if (own := config.trial_limits) else _budgets(arms)


def _budgets(arms: Sequence[ArmJobs]) -> str:
    return ", ".join(sorted({limits_text(arm.whole.train.limits) for arm in arms}))


def _time(arms: Sequence[ArmJobs], tuned: Tuned, places: int) -> Iterator[str]:
    """Yield the line with the time, if minutes limit all runs."""
    minutes = minutes_of(arms, tuned.config)
    if minutes is None:
        return
    trial, full = minutes
    trials, growths, whole = most_runs(tuned)
    total, places = (trials + growths) * trial + whole * full, min(places, max(trials, whole))
    yield (
        f"training: {duration(60 * total)} of one place at most, about "
        f"{duration(60 * total / places)} with {_number(places, 'place')}, starts apart"
    )


def _warm_ups(arms: Sequence[ArmJobs], config: TuneConfig) -> Iterator[str]:
    """Yield a note if a trial ends before its rate has risen to the one that is tried."""
    for arm in arms:
        steps = (config.trial_limits or arm.trial.train.limits).get("steps")
        warm_up = getattr(arm.trial.optim, "warmup_steps", 0)
        if getattr(arm.trial.optim, "warmup_share", None) is not None:
            continue
        if steps is not None and steps <= warm_up:
            yield (
                f"note: a trial of {arm.arm.label} ends inside its warm-up of {warm_up} steps, so "
                "it never has the rate that is tried; type optim.warmup_share=0.1"
            )


def _unequal_bytes(arms: Sequence[ArmJobs], config: TuneConfig) -> Iterator[str]:
    """Yield a note if as many steps are unequal bytes, because arms have different tokens."""
    data = [arm.trial.data for arm in arms]
    tokens = {(one.tokenizer, one.vocab_size) for one in data if isinstance(one, DataConfig)}
    if config.steps is not None and len(tokens) > 1:
        yield (
            f"note: in {config.steps} steps, trials of different data.tokenizer learn from "
            "different numbers of bytes; for equal ones type tune.bytes=<number> in place of "
            "tune.steps"
        )


def _rates_of_matrices(arms: Sequence[ArmJobs], config: TuneConfig) -> Iterator[str]:
    """Yield a note if trials vary one of Muon's two rates alone."""
    if "optim.lr" not in config.leaves or _MATRIX_RATE in config.leaves:
        return
    every = all(isinstance(arm.trial.optim, MuonConfig) for arm in arms)
    for arm in arms:
        optim = arm.trial.optim
        if not isinstance(optim, MuonConfig):
            continue
        rate, leaf = optim.matrix_lr, f"+tune.space.{_MATRIX_RATE}"
        more = f"; '{leaf}={{low: {rate / 10:g}, high: {rate * 10:g}, log: true}}' tunes it, too"
        yield (
            f"note: {_MATRIX_RATE} of {arm.arm.label} is {rate:g} in every trial: optim.lr is not "
            f"the rate of Muon's matrices{more if every else ''}"
        )


def minutes_of(arms: Sequence[ArmJobs], config: TuneConfig) -> tuple[float, float] | None:
    """Return the minutes of a trial and of a whole run; None if something else limits them."""
    full = [arm.whole.train.budget_minutes for arm in arms]
    if not all(one is not None for one in full) or config.trial_limits.keys() - {"minutes"}:
        return None
    most = max(one for one in full if one is not None)
    return (most if config.minutes is None else config.minutes), most
