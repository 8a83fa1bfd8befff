"""Real processes that are asked to stop, or killed, and are continued."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from elman.base.exit_status import RunStatus
from elman.base.signals import ENDING, Interruption, ending, interruptible
from elman.config.compose import compose_config
from elman.evaluation.metrics import TrainingClock
from elman.launchers.interrupts import Interrupts
from elman.training import loop
from elman.training.suspension import Suspension
from elman.training.training_state import TrainingState
from tests.modes.forked import Commands, ForkedCommand

TINY = (
    "model.dim=128",
    "model.depth=1",
    "model.n_heads=2",
    "model.n_state=8",
    "train.batch_size=2",
    "train.chunk_size=8",
    "train.val_every=null",
    "data.val_sample=64",
    "log.every=1",
    "log.tensorboard=false",
    "log.plot=false",
)
# One that is started anew, or a fork of a process that has imported torch.
Process = subprocess.Popen[str] | ForkedCommand
Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path, text_file: Path, commands: Commands) -> Iterator[Start]:
    """Return a function that starts ``elman`` with the tiny run in the test's folder.

    It is a fork, unless how the process is started matters: then ``pipes`` says it.
    """
    processes: list[Process] = []

    def run(*overrides: str, **pipes: Any) -> Process:
        named = {override.split("=")[0] for override in overrides}
        tiny = [setting for setting in TINY if setting.split("=")[0] not in named]
        arguments = [f"data.path={text_file}", *tiny, *overrides]
        if any(override.startswith(("train.resume=", "mode=eval")) for override in overrides):
            arguments = [*overrides]
        process: Process
        if pipes:
            command = [sys.executable, "-m", "elman", *arguments]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes
            process = subprocess.Popen(command, cwd=tmp_path, text=True, **pipes)
        else:
            process = commands.start(tmp_path, *arguments)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def only_run(folder: Path) -> Path | None:
    """Return the one run folder below ``folder``, if it is there yet."""
    found = list(folder.glob("outputs/*/*"))
    assert len(found) <= 1
    return found[0] if found else None


def steps_recorded(run: Path | None) -> int:
    path = run / "metrics.jsonl" if run else None
    return path.read_text().count('"kind": "step"') if path and path.exists() else 0


def wait_for_steps(folder: Path, process: Process, count: int) -> Path:
    """Wait until the run has recorded ``count`` steps, and return its folder."""
    deadline = time.monotonic() + 180
    while steps_recorded(run := only_run(folder)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert run is not None
    return run


def reads(process: Process, file: Path) -> bool:
    """Whether a process has a file open, or in its memory."""
    place = Path("/proc", str(process.pid))
    with suppress(OSError):  # one is closed meanwhile
        opened = [os.readlink(path) for path in (place / "fd").iterdir()]
        return str(file) in opened or str(file) in (place / "maps").read_text()
    return False


def result_of(run: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((run / "result.json").read_text())
    return result


@pytest.mark.required
def test_a_signal_finishes_the_step_saves_and_says_interrupted(
    start: Start, tmp_path: Path
) -> None:
    """One run hears several signals, one after another, and goes on each time."""
    process, done = start("train.steps=100000"), 0
    for number, name in enumerate(("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"), 1):
        begun = steps_recorded(only_run(tmp_path))
        run = wait_for_steps(tmp_path, process, begun + 3)
        process.send_signal(signal.Signals[name])
        said = "".join(process.communicate(timeout=180))
        assert process.returncode == 130, said
        assert f"{name}: saved after step" in said
        assert f"elman train.resume={run.relative_to(tmp_path)}" in said
        assert (f"resuming after step {done}" in said) == (number > 1)
        result = result_of(run)
        assert result["status"] == "interrupted"
        assert int(str(result["steps"])) >= done + 3
        done = int(str(result["steps"]))
        assert (run / "checkpoints" / f"step-{done:07d}" / "model.safetensors").exists()
        last = [f"train.steps={done + 2}"] * (name == "SIGHUP")
        process = start(f"train.resume={run}", *last)

    said = "".join(process.communicate(timeout=180))
    assert process.returncode == 0, said
    assert f"resuming after step {done}" in said
    assert (result_of(run)["status"], result_of(run)["steps"]) == ("ok", done + 2)
    kept = [json.loads(path.read_text()) for path in run.glob("result-*.json")]
    assert [one["status"] for one in kept] == ["interrupted"] * 4


@pytest.mark.required
def test_a_killed_run_resumes_from_its_last_checkpoint(start: Start, tmp_path: Path) -> None:
    process = start("train.steps=100000", "train.save_every=2")
    run = wait_for_steps(tmp_path, process, 6)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    saved = max(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))
    assert saved >= 2
    assert not (run / "result.json").exists()

    again = start(f"train.resume={run}", f"train.steps={saved + 3}")
    said = "".join(again.communicate(timeout=180))
    assert again.returncode == 0, said
    assert f"resuming after step {saved}" in said
    assert result_of(run)["steps"] == saved + 3


def test_a_run_in_progress_cannot_be_resumed_beside_itself(start: Start, tmp_path: Path) -> None:
    process = start("train.steps=100000")
    run = wait_for_steps(tmp_path, process, 2)
    second = start(f"train.resume={run}")
    said = "".join(second.communicate(timeout=180))
    assert second.returncode == 2
    assert said.count("\n") == 1
    assert "another process" in said
    assert str(process.pid) in said
    assert process.poll() is None


def test_a_second_interrupt_gives_up_at_once_and_earlier_checkpoints_stay(
    start: Start, tmp_path: Path
) -> None:
    process = start("train.steps=100000", "train.save_every=1", "train.batch_size=256")
    run = wait_for_steps(tmp_path, process, 2)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 130
    assert result_of(run)["status"] == "interrupted"
    assert list((run / "checkpoints").glob("step-*/model.safetensors"))


@pytest.mark.required
def test_ctrl_c_saves_although_the_reader_of_the_output_is_gone(
    start: Start, tmp_path: Path
) -> None:
    read, write = os.pipe()
    process = start("train.steps=100000", stdout=write, stderr=write)
    os.close(write)
    run = wait_for_steps(tmp_path, process, 3)
    os.close(read)  # as tee at Ctrl-C
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=180) == 130
    result = result_of(run)
    assert result["status"] == "interrupted"
    assert (run / "checkpoints" / f"step-{int(str(result['steps'])):07d}").exists()


@pytest.mark.parametrize("output", ["full", "closed", "pipe without a reader"])
def test_a_run_ends_well_without_any_output(
    start: Start, tmp_path: Path, text_file: Path, output: str
) -> None:
    if output == "closed":
        command = [sys.executable, "-m", "elman", f"data.path={text_file}", *TINY]
        shell = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command, "train.steps=3"]
        assert subprocess.run(shell, cwd=tmp_path, timeout=180).returncode == 0
    else:
        read, gone = os.pipe()
        os.close(read)
        target = gone if output.startswith("pipe") else os.open("/dev/full", os.O_WRONLY)
        process = start("train.steps=3", stdout=target, stderr=target)
        assert process.wait(timeout=180) == 0
        os.close(gone)
    run = only_run(tmp_path)
    assert run is not None
    assert (result_of(run)["status"], result_of(run)["steps"]) == ("ok", 3)
    text = (run / "metrics.jsonl").read_text()
    assert all(line.startswith("{") for line in text.splitlines())


def test_a_run_under_nohup_outlives_its_terminal(start: Start, tmp_path: Path) -> None:
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = start("train.steps=40", preexec_fn=ignore)
    run = wait_for_steps(tmp_path, process, 3)
    process.send_signal(signal.SIGHUP)
    said = "".join(process.communicate(timeout=180))
    assert process.returncode == 0, said
    assert result_of(run)["steps"] == 40


SLOW_VALIDATION = (
    *("kernels.backend=reference", "model.depth=4", "train.batch_size=1", "data.val_bytes=40000"),
    "data.val_sample=16384",
)
QUICKLY = "kernels.backend=cpu"  # the same validation, once nobody stops it


SLOW = pytest.mark.slow  # 12 s each, and the way of all signals to the validation is one


@pytest.mark.parametrize(
    "name",
    ["SIGTERM", pytest.param("SIGHUP", marks=SLOW), pytest.param("SIGINT", marks=SLOW)],
)
def test_a_signal_ends_a_validation_and_nothing_of_it_counts(
    start: Start, tmp_path: Path, name: str
) -> None:
    process = start("train.steps=2", "train.val_every=1", *SLOW_VALIDATION)
    run = wait_for_steps(tmp_path, process, 1)  # and the validation after it begins
    time.sleep(0.5)
    process.send_signal(signal.Signals[name])
    said = "".join(process.communicate(timeout=180))
    assert process.returncode == 130, said
    result = result_of(run)
    assert (result["status"], result["steps"], result["val_bpb"]) == ("interrupted", 1, None)
    assert result["best_val_bpb"] is None
    assert not (run / "checkpoints" / "best").exists()
    assert "validation" not in (run / "metrics.jsonl").read_text()

    # The run goes on as if no signal had come: with the validation that was stopped.
    again = start(f"train.resume={run}", QUICKLY)
    said = "".join(again.communicate(timeout=120))
    assert again.returncode == 0, said
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [one["step"] for one in records if one["kind"] == "validation"] == [1, 2]
    saved = (run / "checkpoints").glob("step-*/meta.json")
    assert all(json.loads(path.read_text())["val_bpb"] is not None for path in saved)


def test_a_run_stopped_in_its_last_validation_is_completed_by_that_alone(
    start: Start, tmp_path: Path
) -> None:
    process = start("train.steps=2", *SLOW_VALIDATION)
    run = wait_for_steps(tmp_path, process, 2)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=180) == 130
    assert result_of(run)["val_bpb"] is None
    again = start(f"train.resume={run}", QUICKLY)
    said = "".join(again.communicate(timeout=120))
    result = result_of(run)
    assert (result["status"], result["steps"], result["val_step"]) == ("ok", 2, 2), said
    longer = start(f"train.resume={run}", "train.steps=3", "train.val_every=null", QUICKLY)
    said = "".join(longer.communicate(timeout=120))
    first = result["val_bpb"]
    assert result_of(run)["best_val_bpb"] == min(first, result_of(run)["val_bpb"]), said  # type: ignore[type-var]
    third = start(f"train.resume={run}")
    assert "its budget is used up" in third.communicate(timeout=180)[1]


def test_signals_end_an_evaluation_at_once(start: Start, tmp_path: Path, text_file: Path) -> None:
    start("train.steps=1", "model.depth=4").communicate(timeout=180)
    run = only_run(tmp_path)
    long = tmp_path / "long.txt"
    long.write_bytes(text_file.read_bytes() * 16)
    command = (f"eval.checkpoint={run}", f"eval.path={long}", "eval.batch_size=1")
    process = start("mode=eval", *command, "kernels.backend=reference")
    deadline = time.monotonic() + 180
    while not reads(process, long):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)  # it takes a minute longer
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=180)
    assert "bits per byte" not in out
    assert errors == "elman: interrupted (SIGTERM)\n"
    assert process.returncode == 130


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
def test_every_signal_of_a_scheduler_or_a_keyboard_saves(
    train, capsys, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    take = loop.take_step

    def told(state: TrainingState, share: float) -> Any:
        if state.step == 2:
            os.kill(os.getpid(), number)
        return take(state, share)

    monkeypatch.setattr(loop, "take_step", told)
    # A shell lets what it starts in the background ignore some of them.
    of_pytest = signal.signal(number, signal.SIG_DFL)
    run = train("train.val_every=null", "kernels.backend=reference")
    after = signal.signal(number, of_pytest)
    assert (run.status, run.result["status"], run.result["steps"]) == (130, "interrupted", 3)
    assert [path.name for path in (run.folder / "checkpoints").glob("step-*")] == ["step-0000003"]
    assert f"{number.name}: saved after step 3" in capsys.readouterr().out
    assert after == signal.SIG_DFL


def test_what_a_command_was_started_to_ignore_it_ignores() -> None:
    """As ``nohup`` does with SIGHUP, and ``trap "" USR1`` in a batch script with its signal."""
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with interruptible() as interruption, ending():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not interruption
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_later_signal_of_a_scheduler_leaves_the_clean_up_alone() -> None:
    cleaned = []
    with ending():
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            raise AssertionError("it was not heard")
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned.append(True)
    assert cleaned


def test_a_launcher_passes_a_schedulers_signals_on_as_an_order_to_save() -> None:
    with Interrupts() as interrupts:
        for number in (signal.SIGUSR1, signal.SIGXCPU, signal.SIGXCPU):
            os.kill(os.getpid(), number)
        assert interrupts.take() == [signal.SIGTERM]
        assert interrupts.count == 1  # SIGXCPU comes each second, and is no second order


def test_time_in_which_a_run_was_stopped_does_not_count(
    train, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z and fg, or a scheduler that suspends jobs: nothing hears the stop itself."""
    take = loop.take_step

    def stopped(state: TrainingState, share: float) -> Any:
        if state.step == 4:
            code = "sleep 0.2; kill -STOP $0; sleep 2.5; kill -CONT $0"
            helper = subprocess.Popen(["sh", "-c", code, str(os.getpid())])
            helper.wait()
        return take(state, share)

    monkeypatch.setattr(loop, "take_step", stopped)
    run = train("train.val_every=null", "kernels.backend=reference")
    assert run.result["status"] == "ok"
    said = re.search(r"stopped for (\d+)s, which does not count", capsys.readouterr().out)
    assert said is not None
    assert int(said[1]) >= 2


