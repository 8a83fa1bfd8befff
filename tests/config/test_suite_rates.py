"""What a suite says of its learning rates is what its runs are composed with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elman.config.compose import compose_config
from elman.config.suite_rates import short, tuning_of
from elman.config.suites import load_suite, suite_names

OWN = """\
# @package _global_
benchmark:
  title: mine
  source: my notebook
  description: mine
  runs:
    - [model=e97]
    - [model=e88_tiny]
    - [model=e1, {override}]
{more}
"""


def own(folder: Path, override: str, more: str = "") -> str:
    """Write a suite of one's own and return what it says of its rates."""
    (folder / "benchmark").mkdir()
    text = OWN.format(override=override, more=more)
    (folder / "benchmark" / "mine.yaml").write_text(text)
    places = (("file", str(folder)), ("pkg", "elman.conf"))
    return tuning_of(load_suite("mine", places), places)


@pytest.mark.parametrize("name", suite_names())
def test_the_line_has_the_rate_of_a_composed_run(name: str) -> None:
    suite = load_suite(name)
    if any(text.startswith("tune=") for text in suite.shared):
        assert re.search("at (its|their) own best rate", tuning_of(suite))
        return
    last = compose_config([f"benchmark={name}", *suite.runs[-1]])
    assert f" {short(last.optim.lr)}" in tuning_of(suite)
    assert tuning_of(suite).endswith("see tune=rates")


def test_a_suite_of_one_rate_says_it_once() -> None:
    line = "every model at the published rate 3e-4, tuned for none: see tune=rates"
    assert tuning_of(load_suite("peers_100m")) == line


def test_a_suite_with_a_rate_for_each_task_says_which() -> None:
    line = "published rates, tuned for none: 1e-3 (data=parity); 3e-3 (data=s3): see tune=rates"
    assert tuning_of(load_suite("expressivity_quick")) == line


def test_recipes_of_models_and_rates_of_runs_are_named(tmp_path: Path) -> None:
    assert own(tmp_path, "optim.lr=6e-4") == (
        "published rates, tuned for none: 3e-4 (e97); 4e-3 (e88_tiny); 6e-4 (e1): see tune=rates"
    )


def test_a_suite_that_tunes_says_so(tmp_path: Path) -> None:
    line = own(tmp_path, "train.seed=1", "defaults:\n  - override /tune: rates")
    assert line == "tune=rates: every model at its own best rate"
