"""``mode=verdict``: better, worse or undecided, for scripts."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from elman.base.exit_status import ExitStatus
from elman.cli.main import main
from elman.report.comparison.statistics import two_sided

from .fake_sweep import FakeSweep

GOOD, BAD, CLOSE = [1.40, 1.43, 1.47], [1.50, 1.52, 1.57], [1.42, 1.46, 1.48]


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return a sweep of three models with three seeds each, in a folder of its own."""
    sweep = FakeSweep(tmp_path / "sweeps" / "first")
    for model, scores in (("e1", BAD), ("e42", GOOD), ("e68", CLOSE)):
        add(sweep, model, scores)
    return sweep


def add(sweep: FakeSweep, model: str, scores: list[float], *overrides: str) -> list[Path]:
    """Add a row: a run for each score, with seeds from 1."""
    return [
        sweep.job(f"model={model}", f"train.seed={seed}", *overrides, result={"loss": score})
        for seed, score in enumerate(scores, 1)
    ]


def ask(capfd: pytest.CaptureFixture[str], *overrides: str) -> tuple[int, list[str]]:
    """Return the exit status and the lines of an answer."""
    capfd.readouterr()
    status = main(["mode=verdict", *overrides])
    return status, capfd.readouterr().out.splitlines()


def told(capfd: pytest.CaptureFixture[str], *overrides: str) -> dict[str, Any]:
    """Return an answer in JSON, which is all that is printed."""
    _, lines = ask(capfd, *overrides, "verdict.json=true")
    found: dict[str, Any] = json.loads("\n".join(lines))
    return found


def refused(capfd: pytest.CaptureFixture[str], *overrides: str) -> str:
    """Return the one line with which a command is refused."""
    capfd.readouterr()
    assert main(["mode=verdict", *overrides]) == ExitStatus.USER_ERROR
    output = capfd.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line


