"""Runs elman's own commands on a GPU as a user types them, on a machine without caches.

    python tools/gpu/gpu_as_typed.py --out DIR [--seconds 30]

A script that calls parts of the program may pass although a command fails. So these are whole
commands: each one is a separate process, in an empty folder, with empty kernel caches. mamba-ssm
and flash-linear-attention must be installed, because a sweep without its baselines checks nothing.
Writes ``gpu_as_typed.json`` and the output of every command. Exit status: 0 if all commands ended
with 0, 1 if one did not, 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def typed(line: str, number: int, folder: Path, seconds: float) -> dict[str, Any]:
    """Run one command line and return how it ended."""
    command = [sys.executable, "-m", *line.split()]
    log = folder / f"{number}.log"
    # A sweep trains several models, one after another on one GPU.
    limit = _LIMIT_S + seconds * (1 + line.count(","))
    began = time.perf_counter()
    with log.open("w") as lines:
        try:
            status: int | None = subprocess.run(
                command,
                stdout=lines,
                stderr=subprocess.STDOUT,
                timeout=limit,
                check=False,
                cwd=folder,
                env=os.environ | _fresh(folder),
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    row = {"typed": line, "passed": status == 0, "status": status, "log": log.name}
    row["seconds"] = round(time.perf_counter() - began, 1)
    if status != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        row["error"] = f"stopped after {limit:.0f} s" if status is None else " ".join(last)
    return row


def _fresh(folder: Path) -> dict[str, str]:
    """Return what makes a machine look as if nothing had run on it."""
    return {"ELMAN_CACHE": str(folder / "kernels"), "TRITON_CACHE_DIR": str(folder / "triton")}


def main() -> int:
    """Run the commands, print how each ended, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each training")
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("gpu_as_typed: torch sees no GPU here", file=sys.stderr)
        return 2
    folder = given.out.resolve() / "as-typed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = []
    for number, line in enumerate(commands(given.seconds), start=1):
        rows.append(typed(line, number, folder, given.seconds))
        print(f"$ {line}\n[exit {rows[-1]['status']}, {rows[-1]['seconds']} s]", flush=True)
        (given.out / "gpu_as_typed.json").write_text(json.dumps({"commands": rows}, indent=1))
    return int(not all(row["passed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
