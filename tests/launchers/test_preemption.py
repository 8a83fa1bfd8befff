"""The signal on which submitit has a job queued again is its own, among all that save a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from elman.launchers.command import JobCommand


@pytest.mark.parametrize(
    ("chosen", "sent", "queued_again"),
    [
        (None, signal.SIGUSR2, True),
        (None, signal.SIGUSR1, False),
        ("USR1", signal.SIGUSR1, True),
        ("USR1", signal.SIGUSR2, False),
    ],
)
def test_only_submitits_own_signal_has_a_job_queued_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chosen: str | None,
    sent: signal.Signals,
    queued_again: bool,
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SUBMITIT_PREEMPT_SIGNAL", raising=False)
    if chosen:
        monkeypatch.setenv("SUBMITIT_PREEMPT_SIGNAL", chosen)

    def run(arguments: Sequence[str], before_run: Callable[[], None]) -> int:
        try:
            os.kill(os.getpid(), sent)
            raise AssertionError("it was not heard")
        except KeyboardInterrupt:
            return 130

    requeued: list[int] = []
    own = signal.SIGUSR1 if chosen else signal.SIGUSR2
    before = signal.signal(own, lambda number, frame: requeued.append(number))
    try:
        assert JobCommand((), str(tmp_path / "run"), resumable=True, start=run)() == 130
    finally:
        signal.signal(own, before)
    assert requeued == ([own] if queued_again else [])
