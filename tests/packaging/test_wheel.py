"""The wheel carries its configuration and sources, and works where the repository is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, so that the build leaves nothing behind."""
    work = tmp_path_factory.mktemp("wheel")
    tracked = ("pyproject.toml", "README.md", "LICENSE", "src", "conf", "csrc")
    for name in tracked:
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("*.egg-info", "__pycache__")
            shutil.copytree(source, work / "tree" / name, ignore=ignore)
        else:
            (work / "tree").mkdir(exist_ok=True)
            shutil.copy(source, work / "tree" / name)
    command = ["pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", *command, "--wheel-dir", str(work), str(work / "tree")], check=True
    )
    return next(work.glob("elman-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the wheel into a folder; return the environment in which Python finds it first."""
    target = tmp_path_factory.mktemp("site")
    command = ["pip", "install", "--no-deps", "--quiet", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, "-m", *command], check=True)
    return os.environ | {"PYTHONPATH": str(target), "XDG_CACHE_HOME": str(target / "cache")}


def test_wheel_holds_every_yaml_and_the_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert f"elman/conf/{path.relative_to(ROOT / 'conf')}" in names
    for path in (ROOT / "csrc").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert f"elman/csrc/{path.relative_to(ROOT / 'csrc')}" in names
    for path in (ROOT / "src").rglob("*.py"):
        assert str(path.relative_to(ROOT / "src")) in names
    assert {"elman/py.typed"} <= names


@pytest.mark.required
def test_installed_wheel_trains_from_any_folder(installed: dict[str, str], tmp_path: Path) -> None:
    where = "import elman, elman.conf; print(elman.__file__, elman.conf.__file__)"
    located = subprocess.run(
        [sys.executable, "-c", where],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert located.count(installed["PYTHONPATH"]) == 2
    tiny = ["train.steps=2", "train.batch_size=2", "train.chunk_size=8", "data.val_sample=64"]
    done = subprocess.run(
        [sys.executable, "-m", "elman", *tiny],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "building the default data" in done.stderr
    assert len(list(tmp_path.glob("outputs/*/*/result.json"))) == 1


def test_console_script_is_declared(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "elman = elman.cli:main" in archive.read(entry).decode()
