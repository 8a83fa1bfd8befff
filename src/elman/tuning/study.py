"""Which point is tried next, and Optuna's journal of what was tried.

The next point depends on the space and on the trials of the arm alone. So a sweep that was killed
goes on as if it had not been. Optuna is imported where it is needed: it takes a second.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from elman.base import run_files
from elman.base.errors import UserError
from elman.sections.tune import Sampler, TuneConfig, Value
from elman.tuning.choice import best
from elman.tuning.space import Bounds, Space, Values, grid, quasi_random, strip
from elman.tuning.trials import Arm, Trial, numbers_of, same_values

if TYPE_CHECKING:
    import optuna

_MOST_SKIPPED = 512
"""So many points of the quasi-random sequence are looked at for one that is new."""


@dataclass(frozen=True)
class Proposal:
    """A point to try.

    Args:
        values: Its values.
        attrs: What the sampler wants to find again beside it.
    """

    values: Values
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """What is known when the next point of an arm is chosen.

    Args:
        config: Group ``tune``.
        arm: The arm.
        ranges: The bounds at first, and after each growth.
        trials: The arm's trials so far, those that run included.
        attrs: What the sampler has kept beside earlier points, by their number.
    """

    config: TuneConfig
    arm: Arm
    ranges: Sequence[Bounds]
    trials: Sequence[Trial]
    attrs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def space(self) -> Space:
        """The arm's space."""
        return Space.of(self.config, self.arm)

    def is_new(self, values: Mapping[str, Value]) -> bool:
        """Whether a point was not tried yet."""
        return not any(same_values(values, one.values) for one in self.trials)


def proposal(history: History, growth: int) -> Proposal | None:
    """Return the next point of an arm that was not tried yet; None if there is none left.

    Args:
        history: What is known.
        growth: For which growth of the range; 0 for the trials before any.
    """
    if not history.trials:
        return Proposal(dict(history.arm.published))
    if growth:
        return _new(_beyond(history, growth), history) or _filling(history, len(history.trials))
    before = sum(one.growth == 0 for one in history.trials)
    config = history.config
    if config.sampler == "grid":
        points = grid(history.space, history.ranges[0], config.trials)
        return _new(points, history)
    if config.sampler == "quasi_random" or before < config.quasi_random:
        return _filling(history, before - 1)
    chosen = _sampled(history, config.sampler)
    found = chosen if history.is_new(chosen.values) else None
    return found or _filling(history, max(before, config.quasi_random) - 1)


def _new(points: Sequence[Values], history: History) -> Proposal | None:
    return next((Proposal(values) for values in points if history.is_new(values)), None)


def _filling(history: History, index: int) -> Proposal | None:
    """Return the first new point of the quasi-random sequence, from one of its points on."""
    config, space = history.config, history.space
    points = (
        quasi_random(space, history.ranges[0], config.seed, n)
        for n in range(index, index + _MOST_SKIPPED)
    )
    return next((Proposal(values) for values in points if history.is_new(values)), None)


def _beyond(history: History, growth: int) -> list[Values]:
    """Return the points of a growth: the new part of each range, at the arm's best otherwise."""
    before, after = history.ranges[growth - 1], history.ranges[growth]
    earlier = [one for one in history.trials if one.growth < growth]
    first = best(earlier, history.config.goal)
    base = dict(first.values if first is not None else history.arm.published)
    lists = [
        [
            base | {key: value}
            for value in strip(
                history.space, key, _outermost(earlier, key, side, old), new, count, after
            )
        ]
        for key, ends in after.items()
        for side, old, new in zip(("low", "high"), before[key], ends, strict=True)
        if old != new
        for count in [history.config.grow_trials]
    ]
    # One of each range in turn, so that two ranges that grow share the trials.
    return [values for group in zip(*lists, strict=True) for values in group]


def _outermost(trials: Sequence[Trial], key: str, side: str, bound: float) -> float:
    """Return the outermost value of an arm's trials that is inside the earlier range."""
    values = [value for value, one in numbers_of(trials, key) if one.scored or one.diverged]
    if not values:
        return bound
    return values[0] if side == "low" else values[-1]


