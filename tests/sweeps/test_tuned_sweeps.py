"""Tuned sweeps by the command line: their phases, resumption, growth and refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elman.base.exit_status import ExitStatus
from elman.tuning.trials import Tuned, trials_of
from tests.stubs.command_line import Ended
from tests.stubs.commands import Commands
from tests.waiting import eventually, gone

# By model: where its score is best, and beyond which rate it diverges.
SCORES = {"e1": (1e-3, 4e-3), "e42": (2e-3, 1.0)}
TUNED = ("tune=rates", "tune.sampler=quasi_random", "tune.trials=4", "tune.quasi_random=4")
SHORT = ("tune.steps=5", "train.steps=50", "train.seed=1,2")
WORKERS = "launcher.workers=2"
# Whole runs of the best setting alone.
FEW = ("tune.common_seeds=0", "tune.second_seeds=0")


class Sweeps(Commands):
    """A folder with tuned sweeps whose jobs are stubs with scores."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(folder, environment | {"STUB_SCORES": json.dumps(SCORES)})

    def tuned(self) -> Tuned:
        """Return what the sweep has recorded."""
        found = trials_of(self.sweep)
        assert found is not None
        return found

    def starts(self) -> int:
        """Return how many jobs have begun."""
        return sum(note["what"] == "start" for note in self.lines())


@pytest.fixture
def sweeps(tmp_path: Path, stub_environment: dict[str, str]) -> Iterator[Sweeps]:
    """Return a folder whose sweeps do not outlive the test."""
    made = Sweeps(tmp_path, stub_environment)
    yield made
    made.end()


def rates(tuned: Tuned, arm: str, *phases: Any) -> list[Any]:
    return [one.values["optim.lr"] for one in tuned.of(arm, *phases)]


def test_trials_find_a_setting_that_whole_runs_confirm(sweeps: Sweeps) -> None:
    status, output = sweeps.run("model=e1,e42", *TUNED, *SHORT, WORKERS)
    assert status == 0, output
    tuned = sweeps.tuned()
    assert tuned.state == "done"
    for arm in ("e1", "e42"):
        assert rates(tuned, arm)[0] == 3e-4
        assert [one.number for one in tuned.of(arm)] == [1, 2, 3, 4]
        assert [one.seed for one in tuned.of(arm, "best")] == [1, 2]
        assert set(rates(tuned, arm, "common")) == {3e-4}
        assert {one.status for one in tuned.of(arm, "best", "second", "common")} == {"ok"}
    assert rates(tuned, "e1")[1:] == rates(tuned, "e42")[1:]  # the same points for both
    arms = [one.arm for one in tuned.trials if one.phase == "trial"]
    assert arms == ["e1", "e42"] * 4  # in turn
    best = min((one for one in tuned.of("e1") if one.scored), key=lambda one: one.score or 0)
    assert set(rates(tuned, "e1", "best")) == {best.values["optim.lr"]}
    assert "tuning: 8 of 8 trials" in output
    assert "best setting" in output
    first = next(job for job in sweeps.record()["jobs"] if job["tuning"]["phase"] == "trial")
    texts = "train.seed=0 train.minutes=null train.bytes=null train.flops=null "
    assert f"train.steps=5 optim.lr=0.0003 {texts}train.checkpoints=false" in first["command"]
    assert (sweeps.sweep / "tune.journal").is_file()


def test_a_rate_that_diverges_has_no_score_and_does_not_fail_the_sweep(sweeps: Sweeps) -> None:
    command = ["model=e1", *TUNED, *SHORT, *FEW, WORKERS, "tune.space.optim.lr.low=2e-4"]
    status, output = sweeps.run(*command, "tune.seed=5")
    assert status == 0, output
    tuned = sweeps.tuned()
    diverged = [one for one in tuned.of("e1") if one.values["optim.lr"] > 4e-3]
    assert diverged
    assert {(one.status, one.score) for one in diverged} == {("nan", None)}
    assert all(rate <= 4e-3 for rate in rates(tuned, "e1", "best", "second"))
    journal = (sweeps.sweep / "tune.journal").read_text()
    states = [json.loads(line) for line in journal.splitlines()]
    told = [line for line in states if line["op_code"] == 6 and line["state"] == 2]  # pruned
    assert len(told) == len(diverged)
    assert all(line["values"] is None for line in told)


