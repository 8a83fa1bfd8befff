"""Progress: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from elman.base import live_line
from elman.base.consoles import LiveArea
from elman.base.live_line import PROGRESS_VARIABLE, LiveLine, ProgressBar


def test_without_a_terminal_progress_is_lines_that_say_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.delenv(PROGRESS_VARIABLE, raising=False)
    monkeypatch.setattr(live_line.time, "monotonic", lambda: now)
    with ProgressBar("scoring", Console(file=io.StringIO()), quiet=15.0) as bar:
        bar.show(1, 4)
        now = 130.0
        bar.show(2, 4)
        bar.show(3, 4)
        bar.begin("timing")
        now = 160.0
        bar.show(0, 2)
        bar.show(2, 2)
    assert capsys.readouterr().err.splitlines() == [
        "scoring: 2 of 4, about 30s left ...",
        "timing ...",
        "timing: 0 of 2 ...",
    ]


@pytest.mark.parametrize("silenced", [False, True])
def test_the_environment_silences_progress_of_a_slow_machine(
    silenced: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setenv(PROGRESS_VARIABLE, "off" if silenced else "on")
    monkeypatch.setattr(live_line.time, "monotonic", lambda: now)
    with LiveLine() as line, ProgressBar("scoring", Console(file=io.StringIO())) as bar:
        now = 200.0
        line.show("checking the jobs: 7 of 8")
        bar.show(1, 2)
    said = capsys.readouterr().err
    assert ("7 of 8" in said, "scoring" in said) == (not silenced, not silenced)


def test_a_terminal_shows_a_bar_and_is_clean_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(PROGRESS_VARIABLE, raising=False)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    with ProgressBar("scoring", terminal) as bar:
        bar.show(3, 4)
        bar._bar.refresh()
    assert "3/4" in terminal.file.getvalue()  # type: ignore[attr-defined]
    assert capsys.readouterr().err == ""


def test_an_area_is_drawn_on_a_terminal_alone() -> None:
    for forced, shown in ((True, True), (False, False)):
        console = Console(file=io.StringIO(), force_terminal=forced, width=40)
        area = LiveArea(console)
        area.start()
        assert (area.shown, area.width) == (shown, 40 if shown else 0)
        area.draw("now")
        area.stop()
        assert ("now" in console.file.getvalue(), area.shown) == (shown, False)  # type: ignore[attr-defined]
