"""``elman -m sweep.resume=<folder>`` alone: what it needs is recorded, and every end names it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from elman.devices import locks, nvml
from elman.runs.status import OutsideEnd, ended_as
from tests.stubs.forked import Popen, run_to_end

Elman = Callable[..., Any]  # the fixtures of tests/stubs/command_line.py
NEW = ("typed", "argv", "cwd", "flags", "hydra", "launcher")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with data and a model of the user's own, for relative paths."""
    folder = tmp_path / "home"
    (folder / "conf" / "model").mkdir(parents=True)
    model = "defaults: [e88_tiny, _self_]\nexpected_params: null\n"
    (folder / "conf" / "model" / "mine.yaml").write_text(model)
    (folder / "book.txt").write_text("a book\n" * 40_000)
    (tmp_path / "elsewhere").mkdir()
    return folder


def command(cwd: Path, environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Return the exit status of a command in a folder, and all that it printed."""
    typed = [sys.executable, "-m", "elman", *arguments]
    return run_to_end(typed, stderr=subprocess.STDOUT, cwd=cwd, env=environment)[:2]


def only_sweep(folder: Path) -> Path:
    """Return the one sweep below a folder."""
    (found,) = folder.glob("outputs/*/*_sweep")
    return found


def goes_on_by(sweep: Path) -> str:
    """Return the line with which a sweep ends that is not complete."""
    return f"to run the jobs that are not ok again: elman -m sweep.resume={sweep}"


@pytest.mark.parametrize(
    "places", [["--config-dir", "conf"], ["hydra.searchpath=[file://conf]"]], ids=" ".join
)
def test_a_bare_resume_is_the_whole_command_from_any_folder(
    home: Path, stub_environment: dict[str, str], places: list[str]
) -> None:
    typed = [*places, "-m", "model=mine", "data.path=book.txt", "train.steps=3,904"]
    typed += ["launcher.workers=2"]
    status, output = command(home, stub_environment, *typed)
    sweep = only_sweep(home)
    assert (status, output.splitlines()[-1]) == (1, goes_on_by(sweep)), output
    before = json.loads((sweep / "sweep.json").read_text())
    assert before["typed"] == shlex.join(["elman", *typed])
    relative = os.path.relpath(sweep, home.parent / "elsewhere")
    status, output = command(
        home.parent / "elsewhere", stub_environment, "-m", f"sweep.resume={relative}"
    )
    assert "1 of 2 jobs are ok already" in output, output
    assert "2 jobs at a time" in output
    assert (status, output.splitlines()[-1]) == (1, goes_on_by(sweep))
    after = json.loads((sweep / "sweep.json").read_text())
    assert {name: after[name] for name in NEW} == {name: before[name] for name in NEW}
    assert list((home.parent / "elsewhere").iterdir()) == []
    page = unescape((sweep / "report.html").read_text())
    assert f"<code>{before['typed']}</code>" in page


def test_another_launcher_takes_none_of_the_first_ones_settings(
    home: Path, stub_environment: dict[str, str]
) -> None:
    command(home, stub_environment, "-m", "train.steps=3,904", "launcher.workers=2")
    resume = f"sweep.resume={only_sweep(home)}"
    status, output = command(home, stub_environment, "-m", resume, "launcher=local")
    assert status == 1, output
    assert "1 of 2 jobs are ok already" in output
    recorded = json.loads((only_sweep(home) / "sweep.json").read_text())["launcher"]
    assert recorded == {"name": "local", "overrides": ["launcher=local"]}


def test_a_sweep_that_recorded_nothing_goes_on_as_before(
    home: Path, stub_environment: dict[str, str]
) -> None:
    command(home, stub_environment, "-m", "data.path=book.txt", "train.steps=3,904")
    sweep = only_sweep(home)
    content = json.loads((sweep / "sweep.json").read_text())
    for name in NEW:
        del content[name]
    for job in content["jobs"]:
        del job["task"], job["reason"]
    (sweep / "sweep.json").write_text(json.dumps(content))
    status, output = command(home, stub_environment, "-m", f"sweep.resume={sweep}")
    assert (status, output.splitlines()[-1]) == (1, goes_on_by(sweep))
    assert "1 of 2 jobs are ok already" in output


SLOW = pytest.mark.slow  # every launcher hears every signal in the same way


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("gpus", signal.SIGINT),
        ("local", signal.SIGTERM),
        ("gpus", signal.SIGHUP),
        pytest.param("gpus", signal.SIGTERM, marks=SLOW),
        pytest.param("local", signal.SIGINT, marks=SLOW),
        pytest.param("local", signal.SIGHUP, marks=SLOW),
    ],
)
def test_a_signal_ends_with_how_it_goes_on(
    home: Path, stub_environment: dict[str, str], number: signal.Signals, launcher: str
) -> None:
    arguments = ["-m", "train.steps=905,3", f"launcher={launcher}"]
    with Popen(
        [sys.executable, "-m", "elman", *arguments],
        cwd=home,
        env=stub_environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as sweep:
        try:
            deadline = time.monotonic() + 180
            while not list(home.rglob("waiting")):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            sweep.send_signal(number)
            output, _ = sweep.communicate(timeout=180)
        except BaseException:
            sweep.terminate()  # or leaving the block would wait for it forever
            raise
    assert sweep.returncode == 130
    assert output.splitlines()[-1] == goes_on_by(only_sweep(home))


def test_an_error_of_the_launcher_ends_with_how_it_goes_on(
    elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elman.launchers import local

    def broken(*what: Any) -> None:
        (only_sweep(tmp_path) / "01_begun").mkdir()
        raise RuntimeError("the launcher broke")

    monkeypatch.setattr(local, "launch", broken)
    ended = elman("-m", "train.steps=3,4", "launcher=local")
    assert ended.status == 1
    assert "crash: RuntimeError: the launcher broke" in ended.errors
    assert ended.output.splitlines()[-1] == goes_on_by(only_sweep(tmp_path))


def test_a_sweep_that_is_complete_says_nothing_of_going_on(elman: Elman) -> None:
    ended = elman("-m", "hydra/launcher=basic", "train.steps=3,4")
    assert ended.status == 0
    assert "run again" not in ended.output


def test_a_job_whose_kernel_is_wrong_is_refused_everywhere(
    elman_process: Elman, tmp_path: Path
) -> None:
    ended = elman_process("-m", "train.steps=910,3")
    assert ended.status == 1
    assert "[1/2] refused after " in ended.output
    assert "elman: refused: the cpu kernel of e61 is wrong" in ended.output
    jobs = json.loads((only_sweep(tmp_path) / "sweep.json").read_text())["jobs"]
    assert [job["status"] for job in jobs] == ["refused", "ok"]
    assert "refused" in (only_sweep(tmp_path) / "report.html").read_text()


@pytest.mark.parametrize(
    ("code", "recorded", "word"),
    [
        (1, None, "crash"),
        (1, "refused", "refused"),
        (2, None, "refused"),
        (OutsideEnd(1, "cancelled", "why"), None, "cancelled"),
        (OutsideEnd(1, "cancelled", "why"), "interrupted", "cancelled"),
        (OutsideEnd(1, "cancelled", "why"), "ok", "ok"),
    ],
    ids=str,
)
def test_the_word_for_an_end(code: int, recorded: str | None, word: str) -> None:
    assert ended_as(code, recorded) == word


class TestDryRun:
    """It makes every check that the start makes."""

    @pytest.mark.parametrize("plan", [(), ("sweep.dry_run=true",)], ids=["start", "plan"])
    @pytest.mark.parametrize("visible", ["9", "GPU-x", "MIG-5ab2"])
    def test_a_gpu_that_is_not_there(
        self,
        elman: Elman,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        plan: tuple[str, ...],
        visible: str,
    ) -> None:
        (tmp_path / "gpus.json").write_text('[{"uuid": "GPU-a"}]')
        monkeypatch.setenv(nvml.PRETENDED, str(tmp_path / "gpus.json"))
        monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        ended = elman("-m", "train.steps=3,4", *plan)
        assert ended.status == 2
        assert ended.errors.startswith(f"elman: error: CUDA_VISIBLE_DEVICES={visible}: ")
        assert ended.errors.count("\n") == 1
        assert not (tmp_path / "outputs").exists()
        on_cpu = elman("-m", "train.steps=3,4", "train.device=cpu", "sweep.dry_run=true")
        assert (on_cpu.status, on_cpu.errors) == (0, "")

    @pytest.mark.parametrize("setting", ["train.device=cuda", "kernels.backend=cuda"])
    def test_a_device_that_this_machine_lacks(
        self, elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        command = ("model=e1", "train.steps=3", "sweep.dry_run=true", setting)
        alone = elman(*command)
        assert alone.status == 2
        assert alone.errors.startswith(f"elman: error: {setting}: ")
        for plan in (command, command[:2]):
            ended = elman("-m", "train.seed=1,2", setting, *plan)
            assert (ended.status, ended.output, list(tmp_path.iterdir())) == (2, "", [])
            assert ended.errors == alone.errors.replace(
                "error: ", "error: job 1 of 2 (train.seed=1): "
            )

    def test_a_place_that_is_taken(self, elman: Elman, tmp_path: Path) -> None:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "todo.txt").touch()
        for plan in ((), ("sweep.dry_run=true",)):
            ended = elman("-m", "train.steps=3,4", "hydra.sweep.dir=full", *plan)
            assert ended.status == 2
            assert "hydra.sweep.dir=full: is not empty" in ended.errors

    def test_no_slurm(self, elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        for plan in ((), ("sweep.dry_run=true",)):
            ended = elman("launcher=slurm", "train.minutes=1", "train.seed=1,2", *plan)
            assert (ended.status, list(tmp_path.iterdir())) == (2, [])
            assert ended.errors.startswith("elman: error: launcher=slurm: there is no srun here")

    def test_a_sweep_that_has_changed(self, elman: Elman, tmp_path: Path) -> None:
        elman("-m", "hydra/launcher=basic", "train.steps=3,904")
        resume = f"sweep.resume={only_sweep(tmp_path)}"
        other = ("train.steps=3,5", "hydra/launcher=basic", "sweep.dry_run=true")
        ended = elman("-m", resume, *other)
        assert ended.status == 2
        assert "job 2 was 02_e88_tiny_" in ended.errors
