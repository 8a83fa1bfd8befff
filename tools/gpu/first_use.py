"""How long the command takes until its first step, with empty caches and with filled ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_models import save  # type: ignore[import-not-found]

LONGEST_S = 240


def first_uses(names: list[str], report: dict[str, Any], path: Path) -> None:
    """Measure every baseline's first steps, each with caches of its own."""
    results = report["first_use"] = {}
    print("| model | first step, empty caches | again |\n|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            seconds = [first_step(name, Path(folder), n) for n in ("first", "again")]
        results[name] = [vars(one) for one in seconds]
        save(path, report)
        print(f"| {name} | {' | '.join(one.words for one in seconds)} |", flush=True)


def first_step(name: str, folder: Path, which: str) -> SimpleNamespace:
    """Return the seconds from the command to the end of its first step, and what it said."""
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
    said = (folder / f"{which}.log").read_text()[-3000:]
    words = f"{seconds:.0f} s" if seconds is not None else f"none (status {process.returncode})"
    return SimpleNamespace(seconds=seconds, words=words, log=said)


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
