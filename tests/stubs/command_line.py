"""The command line with a stub in place of every mode: in this process, and in a fresh one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from elman.cli.main import main
from tests.stubs.forked import run_to_end

STUBS = Path(__file__).with_name("stub_modes")


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    status: int
    output: str
    errors: str


@pytest.fixture
def elman(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Return ``elman(*arguments)``, run in this process with an empty folder as the current one."""
    spec = importlib.util.spec_from_file_location("stub_mode", STUBS / "stub_mode.py")
    assert spec is not None
    assert spec.loader is not None
    stub = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stub)
    for mode in ("train", "eval", "generate"):
        monkeypatch.setitem(sys.modules, f"elman.modes.{mode}", stub)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        status = main(arguments)
        return Ended(status, *capfd.readouterr())

    return run


@pytest.fixture
def stub_environment() -> dict[str, str]:
    """Return the environment of a fresh process that has the stub modes.

    A sweep's jobs are forks of its launcher; without STUB_FORKS they are fresh processes, too.
    """
    return os.environ | {"PYTHONPATH": str(STUBS), "COLUMNS": "160", "STUB_FORKS": "yes"}


@pytest.fixture
def elman_process(tmp_path: Path, stub_environment: dict[str, str]) -> Callable[..., Ended]:
    """Return ``elman_process(*arguments)``, run in an empty folder."""

    def run(*arguments: str) -> Ended:
        command = [sys.executable, "-m", "elman", *arguments]
        where = {"cwd": tmp_path, "env": stub_environment}
        return Ended(*run_to_end(command, stderr=subprocess.PIPE, **where))

    return run
