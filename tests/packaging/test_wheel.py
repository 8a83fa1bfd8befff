"""The wheel: installed alone into a fresh environment, it has its files and its Hydra plugins."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` folder of an environment with the wheel and its dependencies."""
    place = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    isolation = ["--no-build-isolation"] if find_spec("setuptools") else []
    build = ["wheel", "--no-deps", *isolation, "--wheel-dir", str(place), str(_copy(place))]
    subprocess.run([*pip, *build], check=True)
    environment = place / "env"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    # The dependencies of this environment, but not an editable elman: a .pth file that is found
    # through another one is not read.
    (purelib,) = (environment / "lib").glob("python*/site-packages")
    (purelib / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (wheel,) = place.glob("elman-*.whl")
    target = ["--python", str(python), "install", "--no-deps", "--ignore-installed", str(wheel)]
    subprocess.run([*pip, *target], check=True)
    return environment / "bin"


def _copy(place: Path) -> Path:
    """Copy what the wheel is made of: a build writes into its source folder."""
    import shutil

    source = place / "source"
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "outputs", ".*", "build", "dist")
    source.mkdir()
    for name in ("src", "conf", "csrc"):
        shutil.copytree(ROOT / name, source / name, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command of the environment and return what it prints."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import elman; print(elman.__path__[0])"
    package = Path(run(installed / "python", "-c", code, cwd=tmp_path).strip())
    assert package.is_relative_to(installed.parent)
    homes = {"conf": package / "conf", "csrc": package / "csrc", "src": package.parent}
    for source, home in homes.items():
        wanted = {path.relative_to(ROOT / source) for path in _files(ROOT / source)}
        missing = {path for path in wanted if not (home / path).is_file()}
        assert wanted
        assert not missing


def _files(folder: Path) -> list[Path]:
    built = ("_cache", "__pycache__", ".egg-info")
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        path
        for path in files
        if not any(part.endswith(built) for part in path.parts[len(folder.parts) :])
    ]


def test_the_command_works_from_any_folder(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "elman", "--version", cwd=tmp_path).startswith("elman ")
    assert "cell: e1" in run(installed / "elman", "--cfg", "job", "model=e1", cwd=tmp_path)
    assert str(installed.parent) in run(installed / "elman", "--help", cwd=tmp_path)


def test_hydra_finds_the_plugins_by_itself(installed: Path, tmp_path: Path) -> None:
    plugins = run(installed / "elman", "--info", "plugins", cwd=tmp_path).split()
    assert plugins.count("ElmanSweeper") == 1
    code = (
        "from hydra.core.plugins import Plugins\n"
        "print(*sorted(Plugins.instance().class_name_to_class))"
    )
    found = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert "hydra_plugins.elman_sweeper.ElmanSweeper" in found
    assert "hydra_plugins.elman_launcher.LocalLauncher" in found


@pytest.mark.required
def test_it_trains_from_any_folder(installed: Path, tmp_path: Path) -> None:
    tiny = ["train.steps=2", "train.batch_size=2", "train.chunk_size=8", "data.val_sample=64"]
    run(installed / "elman", *tiny, cwd=tmp_path)
    assert len(list(tmp_path.glob("outputs/*/*/result.json"))) == 1
