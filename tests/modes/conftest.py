"""What tests of several modes use: the command in this process, and a copy of a finished run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elman.cli.main import main
from tests.modes.forked import Commands
from tests.small_run import Elman, elman_said


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Return what starts commands as processes without the time of their imports."""
    made = Commands()
    yield made
    made.close()


@pytest.fixture
def elman(capfd: pytest.CaptureFixture[str]) -> Elman:
    """Return ``elman(*arguments)``: exit status and what it said."""
    return elman_said(capfd)


@pytest.fixture
def elman_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return ``elman_here(*arguments)``, in a folder of its own: exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        return (main(arguments), *capfd.readouterr())

    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the finished run of a file of tests, below the current folder."""
    shutil.copytree(finished, tmp_path / "run", symlinks=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"
