"""A mode that ends as ``train.steps`` says: see ``ENDS``."""

import json
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.base.signals import interruptible
from elman.config.run_config import RunConfig
from elman.runs.folder import write_config
from elman.runs.prepared import PreparedRun

# train.steps of a run -> how it ends. Any other number: well.
REFUSED, BROKEN, KILLED, NON_FINITE, UNTIL_SIGNAL, INTERRUPTED_EARLY = 901, 902, 903, 904, 905, 906
STUBBORN, PREEMPTED, DISK_FULL, WRONG_KERNEL = 907, 908, 909, 910
# Seconds that a job takes that ends well.
SECONDS = float(os.environ.get("STUB_SECONDS", "0"))
# By model the rate at which its score is best, the largest rate at which it does not diverge, and,
# if it is not 2, the score at the best rate.
SCORES = json.loads(os.environ.get("STUB_SCORES", "null"))
# A folder in which every job notes when it ran and what it saw.
NOTES = os.environ.get("STUB_NOTES")


def prepare_ahead(config: RunConfig) -> None:
    """Do nothing: a stub has nothing to prepare."""


def run(job: PreparedRun) -> ExitStatus:
    """Say what was handed over, then end."""
    config, folder = job.config, job.folder
    steps = config.train.steps
    print(
        f"ran {config.mode} {config.model.name} {steps} torch={'torch' in sys.modules}", flush=True
    )
    _note("start", config)
    if steps == REFUSED:
        raise UserError("train.steps=901: an unlucky number; type another")
    job.taken_up()
    if steps == BROKEN:
        raise RuntimeError("first line\nsecond line")
    if steps == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if steps == INTERRUPTED_EARLY:
        raise KeyboardInterrupt
    if folder is None:
        return ExitStatus.OK
    if steps == UNTIL_SIGNAL:
        return _wait_for_signal(folder, config)
    if steps == STUBBORN:
        return _ignore_signals(folder)
    if steps == PREEMPTED:
        return _preempted_once(folder, config)
    if steps == DISK_FULL:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    if steps == WRONG_KERNEL:
        print("elman: refused: the cpu kernel of e61 is wrong on this machine", flush=True)
        return _end(folder, config, "refused", ExitStatus.FAILED)
    if steps == NON_FINITE:
        return _end(folder, config, "nan", ExitStatus.NON_FINITE)
    time.sleep(SECONDS)
    _note("end", config)
    if SCORES is not None:
        return _scored(folder, config, *SCORES[config.model.name])
    numbers = {"params": 594720, "steps": steps, "loss": 1.5, "loss_steps": 7}
    return _end(folder, config, "ok", ExitStatus.OK, **numbers, val_bpb=2.25, tok_s=12345.6)


def _scored(
    folder: Path, config: RunConfig, peak: float, limit: float, least: float = 2.0
) -> ExitStatus:
    """End with a score that depends on the rate, and a little on the seed."""
    rate = config.optim.lr
    if rate > limit:
        return _end(folder, config, "nan", ExitStatus.NON_FINITE)
    score = least + math.log10(rate / peak) ** 2 + config.train.seed / 1000
    numbers = {"params": 594720, "steps": config.train.steps, "loss": 1.5, "loss_steps": 7}
    return _end(folder, config, "ok", ExitStatus.OK, **numbers, val_bpb=score, tok_s=12345.6)


def _wait_for_signal(folder: Path, config: RunConfig) -> ExitStatus:
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    (folder / "waiting").touch()
    while not received:
        time.sleep(0.02)
    time.sleep(0.3)  # the save; a second signal here would be counted
    return _end(folder, config, "interrupted", ExitStatus.INTERRUPTED, signals=len(received))


def _ignore_signals(folder: Path) -> ExitStatus:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    (folder / "waiting").touch()
    while True:
        time.sleep(0.1)


def _preempted_once(folder: Path, config: RunConfig) -> ExitStatus:
    """Save and end at SIGUSR2; when started again in the same folder, end well.

    It also ends well once the notes have a file ``go``.
    """
    if config.train.resume is not None:
        return _end(folder, config, "ok", ExitStatus.OK, resumed=True)
    write_config(folder, config)
    with interruptible() as interruption:
        (folder / "waiting").touch()
        while not (interruption or _told_to_go()):
            time.sleep(0.02)
        interruption.hold()  # each thread of a launcher that is killed sends its signal
        _note("end", config)
        if not interruption:
            return _end(folder, config, "ok", ExitStatus.OK, resumed=False)
        return _end(folder, config, "interrupted", ExitStatus.INTERRUPTED)


def _told_to_go() -> bool:
    """Whether the test lets the jobs that wait end well."""
    return NOTES is not None and Path(NOTES, "go").exists()


def _note(what: str, config: RunConfig) -> None:
    if NOTES is not None:
        names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS")
        seen = {name: os.environ.get(name) for name in names}
        note = {"what": what, "time": time.time(), "pid": os.getpid(), **seen}
        with (Path(NOTES) / f"{config.train.seed}.jsonl").open("a") as stream:
            stream.write(json.dumps(note) + "\n")


def _end(
    folder: Path, config: RunConfig, status: str, exit_status: ExitStatus, **numbers: object
) -> ExitStatus:
    write_config(folder, config)
    (folder / "result.json").write_text(json.dumps({"status": status, **numbers}))
    return exit_status
