"""Group ``tune``: what it holds, and which spaces are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from elman.base.errors import UserError
from elman.config.compose import compose_tree
from elman.config.validate import validate_sweep
from elman.sections.launching import SweepSettings
from elman.sections.tune import TuneConfig

GPUS = {"name": "gpus"}
LR = "tune.space.optim.lr"


def settings(*overrides: str) -> SweepSettings:
    """Return the settings of a sweep that a command composes."""
    tree = compose_tree(["tune=rates", *overrides])
    tune = OmegaConf.to_container(tree.tune, resolve=True)
    return validate_sweep(GPUS, {}, frozenset(), tune)


def test_nothing_is_tuned_unless_it_is_chosen() -> None:
    assert "tune" not in compose_tree([])
    assert "tune" not in compose_tree(["tune=rates", "~tune"])


@pytest.mark.parametrize("choice", sorted(path.stem for path in Path("conf/tune").glob("*.yaml")))
def test_every_choice_is_a_whole_section_and_makes_the_command_a_sweep(choice: str) -> None:
    tree = compose_tree([f"tune={choice}"])
    assert set(tree.tune) == set(TuneConfig.model_fields)
    assert str(tree.hydra.mode) == "RunMode.MULTIRUN"


def test_the_leaves_have_dotted_keys() -> None:
    tuned = settings("tune=rates_and_decay").tune
    assert tuned is not None
    assert set(tuned.leaves) == {"optim.lr", "optim.weight_decay"}
    assert tuned.leaves["optim.lr"].bounds == (1e-4, 1e-2)


def test_a_recorded_section_is_read_back() -> None:
    tuned = settings().tune
    assert tuned is not None
    assert TuneConfig.model_validate(tuned.model_dump()) == tuned


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (f"{LR}.low=1e-2", "tune.space.optim.lr: low=0.01, high=0.01: a space with one point"),
        (f"{LR}.low=1", "low is above high; type tune.space.optim.lr.high=<a number above 1>"),
        (f"{LR}.low=0", "low=0 has no logarithm; type tune.space.optim.lr.low="),
        (f"{LR}.low=null", "needs low and high, or values"),
        (f"+{LR}.step=1e-3", "tune.space.optim.lr.step=0.001: read only with log=false"),
        (f"+{LR}.values=[1,2]", "tune.space.optim.lr: has a range and values; drop one"),
        ("+tune.space.optim.eps.values=[1]", "a space with one point; name at least two values"),
        ("+tune.space.optim.eps.values=[1,1]", "names a value twice"),
        ("+tune.space.optim.eps=0.9", "tune.space.optim.eps=0.9: expected a range or a list"),
        ("tune.space=null", "tune.space=null"),
        ("tune.trials=3", "fewer than tune.quasi_random=4"),
        ("tune.steps=3 tune.minutes=3", "tune.steps: not read together with tune.minutes"),
        ("tune.sampler=bayes", "tune.sampler=bayes: expected one of quasi_random, tpe"),
        ("tune.window=1", "tune.window=1: must be"),
        ("tune.trials=1", "tune.trials=1: must be at least 2"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(override: str, line: str) -> None:
    with pytest.raises(UserError) as error:
        settings(*override.split())
    assert line in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "bounds"),
    [([1, 2], None), ([1, 2, 4], (1.0, 4.0)), (["a", "b", "c"], None), ([True, False], None)],
)
def test_a_list_has_an_order_from_three_numbers_on(values: list[object], bounds: object) -> None:
    leaf = TuneConfig(space={"optim": {"eps": {"values": values}}}).leaves["optim.eps"]
    assert leaf.bounds == bounds
