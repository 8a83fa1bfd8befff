"""elman's own commands on a GPU as a user types them, on a machine without caches.

    python tools/gpu/run.py typed [seconds=30]

A check that calls parts of the program may pass although a command fails. So these are whole
commands: each one is a separate process, in an empty folder, with empty kernel caches. mamba-ssm
and flash-linear-attention must be installed, because a sweep without its baselines checks nothing.
The output of every command is in DIR/as-typed; ``seconds`` are those of each training.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tools.gpu.job import Check, Job, Row
from tools.gpu.processes import run_logged

TRAINED = "trained"
# Seconds that a command may take beyond its training: what is compiled and tuned first.
_LIMIT_S = 240


def commands(seconds: float) -> list[str]:
    """Return the command lines; each training takes ``seconds``."""
    time_each = f"train.minutes={seconds / 60:g}"
    return [
        "elman mode=doctor",
        "elman mode=parity model=e70",
        f"elman model=e88f_h32n16 {time_each} hydra.run.dir={TRAINED}",
        f"elman mode=generate generate.checkpoint={TRAINED} generate.max_bytes=300",
        f"elman mode=eval eval.checkpoint={TRAINED}",
        f"elman -m model=e75h4n16,mamba2,fla-gdn {time_each}",
        f"elman model=e1 {time_each}",
    ]


def typed(line: str, number: int, folder: Path, seconds: float) -> Row:
    """Run one command line and return how it ended."""
    command = [sys.executable, "-m", *line.split()]
    log = folder / f"{number}.log"
    # A sweep trains several models, one after another on one GPU.
    limit = _LIMIT_S + seconds * (1 + line.count(","))
    ended = run_logged(command, log, limit, folder=folder, variables=_fresh(folder))
    return {"typed": line, "log": log.name, **ended.row}


def _fresh(folder: Path) -> dict[str, str]:
    """Return what makes a machine look as if nothing had run on it."""
    return {"ELMAN_CACHE": str(folder / "kernels"), "TRITON_CACHE_DIR": str(folder / "triton")}


def run(job: Job) -> None:
    """Run the commands, one after the other."""
    folder = job.out / "as-typed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    seconds = job.settings["seconds"]
    for number, line in enumerate(commands(seconds), start=1):
        job.report(typed(line, number, folder, seconds))


CHECK = Check({"commands": run}, settings={"seconds": 30.0})
