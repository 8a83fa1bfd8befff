"""``launcher=slurm`` on a real SLURM of one node with two pretend GPUs.

Needs root and Debian's packages; continuous integration installs them and must not skip this.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from elman.base import signals
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.config.validate import validate_sweep
from elman.launchers.command import JobCommand
from elman.launchers.job import SweepJob
from elman.launchers.slurm import limit_note, minutes_of
from elman.launchers.slurm_queue import outside_end
from elman.launchers.slurm_rank import first_host, slurm_environment
from elman.runs.status import ended_as
from elman.sections.launching import SlurmLauncher
from tests.stubs.forked import Popen

STUBS = Path(__file__).parents[2] / "stubs" / "stub_modes"


def _node() -> Any:
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import node
    finally:
        sys.path.pop(0)
    return node


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a running SLURM."""
    node = _node()
    if os.getuid() != 0:
        pytest.skip("SLURM's daemons need root")
    if shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        if os.environ.get("CI") != "true":
            pytest.skip(f"no SLURM here: apt-get install {' '.join(node.PACKAGES)}")
        _install(node.PACKAGES)
    folder = tmp_path_factory.mktemp("slurm")
    with node.SlurmNode(folder) as running:
        yield running


def _install(packages: tuple[str, ...]) -> None:
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        subprocess.run(["apt-get", "-qq", *command], env=quiet, check=True)


