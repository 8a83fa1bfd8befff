"""Measures how long a command makes a person wait, beside another checkout of this repository.

It runs the command from both checkouts in turns, by the same Python, and prints medians and ranges:
wall seconds, seconds until the first line came through a pipe, CPU seconds of all processes, and
the phases of ``seconds`` in result.json if there is one. A ratio is this checkout's median over the
other's. Where the command checks kernels, it says whether both found the same bits.

    python benchmarks/waits.py --before ../other [--rounds 5] [--warm] override ...
    python benchmarks/waits.py --before ../other mode=parity model=e70
    python benchmarks/waits.py --before ../other model=e88f_h32n16 train.steps=1 train.batch_size=1

Every run has an empty cache of kernels and checks, unless ``--warm`` gives each side one that an
uncounted run has filled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parents[1]
Row = dict[str, float]


def wait_for(checkout: Path, overrides: Sequence[str], cache: Path, folder: Path) -> Row:
    """Run a command and return its times; what it writes is in ``folder``."""
    command = [sys.executable, "-P", "-m", "elman", *overrides]
    if "mode=doctor" not in overrides:
        command.append(f"hydra.run.dir={folder}")
    began, before = time.monotonic(), os.times()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=cache,
        env=os.environ | {"ELMAN_CACHE": str(cache), "PYTHONPATH": str(checkout / "src")},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = time.monotonic() - began
        process.stdout.read()
    wall, after = time.monotonic() - began, os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    row = {"wall": wall, "first line": first, "cpu": cpu}
    if (result := folder / "result.json").exists():
        seconds = json.loads(result.read_text())["seconds"]
        row |= {name: value for name, value in seconds.items() if value}
    return row


def checks_of(folder: Path) -> Any:
    """Return the numbers of the checks that a command has made; None without any."""
    path = folder / "parity.json"
    return json.loads(path.read_text())["checks"] if path.exists() else None


def show(rows: dict[str, list[Row]]) -> None:
    """Print the median and the range of each time on both sides, and their ratio."""
    names = dict.fromkeys(name for side in rows.values() for row in side for name in row)
    print(f"{'seconds':<12}{'before':>10}{'range':>18}{'now':>10}{'range':>18}{'ratio':>8}")
    for name in names:
        values = [[row.get(name, 0.0) for row in rows[side]] for side in ("before", "now")]
        line, middles = f"{name:<12}", [median(side) for side in values]
        for side, middle in zip(values, middles, strict=True):
            line += f"{middle:10.2f}{f'{min(side):.2f} to {max(side):.2f}':>18}"
        print(line + (f"{middles[1] / middles[0]:8.2f}" if middles[0] else ""))


def main() -> None:
    """Measure both sides in turns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", action="store_true", help="kernels are compiled already")
    arguments, overrides = parser.parse_known_args()
    sides = {"before": arguments.before.absolute(), "now": HERE}
    rows: dict[str, list[Row]] = defaultdict(list)
    checks: dict[str, Any] = {}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="elman-waits-") as scratch:
        for number in range(arguments.rounds + arguments.warm):
            for side, checkout in sides.items():
                cache = Path(scratch, side, "warm" if arguments.warm else str(number))
                cache.mkdir(parents=True, exist_ok=True)
                folder = Path(scratch, side, f"run{number}")
                row = wait_for(checkout, overrides, cache, folder)
                checks[side] = checks_of(folder)
                if number >= arguments.warm:
                    rows[side].append(row)
    how = "warm" if arguments.warm else "cold"
    print(f"{' '.join(overrides)}; {how}; load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    show(rows)
    if checks["now"] is not None:
        same = json.dumps(checks["before"]) == json.dumps(checks["now"])
        print(f"{len(checks['now'])} checks, {'the same' if same else 'OTHER'} numbers")


if __name__ == "__main__":
    main()
