"""Plans a tuned sweep: a new one, one that goes on, or one that gets more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydra.core.override_parser.types import Override

from elman.base.errors import UserError
from elman.config.keys import key_of, merged
from elman.launchers.job import SweepJob
from elman.sweeps.earlier import EarlierSweep
from elman.sweeps.expand import expand
from elman.sweeps.grow import nothing_to_add
from elman.sweeps.ladder import LadderSource
from elman.sweeps.request import SweepRequest
from elman.sweeps.tuned import TunedSource, read_arms
from elman.sweeps.tuned_arms import SEED, ArmJobs, arms_of, refuse_seed, without_budget
from elman.tuning.trials import Tuned, tuned_in

_TRIALS = "tune.trials"


def new_source(request: SweepRequest, jobs: Sequence[SweepJob]) -> TunedSource:
    """Return what makes the jobs of a new tuned sweep.

    Args:
        request: The command.
        jobs: The jobs that it would have without tuning.

    Raises:
        UserError: an arm cannot be tuned in the space.
    """
    config = request.settings.tune
    assert config is not None
    arms = arms_of(jobs, config, request.composer)
    bounds = {key: leaf.bounds for key, leaf in config.leaves.items()}
    tuned = Tuned(
        config=config,
        score=config.score,
        goal=config.goal,
        arms=tuple(one.arm for one in arms),
        ranges=({key: {"low": one[0], "high": one[1]} for key, one in bounds.items() if one},),
        choice=request.tune_choice,
    )
    return _source(request, arms, tuned)


def earlier_source(request: SweepRequest, earlier: EarlierSweep) -> TunedSource:
    """Return what makes the further jobs of an earlier tuned sweep.

    Raises:
        UserError: the command sets what the sweep does not take.
    """
    tuned = tuned_in(earlier.content, earlier.folder)
    assert tuned is not None
    tuned = replace(tuned, trials=())
    arms = read_arms(tuned.arms, earlier.folder, request.composer)
    if earlier.grows:
        return _grown(request, earlier, arms, tuned)
    typed = [*request.tune_texts, *request.overrides]
    if typed and tuple(request.overrides) != earlier.arguments:
        raise UserError(
            f"{typed[0]}: {earlier.key} goes on with the settings of the sweep; drop it, or start "
            f"a new sweep: {earlier.first_command}"
        )
    return _source(request, arms, tuned)


def _source(request: SweepRequest, arms: Sequence[ArmJobs], tuned: Tuned) -> TunedSource:
    kind = TunedSource if tuned.config.ladder is None else LadderSource
    return kind(arms, tuned, request.composer, request.settings.launcher)


def _grown(
    request: SweepRequest, earlier: EarlierSweep, arms: list[ArmJobs], tuned: Tuned
) -> TunedSource:
    """Return the source of a sweep with more trials, seeds or arms."""
    if not request.overrides and not request.tune_texts:
        raise UserError(nothing_to_add(str(earlier.folder)))
    tuned = _with_trials(request, earlier, tuned)
    parsed = request.composer.parsed(request.overrides)
    _refuse_other_settings(earlier, arms, parsed)
    of_seeds = [one for one in parsed if key_of(one.input_line or "") == SEED]
    seeds = [_seed(text) for texts, _ in expand(of_seeds) for text in texts]
    refuse_seed(tuned.config, seeds)
    others = [one for one in parsed if one not in of_seeds]
    chosen = [texts for texts, _ in expand(others) if texts]
    arms = [*arms, *_new_arms(request, arms, chosen, tuned)]
    arms = [_with_seeds(one, seeds) for one in arms]
    tuned = replace(tuned, arms=tuple(one.arm for one in arms), state="trials")
    return _source(request, arms, tuned)


def _refuse_other_settings(
    earlier: EarlierSweep, arms: Sequence[ArmJobs], parsed: Sequence[Override]
) -> None:
    """Raise UserError on a setting that all arms share: earlier trials had another value."""
    lists = [set(one.arm.overrides) for one in arms]
    differing = {text for one in lists for text in one if not all(text in own for own in lists)}
    known = {"model", SEED, *map(key_of, differing)}
    for override in parsed:
        line = override.input_line or ""
        if key_of(line) not in known:
            raise UserError(
                f"{line}: a tuned sweep gets more trials, seeds or models, as in tune.trials=16, "
                "train.seed=4,5 or model=e42; drop it, or start a new sweep: "
                f"{earlier.first_command}"
            )


def _seed(text: str) -> int:
    value = text.partition("=")[2]
    if not value.isdigit():
        raise UserError(f"{text}: expected a whole number, as in train.seed=4")
    return int(value)


def _with_trials(request: SweepRequest, earlier: EarlierSweep, tuned: Tuned) -> Tuned:
    """Return the sweep with as many trials as the command asks for."""
    for text in request.tune_texts:
        if key_of(text) not in (_TRIALS, "tune"):
            raise UserError(
                f"{text}: every trial of a sweep has the same settings; drop it, or start a new "
                f"sweep: {earlier.first_command}"
            )
    if not any(key_of(text) == _TRIALS for text in request.tune_texts):
        return tuned
    assert request.settings.tune is not None
    if tuned.config.ladder is not None:
        raise UserError(
            f"{_TRIALS}: a ladder's lines are drawn through its trials, so it takes no more of "
            f"them; drop it, or start a new sweep: {earlier.first_command}"
        )
    trials, before = request.settings.tune.trials, tuned.config.trials
    if trials <= before:
        raise UserError(
            f"{_TRIALS}={trials}: the sweep has {before} trials of each arm; type more, as in "
            f"{_TRIALS}={2 * before}"
        )
    return replace(tuned, config=tuned.config.model_copy(update={"trials": trials}))


def _with_seeds(own: ArmJobs, seeds: Sequence[int]) -> ArmJobs:
    merged_seeds = tuple(dict.fromkeys([*own.arm.seeds, *seeds]))
    return replace(own, arm=replace(own.arm, seeds=merged_seeds))


def _new_arms(
    request: SweepRequest, arms: Sequence[ArmJobs], chosen: Sequence[tuple[str, ...]], tuned: Tuned
) -> list[ArmJobs]:
    """Return the arms that a command adds: those of the sweep with other settings."""
    overrides = [one.arm.overrides for one in arms]
    if tuned.config.ladder is not None:
        overrides = [without_budget(texts) for texts in overrides]
    lists = dict.fromkeys(merged(own, texts) for texts in chosen for own in overrides)
    there = set(overrides)
    seed = f"{SEED}={arms[0].arm.seeds[0]}"
    new = [texts for texts in lists if texts not in there]
    jobs = [
        request.composer.job(number, len(new), (*texts, seed))
        for number, texts in enumerate(new, 1)
    ]
    if not jobs:
        return []
    before = [
        SweepJob(0, 0, (*texts, seed), (), one.whole)
        for texts, one in zip(overrides, arms, strict=True)
    ]
    made = arms_of([*before, *jobs], tuned.config, request.composer)
    seeds = arms[0].arm.seeds
    return [_with_seeds(one, seeds) for one in made[len(before) :]]
