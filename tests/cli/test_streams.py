"""What a mode exists to give goes to standard output; progress and errors go to standard error."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from elman.cli.main import main
from elman.doctor.facts import Facts
from elman.doctor.findings import Finding, Mark
from elman.modes import doctor
from elman.training.display import Display, Progress

GIVEN = {
    "mode=models models.filter=e88_tiny": "e88_tiny",
    "mode=models model=e88_tiny": "model.n_heads",
    "mode=suites": "e75_100m",
    "mode=tasks": "modular_counter",
    "mode=solve model=e1 solve.params=100M": "train it: elman model=e1",
    "-m mode=solve model=e1,e42 solve.params=100M": "model=e42",
    "mode=parity model=e1 parity.quick=true kernels.backend=reference": "checks passed",
    "sweep.dry_run=true train.steps=3": "elman train.steps=3",
    "-m sweep.dry_run=true train.seed=1,2": "train.seed=2",
}


@pytest.mark.parametrize("command", GIVEN)
def test_results_are_on_standard_output(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    said = capsys.readouterr()
    assert GIVEN[command] in said.out
    assert GIVEN[command] not in said.err
    if "parity" not in command:
        assert said.err == ""


def test_the_diagnosis_is_on_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Finding("machine", "GPU", Mark.ABSENT, "none")]
    nothing = Facts({}, (), {}, ())

    def gather(show: Any) -> Iterator[Facts]:
        show(["torch"])
        yield nothing

    monkeypatch.setattr(doctor, "gather", gather)
    for judge in ("machine", "backends", "forms", "baselines", "combinations"):
        monkeypatch.setattr(doctor, judge, lambda facts: [])
    monkeypatch.setattr(doctor, "installed", lambda facts: found)
    assert main(["mode=doctor"]) == 0
    said = capsys.readouterr()
    assert "  GPU" in said.out
    assert "waiting" not in said.out


def test_a_run_says_its_losses_and_summary_on_standard_output(train: Any, capsys: Any) -> None:
    run = train()
    said = capsys.readouterr()
    assert re.search(r"^step +\\d+ \\| loss ", said.out, re.M)
    assert f"step {run.result['steps']:>6} | loss" in said.out
    assert "e1: ok" in said.out or ": ok\n" in said.out
    assert "everything about it: " in said.out
    assert "sample it" in said.out
    assert "step" not in said.err


def test_what_ends_a_run_is_on_standard_error(train: Any, capsys: Any) -> None:
    train("optim.lr=1e30", "optim.warmup_steps=0", "optim.schedule=constant")
    said = capsys.readouterr()
    assert "elman: nan: " in said.err
    assert "elman: nan: " not in said.out
    assert ": nan\n" in said.out  # the summary


@pytest.mark.parametrize("command", ["train.stpes=3", "mode=eval", "help"])
def test_errors_are_on_standard_error(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)


def moments(display: Display, clock: list[float], seconds: int) -> None:
    """Show a moment of a run in each second."""
    for second in range(1, seconds + 1):
        clock[0] += 1.0
        share = second / seconds
        display.update(Progress(second, share, 2.0, 2.9, 1e-3, 100.0, 1.0, 10**8))


@pytest.mark.parametrize(("terminal", "fewest", "most"), [(True, 18, 22), (False, 190, 210)])
def test_the_losses_stay_on_the_screen(
    terminal: bool, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("elman.training.display.time.monotonic", lambda: clock[0])
    console = Console(
        file=io.StringIO(), width=200, force_terminal=terminal, color_system=None, height=20
    )
    display = Display(console)
    display.start()
    moments(display, clock, 999)
    display.stop()
    assert isinstance(console.file, io.StringIO)
    left = re.sub(r"[^\n]*\r\x1b\[2K|\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    lines = [line for line in left.splitlines() if line.startswith("step ")]
    assert fewest <= len(lines) <= most
    assert lines[-1].startswith("step    999 | loss 2.0000")


_SHOWS = """
import sys
from elman.training.display import Display, Progress
display = Display()
display.start()
display.say("a line")
display.waiting("compiling", every=0)
display.update(Progress(7, 0.5, 2.0, 2.9, 1e-3, 100.0, 1.0, 10**8))
print("printed", flush=True)
display.error("elman: crash: an error")
display.stop()
"""


@pytest.mark.parametrize("to", ["file", "pipe"])
def test_a_terminal_for_errors_alone_gets_the_progress(to: str, tmp_path: Path) -> None:
    """``elman ... > log`` and ``elman ... | tee log``, typed in a terminal."""
    ours, theirs = pty.openpty()
    log = (tmp_path / "log").open("w+b")
    out = log if to == "file" else subprocess.PIPE
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-c", _SHOWS]
    with subprocess.Popen(command, stdout=out, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            seen += part
            if not part:
                break
        text = process.stdout.read() if process.stdout else b""
    os.close(ours)
    log.seek(0)
    text = text or log.read()
    log.close()
    lines = text.decode().splitlines()
    assert [line.split(" |")[0] for line in lines] == ["a line", "step      7", "printed"]
    assert b"elman: crash: an error" in seen
    assert b"compiling" in seen
    assert (b"\x1b[2K" in seen) == (to == "file")  # a live line would disturb what tee prints
