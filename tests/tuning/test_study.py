"""Which point is tried next, and the journal of what was tried."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from elman.base.errors import UserError
from elman.sections.tune import TuneConfig
from elman.tuning.space import Space, grid, widened
from elman.tuning.study import History, Journal, Proposal, check_sampler, proposal
from elman.tuning.trials import Arm, Trial

from .made import NAN, trial

LR = {"low": 1e-4, "high": 1e-2, "log": True}
ARM = Arm("e1", "e1", "e1", {"optim.lr": 3e-4})
OTHER = replace(ARM, label="e42", published={"optim.lr": 1e-3})


def config(**more: Any) -> TuneConfig:
    """Return settings that tune the rate."""
    return TuneConfig(**({"space": {"optim": {"lr": LR}}} | more))


def searched(
    settings: TuneConfig, arm: Arm, count: int, *, score: Any = lambda values: 2.0
) -> list[Trial]:
    """Return the trials that a search makes, with the scores of a function."""
    found: list[Trial] = []
    bounds = [Space.of(settings, arm).bounds]
    for number in range(1, count + 1):
        chosen = proposal(History(settings, arm, bounds, found), 0)
        if chosen is None:
            break
        found.append(trial(score(chosen.values), chosen.values, number, arm=arm.label))
    return found


def rates(trials: list[Trial]) -> list[Any]:
    return [one.values["optim.lr"] for one in trials]


@pytest.mark.parametrize("sampler", ["tpe", "quasi_random", "grid"])
def test_the_published_setting_comes_first_and_no_point_comes_twice(sampler: str) -> None:
    found = rates(searched(config(sampler=sampler, trials=12), ARM, 12))
    assert found[0] == 3e-4
    assert len(set(found)) == 12
    assert all(1e-4 <= rate <= 1e-2 for rate in found)


def test_every_arm_has_the_same_first_points_after_its_published_setting() -> None:
    one = rates(searched(config(), ARM, 4))
    two = rates(searched(config(), OTHER, 4, score=lambda values: NAN))
    assert one[1:] == two[1:]
    assert (one[0], two[0]) == (3e-4, 1e-3)


def test_the_seed_chooses_the_points() -> None:
    one, same, other = (rates(searched(config(seed=seed), ARM, 6)) for seed in (1, 1, 2))
    assert one == same
    assert one[1:] != other[1:]


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_sampler_goes_where_scores_are_good(sampler: str) -> None:
    import math

    def score(values: dict[str, Any]) -> float:
        return 2 + math.log10(values["optim.lr"] / 2e-3) ** 2

    found = searched(config(sampler=sampler, trials=12), ARM, 12, score=score)
    assert min(one.score for one in found if one.score is not None) < 2.01


def test_a_sampler_survives_trials_without_scores() -> None:
    assert len(searched(config(trials=8), ARM, 8, score=lambda values: NAN)) == 8


def test_a_setting_that_takes_whole_numbers_is_tried_in_whole_numbers() -> None:
    sizes = {"low": 8, "high": 64, "log": True}
    settings = config(space={"train": {"batch_size": sizes}}, trials=8)
    found = searched(settings, replace(ARM, published={"train.batch_size": 32}), 8)
    assert {type(one.values["train.batch_size"]) for one in found} == {int}
    decay = config(space={"optim": {"weight_decay": {"low": 0, "high": 1}}})
    floats = searched(decay, replace(ARM, published={"optim.weight_decay": 0.1}), 4)
    assert any(one.values["optim.weight_decay"] % 1 for one in floats[1:])


def test_a_finite_space_is_used_up() -> None:
    values = {"values": [0.1, 0.2, 0.3]}
    settings = config(space={"optim": {"weight_decay": values}})
    arm = replace(ARM, published={"optim.weight_decay": 0.1})
    found = searched(settings, arm, 8)
    assert sorted(one.values["optim.weight_decay"] for one in found) == [0.1, 0.2, 0.3]


def test_a_grid_has_all_lists_and_as_many_values_of_a_range_as_trials_allow() -> None:
    settings = config(
        space={"optim": {"lr": LR, "beta1": {"values": [0.9, 0.95]}}}, sampler="grid", trials=7
    )
    space = Space.of(settings, ARM)
    points = grid(space, space.bounds, 7)
    assert [one["optim.lr"] for one in points[::2]] == [1e-4, 1e-3, 1e-2]
    assert [one["optim.beta1"] for one in points] == [0.9, 0.95] * 3
    with pytest.raises(UserError, match=r"the grid has 4 points, more than tune.trials=3"):
        check_sampler(settings.model_copy(update={"trials": 3}), space)


def test_cma_es_needs_ranges_and_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(sampler="cma_es")
    with pytest.raises(UserError, match=r"searches two ranges or more"):
        check_sampler(settings, Space.of(settings, ARM))
    two = config(sampler="cma_es", space={"optim": {"lr": LR, "eps": {"low": 1e-9, "high": 1e-7}}})
    monkeypatch.setattr("elman.tuning.study.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install cmaes"):
        check_sampler(two, Space.of(two, ARM))


def test_a_range_grows_by_half_its_width_on_one_side() -> None:
    leaf = config().leaves["optim.lr"]
    assert widened(leaf, 1e-4, 1e-2, "high") == (1e-4, 0.1)
    assert widened(leaf, 1e-4, 1e-2, "low") == (1e-5, 1e-2)
    plain = config(space={"optim": {"beta1": {"low": 0.0, "high": 0.5}}}).leaves["optim.beta1"]
    assert widened(plain, 0.0, 0.5, "high") == (0.0, 0.75)
    assert widened(plain, 0.0, 0.5, "low") == (0.0, 0.5)


def test_trials_of_a_growth_are_in_the_new_part_of_the_range() -> None:
    before, after = {"optim.lr": (1e-4, 1e-2)}, {"optim.lr": (1e-4, 0.1)}
    earlier = searched(config(), ARM, 8)
    outermost = max(rates(earlier))
    chosen = []
    for number in (9, 10):
        found = proposal(History(config(), ARM, [before, after], earlier), 1)
        assert found is not None
        chosen.append(found.values["optim.lr"])
        earlier.append(replace(trial(2.0, found.values, number), growth=1))
    assert outermost < chosen[0] < chosen[1] < 0.1


def studies(folder: Path) -> dict[str, list[optuna.trial.FrozenTrial]]:
    """Return the trials of each study in a journal, as Optuna's own tools see them."""
    storage = JournalStorage(JournalFileBackend(str(folder / "tune.journal")))
    names = [one.study_name for one in optuna.get_all_study_summaries(storage)]
    return {
        name: optuna.load_study(study_name=name, storage=storage).get_trials() for name in names
    }