def test_a_run_that_goes_on_without_a_stop_loses_no_time() -> None:
    """SLURM sends SIGCONT before SIGTERM."""
    clock, interruption = TrainingClock(), Interruption()
    clock.start()
    suspension = Suspension(clock, 0.5)
    suspension.begins()
    interruption.goes_on(signal.SIGCONT, None)
    assert suspension.forgiven(interruption) == 0.0


class TestInterruption:
    """What a signal does when."""

    def send(self, interruption: Interruption, *numbers: int) -> None:
        """Receive the signals."""
        for number in numbers:
            interruption.request(number, None)

    def test_before_the_first_step_it_ends_at_once_and_cleaning_up_is_left_alone(self) -> None:
        interruption = Interruption()
        interruption.release()
        with pytest.raises(KeyboardInterrupt):
            self.send(interruption, signal.SIGTERM)
        self.send(interruption, signal.SIGTERM, signal.SIGINT)

    def test_while_it_trains_it_is_noted_and_a_second_ctrl_c_gives_up(self) -> None:
        interruption = Interruption()
        interruption.begin()
        self.send(interruption, signal.SIGHUP, signal.SIGTERM)
        assert interruption.name == "SIGTERM"
        for number in (signal.SIGINT, signal.SIGQUIT):
            with pytest.raises(KeyboardInterrupt):
                self.send(interruption, number)
            interruption.begin()

    def test_nothing_interrupts_the_writing_of_the_result(self) -> None:
        interruption = Interruption()
        interruption.begin()
        interruption.hold()
        self.send(interruption, signal.SIGINT, signal.SIGINT, signal.SIGTERM)
        interruption.release()
        with pytest.raises(KeyboardInterrupt):
            self.send(interruption, signal.SIGINT)