class Sweep:
    """A sweep on a SLURM, started and followed."""

    def __init__(
        self,
        slurm: Any,
        folder: Path,
        *arguments: str,
        launcher: tuple[str, ...] = ("launcher=slurm",),
        stubs: Path = STUBS,
        grows: bool = False,
        programs: Path | None = None,
    ) -> None:
        self.slurm, self.folder = slurm, folder
        (folder / "notes").mkdir(exist_ok=True)
        environment = slurm.environment | {
            "PYTHONPATH": str(stubs),
            "STUB_NOTES": str(folder / "notes"),
            "COLUMNS": "160",
            "STUB_JOBS": "4",
            "STUB_ASKS": str(folder / "asks.jsonl"),
        }
        if programs is not None:
            environment["PATH"] = f"{programs}:{environment['PATH']}"
        program = STUBS.with_name("growing_sweep.py" if grows else "slurm_sweep.py")
        self.process = Popen(
            [sys.executable, str(program), *launcher, *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def notes(self, seed: int) -> list[dict[str, Any]]:
        """Return what a job has noted so far."""
        path = self.folder / "notes" / f"{seed}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def asks(self) -> list[dict[str, int]]:
        """Return every question for more jobs."""
        return [json.loads(line) for line in (self.folder / "asks.jsonl").read_text().splitlines()]

    def go(self) -> None:
        """Let the jobs that wait for a preemption end well without one."""
        (self.folder / "notes" / "go").touch()

    def wait_for(self, waiting: int) -> None:
        """Wait until so many jobs train."""
        deadline = time.monotonic() + 180
        while len(list(self.folder.rglob("waiting"))) < waiting:
            assert time.monotonic() < deadline, self.slurm.run("squeue", "--array")
            time.sleep(0.2)

    def tasks(self, state: str) -> list[str]:
        """Return the tasks of the array in one state."""
        listed = self.slurm.run("squeue", "--noheader", "--array", "--format=%i %T")
        pairs = [line.split() for line in listed.splitlines()]
        return [name for name, has in pairs if has == state]

    def until(self, words: str, times: int) -> str:
        """Return what was printed up to the moment when so many lines have said ``words``."""
        assert self.process.stdout is not None
        said: list[str] = []
        while sum(words in line for line in said) < times:
            line = self.process.stdout.readline()
            assert line, "".join(said)
            said.append(line)
        return "".join(said)

    def ended(self) -> list[str]:
        """Return the status of every job at the end."""
        output, _ = self.process.communicate(timeout=120)
        (path,) = self.folder.rglob("sweep.json")
        found = [job["status"] for job in json.loads(path.read_text())["jobs"]]
        assert len(found) == 3, output
        return found


@pytest.mark.required
def test_three_jobs_on_two_gpus_two_of_them_preempted(slurm: Any, tmp_path: Path) -> None:
    sweep = Sweep(
        slurm, tmp_path, "train.seed=1,2,3", "train.steps=908", "train.minutes=1", "launcher.jobs=3"
    )
    sweep.wait_for(2)
    assert len(sweep.tasks("RUNNING")) == 2
    assert len(sweep.tasks("PENDING")) == 1
    first, second = sorted(sweep.tasks("RUNNING"))
    # As a cluster preempts that tells the job first, and as one that only requeues it.
    slurm.run("scancel", "--signal=USR2", first)
    slurm.run("scontrol", "requeue", second)
    sweep.wait_for(3)
    sweep.go()
    assert sweep.ended() == ["ok", "ok", "ok"]
    assert sweep.process.returncode == 0
    results = [json.loads(path.read_text()) for path in sorted(tmp_path.rglob("result.json"))]
    assert [result["resumed"] for result in results] == [True, True, False]
    seen = {note["CUDA_VISIBLE_DEVICES"] for seed in (1, 2, 3) for note in sweep.notes(seed)}
    assert seen == {"0", "1"}


@pytest.mark.required
def test_a_killed_job_fails_alone_and_ctrl_c_saves_the_others(slurm: Any, tmp_path: Path) -> None:
    sweep = Sweep(slurm, tmp_path, "train.seed=1,2,3", "train.steps=908", "launcher.minutes=5")
    sweep.wait_for(2)
    os.kill(sweep.notes(1)[0]["pid"], signal.SIGKILL)
    sweep.wait_for(3)
    sweep.process.send_signal(signal.SIGINT)
    assert sweep.ended() == ["crash", "interrupted", "interrupted"]
    assert sweep.process.returncode == 130


@pytest.mark.required
def test_a_suite_is_an_array_too(slurm: Any, tmp_path: Path) -> None:
    small = ("model.dim=128", "model.depth=1", "sweep.equal_size=false", "train.steps=3")
    sweep = Sweep(slurm, tmp_path, "benchmark=e75_100m", "benchmark.only=e75h4*", *small)
    assert sweep.ended() == ["ok", "ok", "ok"]
    (path,) = tmp_path.rglob("sweep.json")
    record = json.loads(path.read_text())
    assert record["benchmark"] == "e75_100m"
    ran = [(path.parent / job["folder"] / "config.yaml").read_text() for job in record["jobs"]]
    for text, model in zip(ran, ("e75h4n16", "e75h4n24", "e75h4n32"), strict=True):
        assert f"name: {model}\n" in text
        assert "warmup_steps: 100\n" in text  # the suite's own optimizer


def _ranks(slurm: Any, folder: Path, end: int) -> Sweep:
    """Start a sweep of one job of two ranks, which end as a stub's ``train.steps`` says."""
    two = (f"train.steps={end}", "launcher.minutes=5", "launcher.gpus_per_job=2", "train.seed=1")
    return Sweep(slurm, folder, *two, stubs=STUBS.with_name("stub_ranks"))


def _notes_of_ranks(folder: Path, what: str) -> list[dict[str, Any]]:
    texts = [path.read_text() for path in (folder / "notes").iterdir()]
    found = [json.loads(line) for text in texts for line in text.splitlines()]
    return sorted((one for one in found if one["what"] == what), key=lambda one: one["time"])


@pytest.mark.required
def test_ranks_find_each_other_and_go_on_together_after_a_preemption(
    slurm: Any, tmp_path: Path
) -> None:
    sweep = _ranks(slurm, tmp_path, 9004)
    deadline = time.monotonic() + 180
    while len(_notes_of_ranks(tmp_path, "start")) < 2:
        assert time.monotonic() < deadline, slurm.run("squeue", "--array")
        time.sleep(0.2)
    time.sleep(0.5)
    (task,) = sweep.tasks("RUNNING")
    slurm.run("scancel", "--signal=USR2", task)
    output, _ = sweep.process.communicate(timeout=120)
    assert sweep.process.returncode == 0, output
    starts = _notes_of_ranks(tmp_path, "start")
    assert sorted(one["RANK"] for one in starts[:2]) == ["0", "1"]
    assert all(one["RANK"] == one["LOCAL_RANK"] for one in starts)
    assert {one["WORLD_SIZE"] for one in starts} == {"2"}
    assert {one["CUDA_VISIBLE_DEVICES"] for one in starts} == {"0,1"}
    assert {one["MASTER_ADDR"] for one in starts} == {socket.gethostname().split(".")[0]}
    assert {one["MASTER_PORT"] for one in starts} == {str(10_000 + int(task))}
    # Rank 0 has begun by the time at which rank 1 looks; both must still do the same.
    begun = [one["arguments"][0].partition("=")[0] for one in starts]
    assert begun == ["sweep.job"] * 2 + ["train.resume"] * 2


@pytest.mark.required
def test_a_killed_rank_ends_the_others(slurm: Any, tmp_path: Path) -> None:
    sweep = _ranks(slurm, tmp_path, 9013)
    output, _ = sweep.process.communicate(timeout=120)
    assert sweep.process.returncode == 1, output
    (job,) = _sweep_file(tmp_path)["jobs"]
    assert job["status"] == "killed (SIGKILL)"
    assert job["reason"] == "rank 1 was killed (SIGKILL); the other ranks were ended"
    (end,) = _notes_of_ranks(tmp_path, "end")
    assert (end["RANK"], end["told"]) == ("0", [signal.SIGTERM])


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("vm", "vm"),
        ("gpu[03-05,9],login1", "gpu03"),
        ("r[1-2]n[3,4]", "r1n3"),
        ("a,b[1-2]", "a"),
    ],
)
def test_the_first_host_of_a_job(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_the_ranks_of_two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"NTASKS": 4, "PROCID": 3, "LOCALID": 1, "NODEID": 1, "JOB_ID": 4711}
    for name, value in given.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[7-8]")
    assert slurm_environment(4, 2) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu7",
        "MASTER_PORT": "14711",
    }
    with pytest.raises(
        UserError, match=r"4 tasks for 8 ranks; drop hydra\.launcher\.tasks_per_node"
    ):
        slurm_environment(8, 2)


