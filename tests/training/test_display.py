"""What a terminal shows of a run, at any width."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from elman.training.display import Display, Progress, live_line

MOMENT = Progress(123456, 0.5, 1.2345, 1.7810, 1.33e-03, 1234567.0, 3600.0 * 5, 12_340_000_000)
FIRST = Progress(1, 0.001, 5.0636, 7.3052, 1.33e-04, None, None, 380_000_000)
VALIDATING = "validating 12%, 26m10s left"


def drawn(progress: Progress | None, activity: str, width: int) -> list[str]:
    """Return the lines that a terminal of this width is left with."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(live_line(progress, activity, width))
    return capture.get().splitlines()


@pytest.mark.parametrize("activity", ["", "saving", VALIDATING])
@pytest.mark.parametrize("progress", [MOMENT, FIRST, None])
@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_the_live_line_is_one_line(progress: Progress | None, activity: str, width: int) -> None:
    lines = drawn(progress, activity, width)
    assert len(lines) <= 1
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize(
    ("width", "activity", "shown"),
    [
        (200, VALIDATING, "step loss bpb lr tok/s left mem validating"),
        (120, "", "step loss bpb lr tok/s left"),
        (80, "", "step loss bpb tok/s left"),
        (60, "", "step loss tok/s left"),
        (60, "saving", "step loss left saving"),
        (40, "", "step loss left"),
        (40, "saving", "step loss saving"),
        (40, VALIDATING, "step validating"),
    ],
)
def test_what_matters_least_goes_first(width: int, activity: str, shown: str) -> None:
    (line,) = drawn(MOMENT, activity, width)
    names = "step|loss|bpb|lr|tok/s|left|mem|saving|validating"
    before = line.removesuffix(VALIDATING)
    found = re.findall(rf"(?:^|[ ━])({names})(?= )", before + " ")
    assert found + ["validating"] * line.endswith(VALIDATING) == shown.split()


def test_a_log_line_has_every_field() -> None:
    assert MOMENT.line() == (
        "step 123456 | loss 1.2345 | bpb 1.7810 | lr 1.33e-03 | tok/s 1,234,567 | left 5h00m | "
        "mem 12.34 GB"
    )


def test_a_long_wait_is_said_sparsely_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("elman.training.display.time.monotonic", lambda: now)
    console = Console(file=io.StringIO(), width=80)
    display = Display(console)
    for second in range(60):
        now = 1000.0 + second
        display.waiting(f"validating {second}%")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        f"validating {second}%" for second in (15, 30, 45)
    ]


@pytest.mark.parametrize("long", [True, False])
def test_a_long_step_is_told_where_there_is_no_terminal(
    long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elman.training.display.WAIT_SECONDS", 0.01 if long else 3600.0)
    said, moments = io.StringIO(), iter(["", ", layer 2 of 9"])
    deadline = time.monotonic() + 180
    told = Display(Console(file=said))
    with told.long_step("first pass (not counted)", lambda: next(moments, ", more")):
        while long and said.getvalue().count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    first, second, third, *_ = said.getvalue().splitlines() if long else ["", "", ""]
    if long:
        assert re.fullmatch(r"first pass \(not counted\), \d+s", first)
        assert re.fullmatch(r"first pass \(not counted\), \d+s, layer 2 of 9", second)
        assert re.fullmatch(r"first pass \(not counted\), \d+s, more", third)
        assert said.getvalue().isprintable() or set("\n") >= {
            letter for letter in said.getvalue() if not letter.isprintable()
        }
    else:
        assert said.getvalue() == ""


def test_on_a_terminal_the_seconds_of_a_long_step_move(monkeypatch: pytest.MonkeyPatch) -> None:
    from elman.training import display

    monkeypatch.setattr(display, "PAUSE_SECONDS", 0.0)
    clock = iter(range(0, 10**9, 7))
    monkeypatch.setattr(display.time, "monotonic", lambda: float(next(clock)))
    seen: list[str] = []
    told = Display(Console(file=io.StringIO(), force_terminal=True))
    told.start()
    monkeypatch.setattr(told, "activity", seen.append)
    with told.long_step("first pass"):
        while len(seen) < 4:
            pass
    told.stop()
    assert seen[:4] == ["first pass", "first pass, 7s", "first pass, 14s", "first pass, 21s"]
