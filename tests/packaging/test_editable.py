"""An editable install is found from every folder, also from the one that holds the clone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BUILD = "import setuptools.build_meta as b, sys; print(b.build_editable(sys.argv[1]))"
_IMPORT = (
    "import site, sys; site.addsitedir(sys.argv[1]); import elman, elman.conf, elman.csrc; "
    "print(elman.__file__)"
)


@pytest.mark.parametrize("name", ["elman", "clone"])
def test_a_clone_named_elman_does_not_hide_the_package(name: str, tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    clone = tmp_path / name
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "conf", "csrc"):
        shutil.copytree(ROOT / folder, clone / folder, symlinks=True, ignore=skipped)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, clone)
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    build = [sys.executable, "-c", _BUILD, str(wheels)]
    subprocess.run(build, cwd=clone, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    zipfile.ZipFile(wheel).extractall(site)
    # Without the packages of this environment, whose elman would be found as well.
    command = [sys.executable, "-S", "-c", _IMPORT, str(site)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.strip() == str(clone / "src" / "elman" / "__init__.py"), found.stderr
