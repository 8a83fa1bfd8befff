"""Compiles CUDA kernels with NVRTC at first use, for one architecture, and caches them on disk.

NVRTC is called through NVIDIA's ``cuda-bindings``. This needs neither a CUDA toolkit nor a GPU. One
folder of the cache holds one translation unit: ``kernel.cubin``, and ``build.json``, which is
written last and has the hash of the cubin. Imports no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from elman.base.cache import cached, check_unshared
from elman.base.errors import UserError
from elman.base.output import note
from elman.kernels.build import digest
from elman.kernels.cache import cannot_write
from elman.kernels.compiler import first_error
from elman.kernels.entry import install, making, scratch_folder
from elman.kernels.sources import source_folder, sources_hash

SETTING = "kernels.backend=cuda"
_CUBIN, _RECORD, _LOG = "kernel.cubin", "build.json", "build.log"
_BASE = ("--std=c++17", "--ptxas-options=-v")
# Fast kernels compute divisions and roots to 2 units in the last place, and do not flush denormals.
# tanh is one instruction, see csrc/cells/math.h.
_FAST = ("--define-macro=ELMAN_TANH_APPROX", "--prec-div=false", "--prec-sqrt=false")
INSTALL = "pip install cuda-bindings nvidia-cuda-nvrtc"
OLDEST = (8, 0)
"""Oldest compute capability that the kernels support."""


@dataclass(frozen=True)
class Resources:
    """Resources of a compiled kernel, as the assembler reports them.

    Args:
        registers: Registers of a thread.
        spilled: Bytes of a thread that are spilled to local memory and reloaded, or that are
            always in local memory (arrays with indices that the compiler does not know).
    """

    registers: int
    spilled: int


@dataclass(frozen=True)
class Unit:
    """A translation unit.

    Args:
        text: C++ text; includes are relative to csrc.
        label: Its name, for people: ``e88 backward``.
        architecture: As NVRTC names it: ``sm_90``.
        fast: Whether to use the GPU's own tanh (relative error 2^-11) and approximate division;
            otherwise both come from the CUDA library.
    """

    text: str
    label: str
    architecture: str
    fast: bool

    @cached_property
    def folder(self) -> Path:
        """Its folder in the cache."""
        parts = (sources_hash(self.text), self.text, self.options, nvrtc_version())
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:20]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", self.label)
        return cached("kernels", f"{name}-{self.architecture}-{key}", _RECORD)

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options, without the include path."""
        fast = _FAST if self.fast else ()
        return (f"--gpu-architecture={self.architecture}", *_BASE, *fast)

    def cubin(self) -> bytes:
        """Return the machine code; compile it if it is not cached.

        Any number of processes and threads may call this at once: one compiles, the others wait.

        Raises:
            UserError: NVRTC is missing or refuses the text, or the cache cannot be written.
        """
        found = self._read()
        if found is None:
            try:
                with making(self.folder, self.label):
                    found = self._read() or self._make()
            except OSError as error:
                raise cannot_write(error) from None
        return found

    def resources(self) -> dict[str, Resources]:
        """Return the resources of each kernel of the unit, by name; compiles it if needed."""
        self.cubin()
        log = json.loads((self.folder / _RECORD).read_text())["log"]
        blocks = re.split(r"Compiling entry function '", log)[1:]
        return {block.split("'", 1)[0]: _resources(block) for block in blocks}

    def _read(self) -> bytes | None:
        """Return the machine code if it exists and is whole.

        Raises:
            UserError: somebody else may have written it.
        """
        for name in (_CUBIN, _RECORD):
            check_unshared(self.folder / name)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads((self.folder / _RECORD).read_text())
            content = (self.folder / _CUBIN).read_bytes()
            if record["sha256"] == digest(content):
                return content
        return None

    def _make(self) -> bytes:
        note(f"compiling the {self.label} kernel for {self.architecture}, once (2 to 5 s) ...")
        began = time.perf_counter()
        code, log = _compile(self)
        record = {
            "sha256": digest(code),
            "seconds": round(time.perf_counter() - began, 3),
            "options": self.options,
            "nvrtc": nvrtc_version(),
            "log": log,
        }
        with scratch_folder(self.folder) as scratch:
            (scratch / _CUBIN).write_bytes(code)
            (scratch / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
            install(scratch, self.folder, _CUBIN, _RECORD)  # last the record: the cubin needs it
        return code


def _resources(report: str) -> Resources:
    registers = re.search(r"Used (\d+) registers", report)
    assert registers, report
    moved = sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", report)))
    frame = sum(map(int, re.findall(r"(\d+) bytes stack frame", report)))
    return Resources(int(registers[1]), max(moved, frame))


@cache
def _nvrtc() -> Any:
    """Return NVRTC's bindings.

    Raises:
        UserError: the bindings or the library are missing.
    """
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        raise UserError(f"{SETTING}: NVRTC is missing; {INSTALL}") from None
    return nvrtc


@cache
def nvrtc_version() -> str:
    """Return the version of NVRTC."""
    error, major, minor = _nvrtc().nvrtcVersion()
    assert not error, error
    return f"{major}.{minor}"


def _compile(unit: Unit) -> tuple[bytes, str]:
    """Return the machine code and the compiler's report."""
    nvrtc = _nvrtc()
    error, program = nvrtc.nvrtcCreateProgram(unit.text.encode(), b"unit.cu", 0, [], [])
    assert not error, error
    options = [*unit.options, f"--include-path={source_folder()}"]
    encoded = [option.encode() for option in options]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
    if error:
        raise _refused(unit, str(error.name), log)
    code = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(program)
    return code, log.rstrip("\0")


def _text(size: Any, fill: Any, program: Any) -> bytes:
    """Return a result of NVRTC for which the caller must first get the size."""
    error, n_bytes = size(program)
    content = bytes(n_bytes)
    assert not error, error
    (error,) = fill(program, content)
    assert not error, error
    return content


def _refused(unit: Unit, error: str, log: str) -> UserError:
    if "INVALID_OPTION" in error:
        return UserError(
            f"{SETTING}: NVRTC {nvrtc_version()} does not know {unit.architecture}; "
            f"install a newer one with: {INSTALL} --upgrade"
        )
    path = unit.folder / _LOG
    path.write_text(f"{unit.text}\n{log}")
    first = first_error(log if "error" in log else error)
    return UserError(
        f"compiling the {unit.label} kernel failed: {first} (all of it in {path}); "
        "kernels.backend=reference trains without it"
    )
