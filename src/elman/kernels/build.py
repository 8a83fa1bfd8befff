"""Compiles the text of a CPU kernel at its first use, caches it by content, and loads it.

One folder of the cache holds one kernel: ``kernel.so``, ``source.cpp`` and ``build.json``. The last
is written at the end and has the hash of the library, so that a library that a full disk or a kill
cut short is never loaded. Imports no torch.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import re
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elman.base.cache import cached, check_unshared
from elman.base.errors import UserError
from elman.base.output import note
from elman.kernels.cache import VARIABLE, cannot_write, kernel_cache
from elman.kernels.compiler import (
    BASE_FLAGS,
    Compiler,
    compiler_problem,
    find_compiler,
    first_error,
    run_compiler,
)
from elman.kernels.entry import install, making, scratch_folder
from elman.kernels.sources import source_folder, sources_hash
from elman.kernels.target import host_target

# No -ffast-math: a library linked with it makes the whole process flush denormals, and its kernels
# may turn NaN into numbers. No unique symbols: g++ would share the static data of templates between
# libraries that were generated from different texts.
_FLAGS = (
    *BASE_FLAGS,
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-semantic-interposition",
    "-Wno-psabi",
)
_OF_GCC = ("-fno-gnu-unique",)
_LIBRARY, _SOURCE, _RECORD, _LOG = "kernel.so", "source.cpp", "build.json", "build.log"
_NO_SPACE = "No space left on device"

_loaded: dict[Path, ctypes.CDLL] = {}
# Threads that need the same kernel wait for each other; different kernels compile in parallel.
_loading: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


def load_library(source: str, label: str) -> ctypes.CDLL:
    """Return the compiled library of one C++ text; compile it if it is not cached.

    Any number of processes and threads may call this at once: one compiles, the others wait. A line
    on the error stream says so, because it takes seconds.

    Args:
        source: A whole translation unit. It includes the engine's headers, as in
            ``#include "cpu/engine.h"``.
        label: Name of the kernel, for people: ``e88``.

    Raises:
        UserError: there is no compiler, it refuses the text, or the cache cannot be written, or
            its libraries cannot be loaded.
    """
    compiler = find_compiler()
    if compiler is None:
        raise UserError(f"kernels.backend=cpu: {compiler_problem()}")
    build = _Build(compiler, source, label)
    with _loading[build.folder]:
        if build.folder not in _loaded:
            if not build.finished():
                build.make()
            _loaded[build.folder] = _load(build.folder / _LIBRARY)
        return _loaded[build.folder]


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(
            f"cannot load the compiled kernel ({error}); if its disk is mounted noexec, set "
            f"{VARIABLE} to a folder elsewhere; kernels.backend=reference needs no kernel"
        ) from None


@dataclass(frozen=True)
class _Build:
    """One kernel: its source and flags, and its folder in the cache."""

    compiler: Compiler
    source: str
    label: str

    @cached_property
    def flags(self) -> tuple[str, ...]:
        own = _OF_GCC if self.compiler.kind == "g++" else ()
        return (*_FLAGS, *own, *self.compiler.target_flags)

    @cached_property
    def folder(self) -> Path:
        parts = (
            sources_hash(self.source),
            self.flags,
            self.compiler.kind,
            self.compiler.version,
            host_target().name,
        )
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:20]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.label)
        return cached("kernels", f"{name}-{key}", _RECORD)

    def finished(self) -> bool:
        """Return whether the library exists and is whole.

        Raises:
            UserError: somebody else may have written it.
        """
        for name in (_LIBRARY, _RECORD):
            check_unshared(self.folder / name)
        try:
            record = json.loads((self.folder / _RECORD).read_text())
            content = (self.folder / _LIBRARY).read_bytes()
        except (OSError, ValueError):
            return False
        return isinstance(record, dict) and record.get("sha256") == digest(content)

    def make(self) -> None:
        """Compile, unless another process has just done so."""
        try:
            with making(self.folder, self.label):
                if not self.finished():
                    self._compile()
        except OSError as error:
            raise cannot_write(error) from None

    def _compile(self) -> None:
        note(f"compiling the {self.label} kernel for this CPU, once (2 to 5 s) ...")
        began = time.perf_counter()
        with scratch_folder(self.folder) as scratch:
            command = self._run(scratch)
            content = (scratch / _LIBRARY).read_bytes()
            record = {
                "sha256": digest(content),
                "seconds": round(time.perf_counter() - began, 3),
                "command": command,
                "compiler": self.compiler.version,
                "target": host_target().name,
            }
            (scratch / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
            # The record comes last: without it the other files do not count.
            install(scratch, self.folder, _SOURCE, _LIBRARY, _RECORD)

    def _run(self, scratch: Path) -> list[str]:
        """Compile into ``scratch`` and return the command."""
        (scratch / _SOURCE).write_text(self.source)
        command = [*self.compiler.command, *self.flags, "-I", str(source_folder())]
        done = run_compiler([*command, _SOURCE, "-o", _LIBRARY], scratch)
        if done.returncode == 0:
            return command
        if _NO_SPACE in done.stderr:
            raise OSError(errno.ENOSPC, _NO_SPACE, str(kernel_cache()))
        log = self.folder / _LOG
        log.write_text(" ".join([*command, _SOURCE, "-o", _LIBRARY]) + "\n" + done.stderr)
        install(scratch, self.folder, _SOURCE)
        raise UserError(
            f"compiling the {self.label} kernel failed: {first_error(done.stderr)} "
            f"(all of it in {log}); kernels.backend=reference trains without it"
        )


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
