"""The Makefile's own environment: half made, without its Python, or never whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.required
# As Debian's Python without python3-venv: it makes half an environment, and cannot add pip.
WITHOUT_VENV = """\
#!/bin/sh
case "$*" in
*"-m venv"*)
  for last; do :; done
  mkdir -p "$last/bin" && : > "$last/pyvenv.cfg" && cp "$0" "$last/bin/python"
  echo "ensurepip is not available" >&2
  exit 1;;
*"import pip"*) exit 1;;
*"-m "*) echo "No module named $2" >&2; exit 1;;
esac
"""
MENDS = "on Debian and Ubuntu: sudo apt-get install python3-venv"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with the Makefile and what it installs from, and no environment."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    return tmp_path


def make(project: Path, *words: str, python: str | Path = sys.executable) -> str:
    """Run make for the environment of a run; installing is asking pip for its version.

    Returns:
        The end of what it printed, with the exit status.
    """
    done = subprocess.run(
        [
            *("make", ".venv/.run-installed", f"PYTHON={python}", *words),
            "INSTALL=.venv/bin/python -m pip --version; :",
        ],
        cwd=project,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return f"{done.stdout}\nstatus {done.returncode}"


def test_an_environment_without_pip_gets_one(project: Path) -> None:
    venv.create(project / ".venv", symlinks=True)
    (project / ".venv" / ".run-installed").touch()
    said = make(project)
    assert f"from {(project / '.venv').resolve()}" in said
    assert said.endswith("status 0")
    assert "up to date" in make(project)


def test_an_environment_whose_python_has_gone_is_made_anew(project: Path) -> None:
    venv.create(project / ".venv", symlinks=True, with_pip=False)
    python = project / ".venv" / "bin" / "python"
    for link in python.parent.glob("python*"):
        link.unlink()
    python.symlink_to("/no/where/python3")
    (project / ".venv" / ".run-installed").touch()
    assert make(project).endswith("status 0")
    assert "up to date" in make(project)


def test_half_an_environment_is_named_with_what_to_install_and_not_kept(project: Path) -> None:
    debian = project / "debian-python"
    debian.write_text(WITHOUT_VENV)
    debian.chmod(0o755)
    for _ in range(2):
        said = make(project, python=debian)
        assert MENDS in said
        assert "No module named pip" not in said
        assert not said.endswith("status 0")
    shutil.rmtree(project / ".venv")
    assert make(project).endswith("status 0")


def test_without_a_python_one_line_says_which(project: Path) -> None:
    said = make(project, python="")
    assert "elman needs Python 3.11 to 3.13: none found" in said
    assert not said.endswith("status 0")