def _sampled(history: History, sampler: Sampler) -> Proposal:
    """Return the point that a sampler chooses after the trials so far."""
    import optuna

    space, bounds = history.space, history.ranges[-1]
    spaces = distributions(space, bounds)
    with quiet():
        study = optuna.create_study(
            direction=history.config.goal,
            sampler=_sampler(sampler, history.config.seed, len(history.trials), space),
        )
        for trial in history.trials:
            study.add_trial(_frozen(trial, spaces, history.attrs.get(trial.number or 0)))
        asked = study.ask(spaces)
        attrs = study.get_trials(deepcopy=False)[asked.number].system_attrs
    values = {
        key: value if space.choices(key) is not None else space.snapped(key, value, bounds)
        for key, value in asked.params.items()
    }
    return Proposal({key: values[key] for key in space.keys}, dict(attrs))


def _sampler(name: Sampler, seed: int, number: int, space: Space) -> optuna.samplers.BaseSampler:
    import optuna

    own = zlib.crc32(f"{seed} {number}".encode())
    if name == "gp":
        return optuna.samplers.GPSampler(
            seed=own, n_startup_trials=1, deterministic_objective=False
        )
    if name == "cma_es":
        return optuna.samplers.CmaEsSampler(
            seed=own, n_startup_trials=1, warn_independent_sampling=False
        )
    return optuna.samplers.TPESampler(
        seed=own,
        n_startup_trials=1,
        constant_liar=True,  # trials that run now count as bad, so no two ask for one point
        multivariate=len(space.keys) > 1,
    )


def check_sampler(config: TuneConfig, space: Space) -> None:
    """Raise UserError if the sampler cannot search a space, or is not installed."""
    name = f"tune.sampler={config.sampler}"
    if config.sampler == "cma_es":
        if not space.is_continuous or len(space.keys) < 2:
            raise UserError(
                f"{name}: searches two ranges or more, without steps and lists; type "
                "tune.sampler=tpe"
            )
        if find_spec("cmaes") is None:
            raise UserError(f"{name}: needs the package cmaes; type pip install cmaes")
    if config.sampler == "grid":
        points = len(grid(space, space.bounds, config.trials))
        if points > config.trials:
            raise UserError(
                f"{name}: the grid has {points} points, more than tune.trials={config.trials}; "
                f"type tune.trials={points + 1}, or tune.sampler=tpe"
            )


