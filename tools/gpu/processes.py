"""Commands with a time limit, whose output goes to a file, and checks with a process per name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.gpu.job import Job, Row, read_rows

RUNNER = Path(__file__).with_name("run.py")


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Args:
        status: Its exit status; None: it was stopped.
        seconds: How long it took.
        problem: Why it failed, in a line; empty if it did not.
    """

    status: int | None
    seconds: float
    problem: str

    @property
    def row(self) -> Row:
        """Return it as a part of a result."""
        found: Row = {"passed": self.status == 0, "status": self.status, "s": self.seconds}
        return found | ({"error": self.problem} if self.problem else {})


def run_logged(
    command: Sequence[str],
    log: Path,
    limit_s: float,
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command in a folder with more environment variables; its output goes to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    status: int | None = None
    with log.open("w") as lines:
        try:
            status = subprocess.run(
                command,
                stdout=lines,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
                cwd=folder,
                env=os.environ | (variables or {}),
            ).returncode
        except subprocess.TimeoutExpired:
            problem = f"stopped after {limit_s:.0f} s"
    if status is not None:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        problem = "" if status == 0 else " ".join(last) or f"status {status}"
    return Ended(status, round(time.perf_counter() - began, 1), problem)


def item_command(job: Job, item: str, place: Path, **settings: object) -> list[str]:
    """Return the command that runs a check's part for one name, in a folder of its own."""
    command = [sys.executable, str(RUNNER), job.name, job.part, f"--item={item}"]
    command += [f"--out={place}", f"--device={job.device}"]
    return command + [f"{key}={value}" for key, value in {**job.settings, **settings}.items()]


def each_in_a_process(
    job: Job,
    names: Sequence[str],
    *,
    at_once: int,
    limit_s: float,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a part for every name in a process of its own, and report what each of them reports.

    Args:
        job: The check and its part.
        names: For each of them :attr:`Check.item` runs.
        at_once: Processes at the same time; on a CPU it is one.
        limit_s: Seconds until a process is stopped; what it reported until then stays.
        variables: More environment variables.
    """

    def run(name: str) -> list[Row]:
        place = job.out / job.name / job.part / name.replace("/", "-")
        shutil.rmtree(place, ignore_errors=True)
        log = place / "log.txt"
        ended = run_logged(item_command(job, name, place), log, limit_s, variables=variables)
        rows = read_rows(place / f"{job.name}.jsonl")[1:]  # behind the machine's
        # Status 1 says that a row is wrong.
        if ended.status not in (0, 1) or not rows:
            rows.append({"passed": False, "error": f"{ended.problem or 'no result'}; {log}"})
        return [{"item": name, **row} for row in rows]

    with ThreadPoolExecutor(at_once if job.device == "cuda" else 1) as pool:
        for rows in pool.map(run, names):
            for row in rows:
                job.report(row)
