"""An error in a user's own code is one line: what, in which file and line, and its traceback."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from elman.base import crash
from elman.cli.main import main
from elman.config.compose import register_cells
from elman.models.cells import registry

CELL = """
from elman.models.cells.channel.options import channel_options
from elman.models.cells.declaration import Cell

CELL = Cell(
    name="mine", engine="channel", layer="mine.layer:Mine", equation="y = x", source="a test",
    options=channel_options(),
)
"""
LAYER = """
import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, dim, *, backend="reference", device=None, dtype=None, **options):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim, device=device, dtype=dtype))

    def forward(self, x, state=None):
        return x * self.scale, {}
"""
MODEL = "defaults:\n  - /cell/mine@_here_\nname: mine\ndim: 128\ndepth: 1\n"
SETTINGS = (
    "model=mine",
    "data.path=text.txt",
    "train.steps=2",
    "train.batch_size=2",
    "train.chunk_size=16",
    "data.val_sample=64",
    "data.val_window=16",
    "log.tensorboard=false",
)
Package = Callable[[str, str], None]


@pytest.fixture(params=["beside", "installed"])
def package(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Package]:
    """Return ``package(cell, layer)``, which offers the cell ``mine`` by an entry point.

    It lies beside the user's text, or where pip installs.
    """
    place = tmp_path / ("site-packages" if request.param == "installed" else "src")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "text.txt").write_bytes(b"def add(left, right):\n    return left + right\n" * 99)
    model = tmp_path / "conf" / "model" / "mine.yaml"
    model.parent.mkdir(parents=True)
    model.write_text(MODEL)
    cached = (registry.cells, register_cells, crash._cell_packages)

    def make(cell: str = CELL, layer: str = LAYER) -> None:
        files = {
            "mine/__init__.py": "",
            "mine/cell.py": cell,
            "mine/layer.py": layer,
            "mine-0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 0.1\n",
            "mine-0.1.dist-info/entry_points.txt": "[elman.cells]\nmine = mine.cell:CELL\n",
        }
        for name, text in files.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.syspath_prepend(place)
        for function in cached:
            function.cache_clear()

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]
    monkeypatch.undo()
    for function in cached:
        function.cache_clear()


def run(*arguments: str) -> int:
    return main(["--config-dir", "conf", *SETTINGS, *arguments])


def line_of(text: str, part: str) -> int:
    """Return the number of the first line of a text that holds ``part``."""
    return next(n for n, line in enumerate(text.splitlines(), start=1) if part in line)


def the_traceback(said: str) -> str:
    """Return the traceback that a one-line message names."""
    assert said.count("\n") == 1, said
    place = re.search(r"whole traceback in (\S+?\.log)", said)
    assert place is not None, said
    return Path(place[1]).read_text()


def test_a_crash_in_a_cell_names_its_file_and_line(
    package: Package, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    layer = LAYER.replace("x * self.scale", "x * hh")
    package(CELL, layer)
    assert run("hydra.run.dir=run") == 1
    said = capfd.readouterr().err
    place = next(path for path in tmp_path.glob("*/mine/layer.py")).relative_to(tmp_path)
    crashed = f"NameError: name 'hh' is not defined ({place}, line {line_of(layer, 'hh')}, in forw"
    assert f"elman: crash: {crashed}" in said
    told = next(line for line in said.splitlines() if line.startswith("elman: crash"))
    assert "return x * hh" in the_traceback(f"{told}\n")
    assert json.loads(Path("run/result.json").read_text())["error"].startswith(crashed)
    assert str(tmp_path / "run" / "train.log") in said


BROKEN = {
    "the cell's module": (f"{CELL}\nboom()\n", LAYER, "NameError: name 'boom'", "boom()"),
    "an import of the cell": (f"{CELL}\nimport nosuch\n", LAYER, "ModuleNotFoundError", "nosuch"),
    "the layer's module": (CELL, f"{LAYER}\nboom()\n", "NameError: name 'boom'", "boom()"),
    "the layer's syntax": (CELL, f"{LAYER}\ndef f(:\n", "SyntaxError: invalid syntax (", "def f(:"),
}


@pytest.mark.parametrize(("cell", "layer", "error", "part"), BROKEN.values(), ids=BROKEN)
def test_a_package_that_cannot_be_imported_is_named_with_file_and_line(
    package: Package,
    capfd: pytest.CaptureFixture[str],
    cell: str,
    layer: str,
    error: str,
    part: str,
) -> None:
    package(cell, layer)
    assert run() == 2
    said = capfd.readouterr().err
    file, text = ("cell", cell) if "cell" in part or part in cell else ("layer", layer)
    assert error in said
    assert f"mine/{file}.py, line {line_of(text, part)}" in said
    assert error.rstrip(" (") in the_traceback(said)
    assert not Path("outputs").exists()


def test_a_resolver_that_fails_is_named_with_file_and_line(
    package: Package, capfd: pytest.CaptureFixture[str]
) -> None:
    cell = (
        f"{CELL}\nfrom omegaconf import OmegaConf\n"
        'OmegaConf.register_new_resolver("mine_half", lambda text: int(text) // 0, replace=True)\n'
    )
    package(cell, LAYER)
    try:
        assert run("model.dim=${mine_half:256}") == 2
    finally:
        OmegaConf.clear_resolver("mine_half")
    said = capfd.readouterr().err
    assert said.startswith("elman: error: model.dim: its resolver fails: ZeroDivisionError: ")
    assert f"mine/cell.py, line {line_of(cell, '// 0')}" in said
    assert "ZeroDivisionError" in the_traceback(said)


def test_an_error_in_a_thread_is_one_line_too(
    package: Package, capfd: pytest.CaptureFixture[str]
) -> None:
    layer = LAYER.replace(
        "return x * self.scale",
        "import threading; t = threading.Thread(target=later, name='counter'); t.start(); t.join()"
        "\n        return x * self.scale",
    )
    layer += "\n\ndef later():\n    raise KeyError('count')\n"
    package(CELL, layer)
    assert run("train.steps=1") == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if "KeyError" in line]
    assert lines
    assert all(line.startswith("elman: counter failed: KeyError: 'count' (") for line in lines)
    assert f"mine/layer.py, line {line_of(layer, 'raise KeyError')}, in later" in lines[0]
    assert "in later" in the_traceback(f"{lines[0]}\n")


def test_an_error_of_elman_names_the_file_of_elman(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("elman.runs.prepare.make_folder", lambda root, name: 7)
    assert main(["train.steps=1", "model=e1"]) == 1
    said = capfd.readouterr().err
    assert "elman: internal error: AttributeError: " in said
    assert re.search(r"runs/folder\.py, line \d+, in __init__\); whole traceback in ", said)
    Path(re.search(r"traceback in (\S+\.log)", said)[1]).unlink()  # type: ignore[index]
