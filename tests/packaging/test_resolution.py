"""Everything can be installed: for both builds of torch and every Python, with every extra.

Nothing is installed: uv resolves for an interpreter that need not be here, and pip itself does so
for the one that is. Both need a package index.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
USERS, DEVELOPERS = ROOT / "constraints.txt", ROOT / "constraints-dev.txt"
PINNED = [Requirement(line) for line in DEVELOPERS.read_text().splitlines() if "==" in line]
TORCH = next(str(one.specifier).removeprefix("==") for one in PINNED if one.name == "torch")
TIME_LIMIT = 300
# The first and the last one in every run.
PYTHONS = ["3.11", pytest.param("3.12", marks=pytest.mark.slow), "3.13"]
pytestmark = pytest.mark.required


@dataclass(frozen=True)
class Build:
    """A build of torch and what makes the resolver take it.

    Args:
        version: With the local part that a CPU build has.
        options: Of uv.
    """

    version: str
    options: tuple[str, ...] = ()


def uv(*options: str) -> str:
    """Run uv with the package index that pip uses here and return what it prints.

    Raises:
        AssertionError: it found nothing; the message says why.
    """
    pytest.importorskip("uv", reason="uv is not installed; make test installs it")
    index = os.environ.get("PIP_INDEX_URL")
    command = [
        *(sys.executable, "-m", "uv", "--no-config", "--quiet", "--no-python-downloads", *options),
        *(("--default-index", index) if index else ()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def resolve(python: str, build: Build, constraints: Path, *extras: str) -> dict[str, str]:
    """Return the version of every package that an installation on Linux would have."""
    said = uv(
        *("pip", "compile", "--no-header", "--no-annotate", "--python-version", python),
        *("--python-platform", "x86_64-manylinux_2_28", "--constraint", str(constraints)),
        # Reads what has no wheel with this Python, whatever it resolves for.
        *("--python", sys.executable),
        *(f"--extra={extra}" for extra in extras),
        *build.options,
        str(ROOT / "pyproject.toml"),
    )
    return dict(line.split("==") for line in said.splitlines() if "==" in line)


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where no package index answers."""
    wanted = tmp_path_factory.mktemp("index") / "wanted.in"
    wanted.write_text("iniconfig\n")
    try:
        uv("pip", "compile", str(wanted))
    except AssertionError as error:
        pytest.skip(f"no package index answers: {str(error).strip().splitlines()[0]}")


@pytest.fixture(scope="session")
def builds(index: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Build]:
    """Return both builds of torch: PyPI's, for CUDA, and the one for CPUs.

    What a CPU build requires does not depend on the Python that it is built for. So where this
    environment has one, a wheel without content and with its metadata stands for those of the
    other Pythons; elsewhere it comes from PyTorch's own index.
    """
    plain = TORCH
    folder = tmp_path_factory.mktemp("cpu")
    pin = folder / "pin.txt"
    pin.write_text(f"torch=={plain}+cpu\n")
    source = ("--torch-backend", "cpu")
    if version("torch") == f"{plain}+cpu":
        metadata = distribution("torch").read_text("METADATA")
        assert metadata is not None
        _stand_in(folder, f"torch-{plain}+cpu", metadata)
        source = ("--find-links", str(folder))
    return {"cuda": Build(plain), "cpu": Build(f"{plain}+cpu", (*source, "--constraint", str(pin)))}


def _stand_in(folder: Path, name: str, metadata: str) -> None:
    """Write a wheel for every Python that has metadata and nothing else."""
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        for file, text in (("METADATA", metadata), ("WHEEL", tag), ("RECORD", "")):
            wheel.writestr(f"{name}.dist-info/{file}", text)


def check_torch(found: dict[str, str], build: Build, *, develops: bool = False) -> None:
    assert found["torch"] == build.version
    # Only a CUDA build brings Triton, which tests need anyway, and NVRTC as its toolkit pins it.
    cuda = "+" not in build.version
    assert ("cuda-toolkit" in found) == cuda
    assert ("triton" in found) == (cuda or develops)
    assert "nvidia-cuda-nvrtc" in found


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_make_run_can_install(builds, build: str, python: str) -> None:
    check_torch(resolve(python, builds[build], USERS, "wandb"), builds[build])


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("build", ["cpu", "cuda"])
def test_make_test_can_install_and_takes_what_is_pinned(builds, build: str, python: str) -> None:
    found = resolve(python, builds[build], DEVELOPERS, "dev", "wandb")
    check_torch(found, builds[build], develops=True)
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    there = [one for one in PINNED if one.marker is None or one.marker.evaluate(here)]
    pins = {one.name: str(one.specifier).removeprefix("==") for one in there}
    wanted = {name: pin for name, pin in pins.items() if name in found and name != "torch"}
    assert {name: found[name] for name in wanted} == wanted
    assert {Requirement(line).name for line in PROJECT["optional-dependencies"]["dev"]} <= {*wanted}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extra", ["mamba", "fla", "flash-qla"])
def test_a_baselines_package_fits_beside_torchs_cuda_build(builds, extra: str, python: str) -> None:
    check_torch(resolve(python, builds["cuda"], USERS, extra), builds["cuda"])


def test_pip_itself_takes_pypis_default_torch(index: None, tmp_path: Path) -> None:
    """As on a machine with a GPU; ``===`` leaves out CPU builds that pip's settings offer."""
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed; make test installs it")
    pin, report = tmp_path / "pin.txt", tmp_path / "report.json"
    pin.write_text(f"torch==={TORCH}\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"),
            # Reads the metadata of a wheel of gigabytes without the wheel.
            *("--use-feature", "fast-deps", "--report", str(report)),
            *("--constraint", str(USERS), "--constraint", str(pin), *PROJECT["dependencies"]),
        ],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    taken = [one["metadata"] for one in json.loads(report.read_text())["install"]]
    found = {one["name"]: one["version"] for one in taken}
    assert found["torch"] == TORCH
    assert found["nvidia-cuda-nvrtc"].startswith(found["cuda-toolkit"].rpartition(".")[0][:4])
