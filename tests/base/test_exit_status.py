"""Exit statuses: what they mean and which belong together."""

from __future__ import annotations

import pytest

from elman.base.exit_status import (
    MEANINGS,
    ExitStatus,
    RunStatus,
    interrupted_status,
    is_failure,
    is_interrupted,
    run_status,
    shell_status,
)


def test_every_status_has_a_meaning() -> None:
    assert list(MEANINGS) == list(ExitStatus)


@pytest.mark.parametrize("status", RunStatus)
def test_the_end_of_a_run_is_read_back_from_its_exit_status(status: RunStatus) -> None:
    code = status.exit_status
    assert [one for one in RunStatus if one.fits(code)].count(status) == 1
    # A refused run ends as a crash does; only its result tells them apart.
    assert run_status(code) == (RunStatus.CRASH if status is RunStatus.REFUSED else status)


def test_a_command_that_a_signal_ended_has_not_failed() -> None:
    assert is_interrupted(interrupted_status())
    assert not is_failure(interrupted_status())
    assert not is_failure(ExitStatus.OK)
    assert all(map(is_failure, (1, 2, 3, 4, 5, -9, 77, None)))


def test_of_an_unknown_status_only_a_crash_is_known() -> None:
    assert run_status(77) is RunStatus.CRASH
    assert run_status(ExitStatus.USER_ERROR) is RunStatus.REFUSED


def test_a_shell_adds_128_to_the_number_of_a_signal() -> None:
    assert (shell_status(3), shell_status(-15)) == (3, 143)
