"""What a sweep prints where there is no terminal, while its jobs run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from elman.launchers import display
from elman.launchers.display import Display
from elman.launchers.handle import JobHandle


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a clock that goes on when a test says so."""
    monkeypatch.delenv("ELMAN_PROGRESS", raising=False)
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def lines_of(folder: Path, clock: SimpleNamespace, minutes: int) -> list[str]:
    """Return what is printed of one running job, looked at every ten seconds."""
    file = io.StringIO()
    shown = Display(3, Console(file=file))
    command = SimpleNamespace(folder=str(folder))
    job = JobHandle(2, "02", "model=e1", command, running=True)  # type: ignore[arg-type]
    job.since = clock.seconds
    for _ in range(6 * minutes):
        clock.seconds += 10
        shown.show([job], [], 1)
    return file.getvalue().splitlines()


def test_a_running_job_says_how_far_it_is_ever_more_seldom(
    tmp_path: Path, clock: SimpleNamespace
) -> None:
    window = {"kind": "window", "step": 1200, "loss": 1.5, "tok_s": 120000.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(window) + "\n")
    said = lines_of(tmp_path, clock, 40)
    assert said[0] == "[2/3] step 1200, loss 1.5000, 120,000 tok/s after 1m00s"
    minutes = [int(line.split("after ")[1].split("m")[0]) for line in said]
    assert minutes == [1, 2, 4, 8, 16, 26, 36]


def test_a_job_without_a_window_says_so(tmp_path: Path, clock: SimpleNamespace) -> None:
    assert lines_of(tmp_path, clock, 1) == [
        "[2/3] still running after 1m00s",
    ]


def test_progress_that_is_off_stays_off(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMAN_PROGRESS", "off")
    assert lines_of(tmp_path, clock, 5) == []