def test_better_and_worse_have_a_line_and_a_status_each(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = f"verdict.dir={sweep.folder}"
    status, lines = ask(capfd, "verdict.a=e42", "verdict.b=e1", rows)
    assert (status, lines) == (
        ExitStatus.OK,
        [
            "better: e42 is better than e1: val bpb -0.0967 (-0.1110 to -0.0823) at equal steps, "
            "3 seeds, paired, p 0.0012"
        ],
    )
    status, lines = ask(capfd, "verdict.a=e1", "verdict.b=e42", rows)
    assert status == ExitStatus.WORSE
    assert lines[0].startswith("worse: e1 is worse than e42: val bpb +0.0967 (+0.0823 to +0.1110)")


def test_undecided_says_the_seeds_that_would_decide_and_the_command_that_runs_them(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = ("verdict.a=e68", "verdict.b=e42", f"verdict.dir={sweep.folder}")
    status, lines = ask(capfd, *overrides)
    assert status == ExitStatus.UNDECIDED
    record = told(capfd, *overrides)
    more = record["more_seeds"]
    assert f"about {more} more seeds of each would decide" in lines[0]
    assert lines[1:] == [f"to decide it: {command}" for command in record["commands"]]
    (command,) = record["commands"]
    seeds = f"range(4,{4 + more})" if more > 8 else ",".join(map(str, range(4, 4 + more)))
    assert shlex.split(command) == [
        *("elman", "-m", f"sweep.add={sweep.folder}", "model=e68,e42", f"train.seed={seeds}")
    ]


def test_json_holds_the_whole_answer(sweep: FakeSweep, capfd: pytest.CaptureFixture[str]) -> None:
    record = told(capfd, "verdict.a=e42", "verdict.b=e1", f"verdict.dir={sweep.folder}")
    assert record["verdict"] == "better"
    assert record["difference"] == pytest.approx(-0.29 / 3)
    assert record["interval"] == [
        pytest.approx(-0.1110, abs=1e-4),
        pytest.approx(-0.0823, abs=1e-4),
    ]
    assert (record["seeds"], record["method"], record["tries"]) == ([3, 3], "paired", 1)
    assert (record["correction"], record["more_seeds"], record["commands"]) == (None, None, [])
    assert record["p"] == record["p_corrected"]


def test_a_folder_of_one_row_and_a_run_of_a_sweep_are_rows(
    sweep: FakeSweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = FakeSweep(tmp_path / "sweeps" / "second")
    (first, *_) = add(other, "e33", [1.2, 1.22, 1.27])
    run_of_e1 = next(sweep.folder.glob("*_e1"))
    for name in (other.folder, first):
        record = told(capfd, f"verdict.a={name}", f"verdict.b={run_of_e1}")
        assert (record["a"], record["b"], record["verdict"]) == ("e33", "e1", "better")
        assert record["seeds"] == [3, 3]


def test_one_seed_is_undecided(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    add(sweep, "e1", [1.0])
    add(sweep, "e42", [2.0])
    status, lines = ask(capfd, "verdict.a=1", "verdict.b=2", f"verdict.dir={sweep.folder}")
    assert status == ExitStatus.UNDECIDED
    assert "unknown noise" in lines[0]
    assert lines[1] == f"to decide it: elman -m sweep.add={sweep.folder} train.seed=2,3"


def test_every_row_of_a_family_that_was_tried_against_b_counts(
    sweep: FakeSweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(sweep, "e33", [1.45, 1.49, 1.50])
    pair = ("verdict.a=e42", "verdict.b=e33", f"verdict.dir={sweep.folder}")
    family = f"verdict.family={sweep.folder.parent}"
    alone = told(capfd, *pair)
    assert (alone["verdict"], alone["tries"]) == ("better", 1)
    # Differences 0.05, 0.06 and 0.03.
    error = math.sqrt((0.0033333**2 + 0.0133333**2 + 0.0166667**2) / 2 / 3)
    assert alone["p"] == pytest.approx(two_sided(0.14 / 3 / error, 2), rel=1e-4)
    other = FakeSweep(tmp_path / "sweeps" / "second")
    add(other, "e42", [1.6, 1.7], "optim.lr=0.001")
    add(other, "e42", [1.0, 1.0], "train.batch_size=8")  # it cannot be compared with e33
    other.job("model=e56", "train.seed=1", status="nan", result={"status": "nan", "error": "x"})
    record = told(capfd, *pair, family)
    # e1, e42 and e68 of the first sweep, and e42 at another rate of the second.
    assert (record["tries"], record["correction"]) == (4, "Bonferroni")
    assert record["p_corrected"] == pytest.approx(4 * alone["p"])
    assert record["level"] == pytest.approx(1 - 0.05 / 4)
    assert record["verdict"] == "undecided"
    assert record["interval"][0] < alone["interval"][0] < 0 < record["interval"][1]
    assert record["more_seeds"] > 0
    _, lines = ask(capfd, *pair, family)
    assert "corrected for 4 tries (Bonferroni)" in lines[0]


def test_rows_of_unequal_conditions_are_refused_in_one_line(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str]
) -> None:
    add(sweep, "e33", GOOD, "train.batch_size=8")
    line = refused(capfd, "verdict.a=e33", "verdict.b=e1", f"verdict.dir={sweep.folder}")
    assert "and e1 are not comparable: they differ in batch (8; 4);" in line


def test_a_trial_of_a_tuned_sweep_is_not_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    trial = sweep.tuned("e1", "trial", 1e-3, 1.0, seed=0)
    for seed in (1, 2, 3):
        sweep.tuned("e1", "best", 1e-3, 1.2 + 0.01 * seed, seed=seed)
        sweep.tuned("e42", "best", 1e-3, 1.1 + 0.011 * seed, seed=seed)
    assert "trial of a tuned sweep" in refused(capfd, f"verdict.a={trial}", "verdict.b=e1")
    record = told(capfd, "verdict.a=e42", "verdict.b=e1", f"verdict.dir={sweep.folder}")
    assert (record["verdict"], record["seeds"]) == ("better", [3, 3])


def test_an_arm_of_a_tuned_sweep_is_named_without_its_rate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for depth, score in ((1, 1.2), (2, 1.1)):
        told_of_arm = {"arm": f"e1 model.depth={depth}", "phase": "best"}
        tuning = told_of_arm | {"values": {"optim.lr": depth / 1000}}
        for seed in (1, 2, 3):
            overrides = (f"model.depth={depth}", f"optim.lr={depth / 1000}", f"train.seed={seed}")
            loss = {"loss": score + 0.01 * depth * seed}
            sweep.job("model=e1", *overrides, tuning=tuning, result=loss)
    rows = ("verdict.a='e1 model.depth=2'", "verdict.b='e1 model.depth=1'")
    record = told(capfd, *rows, f"verdict.dir={sweep.folder}")
    assert (record["verdict"], record["seeds"]) == ("better", [3, 3])
    assert record["a"] == "e1 model.depth=2 optim.lr=0.002"
    line = refused(capfd, "verdict.a=e1", rows[1], f"verdict.dir={sweep.folder}")
    assert "verdict.a=e1: 2 rows; name one, as in e1 model.depth=1 optim.lr=0.001" in line


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["verdict.a=e1", "verdict.b=e42"], "verdict.a=e1: no such folder; .* add verdict.dir="),
        (
            ["verdict.a=e11", "verdict.b=e1", "DIR"],
            r"verdict.a=e11: no such row \(did you mean e1\?\)",
        ),
        (["verdict.a=SWEEP", "verdict.b=e1", "DIR"], "3 rows; name one, as in e1, e42, e68"),
        (["verdict.a=e1", "verdict.b=e1", "DIR"], "the same row as verdict.a"),
        (["verdict.a=e1", "verdict.b=e42", "verdict.dir=nowhere"], "verdict.dir=.*no such folder"),
        (["verdict.a=e1", "verdict.b=e42", "DIR", "verdict.family=nowhere"], "verdict.family="),
        (["verdict.a=e1"], "verdict.b: missing"),
        (["verdict.a=", "verdict.b=e42"], "verdict.a=: names nothing"),
    ],
)
def test_mistakes_are_one_line(
    sweep: FakeSweep, capfd: pytest.CaptureFixture[str], overrides: list[str], said: str
) -> None:
    folder = str(sweep.folder)
    known = {"DIR": f"verdict.dir={folder}", "verdict.a=SWEEP": f"verdict.a={folder}"}
    line = refused(capfd, *(known.get(one, one) for one in overrides))
    assert re.search(said, line)
