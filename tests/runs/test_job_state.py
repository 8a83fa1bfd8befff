"""What a job's folder says of it, and ``sweep.json`` as jobs start and end."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elman.base.run_files import CONFIG, LOCK, RESULT
from elman.config.compose import compose_config
from elman.launchers.job import SweepJob
from elman.runs import state as job_state
from elman.runs.folder import RunLock, lock_holder, run_name
from elman.runs.recorded_job import recorded_jobs
from elman.runs.state import runs_in, state, still_running
from elman.sweeps.manifest import Record

CODES = {"ok": 0, "refused": 2, "crash": 1, "killed (SIGKILL)": -9}


@contextmanager
def started(folder: Path) -> Iterator[None]:
    """Have this process run in a folder, later than whatever is in it."""
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    with RunLock(folder):
        yield


@pytest.mark.parametrize(
    ("left", "idle", "held"),
    [
        ({}, "not started", "not started"),
        ({CONFIG: "{}"}, "unfinished", "running"),
        ({CONFIG: "{}", RESULT: '{"status": "interrupted"}'}, "interrupted", "running"),
        ({CONFIG: "{}", RESULT: '{"status": "ok"}'}, "ok", "ok"),
        ({CONFIG: "{}", RESULT: '{"stat'}, "unfinished", "running"),
    ],
    ids=["waits for its GPU", "no result", "taken up", "ok", "a damaged result"],
)
def test_state_of_a_folder(tmp_path: Path, left: dict[str, str], idle: str, held: str) -> None:
    for name, text in left.items():
        (tmp_path / name).write_text(text)
    assert state(tmp_path, RESULT) == idle
    with started(tmp_path):
        assert state(tmp_path, RESULT) == held
    assert state(tmp_path, RESULT) == idle


def test_a_run_is_seen_to_run_where_the_clock_was_set_back(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("{}")
    result = tmp_path / RESULT
    result.write_text('{"status": "interrupted"}')
    tomorrow = result.stat().st_mtime + 86_400
    os.utime(result, (tomorrow, tomorrow))  # when the clock was wrong
    with RunLock(tmp_path):
        assert state(tmp_path, RESULT) == "running"
        assert runs_in(tmp_path, RESULT) == str(os.getpid())
    assert state(tmp_path, RESULT) == "interrupted"


def test_no_folder_is_not_started(tmp_path: Path) -> None:
    assert state(None, RESULT) == state(tmp_path / "none", RESULT) == "not started"
    assert lock_holder(tmp_path / "none") is None


def test_a_process_that_has_written_its_result_is_done(tmp_path: Path) -> None:
    with started(tmp_path):
        assert runs_in(tmp_path, RESULT) == str(os.getpid())
        (tmp_path / RESULT).write_text('{"status": "nan"}')
        assert runs_in(tmp_path, RESULT) is None
        assert lock_holder(tmp_path) == str(os.getpid())


def test_who_asks_for_the_holder_does_not_get_a_run_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    descriptor = os.open(tmp_path / LOCK, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    threading.Timer(0.08, os.close, [descriptor]).start()
    with RunLock(tmp_path):
        assert lock_holder(tmp_path) == str(os.getpid())


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "it runs on"])
def test_a_job_gets_a_while_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(job_state, "ENDING_SECONDS", 5.0 if ends else 0.3)
    lock, said = RunLock(tmp_path), list[str]()
    lock.acquire()
    if ends:
        threading.Timer(0.1, lock.release).start()
    running = still_running({2: tmp_path}, RESULT, said.append)
    assert running == ({} if ends else {2: str(os.getpid())})
    (line,) = said
    assert line.startswith(f"job 2 (pid {os.getpid()}) still running: waiting ")
    if not ends:
        lock.release()


def test_the_record_follows_the_jobs(tmp_path: Path) -> None:
    config = compose_config(["train.steps=3"])
    jobs = [
        SweepJob(number, len(CODES), (), (), config, tmp_path / str(number))
        for number in range(1, 1 + len(CODES))
    ]
    record = Record(tmp_path, jobs, RESULT)

    def statuses() -> list[str]:
        content = json.loads((tmp_path / "sweep.json").read_text())
        assert content["ended"] is None
        return [job["status"] for job in content["jobs"]]

    record.begin()
    told = ["not started"] * len(jobs)
    assert statuses() == told
    for number, (word, code) in enumerate(CODES.items(), 1):
        record.job_started(number)
        assert statuses() == [*told[: number - 1], "running", *told[number:]]
        record.job_waits(number)
        assert statuses() == told
        record.job_ended(number, code)
        told[number - 1] = word
        assert statuses() == told


def test_jobs_that_come_later_are_recorded_with_what_changes_beside_them(tmp_path: Path) -> None:
    config = compose_config(["train.steps=3"])
    folder = tmp_path / f"01_{run_name(config)}"
    plain = SweepJob(1, 1, (), (), config, folder)
    tuning = {"arm": "one", "phase": "trial"}
    later = replace(plain, number=2, folder=folder.with_name(f"02_{run_name(config)}"))
    record = Record(tmp_path, [plain], RESULT, {"mode": "train"})
    record.keep([plain])
    record.begin()

    def content() -> dict[str, Any]:
        found = json.loads((tmp_path / "sweep.json").read_text())
        assert isinstance(found, dict)
        return found

    assert list(content()) == ["mode", "ended", "jobs"]
    assert "tuning" not in content()["jobs"][0]
    record.add([replace(later, tuning=tuning)], {"tune": {"state": "trials"}})
    assert content()["tune"] == {"state": "trials"}
    assert [job.get("tuning") for job in content()["jobs"]] == [None, tuning]
    assert [job.tuning for job in recorded_jobs(tmp_path).values()] == [None, tuning]
    assert (record.status_of(2), len(record.jobs)) == ("not started", 2)
    record.add([], {"tune": {"state": "done"}})
    assert content()["tune"] == {"state": "done"}
    assert len(content()["jobs"]) == 2
    assert len((tmp_path / "jobs.jsonl").read_text().splitlines()) == 2


def test_a_record_that_cannot_be_written_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep").mkdir()
    job = SweepJob(1, 1, (), (), compose_config(["train.steps=3"]), tmp_path / "sweep" / "01")
    record = Record(tmp_path / "sweep", [job], RESULT)
    record.begin()
    (tmp_path / "sweep").rename(tmp_path / "gone")
    record.job_started(1)
    record.job_ended(1, 0)
    said = capsys.readouterr().out.splitlines()
    place = tmp_path / "sweep" / "sweep.json"
    assert said == [f"warning: {place} cannot be written (No such file or directory)"]
