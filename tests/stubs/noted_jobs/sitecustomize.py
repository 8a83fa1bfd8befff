"""Has each job of a sweep note when it takes its GPU and ends, and whether torch was there by then.

``JOB_SECONDS`` lets a job last longer, with the CPU free, as if a GPU computed; a job may write no
file of more than ``JOB_FILE_BYTES``.
"""

import atexit
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path


def _note(what: str) -> None:
    note = {
        "what": what,
        "time": time.monotonic(),
        "pid": os.getpid(),
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "torch": "torch" in sys.modules,
        "job": os.environ["SUBMITIT_LOCAL_JOB_ID"],
    }
    with (Path(os.environ["JOB_NOTES"]) / f"{os.getpid()}.jsonl").open("a") as stream:
        stream.write(json.dumps(note) + "\n")


def _end() -> None:
    time.sleep(float(os.environ.get("JOB_SECONDS", "0")))
    _note("end")


if "SUBMITIT_LOCAL_JOB_ID" in os.environ and "JOB_NOTES" in os.environ:
    from elman.launchers import command

    _place = command.order_to_start

    def _noted() -> None:
        _wait()
        _note("start")
        atexit.register(_end)
        if limit := os.environ.get("JOB_FILE_BYTES"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))

    def _noted_place() -> Callable[[], None]:
        global _wait
        _wait = _place()
        return _noted

    command.order_to_start = _noted_place
