"""A launcher of stub jobs, as a process of its own: ``stub_launcher.py <folder> <first> <ends>``.

After three durations come the number of GPUs of each job and of jobs that share a GPU.

``ends`` is one letter for each job: w well, k killed, s stubborn, f full disk, x crashes on GPU-0.
The GPUs are those that the environment pretends. STUB_LATER has the letters of jobs that the
launcher has to ask for; the jobs after a bar are made only once all before it have ended.
"""

import io
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from stub_job import StubJob

from elman.devices.nvml import driver
from elman.launchers.display import Display
from elman.launchers.gpus.executor import Executor
from elman.launchers.gpus.group import Pool
from elman.launchers.gpus.queue import Queue
from elman.launchers.gpus.shared import end_sharing, shared_slots
from elman.launchers.gpus.slot import GpuSlot
from elman.launchers.handle import JobHandle
from elman.launchers.interrupts import Interrupts
from elman.launchers.request import NoLog
from elman.sections.launching import GpusLauncher

ENDS = {"w": "well", "k": "killed", "s": "stubborn", "f": "full", "x": "sick"}


class Later(NoLog):
    """Makes the later jobs, and notes each question among what the jobs note."""

    def __init__(self, folder: Path, first: int, number: int, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._letters = os.environ.get("STUB_LATER", "")
        self.handles: list[JobHandle] = []
        self._first, self._number = first, number
        self._ended = 0

    def job_ended(self, number: int, code: int, said: str = "") -> str:
        """Count the jobs that have ended."""
        self._ended += 1
        return super().job_ended(number, code, said)

    def more(self, number: int) -> Sequence[JobHandle]:
        """Return up to so many jobs."""
        came: list[JobHandle] = []
        if self._letters.startswith("|") and self._ended == self._number - self._first:
            self._letters = self._letters[1:]
        while len(came) < number and self._letters and self._letters[0] != "|":
            job = StubJob(self._number, str(self._folder), self._seconds, ENDS[self._letters[0]])
            came.append(JobHandle(job.number, f"{job.number:02d}", "stub", job))
            self._letters, self._number = self._letters[1:], self._number + 1
        waiting = sum(job.slot is None and job.status is None for job in self.handles)
        note = {"what": "ask", "time": time.monotonic(), "number": number, "came": len(came)}
        with (self._folder / "asks.jsonl").open("a") as stream:
            stream.write(json.dumps(note | {"waiting": waiting, "pid": os.getpid()}) + "\n")
        self.handles += came
        return came


def main(
    folder: Path,
    first: int,
    ends: str,
    seconds: float,
    save: float,
    wait: float,
    each: float,
    share: float,
) -> None:
    """Run the jobs and print how each ended."""
    notes = folder / "notes"
    jobs = [
        StubJob(number, str(notes), seconds, ENDS[end]) for number, end in enumerate(ends, first)
    ]
    queued = [JobHandle(job.number, f"{job.number:02d}", "stub", job) for job in jobs]
    slots = [GpuSlot(gpu, driver()) for gpu in driver().gpus()]
    if each > 1:
        slots = Pool(slots, int(each)).slots()
    display = Display(len(jobs), Console(file=io.StringIO()))
    if share > 1:
        settings = GpusLauncher(name="gpus", jobs_per_gpu=int(share), save_seconds=save)
        slots = shared_slots(slots, settings, display.say)
    executor = Executor(folder / f"from{first}", 1, detach=False)
    later = Later(notes, first, first + len(jobs), seconds)
    more = later.more if "STUB_LATER" in os.environ else None
    with Interrupts() as interrupts:
        Queue(queued, slots, executor, display, later, wait, save, more).run(interrupts)
        end_sharing(slots)
    print(json.dumps([job.status for job in [*queued, *later.handles]]), flush=True)
    print(display.console.file.getvalue(), file=sys.stderr)


if __name__ == "__main__":
    place, number, letters, *times = sys.argv[1:]
    main(Path(place), int(number), letters, *map(float, times))
