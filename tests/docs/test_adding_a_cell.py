"""The guide to a new cell, followed to the letter in a package outside this one."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "adding-a-cell.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", GUIDE, re.M | re.S))
COMMANDS = [
    line
    for block in re.findall(r"^```bash\n(.*?)^```$", GUIDE, re.M | re.S)
    for line in block.splitlines()
]
INSTALL = "pip install --editable ."
# What a run in the guide leaves to its defaults, made small.
SMALL = [
    "data.path=../text.txt",
    "data.val_sample=256",
    "train.batch_size=4",
    "train.chunk_size=32",
    "log.tensorboard=false",
    "hydra.run.dir=run",
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the guide's package, installed beside it."""
    folder = tmp_path_factory.mktemp("guide") / "leaky-cell"
    for name, text in {**FILES, "leaky/__init__.py": ""}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder.parent / "text.txt").write_text("It was a dark and stormy night.\n" * 3000)
    isolation = ["--no-build-isolation"] if find_spec("setuptools") else []
    # Not editable: that would change the environment which runs the tests.
    target = ["--no-deps", *isolation, "--target", str(folder.parent / "site"), str(folder)]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, *target], check=True)
    return folder


def run(package: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the guide in the package's folder."""
    environment = os.environ | {"PYTHONPATH": str(package.parent / "site")}
    words = [sys.executable, "-m", *command]
    return subprocess.run(
        words, cwd=package, env=environment, capture_output=True, text=True, timeout=300
    )


def test_the_guide_has_the_files_and_commands_that_are_tried_here() -> None:
    tree = re.findall(r"^      ([\w./]+)", GUIDE, re.M)
    assert {*FILES, "leaky/__init__.py"} == set(tree)
    assert COMMANDS[0] == INSTALL
    assert COMMANDS[1] == "elman --config-dir conf model=leaky train.steps=5"
    assert COMMANDS[-1] == "python -m pytest test_leaky.py"


def test_the_cell_trains(package: Path) -> None:
    done = run(package, *shlex.split(COMMANDS[1]), *SMALL)
    assert done.returncode == 0, done.stderr
    result = json.loads((package / "run" / "result.json").read_text())
    assert result["status"] == "ok"
    assert result["params"] == 131_968


@pytest.mark.parametrize("model", ["leaky", "e34"])
def test_every_other_command_of_the_guide_composes(package: Path, model: str) -> None:
    for command in COMMANDS[2:-1]:
        words = [word.replace("leaky,e34", model) for word in shlex.split(command) if word != "-m"]
        done = run(package, *words, "--cfg", "job")
        assert done.returncode == 0, done.stderr


def test_its_proof_passes(package: Path) -> None:
    _, *command = shlex.split(COMMANDS[-1])
    done = run(package, *command[1:], "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout


def test_a_wrong_setting_prints_what_the_guide_says(package: Path) -> None:
    (block,) = re.findall(r"^```text\n\$ ([^\n]*)\n(.*?)\n```$", GUIDE, re.M | re.S)
    done = run(package, *shlex.split(block[0]))
    assert (done.returncode, done.stderr.strip()) == (2, block[1])


MENDED = {
    "the structure's": ("PARAMETERS = 2, ", ""),
    "the declaration's": (', "retain_logit"), code', ",), code"),
}


@pytest.mark.parametrize("number", range(2), ids=MENDED)
def test_numbers_that_differ_print_what_the_guide_says(package: Path, number: int) -> None:
    said = re.findall(r"^```text\n(elman: error: .*)\n```$", GUIDE, re.M)[number]
    kernel = package / "leaky" / "kernel.py"  # of the working folder, which comes first
    right = kernel.read_text()
    old, new = list(MENDED.values())[number]
    assert right.count(old) == 1
    kernel.write_text(right.replace(old, new))
    try:
        done = run(package, *shlex.split(COMMANDS[1]), *SMALL[:-1], f"hydra.run.dir=wrong-{number}")
    finally:
        kernel.write_text(right)
    assert done.returncode == 2, done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert re.sub(r"all of it in [^)]*", "all of it in {log}", line) == said


NAMES = set(re.findall(r"`(elman(?:\.\w+)+)`", GUIDE)) - {"elman.cells"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_names_of_the_guide_exist(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`((?:src|tests|docs|conf)/[\w/.]+)`", GUIDE)))
)
def test_files_of_the_guide_exist(path: str) -> None:
    assert (Path(__file__).parents[2] / path).exists() or path in FILES
