"""Runs the kernels under the address and undefined-behaviour sanitizers, in a process of its own.

    LD_PRELOAD=$(g++ -print-file-name=libasan.so) python -m tests.emulation.sanitized

Prints "clean" when the kernels as they are have run; then plants a fault and runs them again, which
the sanitizer ends.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from elman.kernels.sources import source_folder
from elman.ops.matrix_state.choice import geometry_of
from elman.ops.matrix_state.stacked import stacked_plan
from tests.emulation import emulator, mutations

FAULT = "copies from the next step"


def run(library: Callable[[str], ctypes.CDLL]) -> None:
    """Run both passes of a plan with padding and several slabs."""
    cell, options = mutations.PLANS["e88"]
    plan = stacked_plan(cell, 2, 20, 20, **options)
    types = emulator.types_of(plan, torch.float32)
    chosen = replace(geometry_of(plan, types, 8, 2), steps=4)
    mutations._results(plan, chosen, library, seed=1)


def planted(text: str) -> ctypes.CDLL:
    """Return the library of a text whose sources have the fault."""
    file, old, new = mutations.EDITS[FAULT]
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(source_folder(), folder / "csrc")
    path = folder / "csrc" / "cuda" / f"{file}.cuh"
    path.write_text(path.read_text().replace(old, new, 1))
    library = folder / "unit.so"
    emulator.compile_unit(text, folder / "csrc", library, emulator.SANITIZED)
    loaded = ctypes.CDLL(str(library))
    shutil.rmtree(folder)
    return loaded


if __name__ == "__main__":
    run(functools.partial(emulator.loaded, flags=emulator.SANITIZED))
    print("clean", flush=True)
    run(planted)
