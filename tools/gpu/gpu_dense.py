"""Checks the dense engine's kernels on a GPU against fp64, and times every form that they have.

    python tools/gpu/gpu_dense.py --out FILE [--check] [--time] [--model] [--forms stepwise ...]

Without --check, --time or --model, all three are done, in 60 to 90 s. Each result is one line of
JSON, printed and appended to FILE at once. Checks: outputs and all gradients of every step, with
NaN in every tensor that the engine allocates, and again with resets; repeats, another stream and a
replayed CUDA graph to the bit. Times: of the recurrence in bf16, replayed as a CUDA graph, all
sizes and forms in turn in every round; "products" is a graph of the step's products alone; cuDNN's
GRU runs eagerly. Needs torch, a GPU and this package on PYTHONPATH. With --device cpu, the backend
cpu is checked.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from dense_calls import guarded  # type: ignore[import-not-found]
from dense_checks import checks  # type: ignore[import-not-found]
from dense_times import SIZES, model, more_times, times  # type: ignore[import-not-found]
from instruments import device_name, write  # type: ignore[import-not-found]

from elman.ops.dense.cuda import forms
from elman.ops.dense.recurrences import CELLS


def main() -> None:
    """Do what was asked for; the exit status is 1 if a check failed."""
    given = parse()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    everything = not (given.check or given.time or given.model)
    report = partial(write, given.out)
    wanted = [name for name in given.forms or forms.REASONS if name in forms.REASONS]
    report({"what": "machine", "device": device_name(given.device), "torch": torch.__version__})
    passed = True
    if given.check or everything:
        passed = checks(wanted, given, report)
    if given.device == "cuda" and (given.time or everything):
        sizes = [
            (step, width)
            for step, widths in SIZES.items()
            for width in widths
            if step in given.steps and width in (given.sizes or widths)
        ]
        times(wanted, sizes, report)
        more_times(wanted, given.steps, report)
    if given.device == "cuda" and (given.model or everything):
        for form in wanted:
            guarded({"what": "model", "model": "e1_1280x6", "form": form}, form, model, report)
    report({"what": "end", "passed": passed})
    raise SystemExit(0 if passed else 1)


def parse() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file of lines of JSON")
    for part in ("check", "time", "model"):
        parser.add_argument(f"--{part}", action="store_true", help="this part alone")
    parser.add_argument("--forms", nargs="+", help="those of forms.py; all by default")
    parser.add_argument("--steps", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--sizes", nargs="+", type=int, help="channels that are timed; all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args()


if __name__ == "__main__":
    main()
