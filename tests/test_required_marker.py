"""The rule of continuous integration itself: a skip of a required test fails the run."""

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

@pytest.mark.{mark}
def test_it():
    pytest.skip("not here")
"""


@pytest.mark.parametrize(
    ("mark", "ci", "status"),
    [("required", "true", 1), ("required", "", 0), ("slow", "true", 0)],
    ids=["required in CI", "required elsewhere", "any other in CI"],
)
def test_a_skip_of_a_required_test_fails(tmp_path: Path, mark: str, ci: str, status: int) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_skipped.py").write_text(SKIPPED.format(mark=mark))
    markers = ["-o", "markers=required\nslow"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *markers, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout
    assert ("is required and was skipped" in done.stdout) == bool(status)


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


@pytest.mark.parametrize("ci", ["", "true"])
def test_without_a_compiler_its_tests_are_skipped_but_not_in_ci(tmp_path: Path, ci: str) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_kernel.py").write_text(NEEDS_COMPILER)
    bare = {"CI": ci, "PATH": str(tmp_path), "CXX": "", "ELMAN_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-o", "markers=required\ncompiler", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("1 failed, 2 skipped" if not ci else "3 failed") in done.stdout
    assert "tests of kernels for a CPU cannot run: no C++ compiler" in done.stdout
    if not ci:
        assert re.search(r"SKIPPED .* no C\+\+ compiler .*install", done.stdout)