def test_a_best_value_at_the_edge_lets_the_range_grow_for_all_arms(sweeps: Sweeps) -> None:
    narrow = ("tune.space.optim.lr.low=2e-4", "tune.space.optim.lr.high=1e-3", "tune.grow=1")
    status, output = sweeps.run("model=e1,e42", *TUNED, *SHORT, *FEW, WORKERS, *narrow)
    assert status == 0, output
    tuned = sweeps.tuned()
    assert [one["optim.lr"]["high"] for one in tuned.ranges] == [1e-3, 2.236e-3]
    for arm in ("e1", "e42"):
        assert [one.growth for one in tuned.of(arm)] == [0] * 4 + [1] * 2
        assert all(rate > 9e-4 for rate in rates(tuned, arm)[4:])
    assert "the range grew 1 x" in output
    assert "its best value is at the upper edge of optim.lr" in output


def test_a_killed_sweep_goes_on_and_no_trial_is_lost_or_tried_twice(sweeps: Sweeps) -> None:
    started = sweeps.start("model=e1,e42", *TUNED, *SHORT, WORKERS, STUB_SECONDS="0.4")
    for wanted in (3, 7, 11):
        eventually(lambda wanted=wanted: sweeps.starts() >= wanted)
        started.kill()
        started.wait()
        pids = [json.loads(line)["pid"] for line in _newest_starts(sweeps)]
        for pid in pids:
            eventually(lambda pid=pid: gone(pid))
        started = sweeps.start("-m", f"sweep.resume={sweeps.sweep}", STUB_SECONDS="0.4")
    output, _ = started.communicate(timeout=400)
    assert started.returncode == 0, output
    tuned = sweeps.tuned()
    assert tuned.state == "done"
    for arm in ("e1", "e42"):
        assert [one.number for one in tuned.of(arm)] == [1, 2, 3, 4]
        assert len(set(rates(tuned, arm))) == 4
        assert [one.seed for one in tuned.of(arm, "best")] == [1, 2]
    assert rates(tuned, "e1")[1:] == rates(tuned, "e42")[1:]
    assert all(one.ended for one in tuned.trials)
    folders = {job["folder"] for job in sweeps.record()["jobs"]}
    assert folders <= {path.name for path in sweeps.sweep.iterdir() if path.is_dir()}


def _newest_starts(sweeps: Sweeps) -> list[str]:
    return [path.read_text().splitlines()[-1] for path in (sweeps.folder / "notes").glob("*")]


def test_a_sweep_gets_more_trials_more_seeds_and_another_arm(sweeps: Sweeps) -> None:
    status, output = sweeps.run("model=e1", *TUNED, *SHORT, *FEW, WORKERS)
    assert status == 0, output
    before = sweeps.record()["jobs"]
    add = f"sweep.add={sweeps.sweep}"
    for command, line in {
        (add, "train.steps=60"): "train.steps=60: a tuned sweep gets more trials, seeds or models",
        (add, "tune.trials=4"): "tune.trials=4: the sweep has 4 trials of each arm; type more",
        (add, "tune.steps=6"): "tune.steps=6: every trial of a sweep has the same settings",
        (add, "train.seed=0"): "tune.seed=0: train.seed has it too",
        (add,): "names nothing to add",
        (f"sweep.resume={sweeps.sweep}", "tune.trials=9"): "goes on with the settings of the sweep",
    }.items():
        status, output = sweeps.run("-m", *command)
        assert (status, len(output.splitlines())) == (ExitStatus.USER_ERROR, 1), output
        assert line in output
    assert sweeps.record()["jobs"] == before
    status, output = sweeps.run("-m", add, "tune.trials=6", "train.seed=3", "model=e42")
    assert status == 0, output
    tuned, after = sweeps.tuned(), sweeps.record()["jobs"]
    assert [job["folder"] for job in after[: len(before)]] == [job["folder"] for job in before]
    for arm in ("e1", "e42"):
        assert len(tuned.of(arm)) == 6
        assert sorted(one.seed for one in tuned.of(arm, "best")) == [1, 2, 3]
        assert len(set(rates(tuned, arm, "best"))) == 1
    assert rates(tuned, "e1")[1:] == rates(tuned, "e42")[1:]
    assert tuned.state == "done"


