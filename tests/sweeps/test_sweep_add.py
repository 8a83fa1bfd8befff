"""``elman -m sweep.add=<folder>``: what it runs, what it leaves alone, and what it refuses."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elman.report.comparison.report_data import make_report
from elman.runs.recorded_job import recorded_jobs

Elman = Callable[..., Any]  # the fixtures of tests/stubs/command_line.py
BASIC = "hydra/launcher=basic"
FIRST = ("-m", "model=e1,e42", "train.seed=1,2", "train.steps=3", BASIC, "hydra.sweep.dir=sweep")
ADD = ("-m", "sweep.add=sweep", BASIC)


def content(folder: Path) -> dict[str, Any]:
    """Return what a sweep has recorded."""
    found: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
    return found


def jobs(folder: Path) -> list[tuple[str, int, str]]:
    """Return the model, seed and status of each job."""
    return [(job["model"], job["seed"], job["status"]) for job in content(folder)["jobs"]]


def files(folder: Path) -> dict[Path, bytes]:
    """Return the files of the jobs of a sweep.

    Hydra's own launcher runs jobs in this process, whose next command still writes into their log.
    """
    found = (path for path in folder.glob("*/*") if path.is_file() and path.name != "train.log")
    return {path: path.read_bytes() for path in found}


FOUR = [("e1", 1, "ok"), ("e1", 2, "ok"), ("e42", 1, "ok"), ("e42", 2, "ok")]


def test_new_seeds_run_and_the_others_are_left_alone(elman: Elman, tmp_path: Path) -> None:
    elman(*FIRST)
    before, sweep = files(tmp_path / "sweep"), tmp_path / "sweep"
    ended = elman(*ADD, "train.seed=2,3")
    assert (ended.status, ended.errors) == (0, "")
    assert "2 of 4 jobs are ok already" in ended.output
    assert jobs(sweep) == [*FOUR, ("e1", 3, "ok"), ("e42", 3, "ok")]
    found = content(sweep)
    assert [job["number"] for job in found["jobs"]] == [1, 2, 3, 4, 5, 6]
    assert [job["folder"][:3] for job in found["jobs"]] == [f"0{n}_" for n in range(1, 7)]
    assert {path: text for path, text in files(sweep).items() if path in before} == before
    assert found["typed"] == shlex.join(["elman", *FIRST])
    (added,) = found["added"]
    assert added["typed"] == shlex.join(["elman", *ADD, "train.seed=2,3"])
    assert found["jobs"][4]["swept"] == ["model=e1", "train.seed=3"]
    with (sweep / "report.csv").open() as stream:
        seeds = [line["seed"] for line in csv.DictReader(stream) if line["kind"] == "model"]
    assert seeds == ["1, 2, 3", "1, 2, 3"]
    page = (sweep / "report.html").read_text()
    assert added["typed"] in page
    assert added["typed"] in (sweep / "report.md").read_text()


def test_the_same_command_again_runs_nothing(elman: Elman, tmp_path: Path) -> None:
    elman(*FIRST)
    first = elman(*ADD, "train.seed=3")
    assert "are ok already" not in first.output
    before = content(tmp_path / "sweep")
    ended = elman(*ADD, "train.seed=3")
    assert ended.status == 0
    assert "2 of 2 jobs are ok already" in ended.output
    assert "ran train" not in ended.output
    after = content(tmp_path / "sweep")
    assert (after["jobs"], after["added"]) == (before["jobs"], before["added"])


def test_a_new_model_has_every_seed_that_the_sweep_has_by_now(elman: Elman, tmp_path: Path) -> None:
    elman(*FIRST)
    elman(*ADD, "train.seed=3", "model=e1")
    assert elman(*ADD, "model=e68").status == 0
    added = [("e1", 3, "ok"), *(("e68", seed, "ok") for seed in (1, 2, 3))]
    assert jobs(tmp_path / "sweep") == [*FOUR, *added]


def test_what_only_logs_makes_no_new_job(elman: Elman, tmp_path: Path) -> None:
    elman(*FIRST)
    ended = elman(*ADD, "train.seed=1,3", "log.every=7", "train.save_minutes=3")
    assert ended.status == 0
    assert jobs(tmp_path / "sweep") == [*FOUR, ("e1", 3, "ok"), ("e42", 3, "ok")]


def test_a_key_that_was_not_swept_labels_the_rows(elman: Elman, tmp_path: Path) -> None:
    elman("-m", "model=e1,e42", "train.steps=3", BASIC, "hydra.sweep.dir=sweep")
    assert elman(*ADD, "optim.lr=0.01").status == 0
    found = content(tmp_path / "sweep")["jobs"]
    assert [job["swept"] for job in found] == [
        ["model=e1"],
        ["model=e42"],
        ["model=e1", "optim.lr=0.01"],
        ["model=e42", "optim.lr=0.01"],
    ]


def test_a_sweep_stopped_half_way_is_a_report_and_grows(elman: Elman, tmp_path: Path) -> None:
    """The jobs that are not ok and not asked for are left to ``sweep.resume``, and that is said."""
    elman("-m", "train.steps=904,3", "train.seed=1", BASIC, "hydra.sweep.dir=sweep")
    sweep = tmp_path / "sweep"
    found = content(sweep)
    found |= {"ended": None}
    (sweep / "sweep.json").write_text(json.dumps(found))
    assert [row.status for row in make_report([sweep]).rows] == ["nan", "ok, never left warm-up"]
    ended = elman(*ADD, "train.seed=2", "train.steps=3")
    assert ended.status == 1
    assert [status for _, _, status in jobs(sweep)] == ["nan", "ok", "ok"]
    assert ended.output.splitlines()[-1].startswith("to run the jobs that are not ok again: ")
    again = elman(*ADD, "train.steps=904", "train.seed=1")
    assert "are ok already" not in again.output
    assert [status for _, _, status in jobs(sweep)] == ["nan", "ok", "ok"]


def test_a_sweep_whose_launcher_was_killed_grows(elman_process: Elman, tmp_path: Path) -> None:
    """One job is ok, one was killed before it could write a result, two have not started."""
    elman_process(*FIRST)
    sweep = tmp_path / "sweep"
    found = content(sweep) | {"ended": None}
    for job, seen in zip(found["jobs"][1:], ("running", "not started", "not started"), strict=True):
        job["status"] = seen
        (sweep / job["folder"] / "result.json").unlink()
        if seen == "not started":
            shutil.rmtree(sweep / job["folder"])
    (sweep / "sweep.json").write_text(json.dumps(found))
    before = files(sweep)
    ended = elman_process(*ADD, "model=e1", "train.seed=2,3")
    # What is asked for runs, new or not; the rest is left, and the last line says how it goes on.
    assert ended.status == 1
    assert "are ok already" not in ended.output
    left = [("e42", 1, "not started"), ("e42", 2, "not started")]
    assert jobs(sweep) == [("e1", 1, "ok"), ("e1", 2, "ok"), *left, ("e1", 3, "ok")]
    assert ended.output.splitlines()[-1].endswith(f"elman -m sweep.resume={sweep}")
    first = next(path for path in before if path.name == "result.json")
    assert first.read_bytes() == before[first]
    rows = {row.label: row.status for row in make_report([sweep]).rows}
    assert rows == {"e1": "ok, never left warm-up", "e42": "not started"}


def test_duplicates_are_known_however_they_are_typed(elman: Elman, tmp_path: Path) -> None:
    elman(*FIRST)
    same = ("train.seed=2,1,2", "train.steps=3,3", "optim.lr=3.0e-4", "model=e42,e1", "log.every=9")
    ended = elman(*ADD, *same)
    assert (ended.status, ended.errors) == (0, "")
    assert "4 of 4 jobs are ok already" in ended.output
    assert jobs(tmp_path / "sweep") == FOUR
    assert content(tmp_path / "sweep")["added"] == []


def test_the_command_of_the_report_adds_the_seeds_that_would_decide(
    elman: Elman, tmp_path: Path
) -> None:
    elman("-m", "model=e1,e42,e68", "train.seed=1,2", *FIRST[3:])
    sweep = tmp_path / "sweep"
    for job, loss in zip(content(sweep)["jobs"], (1.5, 1.52, 1.53, 1.53, 1.9, 1.93), strict=True):
        path = sweep / job["folder"] / "result.json"
        changed = json.loads(path.read_text()) | {"loss": loss, "val_bpb": loss}
        path.write_text(json.dumps(changed))
    (group,) = make_report([sweep]).wins.groups
    (command,) = group.challengers[0].to_decide
    assert command.startswith(f"elman -m sweep.add={sweep} model=e42,e1 train.seed=3,4")
    assert elman(*shlex.split(command)[1:], BASIC).status == 0
    added = jobs(sweep)[6:]
    assert {model for model, _, _ in added} == {"e1", "e42"}
    assert len(added) == 2 * (len(shlex.split(command)[-1].split(",")))


def test_a_grown_sweep_is_resumed_as_a_whole(elman_process: Elman, tmp_path: Path) -> None:
    elman_process("-m", "train.steps=3", "train.seed=1,2", BASIC, "hydra.sweep.dir=sweep")
    elman_process(*ADD, "train.seed=3")
    sweep = tmp_path / "sweep"
    (last,) = sweep.glob("03_*")
    (last / "result.json").unlink()
    ended = elman_process("-m", f"sweep.resume={sweep}", BASIC)
    assert "2 of 3 jobs are ok already" in ended.output
    assert (ended.status, [status for _, _, status in jobs(sweep)]) == (0, ["ok"] * 3)
    assert len(content(sweep)["added"]) == 1


def test_folders_keep_their_names_when_the_numbers_get_more_digits(
    elman: Elman, tmp_path: Path
) -> None:
    elman("-m", "train.steps=3", "train.seed=1,2", BASIC, "hydra.sweep.dir=sweep")
    sweep = tmp_path / "sweep"
    found = content(sweep)
    for job in found["jobs"]:
        (sweep / job["folder"]).rename(sweep / f"0{job['folder']}")
        job["folder"] = f"0{job['folder']}"
    (sweep / "sweep.json").write_text(json.dumps(found))
    assert elman(*ADD, "train.seed=3").status == 0
    assert [path.name[:4] for path in sorted(sweep.glob("0*"))] == ["001_", "002_", "03_e"]


def test_a_plan_runs_and_writes_nothing(elman: Elman, tmp_path: Path) -> None:
    elman(*FIRST)
    before = content(tmp_path / "sweep"), files(tmp_path / "sweep")
    ended = elman(*ADD, "train.seed=2,3", "sweep.dry_run=true")
    assert ended.status == 0
    commands = [line for line in ended.output.splitlines() if line.startswith("elman ")]
    assert len(commands) == 2
    assert all("train.seed=3" in line for line in commands)
    assert (content(tmp_path / "sweep"), files(tmp_path / "sweep")) == before


@pytest.mark.parametrize("launcher", [pytest.param("local", marks=pytest.mark.slow), "gpus"])
def test_the_launcher_and_the_folder_of_the_first_command_are_taken(
    elman_process: Elman, tmp_path: Path, launcher: str
) -> None:
    """Relative paths start where the sweep was started, wherever this command is typed."""
    (tmp_path / "book.txt").write_text("a book\n" * 40_000)
    first = ("-m", f"launcher={launcher}", "data.path=book.txt", "train.steps=3", "train.seed=1,2")
    assert elman_process(*first, "hydra.sweep.dir=sweep").status == 0
    ended = elman_process("-m", f"sweep.add={tmp_path}/sweep", "train.seed=3")
    assert (ended.status, ended.errors) == (0, "")
    sweep = tmp_path / "sweep"
    assert [seed for _, seed, _ in jobs(sweep)] == [1, 2, 3]
    assert content(sweep)["launcher"]["name"] == launcher


SUITE = ("benchmark=e88_nstate", "train.minutes=null", "train.steps=3", BASIC)


def test_a_suite_grows_by_seeds_and_by_runs(elman: Elman, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    only = ("hydra.sweep.dir=sweep", "baseline.allow_slow=true")
    from elman.config.suites import load_suite, model_of

    names = [str(model_of(run)) for run in load_suite("e88_nstate").runs]
    one, other = names[0], next(name for name in names if name != names[0])
    assert elman(*SUITE, f"benchmark.only={one}", *only).status == 0
    begun = len(jobs(sweep))
    assert elman(*ADD, "train.seed=7").status == 0
    assert jobs(sweep)[begun:] == [(one, 7, "ok")] * begun
    assert elman(*ADD, f"benchmark.only={other}").status == 0
    assert {model for model, _, _ in jobs(sweep)[2 * begun :]} == {other}
    assert content(sweep)["benchmark"] == "e88_nstate"
    ended = elman(*ADD, f"model={other}")
    assert ended.status == 2
    assert "the runs of benchmark=e88_nstate set it; drop it; to add runs" in ended.errors


WRONG = {
    ("sweep.add=nowhere", "train.seed=3"): "sweep.add=%/nowhere: no such folder; sweeps are below",
    ("sweep.add=notes", "train.seed=3"): "sweep.add=%/notes: not a sweep (no sweep.json in it); ",
    ("sweep.add=sweep",): "sweep.add=%/sweep: names nothing to add; type it, as in train.seed=4,5",
    ("sweep.add=sweep", "data.path=/other.txt"): "data.path=/other.txt: sweep.add keeps the data",
    ("sweep.add=sweep", "data.val_window=64"): "data.val_window=64: sweep.add keeps the data of",
    ("sweep.add=sweep", "mode=parity"): "mode=parity: sweep.add keeps the mode of the sweep; drop",
    ("sweep.add=sweep", "train.init_from=x"): "train.init_from=x: with sweep.add give a whole path",
    ("sweep.add=sweep", "sweep.resume=sweep", "train.seed=3"): "sweep.add: does not go with sweep",
    ("sweep.allow_changed_code=true", "train.seed=3"): "sweep.allow_changed_code: read only with",
    (
        "sweep.add=sweep",
        "train.seed=3",
        "hydra.sweep.dir=x",
    ): "hydra.sweep.dir: sweep.add continues",
    ("sweep.add=sweep", "train.seed=x"): "job 5 of 6 (model=e1 train.seed=x train.steps=3): train",
}


def test_a_mistake_is_one_line_and_changes_nothing(elman: Elman, tmp_path: Path) -> None:
    elman(*FIRST)
    (tmp_path / "notes").mkdir()
    before = content(tmp_path / "sweep"), files(tmp_path / "sweep")
    for typed, words in WRONG.items():
        ended = elman("-m", *typed, BASIC)
        (line,) = ended.errors.splitlines()
        assert line.startswith(f"elman: error: {words.replace('%', str(tmp_path))}")
        assert ended.status == 2
        assert (content(tmp_path / "sweep"), files(tmp_path / "sweep")) == before


def test_it_needs_a_sweep(elman: Elman) -> None:
    ended = elman("sweep.add=x", "train.seed=3")
    assert ended.status == 2
    assert ended.errors == "elman: error: sweep.add: read only in a sweep; add -m or drop it\n"


def told(sweep: Path, **more: Any) -> None:
    """Add to the result of the first job of a sweep."""
    (first,) = sweep.glob("01_*")
    result = json.loads((first / "result.json").read_text())
    (first / "result.json").write_text(json.dumps(result | more))


def test_other_data_is_refused(elman: Elman, tmp_path: Path) -> None:
    from elman.data.text import identity_without_packing
    from elman.sections.training import DataConfig

    book = tmp_path / "book.txt"
    book.write_text("a book\n" * 40_000)
    elman("-m", f"data.path={book}", *FIRST[1:])
    identity = identity_without_packing(DataConfig(path=str(book)), 512, print)
    told(tmp_path / "sweep", data=identity)
    assert elman(*ADD, "train.seed=3").status == 0
    book.write_text("another book\n" * 40_000)
    ended = elman(*ADD, "train.seed=4")
    (line,) = ended.errors.splitlines()
    assert ended.status == 2
    assert "the data is not what job 1 read: 280,000 bytes, sha256 " in line
    assert "520,000 bytes" in line
    assert "restore the file, or start a new sweep: elman -m data.path=" in line
    assert len(jobs(tmp_path / "sweep")) == 6


def test_other_code_is_refused_unless_it_is_allowed(
    elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elman.devices import environment

    monkeypatch.setattr(environment, "revision", lambda: "new000000000")
    elman(*FIRST)
    told(tmp_path / "sweep", environment={"revision": "old000000000"})
    ended = elman(*ADD, "train.seed=3")
    (line,) = ended.errors.splitlines()
    assert ended.status == 2
    assert "the code has changed: job 1 ran with old000000000, this is new000000000; check" in line
    ended = elman(*ADD, "train.seed=3", "sweep.allow_changed_code=true")
    assert ended.status == 0
    note = "note: job 1 ran with old000000000, added jobs run with new000000000"
    assert note in ended.output
    monkeypatch.setattr(environment, "revision", lambda: "old000000000")
    assert elman(*ADD, "train.seed=4").status == 0


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "older"])
def test_values_are_put_into_recorded_jobs_and_choices_need_unchanged_files(
    elman: Elman, tmp_path: Path, recorded: bool
) -> None:
    mine, sweep = tmp_path / "conf" / "model" / "mine.yaml", tmp_path / "sweep"
    mine.parent.mkdir(parents=True)
    mine.write_text("defaults: [e88_tiny, _self_]\nexpected_params: null\n")
    elman("--config-dir", "conf", "-m", "model=mine", *FIRST[2:])
    assert elman(*ADD, "train.seed=3").status == 0  # it is found where it was
    if not recorded:
        (sweep / "jobs.jsonl").unlink()
    mine.write_text("defaults: [e88_tiny, _self_]\nexpected_params: null\ndepth: 1\n")
    if recorded:
        assert elman(*ADD, "train.seed=4", "optim.lr=0.01").status == 0
        added = [job for name, job in sorted(recorded_jobs(sweep).items())][3:]
        assert [(job.config.model.depth, job.config.train.seed) for job in added] == [(2, 4)]
        assert added[0].config.optim.lr == 0.01
        assert added[0].overrides[-1] == "optim.lr=0.01"
    ended = elman(*ADD, "model=e1" if recorded else "train.seed=5")
    assert ended.status == 2
    assert "job 1 was 01_mine_" in ended.errors
    assert "a setting or a YAML file has changed since; start a new sweep" in ended.errors


def test_a_sweep_that_runs_is_not_grown(elman: Elman, tmp_path: Path) -> None:
    import fcntl

    elman(*FIRST)
    with (tmp_path / "sweep" / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = elman(*ADD, "train.seed=3")
    assert ended.status == 2
    assert "another process (pid " in ended.errors
    assert len(jobs(tmp_path / "sweep")) == 4
