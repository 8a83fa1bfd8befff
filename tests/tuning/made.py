"""Trials that no run made."""

from __future__ import annotations

from collections.abc import Mapping

from elman.sections.tune import Value
from elman.tuning.trials import Phase, Trial

NAN, OOM, OK = "nan", "oom", "ok"


def trial(
    score: float | str,
    values: Mapping[str, Value] | float,
    number: int = 1,
    *,
    arm: str = "e1",
    phase: Phase = "trial",
    common: bool = False,
) -> Trial:
    """Return a trial with a score, or one that ended in another way.

    Args:
        score: Its score, or the word of its end.
        values: Its values, or only its rate.
        number: Its number in its arm, and in the sweep.
        arm: Its arm.
        phase: Its phase.
        common: Whether it is at the published setting.
    """
    own = {"lr": values} if isinstance(values, float) else dict(values)
    ok = not isinstance(score, str)
    return Trial(
        arm=arm,
        number=number if phase == "trial" else None,
        phase=phase,
        values=own,
        status=OK if ok else str(score),
        score=score if ok else None,  # type: ignore[arg-type]
        seed=0,
        job=number,
        common=common,
    )


def trials(scores: Mapping[float, float | str]) -> list[Trial]:
    """Return trials by their rates."""
    return [trial(score, rate, n) for n, (rate, score) in enumerate(scores.items(), 1)]