def test_ranks_are_the_same_number_on_every_node() -> None:
    with pytest.raises(UserError, match=r"=3: does not divide by .* type launcher\.gpus_per_job=4"):
        validate_sweep({"name": "slurm", "gpus_per_job": 3, "nodes": 2}, {}, frozenset())


def _jobs(*overrides: str) -> list[SweepJob]:
    configs = [compose_config([text]) for text in overrides]
    return [SweepJob(n, len(configs), (), (), config) for n, config in enumerate(configs, 1)]


def test_the_limit_is_that_of_the_longest_job_and_a_margin() -> None:
    settings = SlurmLauncher(name="slurm")
    assert minutes_of(_jobs("train.minutes=0.5", "train.minutes=9.2"), settings) == 25
    assert minutes_of(_jobs("train.seed=1"), settings) == 16
    assert minutes_of(_jobs("train.steps=5"), SlurmLauncher(name="slurm", minutes=7)) == 7


def test_steps_alone_are_no_limit() -> None:
    with pytest.raises(UserError, match=r"job 2 has no train\.minutes .* add launcher\.minutes="):
        minutes_of(_jobs("train.minutes=1", "train.steps=5"), SlurmLauncher(name="slurm"))


def _sweep_file(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("sweep.json")
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content


@pytest.mark.required
def test_a_bare_resume_follows_what_the_queue_still_has(slurm: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "book.txt").write_text("a book\n" * 40_000)
    typed = ("train.seed=1,2,3", "train.steps=908", "launcher.minutes=7", "data.path=book.txt")
    first = Sweep(slurm, home, *typed)
    first.wait_for(2)
    first.process.kill()
    first.process.wait()
    running, (third,) = sorted(first.tasks("RUNNING")), first.tasks("PENDING")
    (folder,) = home.glob("outputs/*/*_sweep")
    # From another folder, with nothing of the first command.
    (tmp_path / "elsewhere").mkdir()
    again = Sweep(slurm, tmp_path / "elsewhere", "-m", f"sweep.resume={folder}", launcher=())
    said = again.until("followed, not started again", 3)
    assert f"job 3 is in SLURM's queue as {third}: followed, not started again" in said
    slurm.run("scancel", "--signal=USR2", running[0])
    first.wait_for(3)
    first.go()
    output, _ = again.process.communicate(timeout=120)
    assert again.process.returncode == 0, output
    content = _sweep_file(home)
    assert [job["status"] for job in content["jobs"]] == ["ok"] * 3
    assert [job["task"] for job in content["jobs"]] == [*running, third]
    # The first once before its preemption and once after: nobody started one a second time.
    assert [sum(note["what"] == "start" for note in first.notes(n)) for n in (1, 2, 3)] == [2, 1, 1]


@pytest.mark.required
def test_a_sweep_grows_while_the_queue_still_has_its_jobs(slurm: Any, tmp_path: Path) -> None:
    """Its launcher was killed: what is asked for and queued is followed, the rest is submitted."""
    first = Sweep(slurm, tmp_path, "train.seed=1,2", "train.steps=908", "launcher.minutes=7")
    first.wait_for(2)
    first.process.kill()
    first.process.wait()
    running = sorted(first.tasks("RUNNING"))
    (folder,) = tmp_path.glob("outputs/*/*_sweep")
    grow = ("-m", f"sweep.add={folder}", "train.seed=2,3")
    again = Sweep(slurm, tmp_path, *grow, launcher=())
    again.until(f"job 2 is in SLURM's queue as {running[1]}: followed, not started again", 1)
    slurm.run("scancel", running[0])  # for the third, there are two GPUs
    first.wait_for(3)
    (third,) = (task for task in first.tasks("RUNNING") if task not in running)
    first.go()
    assert again.ended()[1:] == ["ok", "ok"]
    record = _sweep_file(tmp_path)
    assert [job["seed"] for job in record["jobs"]] == [1, 2, 3]
    assert [job["task"] for job in record["jobs"]] == [*running, third]
    assert record["launcher"]["name"] == "slurm"
    (added,) = record["added"]
    assert added["typed"].endswith("train.seed=2,3")
    # Nobody started one a second time.
    assert [sum(note["what"] == "start" for note in first.notes(n)) for n in (2, 3)] == [1, 1]


TWO_PLACES = ("-m", "launcher.jobs=2", "launcher.minutes=7")


@pytest.mark.required
def test_each_answer_of_a_sweep_that_grows_is_an_array(slurm: Any, tmp_path: Path) -> None:
    sweep = Sweep(slurm, tmp_path, *TWO_PLACES, "train.steps=3", grows=True)
    output, _ = sweep.process.communicate(timeout=180)
    assert sweep.process.returncode == 0, output
    record = _sweep_file(tmp_path)
    assert [job["status"] for job in record["jobs"]] == ["ok"] * 5
    assert record["jobs"][-1]["seed"] == 4005  # made when every result was recorded
    assert record["source"] == {"state": "confirming"}
    answers = [ask["came"] for ask in sweep.asks() if ask["came"]]
    arrays = [job["task"].partition("_")[0] for job in record["jobs"]]
    assert [arrays.count(array) for array in dict.fromkeys(arrays)] == answers
    assert max(ask["waiting"] + ask["running"] + ask["came"] for ask in sweep.asks()) == 2
    assert "[4 of 4] ok" in output


def _two_arrays(slurm: Any, folder: Path) -> Sweep:
    """Return a sweep that grows, with a cancelled job and a job of each of two arrays."""
    sweep = Sweep(slurm, folder, *TWO_PLACES, "train.steps=908", grows=True)
    sweep.wait_for(2)
    slurm.run("scancel", sorted(sweep.tasks("RUNNING"))[0])
    sweep.wait_for(3)
    return sweep


@pytest.mark.required
def test_the_jobs_of_every_array_are_followed_after_a_kill(slurm: Any, tmp_path: Path) -> None:
    first = _two_arrays(slurm, tmp_path)
    first.process.kill()
    first.process.wait()
    before = _sweep_file(tmp_path)["jobs"]
    assert len({job["task"].partition("_")[0] for job in before}) == 2
    (folder,) = tmp_path.glob("outputs/*/*_sweep")
    again = Sweep(slurm, tmp_path, "-m", f"sweep.resume={folder}", launcher=(), grows=True)
    again.until("followed, not started again", 2)
    again.go()
    output, _ = again.process.communicate(timeout=180)
    assert again.process.returncode == 0, output
    jobs = _sweep_file(tmp_path)["jobs"]
    assert [job["status"] for job in jobs] == ["ok"] * 5
    assert [job["task"] for job in jobs[1:3]] == [job["task"] for job in before[1:]]
    seeds = [job["seed"] for job in jobs]
    assert seeds[:3] == [job["seed"] for job in before]
    # Only the cancelled one was started a second time.
    starts = [sum(note["what"] == "start" for note in again.notes(seed)) for seed in seeds]
    assert starts == [2, 1, 1, 1, 1]


@pytest.mark.required
def test_ctrl_c_saves_the_jobs_of_every_array_and_asks_for_no_more(
    slurm: Any, tmp_path: Path
) -> None:
    sweep = _two_arrays(slurm, tmp_path)
    asked = len(sweep.asks())
    sweep.process.send_signal(signal.SIGINT)
    assert sweep.ended() == ["cancelled", "interrupted", "interrupted"]
    assert sweep.process.returncode == 130
    assert len(sweep.asks()) == asked


# Refuses the second array.
SBATCH = """\
#!/bin/sh
echo >> {count}
if [ "$(wc -l < {count})" -eq 2 ]; then
    echo "sbatch: error: Batch job submission failed: too busy" >&2
    exit 1
fi
exec {sbatch} "$@"
"""


@pytest.mark.required
def test_an_array_that_is_refused_is_submitted_again_when_a_job_has_ended(
    slurm: Any, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    script = SBATCH.format(count=tmp_path / "count", sbatch=shutil.which("sbatch"))
    (programs / "sbatch").write_text(script)
    (programs / "sbatch").chmod(0o755)
    typed = (*TWO_PLACES, "train.steps=908")
    sweep = Sweep(slurm, tmp_path, *typed, grows=True, programs=programs)
    sweep.wait_for(2)
    slurm.run("scancel", sorted(sweep.tasks("RUNNING"))[0])
    said = sweep.until("too busy", 1).splitlines()[-1]
    assert said.endswith("; 1 jobs wait until another one has ended")
    sweep.go()
    output, _ = sweep.process.communicate(timeout=180)
    jobs = _sweep_file(tmp_path)["jobs"]
    assert [job["status"] for job in jobs] == ["cancelled", *["ok"] * 4], output
    seeds = [job["seed"] for job in jobs]
    assert [len(sweep.notes(seed)) > 0 for seed in seeds] == [True] * 5


@pytest.mark.required
def test_another_launcher_leaves_alone_what_the_queue_has(slurm: Any, tmp_path: Path) -> None:
    first = Sweep(slurm, tmp_path, "train.seed=1,2,3", "train.steps=908", "launcher.minutes=5")
    first.wait_for(2)
    first.process.kill()
    first.process.wait()
    (folder,) = tmp_path.glob("outputs/*/*_sweep")
    resume = (f"sweep.resume={folder}", "-m", "launcher=local")
    again = Sweep(slurm, tmp_path, *resume, launcher=())
    output, _ = again.process.communicate(timeout=180)
    array = first.tasks("PENDING")[0].partition("_")[0]
    slurm.run("scancel", array)
    assert output.count(" and is not started again; once it has ended, type elman -m ") == 3
    assert again.process.returncode == 1


@pytest.mark.required
@pytest.mark.slow  # 14 s, for words
def test_who_cancelled_a_job_is_said(slurm: Any, tmp_path: Path) -> None:
    sweep = Sweep(slurm, tmp_path, "train.seed=1,2,3", "train.steps=907", "launcher.minutes=5")
    sweep.wait_for(2)
    slurm.run("scancel", *sweep.tasks("PENDING"), *sweep.tasks("RUNNING"))
    assert sweep.ended() == ["cancelled"] * 3
    assert sweep.process.returncode == 1
    reasons = {job["reason"] for job in _sweep_file(tmp_path)["jobs"]}
    assert reasons == {"it was cancelled in SLURM's queue, by scancel or an admin"}


@pytest.mark.required
def test_what_sbatch_refuses_is_one_line_and_leaves_nothing(slurm: Any, tmp_path: Path) -> None:
    sweep = Sweep(slurm, tmp_path, "train.seed=1,2", "train.minutes=1", "launcher.partition=nope")
    output, _ = sweep.process.communicate(timeout=180)
    assert sweep.process.returncode == 2
    assert output.splitlines()[2].startswith("report while it runs: ")
    assert output.splitlines()[3:] == [
        "elman: error: launcher=slurm: sbatch: error: Batch job submission failed: Invalid "
        "partition name specified; fix launcher.* or hydra.launcher.*"
    ]
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("TIMEOUT", "timeout"),
        ("CANCELLED", "cancelled"),
        ("NODE_FAIL", "node failed"),
        ("PREEMPTED", "preempted"),
        ("OUT_OF_MEMORY", "oom"),
    ],
)
def test_the_words_for_what_slurm_does(state: str, word: str) -> None:
    ended = outside_end("4711_0", state)
    assert ended is not None
    assert (ended.word, ended_as(ended, None)) == (word, word)
    assert outside_end("4711_0", "FAILED") is None


