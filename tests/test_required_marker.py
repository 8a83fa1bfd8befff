"""The rules for all tests: CI skips no required test, and no test leaves a handler of SIGINT."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SKIPPED = """
import pytest

@pytest.mark.required
def test_required():
    pytest.skip("not here")

@pytest.mark.slow
def test_any_other():
    pytest.skip("not here")
"""
NEEDS_COMPILER = """
import pytest
from elman.base.errors import UserError
from elman.kernels.compiler import compiler_problem

def test_it():
    raise UserError(f"kernels.backend=cpu: {compiler_problem()}")

def test_another():
    assert 1 == 2

@pytest.mark.compiler
def test_marked():
    assert 1 == 2
"""
LEAVES_A_HANDLER = """
import signal

def test_that_leaves_a_handler():
    signal.signal(signal.SIGINT, lambda number, frame: None)

def test_after_it():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


@pytest.mark.parametrize("ci", ["true", ""], ids=["in CI", "elsewhere"])
def test_what_is_skipped_elsewhere_fails_in_ci(tmp_path: Path, ci: str) -> None:
    """A skip of a required test, and a test that needs a compiler where there is none.

    A test that leaves a handler of SIGINT fails everywhere.
    """
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    (tmp_path / "test_kernel.py").write_text(NEEDS_COMPILER)
    (tmp_path / "test_signals.py").write_text(LEAVES_A_HANDLER)
    bare = {"CI": ci, "PATH": str(tmp_path), "CXX": "", "ELMAN_CACHE": str(tmp_path / "cache")}
    markers = ["-o", "markers=required\nslow\ncompiler"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rsfE", *markers, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "tests of kernels for a CPU cannot run: no C++ compiler" in done.stdout
    said = done.stdout.splitlines()
    failed = {line.split("::")[1].split()[0] for line in said if line.startswith("FAILED ")}
    in_ci = {"test_required", "test_it", "test_another", "test_marked"}
    assert failed == (in_ci if ci else {"test_another"}), done.stdout
    assert (
        "4 failed, 2 passed, 1 skipped" if ci else "1 failed, 2 passed, 4 skipped"
    ) in done.stdout
    assert ("test_required is required and was skipped" in done.stdout) == bool(ci)
    errors = [line.split(" - ")[0] for line in said if line.startswith("ERROR ")]
    assert errors == ["ERROR test_signals.py::test_that_leaves_a_handler"], done.stdout
    if not ci:
        assert re.search(r"SKIPPED .* no C\+\+ compiler .*install", done.stdout)
