"""Compiles CUDA kernels with NVRTC at first use, for one architecture, and caches them on disk.

NVRTC and the driver are called through NVIDIA's ``cuda-bindings``. This needs no CUDA toolkit, and
compiling needs no GPU. One folder of the cache holds one translation unit: ``kernel.cubin``, and
``build.json``, which is written last and has the hash of the cubin. Imports no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from elman.base.errors import UserError
from elman.kernels.build import digest
from elman.kernels.cache import cannot_write, kernel_cache
from elman.kernels.compiler import first_error
from elman.kernels.entry import making, say, scratch_folder
from elman.kernels.sources import source_folder, sources_hash

_SETTING = "kernels.backend=cuda"
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
        return kernel_cache() / f"{name}-{self.architecture}-{key}"

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
        """Return the machine code if it exists and is whole."""
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((self.folder / _RECORD).read_text())
            content = (self.folder / _CUBIN).read_bytes()
            if record["sha256"] == digest(content):
                return content
        return None

    def _make(self) -> bytes:
        say(f"compiling the {self.label} kernel for {self.architecture}, once (2 to 5 s) ...")
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
            for name in (_CUBIN, _RECORD):  # the record is last: the cubin needs it
                os.replace(scratch / name, self.folder / name)
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
        raise UserError(f"{_SETTING}: NVRTC is missing; {INSTALL}") from None
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
            f"{_SETTING}: NVRTC {nvrtc_version()} does not know {unit.architecture}; "
            f"install a newer one with: {INSTALL} --upgrade"
        )
    path = unit.folder / _LOG
    path.write_text(f"{unit.text}\n{log}")
    first = first_error(log if "error" in log else error)
    return UserError(
        f"compiling the {unit.label} kernel failed: {first} (all of it in {path}); "
        "kernels.backend=reference trains without it"
    )


# ---- running

_Pointers = ctypes.c_void_p * 1


class Loaded:
    """A translation unit's kernels, ready to be launched on any device of its architecture."""

    def __init__(self, unit: Unit) -> None:
        self._driver = _driver()
        self._label = unit.label
        error, self._library = self._driver.cuLibraryLoadData(unit.cubin(), [], [], 0, [], [], 0)
        if error:
            raise UserError(
                f"{_SETTING}: the driver refuses the {unit.label} kernel of NVRTC "
                f"{nvrtc_version()} ({error.name}); update the driver, or install an older NVRTC"
            )
        self._kernels: dict[tuple[str, int, int], Any] = {}

    def launch(
        self,
        name: str,
        *,
        blocks: int,
        threads: int,
        shared_bytes: int,
        arguments: ctypes.Structure,
        device: int,
        stream: int,
        early: bool = False,
        cluster: int = 0,
        together: bool = False,
    ) -> None:
        """Launch a kernel that takes one structure by value; returns at once.

        Args:
            name: Its name in the text.
            blocks: Blocks of the grid.
            threads: Threads of a block.
            shared_bytes: Dynamic shared memory of a block.
            arguments: The structure; it is copied.
            device: Index of the current device.
            stream: Handle of a stream of that device.
            early: Let it start while the previous kernel on the stream still runs. Only for
                kernels that wait for that one themselves, on sm_90 and later.
            cluster: Blocks of a cluster, on sm_90 and later; 0: the kernel asks nothing of them.
            together: Let all blocks run at the same time, or none: a cooperative launch.

        Raises:
            UserError: the driver refuses the launch.
        """
        _enter_context(device)
        kernel = self._kernels.get((name, shared_bytes, device))
        if kernel is None:
            kernel = self._prepare(name, shared_bytes, device, cluster)
        pointers = _Pointers(ctypes.addressof(arguments))
        place = ctypes.addressof(pointers)
        if early or cluster or together:
            config = self._config(blocks, threads, shared_bytes, stream, early, cluster, together)
            (error,) = self._driver.cuLaunchKernelEx(config, kernel, place, 0)
        else:
            (error,) = self._driver.cuLaunchKernel(
                kernel, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, place, 0
            )
        if error:
            raise UserError(
                f"{_SETTING}: the {self._label} kernel cannot be launched "
                f"({error.name}: {blocks} blocks of {threads} threads, {shared_bytes} bytes)"
            )

    def _config(
        self,
        blocks: int,
        threads: int,
        shared_bytes: int,
        stream: int,
        early: bool,
        cluster: int,
        together: bool,
    ) -> Any:
        """Return the launch settings that a plain launch lacks."""
        driver = self._driver
        kinds, attributes = driver.CUlaunchAttributeID, []
        if early:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            value = driver.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attributes[-1].value = value
        if cluster:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = driver.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
            attributes[-1].value = value
        if together:
            attributes.append(driver.CUlaunchAttribute())
            attributes[-1].id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            value = driver.CUlaunchAttributeValue()
            value.cooperative = 1
            attributes[-1].value = value
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = shared_bytes, driver.CUstream(stream)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _prepare(self, name: str, shared_bytes: int, device: int, cluster: int) -> Any:
        """Let a kernel use ``shared_bytes`` of shared memory on a device; cache and return it."""
        if device is None:  # a CPU has no index, and a GPU cannot use its addresses
            raise UserError(f"{_SETTING}: the tensors lie on the CPU; use kernels.backend=auto")
        driver = self._driver
        error, kernel = driver.cuLibraryGetKernel(self._library, name.encode())
        assert not error, (name, error)
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuKernelSetAttribute(limit, shared_bytes, kernel, device)
        if error:
            raise UserError(
                f"{_SETTING}: the {self._label} kernel needs {shared_bytes} bytes "
                f"of shared memory ({error.name}); use kernels.backend=reference"
            )
        if cluster > 8:  # more than every GPU with clusters has
            wide = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            (error,) = driver.cuKernelSetAttribute(wide, 1, kernel, device)
            assert not error, (name, error)
        function = driver.CUfunction(int(kernel))
        self._kernels[name, shared_bytes, device] = function
        return function


