"""The commands that a summary offers can be pasted, whatever the folder is called."""

from __future__ import annotations

import shlex

import pytest

from elman.base.quoting import pasteable, unquoted


@pytest.mark.parametrize(
    "folder",
    [
        "outputs/2026-01-31/12-00_e88_tiny",
        "my runs/it's one",
        "a=b,c",
        "[x]{y}",
        "über/é",
        "q'$HOME",
    ],
)
def test_a_pasted_setting_means_the_folder(folder: str) -> None:
    (argument,) = shlex.split(pasteable("train.resume", folder))
    key, _, _ = argument.partition("=")
    assert key == "train.resume"
    assert unquoted(argument) == folder


def test_a_plain_folder_stays_plain() -> None:
    assert pasteable("train.resume", "outputs/a-b_1.2") == "train.resume=outputs/a-b_1.2"
