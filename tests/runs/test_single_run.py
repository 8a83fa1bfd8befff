"""One command, one job: its folder, what the mode is handed, and every way of ending."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from elman.base import process_exit
from elman.cli.main import main
from elman.config.compose import compose_config
from elman.runs import prepare
from elman.runs.folder import write_config
from elman.runs.prepared import PreparedRun
from elman.training import weights_and_biases

Elman = Callable[..., Any]  # the fixtures of tests/stubs/command_line.py


def only_run(folder: Path) -> Path:
    """Return the one run folder below outputs/."""
    (run,) = (folder / "outputs").glob("*/*")
    return run


def test_a_run_gets_a_folder_and_the_mode_its_typed_configuration(
    elman: Elman, tmp_path: Path
) -> None:
    ended = elman("model=e1", "train.steps=3")
    assert (ended.status, ended.errors) == (0, "")
    assert ended.output.startswith("ran train e1 3 ")
    names = {path.name for path in only_run(tmp_path).iterdir()}
    assert names == {".hydra", ".lock", "train.log", "config.yaml", "result.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]


def test_torch_is_imported_by_the_mode_and_not_before(elman_process: Elman) -> None:
    assert elman_process("train.steps=3").output == "ran train e88_tiny 3 torch=False\n"


def test_log_records_go_to_the_run_folder_and_not_to_the_terminal(
    elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(job: object) -> int:
        logging.getLogger("elman.test").info("a record")
        return 0

    elman("--version")
    monkeypatch.setattr(sys.modules["elman.modes.train"], "run", run)
    ended = elman()
    assert (ended.output, ended.errors) == ("", "")
    assert "INFO elman.test: a record" in (only_run(tmp_path) / "train.log").read_text()


@pytest.mark.parametrize("mode", ["eval", "generate"])
def test_modes_that_make_nothing_leave_nothing(elman: Elman, tmp_path: Path, mode: str) -> None:
    ended = elman(f"mode={mode}", f"{mode}.checkpoint=/")
    assert (ended.status, ended.errors) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_hydra_run_dir_names_the_folder_itself(elman: Elman, tmp_path: Path) -> None:
    assert elman("hydra.run.dir=mine", "train.steps=3").status == 0
    assert (tmp_path / "mine" / "result.json").exists()
    again = elman("hydra.run.dir=mine", "train.steps=3")
    assert again.status == 2
    assert again.errors.count("\n") == 1


def test_the_exit_status_is_the_modes(elman: Elman) -> None:
    assert elman("train.steps=904").status == 3


def test_a_mistake_found_by_the_mode_is_one_line_and_leaves_no_folder(
    elman: Elman, tmp_path: Path
) -> None:
    ended = elman("train.steps=901")
    line = "elman: error: train.steps=901: an unlucky number; type another\n"
    assert (ended.status, ended.errors) == (2, line)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_is_one_line_and_a_traceback_in_the_log(elman: Elman, tmp_path: Path) -> None:
    ended = elman("train.steps=902")
    log = only_run(tmp_path) / "train.log"
    assert ended.status == 1
    assert re.fullmatch(
        r"elman: crash: RuntimeError: first line \(\S+stub_mode\.py, line \d+, in run\); "
        rf"whole traceback in {re.escape(str(log))}\n",
        ended.errors,
    )
    assert log.read_text().startswith("Traceback")
    assert "stub_mode.py" in log.read_text()


def test_a_crash_without_a_folder_keeps_its_traceback_too(
    elman: Elman, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tree: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(prepare, "prepare", broken)
    ended = elman()
    assert ended.status == 1
    assert ended.errors.count("\n") == 1
    log = Path(ended.errors.split("traceback in ")[1].rstrip("\n"))
    assert "ZeroDivisionError: of ours" in log.read_text()
    log.unlink()


def test_ctrl_c_before_the_run_is_one_line_and_130(elman: Elman, tmp_path: Path) -> None:
    ended = elman("train.steps=906")
    line = "elman: interrupted before the first step: nothing to save\n"
    assert (ended.status, ended.errors) == (130, line)
    assert list(tmp_path.iterdir()) == []


def test_a_current_folder_that_was_removed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["train.steps=1"]) == 2
    said = capsys.readouterr().err
    assert "the current folder cannot be used" in said
    assert "type cd to another folder" in said


def test_real_starts_at_one_moment_get_a_folder_each(
    tmp_path: Path, stub_environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "elman", "train.steps=3"]
    started = [subprocess.Popen(command, cwd=tmp_path, env=stub_environment) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    assert len(list((tmp_path / "outputs").glob("*/*/result.json"))) == 4


def test_a_package_that_is_not_installed_is_named_before_the_run(
    elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_and_biases, "find_spec", lambda name: None)
    ended = elman("log.wandb=true")
    assert ended.status == 2
    assert "pip install 'elman[wandb]'" in ended.errors
    assert list(tmp_path.iterdir()) == []


class TestResume:
    """``train.resume=<run folder>``."""

    @pytest.fixture
    def run(self, elman: Elman, tmp_path: Path) -> Path:
        """Return a run folder as a trainer leaves it."""
        folder = tmp_path / "run"
        folder.mkdir()
        write_config(folder, compose_config(["model=e1", "optim=legacy", "train.steps=5"]))
        return folder

    def test_the_run_goes_on_in_its_folder_with_its_own_settings(
        self, elman: Elman, run: Path, tmp_path: Path
    ) -> None:
        ended = elman("train.resume=run")
        assert (ended.status, ended.errors) == (0, "")
        assert ended.output.startswith("ran train e1 5 ")
        assert (run / "result.json").exists()
        assert [path.name for path in tmp_path.iterdir()] == ["run"]

    def test_only_named_settings_change(self, elman: Elman, run: Path) -> None:
        assert elman("train.resume=run", "train.steps=8").output.startswith("ran train e1 8 ")
        seen = yaml.safe_load((run / ".hydra" / "resume-001" / "config.yaml").read_text())
        stored = yaml.safe_load((run / "config.yaml").read_text())
        stored["train"] |= {"steps": 8, "resume": "run"}
        assert seen == stored

    def test_hydras_own_files_are_numbered(self, elman: Elman, run: Path) -> None:
        elman("train.resume=run")
        elman("train.resume=run")
        names = sorted(path.name for path in (run / ".hydra").iterdir())
        assert names == ["resume-001", "resume-002"]

    def test_from_another_folder_the_data_are_the_same(
        self, elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "book.txt").write_text("It was a dark and stormy night.\n" * 1000)
        seen: list[object] = []
        monkeypatch.setattr(sys.modules["elman.modes.train"], "run", _recording(seen))
        assert elman("data.path=book.txt").status == 0
        run = only_run(tmp_path)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert elman(f"train.resume={run}").status == 0
        assert seen == [str(tmp_path / "book.txt")] * 2

    def test_a_refused_resumption_changes_nothing(
        self, elman: Elman, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = (run / "config.yaml").read_text()
        assert elman("train.resume=run", "train.steps=901").status == 2
        assert (run / "config.yaml").read_text() == before


def _recording(seen: list[object]) -> Callable[..., int]:
    def run(job: PreparedRun) -> int:
        assert job.folder is not None
        seen.append(job.config.data.path)
        write_config(job.folder, job.config)
        return 0

    return run


def test_main_takes_the_arguments_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["elman", "--version"])
    # Otherwise Ctrl-C would end this process, which goes on, as one that exits.
    statuses: list[int] = []
    monkeypatch.setattr(process_exit, "exit_with", lambda status: statuses.append(status) or status)
    assert main() == 0
    assert statuses == [0]
    assert capsys.readouterr().out.startswith("elman 0.")