class Journal:
    """Optuna's journal in a sweep's folder: one study for each arm, with all its trials.

    It repeats what ``sweep.json`` and the results say, for Optuna's own tools, and is written anew
    if it does not. Only a point that was asked for and has no job yet stands there alone: it
    becomes a job with the same values.

    Args:
        folder: The sweep's folder, which this process has locked.
        config: Group ``tune``.
    """

    def __init__(self, folder: Path, config: TuneConfig) -> None:
        self._path, self._config = folder / run_files.TUNE_JOURNAL, config
        self._open()

    def _open(self) -> None:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        with quiet():
            backend = JournalFileBackend(str(self._path), lock_obj=_Locked())  # type: ignore[arg-type]
            self._storage = JournalStorage(backend)
        self._studies: dict[str, optuna.Study] = {}

    def begin(self, arms: Sequence[Arm], trials: Sequence[Trial], bounds: Bounds) -> None:
        """Bring the journal to what the sweep has recorded.

        Args:
            arms: The arms.
            trials: The sweep's trials.
            bounds: The bounds of the ranges now.
        """
        if not self._agrees(arms, trials):
            self._path.unlink(missing_ok=True)
            self._open()
        for arm in arms:
            own = sorted((one for one in trials if one.arm == arm.label), key=_number)
            there = len(self._trials(arm))
            for trial in own:
                if _number(trial) > there:
                    self.ask(arm, Proposal(dict(trial.values)), bounds)
                self.tell(arm, trial)

    def waiting(self, arm: Arm, known: int) -> Proposal | None:
        """Return a point that was asked for and has no job yet.

        Args:
            arm: The arm.
            known: How many trials of it have a job.
        """
        there = self._trials(arm)
        if len(there) <= known:
            return None
        values = Space.of(self._config, arm).typed(there[known].params)
        return Proposal(values, there[known].system_attrs)

    def ask(self, arm: Arm, chosen: Proposal, bounds: Bounds) -> None:
        """Note that a point is tried; one beyond the bounds, as a ladder's may be, widens them."""
        from optuna.trial import TrialState, create_trial

        values = {key: float(one) for key in bounds if _is_number(one := chosen.values[key])}
        wide = {
            key: (min(low, values.get(key, low)), max(high, values.get(key, high)))
            for key, (low, high) in bounds.items()
        }
        spaces = distributions(Space.of(self._config, arm), wide)
        with quiet():
            self._study(arm).add_trial(
                create_trial(
                    params=dict(chosen.values),
                    distributions=spaces,
                    state=TrialState.RUNNING,
                    system_attrs=dict(chosen.attrs),
                )
            )

    def tell(self, arm: Arm, trial: Trial) -> None:
        """Note how a trial ended; nothing if it has not ended, or that is noted."""
        there = self._trials(arm)[_number(trial) - 1]
        if not trial.ended or there.state.is_finished():
            return
        with quiet():
            for key, value in (("status", trial.status), ("job", trial.job)):
                self._storage.set_trial_user_attr(there._trial_id, key, value)
            self._study(arm).tell(there.number, trial.score, state=_state(trial))

    def attrs(self, arm: Arm) -> dict[int, Mapping[str, Any]]:
        """Return what the sampler has kept beside the points of an arm, by their number."""
        return {one.number + 1: one.system_attrs for one in self._trials(arm)}

    def _agrees(self, arms: Sequence[Arm], trials: Sequence[Trial]) -> bool:
        """Whether the journal can be read and contradicts nothing that the sweep has recorded."""
        try:
            for arm in arms:
                there = self._trials(arm)
                for trial in (one for one in trials if one.arm == arm.label):
                    if _number(trial) > len(there):
                        continue
                    noted = there[_number(trial) - 1]
                    ended = noted.state.is_finished() and noted.state != _state(trial)
                    if ended or not same_values(noted.params, trial.values):
                        return False
        except Exception:  # cut off, or not a journal
            return False
        return True

    def _study(self, arm: Arm) -> optuna.Study:
        import optuna

        if arm.label not in self._studies:
            with quiet():
                self._studies[arm.label] = optuna.create_study(
                    study_name=arm.label,
                    storage=self._storage,
                    direction=self._config.goal,
                    load_if_exists=True,
                )
        return self._studies[arm.label]

    def _trials(self, arm: Arm) -> list[optuna.trial.FrozenTrial]:
        with quiet():
            return self._study(arm).get_trials(deepcopy=False)


class _Locked:
    """Stands for a lock: the sweep's own lock lets one process write."""

    def acquire(self) -> bool:
        """Do nothing."""
        return True

    def release(self) -> None:
        """Do nothing."""


def _is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(trial: Trial) -> int:
    assert trial.number is not None
    return trial.number


def _state(trial: Trial) -> optuna.trial.TrialState:
    """Return Optuna's word for how a trial ended: pruned if it diverged, never a made-up score."""
    from optuna.trial import TrialState

    if not trial.ended:
        return TrialState.RUNNING
    if trial.scored:
        return TrialState.COMPLETE
    return TrialState.PRUNED if trial.diverged else TrialState.FAIL


def _frozen(
    trial: Trial,
    spaces: dict[str, Any],
    attrs: Mapping[str, Any] | None,
) -> optuna.trial.FrozenTrial:
    from optuna.trial import create_trial

    return create_trial(
        params=dict(trial.values),
        distributions=spaces,
        state=_state(trial),
        value=trial.score if trial.scored else None,
        system_attrs=dict(attrs or {}),
    )


def distributions(space: Space, bounds: Bounds) -> dict[str, Any]:
    """Return Optuna's distribution of each key of a space."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    found: dict[str, Any] = {}
    for key in space.keys:
        if (values := space.choices(key)) is not None:
            found[key] = CategoricalDistribution(values)
        else:
            found[key] = FloatDistribution(*bounds[key], log=space.leaves[key].log)
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna's remarks on its experimental parts off the terminal."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)
