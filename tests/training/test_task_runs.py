"""Runs that learn a task: their numbers, an early end, resumption, the test's lengths, eval."""

from __future__ import annotations

import pytest
import torch

import elman
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.base.signals import Stopped
from elman.config.compose import compose_config
from elman.data.tasks.batches import TaskData
from elman.modes import eval as eval_mode
from elman.modes import generate as generate_mode
from elman.modes import tasks as tasks_mode
from elman.runs.folder import config_hash
from elman.runs.prepared import PreparedRun
from elman.sections.tasks import IGNORED
from elman.training.held_out_answers import HeldOutAnswers
from tests.training.stopping import stop_after

PARITY = ("data=parity", "data.lengths=[16,24]", "data.val_rows=8", "data.test_rows=8")
EASY = (*PARITY, "train.steps=60", "train.val_every=10", "optim.lr=0.01", "train.batch_size=16")


def accuracy_of(folder, length: int, rows: int) -> float:
    """Return the accuracy of a run's model, computed row by row and position by position."""
    model = elman.load(folder)
    config = compose_config(["data=parity", "data.lengths=[16]", f"data.test_rows={rows}"]).data
    right = total = 0
    for batch in TaskData(config).test_rows(length, rows):
        for inputs, answers in batch:
            logits, _ = model(torch.from_numpy(inputs)[None].long())
            for position, answer in enumerate(answers):
                if answer != IGNORED:
                    right += int(logits[0, position].argmax()) == answer
                    total += 1
    return right / total


def test_a_run_reports_its_right_answers_at_every_length(train, capsys) -> None:
    run = train(*PARITY)
    result = run.result
    assert run.status == ExitStatus.OK
    assert set(result["accuracy_by_length"]) == {"16", "24"}
    for length in (16, 24):
        found = result["accuracy_by_length"][str(length)]
        assert found == pytest.approx(accuracy_of(run.folder, length, 8))
    assert result["data"]["task"] == "parity"
    # The present bit is the answer at the first of 16 positions, and says nothing at the others.
    chances = result["data"]["chance_by_length"]
    assert chances == {
        "16": pytest.approx(8.5 / 16, abs=0.01),
        "24": pytest.approx(12.5 / 24, abs=0.01),
    }
    assert result["data"]["chance"] == chances["16"]
    assert (result["tokens"], result["val_tokens"]) == (6 * 4 * 16, 8 * 16)
    assert result["reached_accuracy"] is False
    defined = {"accuracy", "accuracy_by_length", "data.chance", "reached_accuracy"}
    assert defined <= set(result["definitions"])
    assert [r["accuracy"] for r in run.records("validation")][-1] == result["accuracy"]
    said = capsys.readouterr()
    assert "accuracy at 16" in said.out
    assert "mode=generate" not in said.out
    assert f"chance {chances['16']:.3f}" in said.out
    assert f"chance is {chances['24']:.4f}" in said.out


def test_a_validation_that_is_good_enough_ends_the_run_and_says_so(train, capsys) -> None:
    run = train(*EASY, "train.until_accuracy=0.55")
    assert run.status == ExitStatus.OK
    assert run.result["reached_accuracy"] is True
    assert run.result["steps"] < 60
    assert run.result["steps"] % 10 == 0
    assert run.result["accuracy"] >= 0.55
    assert set(run.result["accuracy_by_length"]) == {"16", "24"}
    said = capsys.readouterr()
    assert "train.until_accuracy=0.55 reached" in said.out
    assert "train.until_accuracy was reached" in said.out
    with pytest.raises(UserError, match=r"reached train\.until_accuracy.*larger train\.until_acc"):
        train(*EASY, "train.until_accuracy=0.55", f"train.resume={run.folder}")


def test_a_run_learns(train) -> None:
    run = train(*EASY, "model.n_state=16", "train.val_every=null")
    losses = [record["loss"] for record in run.records("step")]
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0]


