"""``elman.read_run`` and ``elman.read_sweep``: columns, their units and definitions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import elman
from elman.base.errors import UserError
from elman.evaluation.result import DEFINITIONS
from elman.runs.folder import RunLock
from tests.runs.test_old_folders import unpacked

from .fake_sweep import FakeSweep, make_run
from .test_ladder_block import FakeLadder
from .test_tuning_block import SEEDS, head, two_arms


def test_a_run_is_columns_with_units_and_definitions(tmp_path: Path) -> None:
    run = elman.read_run(make_run(tmp_path / "run", "model=e1", "train.seed=7"))
    assert (run.model, run.seed, run.status, run.reason, run.problems) == ("e1", 7, "ok", "", ())
    assert run.steps["step"] == list(range(1, 41))
    assert run.steps["loss"][:2] == [5.0, 4.95]
    assert run.steps["applied"] == [True] * 40
    assert run.steps.units["loss"] == "nats"
    assert "of the batch of this step" in run.steps.definitions["loss"]
    assert run.steps.rows[1] == {k: column[1] for k, column in run.steps.items()}
    assert run.windows["train_seconds"] == [3.0 * step for step in range(5, 41, 5)]
    assert run.windows.units["tok_s"] == "bytes/s"
    assert run.sessions["batch_size"] == [4]
    assert run.validations["val_bpb"] == []
    assert run.result is not None
    assert run.result["val_bpb"] == 2.5
    assert run.result["seconds.train"] == 120.0
    assert run.result["environment.packages.torch"] == "2.13.0"
    assert run.result.units["peak_memory_bytes"] == "bytes"
    for name, text in DEFINITIONS.items():
        if name in run.result:
            assert run.result.definitions[name] == text
    assert run.settings["train.steps"] == 40


def test_units_of_a_run_with_subword_tokens_are_tokens(tmp_path: Path) -> None:
    tokenizer = {"name": "bpe of 300", "vocab_size": 300, "sha256": "0", "bytes_per_token": 2.0}
    tokens = {"data": {"tokenizer": tokenizer}}
    run = elman.read_run(make_run(tmp_path / "run", "model=e1", result=tokens))
    assert run.result is not None
    assert (run.result.units["tokens"], run.result.units["tok_s"]) == ("tokens", "tokens/s")
    assert run.windows.units["tok_s"] == "tokens/s"
    assert run.sessions.units["chunk_size"] == "tokens"
    assert run.validations.units["val_tokens"] == "bytes"
    assert run.result.units["val_tokens"] == "bytes"
    # Without a result its settings say so.
    named = ("data.tokenizer=bpe", "data.vocab_size=300")
    begun = elman.read_run(make_run(tmp_path / "begun", "model=e1", *named, no_result=True))
    assert begun.windows.units["tok_s"] == "tokens/s"
    sweep = FakeSweep(tmp_path / "sweep")
    sweep.job("model=e1", result={"loss": 1.5} | tokens)
    assert elman.read_sweep(sweep.folder).runs.units["tok_s"] == "tokens/s"
    sweep.job("model=e42", result={"loss": 1.25})
    mixed = elman.read_sweep(sweep.folder).runs
    assert "tok_s" not in mixed.units
    assert "predicted tokens" in mixed.definitions["tok_s"]
    assert mixed.units["val_bpb"] == "bits"


def test_a_checkpoint_is_no_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "model=e1")
    place = folder / "checkpoints" / "step-0000040"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text((folder / "config.yaml").read_text())
    (place / "meta.json").write_text("{}")
    for inside in (place, place.parent):
        with pytest.raises(UserError, match="no sweep and no training run"):
            elman.read_run(inside)
    assert elman.read_run(folder).status == "ok"


def test_steps_that_a_resume_repeats_stand_there_once(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", losses=[5.0, 4.0, 3.0])
    again = [
        {"kind": "session", "step": 1, "batch_size": 8, "chunk_size": 32},
        {"kind": "step", "step": 2, "loss": 4.5, "lr": 1e-3, "grad_norm": 1.0},
        {"kind": "step", "step": 3, "loss": None, "lr": 1e-3, "grad_norm": None, "applied": False},
    ]
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in again)
        stream.write('{"kind": "step", "st')
    run = elman.read_run(folder)
    assert run.steps["step"] == [1, 2, 3]
    assert run.steps["loss"] == [5.0, 4.5, None]
    assert run.steps["applied"] == [True, True, False]
    assert run.sessions["batch_size"] == [4, 8]
    assert run.problems == ("metrics.jsonl: its last line is cut off; left out",)


def test_a_run_that_goes_on_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", no_result=True)
    with RunLock(folder):
        run = elman.read_run(folder)
    assert (run.status, run.result, len(run.steps["step"])) == ("running", None, 40)
    assert elman.read_run(folder).status == "unfinished"


def test_a_sweep_has_a_row_for_each_job(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    sweep.job("model=e1", "optim.lr=0.001", "train.seed=1", result={"loss": 1.5})
    sweep.job("model=e42", "optim.lr=0.003", "train.seed=2", result={"loss": 1.25})
    sweep.failed("model=e42", "optim.lr=1", status="nan", error="the loss is not finite")
    sweep.job("model=e1", "optim.lr=0.01", status="not started", started=False)
    data = elman.read_sweep(str(sweep.folder))
    runs = data.runs
    assert runs["job"] == [1, 2, 3, 4]
    assert runs["model"] == ["e1", "e42", "e42", "e1"]
    assert runs["seed"] == [1, 2, 42, 42]
    assert runs["status"] == ["ok", "ok", "nan", "not started"]
    assert runs["optim.lr"] == [0.001, 0.003, 1.0, 0.01]
    assert runs["val_bpb"][:2] == [1.5, 1.25]
    assert runs["val_bpb"][3] is None
    assert runs["seconds.train"][0] == 120.0
    assert runs["reason"][2] == "the loss is not finite"
    assert runs.units["val_bpb"] == "bits"
    assert runs.definitions["val_bpb"] == DEFINITIONS["val_bpb"]
    assert {len(column) for column in runs.values()} == {4}
    assert elman.read_run(runs["folder"][1]).model == "e42"
    assert (data.command, data.running, data.score, data.trials["job"]) == (
        "elman -m model=e1,e42",
        False,
        None,
        [],
    )


def test_trials_stand_apart_from_the_runs_that_count(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep", tune=head(["e1", "e42"]))
    two_arms(sweep)
    data = elman.read_sweep(sweep.folder)
    assert (data.score, data.goal) == ("val_bpb", "minimize")
    assert set(data.trials["phase"]) == {"trial"}
    assert data.trials["trial"] == [0, 1, 2, 3] * 2
    assert data.trials["optim.lr"][:4] == [3e-4, 1e-3, 3e-3, 1e-2]
    assert data.trials["val_bpb"][:3] == [1.60, 1.40, 1.46]
    assert data.trials["status"][3] == "nan"
    best = [row for row in data.runs.rows if row["arm"] == "e1" and row["phase"] == "best"]
    assert [(row["seed"], row["optim.lr"]) for row in best] == [(seed, 1e-3) for seed in SEEDS]
    assert set(data.runs["phase"]) == {"best", "second", "common"}
    assert data.arms["arm"] == ["e1", "e42"]
    assert data.arms["published.optim.lr"] == [3e-4, 3e-4]


def test_a_ladder_has_its_sizes_and_predictions(tmp_path: Path) -> None:
    ladder = FakeLadder(tmp_path / "ladder", "e88", "e1")
    ladder.runs("e1", "800k", 2.4, 1)
    ladder.predict("e1", "800k", 2.5)
    ladder.sweep.write()
    data = elman.read_sweep(ladder.sweep.folder)
    arms = data.arms
    assert (data.runs["arm"], data.runs["seed"]) == (["e1_800k"], [1])
    top = next(row for row in arms.rows if row["arm"] == "e1_800k")
    assert (top["family"], top["size"], top["width"], top["params"]) == (
        *("e1", 800_000),
        *(384, 850_992),
    )
    ends = [top["predicted_low"], top["predicted"], top["predicted_high"]]
    assert ends == pytest.approx([2.45, 2.5, 2.55])
    assert arms["predicted"].count(None) == 7


def test_runs_of_earlier_versions_are_read(tmp_path: Path) -> None:
    november = unpacked("old_folders_2026_11_27.tar.xz", tmp_path / "november")
    task = elman.read_run(november / "task")
    assert task.tests.units["accuracy at 8"] == "share"
    assert task.validations["accuracy"][-1] is not None
    assert task.result is not None
    assert (task.result.units["tokens"], task.windows.units["tok_s"]) == (
        "positions",
        "positions/s",
    )
    assert elman.read_run(november / "resumed").sessions["step"] == [0, 4]
    assert elman.read_run(november / "oom").steps["loss"] == []
    assert elman.read_sweep(november / "sweep").runs["status"] == ["ok", "interrupted"]
    old = unpacked("old_folders.tar.xz", tmp_path / "old")
    assert elman.read_run(old / "stopped").status == "interrupted"
    runs = elman.read_sweep(old / "sweep").runs
    assert runs["job"] == [1, 2]
    assert runs["val_bpb"][0] is not None


def break_result(folder: Path) -> None:
    (folder / "result.json").write_text('{"status": "ok", "lo')


def break_sweep(folder: Path) -> None:
    (folder / "sweep.json").write_text("[")


def break_tuning(folder: Path) -> None:
    content = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(content | {"tune": {"config": 1}}))


@pytest.mark.parametrize(
    ("reader", "place", "harm", "words"),
    [
        ("read_run", "sweep", None, "a sweep; read it with elman.read_sweep"),
        ("read_sweep", "sweep/01_e1", None, "one run; read it with elman.read_run"),
        ("read_run", "nowhere", None, "no such folder; sweeps and runs are below outputs/"),
        ("read_run", ".", None, "holds several runs or sweeps; name one of them"),
        ("read_sweep", "other", None, "no sweep and no training run"),
        ("read_run", "sweep/01_e1", break_result, "result.json: not whole JSON (20 bytes)"),
        ("read_sweep", "sweep", break_sweep, "sweep.json cannot be read"),
        ("read_sweep", "sweep", break_tuning, "what sweep.json says of its tuning cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, reader: str, place: str, harm: object, words: str
) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    sweep.job("model=e1")
    (tmp_path / "other").mkdir()
    if callable(harm):
        harm(tmp_path / place)
    with pytest.raises(UserError) as caught:
        getattr(elman, reader)(tmp_path / place)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("folder", [5, None])
def test_what_is_no_path_is_one_line(folder: Any) -> None:
    with pytest.raises(UserError, match=f"folder={folder}: expected the path of a folder; type"):
        elman.read_run(folder)


def test_a_damaged_run_does_not_hide_the_others_of_its_sweep(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    break_result(sweep.job("model=e1"))
    sweep.job("model=e42", result={"loss": 1.25})
    runs = elman.read_sweep(sweep.folder).runs
    assert runs["status"] == ["damaged", "ok"]
    assert runs["val_bpb"] == [None, 1.25]
    assert runs["reason"][0] == "result.json: not whole JSON (20 bytes)"


def test_reading_imports_no_torch(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep", tune=head(["e1"]))
    sweep.tuned("e1", "trial", 1e-3, 1.5, seed=0, trial=1)
    code = "import sys, elman; elman.read_sweep('sweep'); elman.read_run('sweep/01_e1')"
    code += "; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_pandas_takes_the_columns_as_they_are(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    sweep = FakeSweep(tmp_path / "sweep")
    sweep.job("model=e1", result={"loss": 1.5})
    sweep.job("model=e42", status="not started", started=False)
    frame = pandas.DataFrame(elman.read_sweep(sweep.folder).runs)
    assert frame["val_bpb"].dtype == float
    assert frame["val_bpb"].isna().tolist() == [False, True]
    steps = pandas.DataFrame(elman.read_run(sweep.folder / "01_e1").steps)
    assert steps["loss"].min() == pytest.approx(3.05)
