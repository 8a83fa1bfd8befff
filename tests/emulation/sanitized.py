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
from pathlib import Path

from elman.kernels.sources import source_folder
from tests.emulation import emulator, mutations

FAULT = "copies from the next step"


def run(library: Callable[[str], ctypes.CDLL]) -> None:
    """Run both passes of a plan with padding and several slabs."""
    mutations.results("e88", mutations.CASES[1], 10, library, seed=1, frame=0)


def planted(text: str) -> ctypes.CDLL:
    """Return the library of a text whose sources have the fault."""
    file, old, new = mutations.EDITS[FAULT]
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(source_folder(), folder / "csrc")
    path = folder / "csrc" / "cuda" / f"{file}.cuh"
    path.write_text(mutations.edited(path.read_text(), old, new))
    library = folder / "unit.so"
    emulator.compile_unit(text, folder / "csrc", library, emulator.SANITIZED)
    loaded = ctypes.CDLL(str(library))
    shutil.rmtree(folder)
    return loaded


if __name__ == "__main__":
    run(functools.partial(emulator.loaded, flags=emulator.SANITIZED))
    print("clean", flush=True)
    run(planted)