def test_a_plan_says_what_it_will_do_and_how_long_that_takes(elman: Callable[..., Ended]) -> None:
    ended = elman(
        *("model=e1,e42", "tune=rates", "tune.minutes=2", "train.minutes=10", "train.seed=1,2,3"),
        *("sweep.dry_run=true", "launcher.workers=2"),
    )
    assert ended.status == 0, ended.errors
    assert "tune=rates: optim.lr of 2 arms by val_bpb, lower is better" in ended.output
    assert (
        "trials: 2 x 8 of 2 min, and at most 8 more if a best value is at the edge" in ended.output
    )
    assert "then whole runs: 14 at most, of 10 min" in ended.output
    # 24 trials of 2 and 14 runs of 10 minutes.
    assert "training: 3h08m of one place at most, about 1h34m with 2 places" in ended.output
    assert not Path("outputs").exists()


REFUSED = {
    "+tune.space.optim.matrix_lr={low: 1e-3, high: 1e-2}": (
        "tune.space.optim.matrix_lr: e1 (optim=adamw) does not read it"
    ),
    "+tune.space.model.n_state={values: [8, 16]}": (
        "tune.space.model.n_state: e1 (cell e1) does not read it"
    ),
    "+tune.space.model.dim={values: [128, 256]}": "tune.space.model.dim: changes the size of e1",
    "+tune.space.train.seed={values: [1, 2]}": "tune.space.train.seed: is the same for all trials",
    "+tune.space.data.val_bytes={values: [1, 2]}": "data.val_bytes: no arm is tuned in it",
    "optim.lr=1e-3,2e-3": "optim.lr: is swept, and tune.space.optim.lr finds it",
    "optim.lr=0.5": (
        "tune.space.optim.lr: the published setting of e1 is 0.5, outside 0.0001 to 0.01; type "
        "tune.space.optim.lr.high=0.5"
    ),
    "tune.seed=2": "tune.seed=2: train.seed has it too",
    "tune.score=accuracy": "tune.score=accuracy: text has no answers",
    "tune.steps=51": "tune.steps=51: longer than a whole run, which has train.steps=50",
    "tune.bytes=9": "tune.bytes: not read together with tune.steps; drop one of them",
    "tune.sampler=cma_es": "tune.sampler=cma_es: searches two ranges or more",
    "tune.space.optim.lr.high=1e-4": "a space with one point",
    "mode=bench": "tune: read only with mode=train, not with mode=bench",
    "train.init_from=.": "train.init_from: a run that starts from trained weights",
    "tune=rates,shape": "tune=rates,shape: every model is tuned in one space; type tune=rates",
    "hydra/launcher=basic": "hydra/launcher=basic: it takes all jobs at the start",
}


@pytest.mark.parametrize("override", REFUSED)
def test_a_tuned_sweep_that_makes_no_sense_is_refused(
    elman: Callable[..., Ended], override: str
) -> None:
    typed = ["tune=rates", "tune.steps=5", "train.steps=50", "train.seed=1,2"]
    typed = [text for text in typed if text.partition("=")[0] != override.partition("=")[0]]
    ended = elman("-m", "model=e1", *typed, override)
    assert ended.status == ExitStatus.USER_ERROR
    (line,) = ended.errors.splitlines()
    assert REFUSED[override] in line
    assert not Path("outputs").exists()


def test_nothing_is_tuned_with_null(elman: Callable[..., Ended]) -> None:
    ended = elman("-m", "model=e1,e42", "tune=null", "train.steps=50", "sweep.dry_run=true")
    assert ended.status == 0, ended.errors
    assert "trials" not in ended.output