def test_a_limit_that_leaves_no_time_to_train_is_refused() -> None:
    jobs = _jobs("train.minutes=10")
    with pytest.raises(UserError) as caught:
        limit_note(jobs, SlurmLauncher(name="slurm", minutes=3), 120)
    assert str(caught.value) == (
        "launcher.minutes: with a limit of 3 min a job is told to save at its start: "
        "launcher.save_seconds=120 s before the end, and SLURM is up to 60 s early; type "
        "launcher.minutes=4 or more, or lower launcher.save_seconds"
    )
    short = limit_note(jobs, SlurmLauncher(name="slurm", minutes=5), 120)
    assert short is not None
    assert "trains 10 min, and 4 starts (launcher.requeues=3) of 2.0 min" in short
    assert " make 8.0 min: it will end as timeout" in short
    assert limit_note(jobs, SlurmLauncher(name="slurm", minutes=6), 120) is None
    assert limit_note(jobs, SlurmLauncher(name="slurm"), 120) is None


@pytest.mark.parametrize(
    ("seconds_left", "steps", "queued_again"),
    [(100, 5, False), (100, 9, True), (3000, 5, True)],
    ids=["at its limit without a step", "at its limit", "preempted at its start"],
)
def test_a_start_without_progress_is_not_queued_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds_left: int,
    steps: int,
    queued_again: bool,
) -> None:
    end = datetime.now() + timedelta(seconds=seconds_left)
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\necho {end.isoformat(timespec='seconds')}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").touch()
    (folder / "result.json").write_text('{"status": "interrupted", "steps": 5}')

    def run(arguments: Sequence[str], before_run: Callable[[], None]) -> int:
        signals.received.add(signal.SIGUSR2)
        (folder / "result.json").write_text(json.dumps({"status": "ok", "steps": steps}))
        return 130

    requeued: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: requeued.append(number))
    try:
        status = JobCommand((), str(folder), resumable=True, start=run, save_seconds=60)()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (bool(requeued), status == ExitStatus.TIMEOUT) == (queued_again, not queued_again)