BOUNDS = {"optim.lr": (1e-4, 1e-2)}


def begun(folder: Path, trials: list[Trial]) -> Journal:
    journal = Journal(folder, config())
    journal.begin([ARM, OTHER], trials, BOUNDS)
    return journal


def one(number: int, score: float | str, rate: float = 1e-3) -> Trial:
    return trial(score, {"optim.lr": rate}, number)


def test_each_end_has_its_own_state_and_no_made_up_score(tmp_path: Path) -> None:
    begun(tmp_path, [one(1, 2.5, 3e-4), one(2, NAN), one(3, "oom", 2e-3), one(4, "running", 3e-3)])
    found = studies(tmp_path)["e1"]
    states = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING]
    assert [one.state for one in found] == states
    assert [one.value for one in found] == [2.5, None, None, None]
    assert [one.user_attrs.get("status") for one in found] == ["ok", "nan", "oom", None]
    assert found[1].params == {"optim.lr": 1e-3}


def test_a_study_is_made_once(tmp_path: Path) -> None:
    begun(tmp_path, [one(1, 2.5), one(2, 2.6, 2e-3)])
    begun(tmp_path, [one(1, 2.5), one(2, 2.6, 2e-3)])
    lines = [json.loads(line) for line in (tmp_path / "tune.journal").read_text().splitlines()]
    assert len(lines) < 16


def test_a_trial_that_ran_is_told_when_the_sweep_goes_on(tmp_path: Path) -> None:
    begun(tmp_path, [one(1, "running")])
    lines = (tmp_path / "tune.journal").read_text()
    begun(tmp_path, [one(1, 2.5)])
    assert (tmp_path / "tune.journal").read_text().startswith(lines)
    assert studies(tmp_path)["e1"][0].value == 2.5


def test_a_point_without_a_job_waits_for_one_with_the_same_values(tmp_path: Path) -> None:
    journal = begun(tmp_path, [one(1, 2.5)])
    assert journal.waiting(ARM, 1) is None
    journal.ask(ARM, Proposal({"optim.lr": 4e-3}), BOUNDS)
    again = begun(tmp_path, [one(1, 2.5)])
    waiting = again.waiting(ARM, 1)
    assert waiting is not None
    assert waiting.values == {"optim.lr": 4e-3}


@pytest.mark.parametrize("damage", ["cut off", "gone", "other end", "other point"])
def test_a_journal_that_contradicts_the_sweep_is_written_anew(tmp_path: Path, damage: str) -> None:
    begun(tmp_path, [one(1, "oom" if damage == "other end" else 2.5, 3e-4), one(2, NAN)])
    path = tmp_path / "tune.journal"
    if damage == "cut off":
        path.write_text(path.read_text()[:-20])
    if damage == "gone":
        path.unlink()
    rate = 5e-4 if damage == "other point" else 3e-4
    begun(tmp_path, [one(1, 2.5, rate), one(2, NAN)])
    found = studies(tmp_path)["e1"]
    assert [(one.value, one.params["optim.lr"]) for one in found] == [(2.5, rate), (None, 1e-3)]
    assert all(json.loads(line) for line in path.read_text().splitlines())
