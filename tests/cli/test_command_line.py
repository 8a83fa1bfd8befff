"""The command as a shell sees it: what it prints, what it imports, where its files are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from elman.cli.main import main

WATCHED = """
import sys
from elman.cli.main import main
status = main(sys.argv[1:])
heavy = sorted({"torch", "matplotlib", "tensorboard", "safetensors"} & set(sys.modules))
print(f"imported {heavy}", file=sys.stderr)
sys.exit(status)
"""
CELL = """
from elman.models.cells.declaration import Cell, Option

CELL = Cell(
    name="mine",
    engine="dense",
    layer="my_cell:Mine",
    equation="h = x",
    source="tests",
    options={"gain": Option(1.5, "A number.", minimum=0)},
)
"""


def elman(
    *arguments: str, cwd: Path, code: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a fresh process."""
    program = ["-m", "elman"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=180,
    )


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--version"], "elman 0."),
        (["--help"], "elman model=e88f_h32n16 train.minutes=10"),
        (["--cfg", "job"], "batch_size: 16"),
        (["model=e1", "--cfg", "job", "-p", "model"], "cell: e1"),
        (["--info", "searchpath"], "pkg://elman.conf"),
        (["-sc", "install=bash"], "complete"),
        (["-sc", "query=bash"], "train.batch_size="),
        (["--hydra-help"], "Hydra"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_answers_that_need_no_torch_import_none(
    tmp_path: Path, arguments: list[str], printed: str
) -> None:
    started = time.perf_counter()
    line = {"COMP_LINE": "elman model=e1 -m train.", "COMP_POINT": "24"}
    ended = elman(*arguments, cwd=tmp_path, code=WATCHED, **line)
    print(f"{time.perf_counter() - started:.2f} s for elman {' '.join(arguments)}")
    assert (ended.returncode, ended.stderr) == (0, "imported []\n")
    assert printed in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["train.minute=3"], ["-m", "train.steps=1,abc"]])
def test_mistakes_are_found_before_torch_is_imported(tmp_path: Path, arguments: list[str]) -> None:
    ended = elman(*arguments, cwd=tmp_path, code=WATCHED)
    error, imported = ended.stderr.splitlines()
    assert error.startswith("elman: error: ")
    assert (ended.returncode, ended.stdout, imported) == (2, "", "imported []")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("elman mo", {"model=", "mode="}),
        ("elman optim=s", {"optim=schedulefree"}),
        ("elman model=e1 -m optim=s", {"optim=schedulefree"}),
        ("elman mode=eval eval.ch", {"eval.checkpoint="}),
        ("elman benchmark=e75_1", {"benchmark=e75_100m"}),
        ("elman benchmark=quick_test benchmark.o", {"benchmark.only="}),
        ("elman --nonsense mo", set()),
    ],
)
def test_completion(tmp_path: Path, line: str, expected: set[str]) -> None:
    ended = elman("-sc", "query=bash", cwd=tmp_path, COMP_LINE=line, COMP_POINT=str(len(line)))
    assert expected <= set(ended.stdout.split())
    assert "Traceback" not in ended.stderr


def test_help_lists_every_group_and_choice(tmp_path: Path) -> None:
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "own.yaml").touch()
    text = elman("--help", "--config-dir", "mine", cwd=tmp_path).stdout
    assert "  optim     adamw, legacy, " in text
    assert "elman mode=doctor " in text
    assert "models, " in text
    assert re.search(r"solve,\s+suites,\s+tasks,\s+train", text)
    assert "  benchmark 100m_10min, baselines, " in text
    assert "e75h4n24" not in text
    assert re.search(r"  model     own, one of \d\d\d: `elman mode=models` lists them", text)
    assert len(text.splitlines()) < 70
    assert max(map(len, text.splitlines())) <= 100


def test_help_into_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    command = f"{sys.executable} -m elman --info | head -1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=tmp_path)
    assert ended.stderr == ""


