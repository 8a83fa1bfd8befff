"""A rank that notes what it was given, and ends as ``train.steps`` says.

``train.steps`` is 9 and three digits: which rank is meant, and how it ends (``ENDS``). All other
ranks hang, as in a collective operation, until they are told to end.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from elman.base.signals import received

WELL, CRASH, NO_MEMORY, KILLED, WAIT, STUBBORN = range(6)
NAMES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)


def main(argv: Sequence[str] | None = None, before_run: Callable[[], None] = lambda: None) -> int:
    """Run one rank and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    before_run()
    told: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: (told.append(number), received.add(number)))
    rank = int(os.environ["RANK"])
    _note("start", arguments)
    meant, end = _ends(arguments)
    if end == KILLED and rank == meant:
        os.kill(os.getpid(), signal.SIGKILL)
    if end == STUBBORN:
        told = [0]
        time.sleep(600)
    if end in (CRASH, NO_MEMORY) and rank == meant:
        print("elman: oom: no memory here" if end == NO_MEMORY else "elman: crash: boom")
        return end_with(arguments, 4 if end == NO_MEMORY else 1)
    if end == WELL:
        time.sleep(float(os.environ.get("STUB_SECONDS", "0.2")))
        return end_with(arguments, 0)
    while not told:
        time.sleep(0.02)
    time.sleep(0.2)
    return end_with(arguments, 130, told)


def end_with(arguments: list[str], status: int, told: Sequence[int] = ()) -> int:
    """Note the end; rank 0 writes the result."""
    keys = ("hydra.run.dir=", "train.resume=", "sweep.job=")
    named = [text for text in arguments if text.startswith(keys)]
    folder = named[0].partition("=")[2] if named else None
    word = {0: "ok", 1: "crash", 4: "oom", 130: "interrupted"}[status]
    if os.environ["RANK"] == "0" and folder is not None:
        place = Path(folder.strip("'"))
        place.mkdir(exist_ok=True)
        (place / "result.json").write_text(json.dumps({"status": word}))
        (place / "config.yaml").touch()
    _note("end", arguments, told)
    return status


def _ends(arguments: Sequence[str]) -> tuple[int, int]:
    texts = [*arguments, *_recorded(arguments)]
    steps = next((text for text in texts if text.startswith("train.steps=9")), None)
    if steps is None:
        return 0, WELL
    number = int(steps.partition("=9")[2])
    return number // 10, number % 10


def _recorded(arguments: Sequence[str]) -> list[str]:
    """Return the overrides of a job of a sweep."""
    named = [
        text.partition("=")[2].strip("'") for text in arguments if text.startswith("sweep.job=")
    ]
    if not named:
        return []
    folder = Path(named[0])
    lines = map(json.loads, (folder.parent / "jobs.jsonl").read_text().splitlines())
    return next(line["overrides"] for line in lines if line["folder"] == folder.name)


def _note(what: str, arguments: list[str], told: Sequence[int] = ()) -> None:
    note = {name: os.environ.get(name) for name in NAMES}
    note |= {"what": what, "time": time.time(), "pid": os.getpid(), "told": list(told)}
    note["arguments"] = arguments
    path = Path(os.environ["STUB_NOTES"]) / f"{os.getpid()}.jsonl"
    with path.open("a") as stream:
        stream.write(json.dumps(note) + "\n")


if __name__ == "__main__":
    sys.exit(main())
