"""How long the command takes until its first step, with empty caches and with filled ones.

    python tools/gpu/run.py first_use [--only mamba2]

Every baseline in turn: once with empty caches and once again with what the first run left there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tools.gpu.job import Check, Job, Row
from tools.gpu.peer_speed import BASELINES

LONGEST_S = 240


def first_uses(job: Job) -> None:
    """Measure every baseline's first steps, each with caches of its own."""
    for name in job.chosen(BASELINES):
        with tempfile.TemporaryDirectory() as folder:
            for which in ("first", "again"):
                row = {"model": name, "run": which}
                job.measure(row, partial(first_step, name, Path(folder), which))


def first_step(name: str, folder: Path, which: str) -> Row:
    """Return the seconds from the command to the end of its first step, or what it said."""
    text, run = folder / "text.txt", folder / which
    line = b"def add(left, right):\n    return left + right\n\n\n"
    text.write_bytes(line * 20000)
    caches = ("ELMAN_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
    settings = ["train.steps=2", "train.val_every=null", "log.every=1", "log.tensorboard=false"]
    settings += ["data.val_sample=512", f"data.path={text}", f"hydra.run.dir={run}"]
    began = time.perf_counter()
    with (folder / f"{which}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "elman", f"model={name}", *settings],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {cache: str(folder / cache) for cache in caches},
        )
        seconds = until_step(process, run / "metrics.jsonl", began)
    if seconds is not None:
        return {"first_step_s": round(seconds, 1)}
    said = (folder / f"{which}.log").read_text()[-3000:]
    return {"error": f"no step (status {process.returncode})", "said": said}


def until_step(process: subprocess.Popen[bytes], metrics: Path, began: float) -> float | None:
    """Return when the first step was recorded; wait for the end of the process."""
    seconds = None
    while process.poll() is None:
        now = time.perf_counter() - began
        if seconds is None and metrics.exists() and '"kind": "step"' in metrics.read_text():
            seconds = now
        if now > LONGEST_S:
            process.kill()
        time.sleep(0.1)
    return seconds


CHECK = Check({"first_use": first_uses}, names=lambda: BASELINES)