def test_a_model_file_of_the_users_own(tmp_path: Path) -> None:
    models = tmp_path / "mine" / "model"
    models.mkdir(parents=True)
    (models / "own.yaml").write_text("defaults: [/cell/e1@_here_, _self_]\ndim: 384\ndepth: 3\n")
    ended = elman("--config-dir", "mine", "model=own", "--cfg", "job", cwd=tmp_path)
    assert "dim: 384" in ended.stdout


def test_a_cell_of_another_package(tmp_path: Path) -> None:
    (tmp_path / "my_cell.py").write_text(CELL)
    metadata = tmp_path / "my_cell-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-cell\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[elman.cells]\nmine = my_cell:CELL\n")
    models = tmp_path / "mine" / "model"
    models.mkdir(parents=True)
    (models / "own.yaml").write_text("defaults: [/cell/mine@_here_, _self_]\ndim: 384\ndepth: 3\n")
    common = ["--config-dir", "mine", "model=own"]
    path = {"PYTHONPATH": str(tmp_path)}
    ended = elman(*common, "model.gain=2", "--cfg", "job", cwd=tmp_path, **path)
    assert "gain: 2" in ended.stdout
    wrong = elman(*common, "model.gain=-1", cwd=tmp_path, **path)
    assert wrong.stderr == "elman: error: model.gain=-1: must be at least 0\n"


def test_the_configuration_shows_the_minutes_of_a_run(capfd) -> None:
    assert main(["--cfg", "job", "--package", "train"]) == 0
    assert "minutes: 1.0" in capfd.readouterr().out
    assert main(["--cfg", "job", "--package", "train", "train.steps=5"]) == 0
    assert "minutes: null" in capfd.readouterr().out
    assert main(["--cfg", "job", "train.minutes=3"]) == 0
    assert "minutes: 3" in capfd.readouterr().out
    assert main(["--cfg", "job", "mode=doctor"]) == 0
    assert "minutes: 1.0" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("train.steps=1e400", "train.steps=1e400: expected"),
        ("model.dim=1e3", "model.dim=1e3: "),
        ("train.seed=99999999999", "train.seed=99999999999: must be at most 4294967295"),
        ("model.depth=1e9", "model.depth=1e9: must be at most 10000"),
        (
            "mode=generate generate.checkpoint=x generate.fused=maybe",
            "generate.fused=maybe: expected one of auto, true, false",
        ),
        ("-m sweep.resume=", "sweep.resume=: names no folder; name a sweep's"),
        (
            "+model.layers.0.cell=e1",
            "+model.layers.0.cell=e1: the layers are set as one list, in which at names single "
            "ones; type 'model.layers=[{cell:e1,at:0}]'",
        ),
        (
            "model.layers.2.n_state=8",
            "model.layers.2.n_state=8: the layers are set as one list, in which at names single "
            "ones; type 'model.layers=[{cell:<its cell>,n_state:8,at:2}]'",
        ),
        ("++model.layers.1=e1", "++model.layers.1=e1: the layers are set as one list"),
        ("model.dropout=nan", "model.dropout=nan: expected a finite number"),
        (
            "optim.lr='1e-3'",
            "optim.lr=1e-3: expected a number, and quotes make a text; drop the quotes",
        ),
    ],
)
def test_an_error_repeats_the_number_that_was_typed(typed: str, line: str, capfd) -> None:
    assert main(typed.split()) == 2
    assert capfd.readouterr().err.startswith(f"elman: error: {line}")


@pytest.mark.parametrize("typed", [(), ("model=e1",), ("-m", "model=e1,e42")])
def test_a_command_is_composed_once(
    typed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Hydra composes a command once to see its mode, and a second time to run."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    composed = []
    whole = ConfigLoaderImpl._load_configuration_impl

    def counted(self: ConfigLoaderImpl, *args: Any, **settings: Any) -> Any:
        composed.append(settings["overrides"])
        return whole(self, *args, **settings)

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", counted)
    mode = "models" if typed[:1] != ("-m",) else "solve"
    size = ["solve.params=100M"] if mode == "solve" else []
    assert main([*typed, f"mode={mode}", *size]) == 0
    of_the_command = [one for one in composed if "mode=models" in one or "-m" in typed]
    jobs = 2 if "-m" in typed else 0
    assert len(of_the_command) == 1 + jobs
