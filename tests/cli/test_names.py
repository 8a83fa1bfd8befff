"""A group takes the name of a choice; a file or path is refused with the name that was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.base.errors import UserError
from elman.cli.main import main
from elman.config.compose import compose_config


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("model=e88_tiny.yaml", "model=e88_tiny"),
        ("model=../model/e88_tiny", "model=e88_tiny"),
        ("model=./e88_tiny", "model=e88_tiny"),
        ("model=/model/e88_tiny", "model=e88_tiny"),
        ("model='e88_tiny.yaml'", "model=e88_tiny"),
        ("model=e88_tinny.yml", "model=e88_tiny"),
        ("benchmark=quick_test.yaml", "benchmark=quick_test"),
        ("mode=train.yaml", "mode=train"),
        ("optim=../optim/muon.yaml", "optim=muon"),
        ("launcher=./gpus", "launcher=gpus"),
        ("train=tiny.yaml", "train=tiny"),
        ("kernels=default.yaml", "kernels=default"),
        ("hydra/launcher=elman_gpus.yaml", "hydra/launcher=elman_gpus"),
        ("data=../books.txt", "data.path=../books.txt"),
    ],
)
def test_a_file_or_path_is_no_name(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed, "--cfg", "job"]) == 2
    said = capsys.readouterr()
    shown = typed.replace("'", "")
    wanted = f"{shown}: expected a name, not a file or path; did you mean {meant}?"
    assert (said.out, said.err) == ("", f"elman: error: {wanted}\n")


def test_every_value_of_a_sweep_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "model=e1,e88_tiny.yaml", "sweep.dry_run=true"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean model=e88_tiny?\n")


def test_a_name_from_python_and_in_a_list_is_checked_too() -> None:
    for overrides in (["model=e1.yaml"], ["+model=e1.yaml"]):
        with pytest.raises(UserError, match=r"model=e1\.yaml: .* did you mean model=e1\?"):
            compose_config(overrides)


def test_ones_own_file_is_meant_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "own.yaml").write_text("defaults: [e1, _self_]\n", encoding="utf-8")
    search = ["--config-dir", str(tmp_path)]
    assert main([*search, "model=own.yaml", "--cfg", "job"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean model=own?\n")
    assert main([*search, "model=own", "--cfg", "job"]) == 0