def test_a_signal_in_the_check_of_the_saved_weights_costs_the_check_alone(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elman.training import trainer

    check = trainer.reload_difference

    def interrupted(*given: Any) -> float | None:
        os.kill(os.getpid(), signal.SIGTERM)
        return check(*given)

    monkeypatch.setattr(trainer, "reload_difference", interrupted)
    run = train()
    assert run.result["status"] == RunStatus.OK
    assert run.result["val_bpb"] is not None
    assert run.result["reload_difference_bpb"] is None


def test_the_picture_is_drawn_after_the_result_is_written(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elman.report import plots

    def stopped(folder: Path) -> None:
        assert (folder / "result.json").exists()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
        raise AssertionError("the signal was not heard")

    monkeypatch.setattr(plots, "plot_losses", stopped)
    assert train("log.plot=true").result["status"] == "ok"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("train.steps=3",), r"a step may take \S+, as the first pass did, and the 3 to do \S+; "),
        (("train.minutes=9", "train.steps=null"), r"a step may take \S+, as the first pass did; "),
    ],
)
def test_slow_steps_are_foretold(
    train, capsys, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], said: str
) -> None:
    from elman.training import trainer

    monkeypatch.setattr(trainer, "SHOWN_SECONDS", 0.0)
    monkeypatch.setattr(trainer.Totals, "share", lambda totals: min(1.0, totals._state.step / 2))
    train("kernels.backend=reference", "train.val_every=null", *overrides)
    before = capsys.readouterr().out.partition("\nstep ")[0]
    assert re.search(said, before)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("train.steps=1",), "validating takes about"),
        (("train.steps=4", "train.val_every=1"), "5 validations take about"),
        (("train.minutes=1000", "train.steps=null"), None),
    ],
)
def test_a_validation_longer_than_the_training_is_foretold(
    train, capsys, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], said: str | None
) -> None:
    from elman.training import held_out, trainer

    monkeypatch.setattr(held_out, "_WORTH_SAYING_SECONDS", 0.0)
    monkeypatch.setattr(trainer.Totals, "share", lambda totals: min(1.0, totals._state.step / 2))
    train("kernels.backend=reference", "data.val_sample=2048", "train.val_every=null", *overrides)
    lines = capsys.readouterr().out.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("step "))
    found = [line for line in lines[:first] if "longer than the training" in line]
    assert len(found) == (said is not None)
    if said is not None:
        assert found[0].startswith(said)
        sample = int(re.search(r"data\.val_sample=(\d+)", found[0])[1])  # type: ignore[index]
        assert 0 < sample < 2048
        compose_config([f"data.val_sample={sample}"])
