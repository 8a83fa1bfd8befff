"""Ladders by the command line: their steps, what they predict, stops and additions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elman.base.exit_status import ExitStatus
from elman.tuning.trials import Tuned
from tests.stubs.command_line import Ended
from tests.waiting import eventually, gone

from .test_tuned_sweeps import Sweeps

SIZES = ("100k", "200k", "400k")
# By model: its best rate, where it diverges, and its score at the best rate.
SCORES = {
    f"{family}_{size}": (rate, 1.0, worst - 0.2 * place)
    for family, worst in (("e88", 3.0), ("e1", 2.8))
    for place, (size, rate) in enumerate(
        zip((*SIZES, "800k"), (4e-3, 2e-3, 2e-3, 1e-3), strict=True)
    )
}
MODELS = "model=" + ",".join(f"{family}_{size}" for family in ("e88", "e1") for size in SIZES)
SHORT = (
    *("tune=ladder", "tune.trials=4", "tune.quasi_random=4", "tune.sampler=quasi_random"),
    *("tune.grow=0", "tune.ladder.check_trials=2", "train.seed=1,2", "launcher.workers=2"),
)


@pytest.fixture
def sweeps(tmp_path: Path, stub_environment: dict[str, str]) -> Iterator[Sweeps]:
    """Return a folder whose sweeps do not outlive the test."""
    made = Sweeps(tmp_path, stub_environment)
    made.environment["STUB_SCORES"] = json.dumps(SCORES)
    yield made
    made.end()


def check_complete(sweeps: Sweeps, sizes: tuple[str, ...] = SIZES) -> Tuned:
    """Check that a ladder has all that it needs, each once; return what it recorded."""
    tuned = sweeps.tuned()
    assert tuned.state == "done"
    assert all(one.ended for one in tuned.trials)
    assert [*tuned.lines] == ["e88", "e1"]
    for family in ("e88", "e1"):
        assert [len(tuned.of(f"{family}_{size}")) for size in SIZES] == [4, 4, 2]
        for size in sizes:
            assert sorted(one.seed for one in tuned.of(f"{family}_{size}", "best")) == [1, 2]
    return tuned


def check_predicted(sweeps: Sweeps, output: str) -> None:
    """Check what a ladder predicted before it trained its largest sizes, and what it says of it."""
    tuned = check_complete(sweeps)
    jobs: list[dict[str, Any]] = sweeps.record()["jobs"]
    for family in ("e88", "e1"):
        told = tuned.predictions[f"{family}_400k"]
        assert told.score is not None
        assert told.is_open  # two sizes
        assert told.at
        line, last = tuned.lines[family], tuned.of(f"{family}_400k", "best")
        assert [one.values["optim.lr"] for one in last] == pytest.approx([line.rate(256)] * 2, 1e-3)
        small = [job["number"] for job in jobs if job["tuning"]["arm"] == f"{family}_200k"]
        assert max(small) < min(one.job for one in tuned.of(f"{family}_400k", "trial", "best"))
    budgets = {job["model"]: job["command"].split("train.bytes=")[1].split()[0] for job in jobs}
    assert budgets["e88_100k"] == budgets["e1_100k"] == "2000000"
    assert budgets["e88_400k"] == budgets["e1_400k"] == "8000000"
    assert "ladder: e88_400k will score " in output
    assert "The ladder:" in output
    assert "made before training missed by" in output
    found = json.loads((sweeps.sweep / "ladder.json").read_text())
    assert [*found["ladders"][0]["families"]] == ["e88", "e1"]


def test_a_ladder_predicts_its_largest_size_before_it_is_trained_and_a_larger_one_anew(
    sweeps: Sweeps,
) -> None:
    status, output = sweeps.run(MODELS, *SHORT)
    assert status == 0, output
    check_predicted(sweeps, output)
    before = sweeps.tuned().predictions
    add = f"sweep.add={sweeps.sweep}"
    status, output = sweeps.run("-m", add, "tune.trials=6")
    assert status == ExitStatus.USER_ERROR
    assert "tune.trials: a ladder's lines are drawn through its trials" in output
    status, output = sweeps.run("-m", add, "model=e88_800k,e1_800k")
    assert status == 0, output
    tuned = check_complete(sweeps, (*SIZES, "800k"))
    assert len(tuned.arms) == 8
    assert {label: tuned.predictions[label] for label in before} == before
    assert [len(tuned.predictions[f"{one}_800k"].sizes) for one in ("e88", "e1")] == [3, 3]
    assert not tuned.predictions["e88_800k"].is_open


def test_a_killed_ladder_goes_on_and_keeps_what_it_predicted(sweeps: Sweeps) -> None:
    started = sweeps.start(MODELS, *SHORT, STUB_SECONDS="0.3")
    predicted: dict[str, Any] = {}
    for wanted in (6, 18, 26):
        eventually(lambda wanted=wanted: sweeps.starts() >= wanted)
        started.kill()
        started.wait()
        for path in (sweeps.folder / "notes").glob("*"):
            pid = json.loads(path.read_text().splitlines()[-1])["pid"]
            eventually(lambda pid=pid: gone(pid))
        now = {**sweeps.tuned().predictions}
        assert predicted.items() <= now.items()
        predicted = now
        started = sweeps.start("-m", f"sweep.resume={sweeps.sweep}", STUB_SECONDS="0.3")
    output, _ = started.communicate(timeout=400)
    assert started.returncode == 0, output
    tuned = check_complete(sweeps)
    assert predicted.items() <= tuned.predictions.items()


def test_the_plan_of_a_ladder_says_its_stages_and_its_cost(elman: Callable[..., Ended]) -> None:
    ended = elman("benchmark=ladder_quick", "sweep.dry_run=true")
    assert ended.status == 0, ended.errors
    for line in (
        "tune=ladder: families e88, e1 at 4 sizes; optim.lr by val_bpb, lower is better",
        "1. trials of the smallest sizes: 4 x 5, and at most 8 more if a best value is at the edge",
        "trials at the next size that check it: 6",
        "3. whole runs of all sizes but the largest: 12",
        "4. the largest size of each family is predicted, then trained: 4",
        "bytes at most: ",
        "FLOPs at most: ",
    ):
        assert line in ended.output
    assert not Path("outputs").exists()


def test_the_plan_names_a_family_whose_largest_size_cannot_be_predicted(
    elman: Callable[..., Ended],
) -> None:
    models = "model=e88_100k,e88_200k,e1_100k"
    unchecked = "tune.ladder.check_trials=0"
    ended = elman("-m", models, "tune=ladder", unchecked, "sweep.dry_run=true")
    assert ended.status == 0, ended.errors
    assert "the rates of the larger sizes; no trial checks it" in ended.output
    assert "e88: no prediction from 2 sizes; type at least 3" in ended.output
    assert "e1: no prediction from 1 size; type at least 3" in ended.output


REFUSED = {
    "model=e88_tiny": "model=e88_tiny: a model of a ladder is named <family>_<size>",
    "train.steps=50": "train.steps=50: a ladder gives every size bytes in proportion",
    "data=copy": "data=copy: a ladder predicts bits per byte of text; drop it, or type tune=rates",
    "tune.ladder.bytes=3": "no such setting; did you mean tune.ladder.bytes_per_param=3?",
    "tune.score=accuracy": "tune.score: not read by a ladder",
    "+tune.space.optim.beta2={values: [0.9, 0.99]}": "tune.ladder: tunes a range of optim.lr",
    "optim.weight_decay=0.01,0.1": "model=e88_100k: a ladder has one run of each size, and these",
    "model=e88_100k": "model=e88_100k: a ladder needs several sizes of a family; add others",
}


@pytest.mark.parametrize("override", REFUSED)
def test_a_ladder_that_makes_no_sense_is_refused(
    elman: Callable[..., Ended], override: str
) -> None:
    models = [] if override.startswith("model=") else [MODELS]
    ended = elman("-m", *models, "tune=ladder", override)
    assert ended.status == ExitStatus.USER_ERROR
    (line,) = ended.errors.splitlines()
    assert REFUSED[override] in line
    assert not Path("outputs").exists()
