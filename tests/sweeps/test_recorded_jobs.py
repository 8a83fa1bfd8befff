"""``jobs.jsonl``: every job's configuration as composed, which a resumed sweep reads back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from elman.config.compose import compose_config
from elman.config.run_config import RunConfig
from elman.runs.folder import run_name
from elman.runs.recorded_job import RecordedJob, record_jobs, recorded_job, recorded_jobs

Elman = Callable[..., Any]  # the fixtures of tests/stubs/command_line.py
MODEL = "defaults: [e88_tiny, _self_]\nexpected_params: null\n"
JOBS: dict[str, tuple[str, ...]] = {
    "another seed": ("train.seed=7",),
    "another model": ("model=e42",),
    "a task": ("data=s3", "model=llama"),
    "bench": ("mode=bench", "bench.peers=[torch_gru]"),
    "parity": ("mode=parity",),
    "a whole number as a rate": ("optim.lr=1", "optim=muon"),
}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return the file of a model of the user's own, with two layers."""
    file = tmp_path / "conf" / "model" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(MODEL)
    return file


def named(configs: list[RunConfig]) -> dict[str, RecordedJob]:
    """Return jobs by the names that a sweep gives their folders."""
    pairs = enumerate(configs, 1)
    return {f"{n:02d}_{run_name(one)}": RecordedJob((f"n={n}",), one) for n, one in pairs}


def test_what_is_recorded_is_read_back_equal(tmp_path: Path) -> None:
    jobs = named([compose_config(()), *(compose_config(texts) for texts in JOBS.values())])
    first, *others = jobs
    record_jobs(tmp_path, {first: jobs[first]})
    record_jobs(tmp_path, {name: jobs[name] for name in others})
    assert recorded_jobs(tmp_path) == jobs
    assert all(recorded_job(tmp_path / name) == job for name, job in jobs.items())
    lines = (tmp_path / "jobs.jsonl").read_text().splitlines()
    assert len(lines[1]) < len(lines[0]) / 10


def test_a_damaged_line_counts_as_none_and_spares_the_next(tmp_path: Path) -> None:
    jobs = named([compose_config([f"train.seed={n}"]) for n in (1, 2, 3, 4)])
    *first, last = jobs
    record_jobs(tmp_path, {name: jobs[name] for name in first})
    path = tmp_path / "jobs.jsonl"
    one, two, three = path.read_text().splitlines()
    path.write_text("\n".join([one, two.replace('"train.seed": 2', '"train.seed": 9'), three[:-9]]))
    record_jobs(tmp_path, {last: jobs[last]})
    assert list(recorded_jobs(tmp_path)) == [first[0], last]
    path.write_bytes(b"\xff\xfe not a record\n[1]\n")
    assert recorded_jobs(tmp_path) == {}


@pytest.mark.parametrize("launcher", ["gpus", "local"])
def test_an_edited_model_changes_no_job_of_a_sweep_that_began_before(
    elman_process: Elman, tmp_path: Path, own: Path, launcher: str
) -> None:
    """One job is killed, and one has not begun: both are those of the beginning."""
    typed = ("model=mine", "train.steps=3,903,4", f"launcher={launcher}", "hydra.sweep.dir=sweep")
    assert elman_process("--config-dir", "conf", "-m", *typed).status == 1
    sweep = tmp_path / "sweep"
    (last,) = sweep.glob("03_*")
    shutil.rmtree(last)
    own.write_text(MODEL + "depth: 5\n")
    again = elman_process("-m", "sweep.resume=sweep")
    assert "1 of 3 jobs are ok already" in again.output, again.errors
    assert yaml.safe_load((last / "config.yaml").read_text())["model"]["depth"] == 2
    composed = yaml.safe_load((last / ".hydra" / "config.yaml").read_text())
    assert (composed["model"]["depth"], composed["train"]["steps"]) == (2, 4)
    typed_then = yaml.safe_load((last / ".hydra" / "overrides.yaml").read_text())
    assert typed_then == ["model=mine", "train.steps=4"]
    own.unlink()
    assert "2 of 3 jobs are ok already" in elman_process("-m", "sweep.resume=sweep").output


def test_a_recorded_job_runs_alone_and_takes_no_other_setting(
    elman: Elman, tmp_path: Path, own: Path
) -> None:
    typed = ("model=mine", "train.steps=3,4", "hydra/launcher=basic", "hydra.sweep.dir=sweep")
    assert elman("--config-dir", "conf", "-m", *typed).status == 0
    sweep = tmp_path / "sweep"
    (last,) = sweep.glob("02_*")
    shutil.rmtree(last)
    own.unlink()
    for wrong, line in {
        ("train.seed=3", f"sweep.job={last}"): "train.seed: sweep.job runs a job as its sweep",
        ("sweep.job=sweep/03_no",): f"sweep.job={sweep}/03_no: no sweep has recorded such a job",
        ("-m", f"sweep.job={last}"): "sweep.job: runs one job of a sweep alone; drop -m",
    }.items():
        ended = elman(*wrong)
        assert (ended.status, ended.errors.count("\n")) == (2, 1)
        assert ended.errors.startswith(f"elman: error: {line}")
    ended = elman(f"sweep.job={last}")
    assert (ended.status, ended.errors) == (0, "")
    assert "ran train mine 4 " in ended.output
    assert yaml.safe_load((last / "config.yaml").read_text())["train"]["steps"] == 4
    (last / "result.json").write_text('{"status": "ok"}')
    done = elman(f"sweep.job={last}")
    (last / "result.json").unlink()
    begun = elman(f"sweep.job={last}")
    assert (done.status, begun.status) == (2, 2)
    which = f"elman: error: sweep.job={last}: job 2 of {sweep} has"
    assert done.errors == (
        f"{which} run before (ok); its result is {last}/result.json; to run it anew in another "
        "folder, type elman model=mine train.steps=4\n"
    )
    assert begun.errors == (
        f"{which} begun before (unfinished); to go on with it, type elman train.resume={last}\n"
    )