def test_optuna_and_scipy_are_imported_only_where_something_is_tuned(tmp_path: Path) -> None:
    code = (
        "import sys; from elman.cli.main import main; main(sys.argv[1:]); "
        "print('imported', [n for n in ('optuna', 'scipy') if n in sys.modules])"
    )
    for command in (["--help"], ["--cfg", "job"], ["-m", "model=e1,e42", "sweep.dry_run=true"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ,
            timeout=120,
        )
        assert "imported []" in done.stdout, (command, done.stderr)


def test_shapes_of_one_size_are_tuned_with_the_settings_that_make_them(
    elman: Callable[..., Ended],
) -> None:
    ended = elman("model=llama", "tune=shape", "sweep.dry_run=true")
    assert ended.status == 0, ended.errors
    assert "tune=shape: optim.lr, shape of 1 arm" in ended.output
    assert "optim.lr=0.0003 model.depth=20 model.dim=640 train.seed=0" in ended.output


def test_another_model_can_stand_for_a_model_in_its_trials(elman: Callable[..., Ended]) -> None:
    command = ["-m", "model=e1,e42", "tune=rates", "+tune.trial_models.e1=e1_1280x6"]
    ended = elman(*command, "sweep.dry_run=true")
    assert ended.status == 0, ended.errors
    trials = [line for line in ended.output.splitlines() if line.startswith("elman ")]
    assert [line.split()[1] for line in trials] == ["model=e1_1280x6", "model=e42"]
    assert "job 1: e1, " in ended.output


def test_a_trial_that_ends_inside_its_warm_up_is_noted(elman: Callable[..., Ended]) -> None:
    command = ["model=e1", "tune=rates", "tune.steps=50", "train.steps=500", "sweep.dry_run=true"]
    note = "note: a trial of e1 ends inside its warm-up of 100 steps"
    assert note in elman(*command).output
    assert note not in elman(*command, "optim.warmup_share=0.1").output


def test_trials_of_different_tokens_may_have_equal_bytes(elman: Callable[..., Ended]) -> None:
    whole = ["train.bytes=123456789", "sweep.dry_run=true", "data.tokenizer=bytes,bpe:512"]
    command = ["-m", "model=e1", "tune=rates", *whole]
    note = "note: in 50 steps, trials of different data.tokenizer learn from different numbers of"
    assert note in elman(*command, "tune.steps=50").output
    said = elman(*command, "tune.bytes=12345678").output
    assert "trials: 2 x 8 of 12,345,678 bytes" in said
    assert "note: in" not in said
    (line,) = [line for line in said.splitlines() if "data.tokenizer=bpe:512 " in line][-1:]
    assert "train.bytes=12345678 " in line
    longer = elman(*command, "tune.bytes=123456790")
    assert "type tune.bytes=123456789 or less" in longer.errors


def test_the_plan_says_that_muons_other_rate_is_not_tuned(elman: Callable[..., Ended]) -> None:
    command = ["model=e1", "tune=rates", "sweep.dry_run=true"]
    note = "is 0.0006 in every trial: optim.lr is not the rate of Muon's matrices"
    said = elman(*command, "optim=muon").output
    assert note in said
    (typed,) = re.findall(r"'(\+tune\.space\.optim\.matrix_lr=\{[^']*\})' tunes it, too", said)
    both = elman(*command, "optim=muon", typed)
    assert "tune=rates: optim.lr, optim.matrix_lr of 1 arm" in both.output
    assert note not in both.output
    mixed = elman("-m", *command, "optim=adamw,muon").output  # the other arm has no such rate
    assert note in mixed
    assert "+tune.space" not in mixed


def test_a_suite_is_tuned_as_models_are(elman: Callable[..., Ended]) -> None:
    command = ["benchmark=peers_100m", "benchmark.only=[e97,llama]", "tune=rates"]
    ended = elman(*command, "sweep.dry_run=true")
    assert ended.status == 0, ended.errors
    assert "optim.lr of 2 arms" in ended.output
    assert "then whole runs: 14 at most, of 10 min" in ended.output  # its three seeds
