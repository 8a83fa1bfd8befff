"""How much each key of a space decides about an arm's score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elman.tuning.space import Bounds, Space
from elman.tuning.study import distributions, quiet
from elman.tuning.trials import Goal, Trial

METHOD = "PED-ANOVA"
SOURCE = "Watanabe, Bansal and Hutter, IJCAI 2023, arXiv:2304.10255"
LEAST_TRIALS = 10
"""Of fewer trials with a score no importance is computed."""
_TOP = 0.2
# The estimator needs so many trials in its best part.
_LEAST_AT_TOP = 2


@dataclass(frozen=True)
class Importance:
    """The importance of each key for one arm.

    Args:
        shares: By key; they add up to 1. Empty if there are too few trials, or if all are as good.
        trials: How many trials have a score.
    """

    shares: Mapping[str, float]
    trials: int


def importance(trials: Sequence[Trial], space: Space, bounds: Bounds, goal: Goal) -> Importance:
    """Return how much each key decides whether a trial is among the best fifth.

    PED-ANOVA compares the distribution of a key's values among the best trials with that among
    all. Source: Watanabe, Bansal and Hutter, PED-ANOVA, 2023, as in Optuna.

    Args:
        trials: The trials of one arm.
        space: Its space.
        bounds: The bounds of its ranges after the last growth; a trial outside them, as a published
            setting may be, is left out.
        goal: Whether a lower score is better.
    """
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

    spaces = distributions(space, bounds)
    scored = [one for one in trials if one.scored and one.values.keys() == spaces.keys()]
    with quiet():
        study = optuna.create_study(direction=goal)
        for one in scored:
            try:
                values = dict(one.values)
                study.add_trial(create_trial(params=values, distributions=spaces, value=one.score))
            except ValueError:
                continue
        count = len(study.trials)
        if count < LEAST_TRIALS:
            return Importance({}, count)
        top = max(_TOP, _LEAST_AT_TOP / count)
        found = get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(target_quantile=top)
        )
    total = sum(found.values())
    shares = {key: float(found[key]) for key in space.keys} if total > 0 else {}
    return Importance(shares, count)
