"""Settings that older runs lack: the same run has the same name and experiment without them."""

from __future__ import annotations

import copy

import pytest

from elman.config.compose import compose_config
from elman.config.newer_settings import NEWER, NewerSetting, with_newer, without_newer
from elman.config.run_config import flatten
from elman.config.validate import validate

TREE = flatten(compose_config(["model=e88_tiny", "optim=muon", "data.path=/book.txt"]))


def test_a_run_without_its_newer_settings_is_the_same_run() -> None:
    older = without_newer(TREE)
    assert "parallel" not in older
    assert not any(one.key in older[one.section] for one in NEWER)
    assert with_newer(older) == TREE


def test_an_old_configuration_is_read_as_what_it_did() -> None:
    assert flatten(validate(without_newer(TREE))) == TREE


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("train", "bytes", 1000),
        ("data", "val_path", "/held.txt"),
        ("parallel", "average_every", 4),
    ],
)
def test_a_newer_setting_that_is_used_stays(section: str, key: str, value: object) -> None:
    tree = copy.deepcopy(TREE)
    tree[section][key] = value
    assert without_newer(tree)[section][key] == value
    assert with_newer(without_newer(tree)) == tree


@pytest.mark.parametrize("one", NEWER, ids=lambda one: f"{one.section}.{one.key}")
def test_each_line_names_a_setting_and_the_date_and_commit_that_brought_it(
    one: NewerSetting,
) -> None:
    assert one.key in TREE[one.section]
    date, _, commit = one.since.partition(", ")
    assert len(date) == 10
    assert len(commit) == 7
