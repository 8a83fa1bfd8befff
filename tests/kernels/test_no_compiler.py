"""A machine without a compiler: what runs then, and what is said."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from elman.models import backends
from elman.models.backends import choose_backend
from elman.models.cells import registry

WITH_KERNEL = dataclasses.replace(registry.cell("e88"), backends=("reference", "cpu"))


@pytest.fixture(autouse=True)
def no_compiler(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is found at all."""
    monkeypatch.setenv("PATH", str(tmp_path))
    backends._say_slow.cache_clear()


def test_auto_runs_the_reference_and_says_so_once(capsys) -> None:
    chosen = [choose_backend(WITH_KERNEL, "auto", "cpu") for _ in range(3)]
    assert chosen == ["reference"] * 3
    said = capsys.readouterr().err
    assert said == (
        "elman: using plain PyTorch, which is slow: no C++ compiler (g++ or clang++) in PATH; "
        "conda install -c conda-forge gxx\n"
    )


def test_the_named_backend_is_an_error_with_the_command_that_installs_one() -> None:
    with pytest.raises(UserError) as caught:
        choose_backend(WITH_KERNEL, "cpu", "cpu")
    assert str(caught.value) == (
        "kernels.backend=cpu: no C++ compiler (g++ or clang++) in PATH; "
        "conda install -c conda-forge gxx, or use kernels.backend=reference"
    )


def test_nothing_is_said_where_no_kernel_would_run(capsys) -> None:
    assert choose_backend(WITH_KERNEL, "reference", "cpu") == "reference"
    assert choose_backend(WITH_KERNEL, "auto", "meta") == "reference"
    assert choose_backend(WITH_KERNEL, "cpu", "meta") == "cpu"
    assert capsys.readouterr().err == ""


COMMAND = (
    "model=e61",
    "model.dim=128",
    "model.depth=1",
    "train.batch_size=2",
    "train.chunk_size=8",
    "train.steps=2",
    "data.val_sample=32",
    "data.val_window=16",
    "log.tensorboard=false",
)


def test_a_command_that_names_the_kernels_is_refused(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    status = main([*COMMAND, f"data.path={text_file}", "kernels.backend=cpu"])
    assert status == ExitStatus.USER_ERROR
    errors = capsys.readouterr().err
    assert errors.startswith("elman: error: kernels.backend=cpu: no C++ compiler")
    assert errors.count("\n") == 1
    assert set(tmp_path.iterdir()) == before


def test_a_command_that_leaves_it_open_trains_on_the_reference_and_says_so(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    status = main([*COMMAND, f"data.path={text_file}", "hydra.run.dir=run"])
    assert status == ExitStatus.OK
    assert capsys.readouterr().err.count("using plain PyTorch, which is slow: no C++ compiler") == 1
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["backend"], result["parity"]) == ("reference", None)