@cache
def _driver() -> Any:
    try:
        from cuda.bindings import driver

        (error,) = driver.cuInit(0)
    except ImportError:
        raise UserError(f"{_SETTING}: cuda-bindings is missing; {INSTALL}") from None
    except RuntimeError:
        raise UserError(
            f"{_SETTING}: NVIDIA's driver is missing; install it; nvidia-smi then shows the GPU"
        ) from None
    if error:
        raise UserError(
            f"{_SETTING}: NVIDIA's driver does not start ({error.name}); nvidia-smi says more"
        )
    return driver


@cache
def cuda_problem(device: int = 0) -> str | None:
    """Return why kernels cannot be compiled for a GPU or run on it, and the fix; None if they can.

    Args:
        device: Its index among the GPUs that the process sees.
    """
    try:
        driver, compiler = _driver(), nvrtc_version()
    except UserError as error:
        return str(error).removeprefix(f"{_SETTING}: ")
    unknown, newest = driver.cuDriverGetVersion()
    if not unknown and newest // 1000 < int(compiler.split(".")[0]):
        major = newest // 1000
        return (
            f"the driver supports CUDA {major}.{newest % 1000 // 10} and NVRTC is {compiler}; "
            "update the driver, or "
            f"pip install 'cuda-bindings=={major}.*' nvidia-cuda-nvrtc-cu{major}"
        )
    capability = _attributes(device, "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR")
    if capability < OLDEST:
        return (
            f"kernels need a GPU of sm_{OLDEST[0]}{OLDEST[1]} or later and this is "
            f"sm_{capability[0]}{capability[1]}; use another GPU"
        )
    return None


_entered = threading.local()


def _enter_context(device: int) -> None:
    """Make the device's primary context current in the calling thread if it has no context.

    PyTorch's threads for backward passes have no context before their first runtime call.
    """
    if getattr(_entered, "done", False):
        return
    driver = _driver()
    error, current = driver.cuCtxGetCurrent()
    if not error and not int(current):
        error, current = driver.cuDevicePrimaryCtxRetain(device)
        if not error:
            (error,) = driver.cuCtxSetCurrent(current)
    if error:
        raise UserError(f"{_SETTING}: the GPU has no context ({error.name})")
    _entered.done = True


_loaded: dict[Unit, Loaded] = {}
# Threads that need the same unit wait for each other; different units compile in parallel.
_loading: defaultdict[Unit, threading.Lock] = defaultdict(threading.Lock)


def load(unit: Unit) -> Loaded:
    """Return a translation unit's kernels, compiled and loaded once per process.

    Raises:
        UserError: it cannot be compiled or loaded.
    """
    if unit not in _loaded:
        with _loading[unit]:
            if unit not in _loaded:
                _loaded[unit] = Loaded(unit)
    return _loaded[unit]


@dataclass(frozen=True)
class Limits:
    """The limits of a GPU.

    Args:
        multiprocessors: Number of multiprocessors.
        shared_bytes: Most shared memory of a block, in bytes.
        shared_total: Shared memory of a multiprocessor, in bytes.
    """

    multiprocessors: int
    shared_bytes: int
    shared_total: int


@cache
def device_limits(device: int) -> Limits:
    """Return the limits of a GPU.

    Raises:
        UserError: the driver or its bindings are missing.
    """
    return Limits(
        *_attributes(
            device,
            "MULTIPROCESSOR_COUNT",
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
        )
    )


def _attributes(device: int, *names: str) -> tuple[int, ...]:
    """Return attributes of a GPU, under the names of the driver's API."""
    driver, found = _driver(), []
    for name in names:
        attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        error, value = driver.cuDeviceGetAttribute(attribute, device)
        assert not error, error
        found.append(int(value))
    return tuple(found)