@pytest.mark.parametrize("more", [[], ["optim=schedulefree"], ["train.grad_accum=2"]])
def test_a_run_that_was_killed_goes_on_bit_for_bit(train, monkeypatch, more: list[str]) -> None:
    whole = train(*PARITY, *more, folder="whole")

    with monkeypatch.context() as patched:
        stop_after(patched, 4)
        assert train(*PARITY, *more, folder="half").status == ExitStatus.FAILED
    folder = whole.folder.parent / "half"
    resumed = train(*PARITY, *more, f"train.resume={folder}", folder="half")
    for key, value in whole.weights().items():
        assert torch.equal(value, resumed.weights()[key])
    for key in ("loss", "accuracy", "accuracy_by_length"):
        assert resumed.result[key] == whole.result[key]


def test_a_signal_during_the_test_leaves_a_run_that_only_has_the_test_to_do(
    train, monkeypatch
) -> None:
    def stopped(*args: object) -> None:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(HeldOutAnswers, "by_length", stopped)
        run = train(*PARITY)
    assert run.result["status"] == "interrupted"
    assert run.result["accuracy_by_length"] == {}
    resumed = train(*PARITY, f"train.resume={run.folder}")
    assert resumed.status == ExitStatus.OK
    assert set(resumed.result["accuracy_by_length"]) == {"16", "24"}
    assert resumed.result["steps"] == 6
    with pytest.raises(UserError, match="budget is used up"):
        train(*PARITY, f"train.resume={run.folder}")


def test_another_difficulty_is_other_data(train) -> None:
    run = train("data=modular_counter", "data.lengths=[16]", "data.test_rows=4", "data.val_rows=4")
    task = ("data=modular_counter", "data.lengths=[16]", "data.modulus=4", "train.steps=8")
    with pytest.raises(UserError, match="task modular_counter with these settings differs"):
        train(*task, f"train.resume={run.folder}")


def test_eval_tests_the_lengths_that_one_names(train, capsys) -> None:
    run = train(*PARITY)
    capsys.readouterr()
    given = ["mode=eval", f"eval.checkpoint={run.folder}"]
    eval_mode.run(PreparedRun(compose_config(given)))
    own = capsys.readouterr().out
    assert f"{run.result['accuracy_by_length']['24']:.4f}" in own
    assert f"{run.result['data']['chance_by_length']['24']:.4f}" in own
    assert "chance: the best blind guess" in own
    eval_mode.run(PreparedRun(compose_config([*given, "eval.lengths=[7,16]"])))
    named = capsys.readouterr().out
    assert f"{accuracy_of(run.folder, 7, 8):.4f}" in named
    assert " 24 " not in named
    with pytest.raises(UserError, match=r"eval\.carry_state.*learned the task parity"):
        eval_mode.run(PreparedRun(compose_config([*given, "eval.carry_state=true"])))
    generate = ["mode=generate", f"generate.checkpoint={run.folder}"]
    with pytest.raises(UserError, match=r"learned the task parity, which has no text"):
        generate_mode.run(PreparedRun(compose_config(generate)))


def test_text_has_no_lengths_to_test(train) -> None:
    run = train()
    given = ["mode=eval", f"eval.checkpoint={run.folder}", "eval.lengths=[8]"]
    with pytest.raises(UserError, match=r"eval\.lengths: .* learned text"):
        eval_mode.run(PreparedRun(compose_config(given)))


def test_the_names_of_runs_on_text_are_those_of_before_the_tasks() -> None:
    config = compose_config(["model=e1", "train.steps=10"])
    assert config_hash(config) == "62fcb2ea"
    task = compose_config(["model=e1", "train.steps=10", "data=parity"])
    other = compose_config(["model=e1", "train.steps=10", "data=parity", "train.until_accuracy=1"])
    assert len({config_hash(one) for one in (config, task, other)}) == 3


def test_the_list_of_tasks_and_rows_in_words(capsys) -> None:
    assert tasks_mode.run(PreparedRun(compose_config(["mode=tasks"]))) == ExitStatus.OK
    listed = capsys.readouterr().out
    assert "modular_quadratic" in listed
    assert "14 tasks" in listed
    tasks_mode.run(PreparedRun(compose_config(["mode=tasks", "data=s3", "data.generators=all"])))
    shown = capsys.readouterr().out
    assert "data.generators=all" in shown
    assert "row 1" in shown
