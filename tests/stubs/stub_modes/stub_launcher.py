"""A launcher of stub jobs, as a process of its own: ``stub_launcher.py <folder> <first> <ends>``.

After three durations come the number of GPUs of each job and of jobs that share a GPU.

``ends`` is one letter for each job: w well, k killed, s stubborn, f full disk, x crashes on GPU-0.
The GPUs are those that the environment pretends.
"""

import io
import json
import sys
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
    with Interrupts() as interrupts:
        Queue(queued, slots, executor, display, NoLog(), wait, save).run(interrupts)
        end_sharing(slots)
    statuses = {job.number: job.status for job in queued}
    print(json.dumps([statuses[job.number] for job in jobs]), flush=True)
    print(display.console.file.getvalue(), file=sys.stderr)


if __name__ == "__main__":
    place, number, letters, *times = sys.argv[1:]
    main(Path(place), int(number), letters, *map(float, times))
