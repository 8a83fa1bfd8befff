"""Asks the NVIDIA driver about the GPUs: which there are, and who uses one now."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil

from elman.base.units import GPU_USED, used_text

PRETENDED = "ELMAN_PRETEND_GPUS"
"""For tests: names a JSON file that replaces the driver. It holds a list of GPUs, each with
``uuid`` and, if not idle, ``used_mib``, ``utilisation`` and ``processes`` (``pid``, ``mib``).
Every query reads it again; while the file is missing, there is no driver."""
_T = TypeVar("_T")


class DriverError(Exception):
    """The driver does not answer, or cannot answer for this GPU."""


class DriverHangsError(DriverError):
    """The driver has not answered in time, and may never answer."""


@dataclass(frozen=True)
class Gpu:
    """One GPU; ``index`` counts in PCI order, like nvidia-smi."""

    index: int
    uuid: str
    name: str


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU; ``mib`` is None if the driver does not report it."""

    pid: int
    mib: int | None

    def __str__(self) -> str:
        memory = f" {used_text(self.mib)}" if self.mib is not None else ""
        return f"pid {self.pid}{_user(self.pid)}{memory}"


@dataclass(frozen=True)
class Sample:
    """A sample of a GPU: memory in use besides the driver's own, percent busy, processes."""

    used_mib: int
    utilisation: int | None = None
    processes: tuple[GpuProcess, ...] = ()


class Driver(Protocol):
    """Answers queries about GPUs."""

    def gpus(self) -> list[Gpu]:
        """Return every GPU of the machine in PCI order, or raise DriverError."""
        ...

    def sample(self, uuid: str) -> Sample:
        """Return the present use of a GPU, or raise DriverError."""
        ...


def driver() -> Driver:
    """Return the machine's driver, or a test's pretended one."""
    pretended = os.environ.get(PRETENDED)
    return _Pretended(Path(pretended)) if pretended else Nvml()


class Nvml:
    """The driver's own library, called in this process."""

    def gpus(self) -> list[Gpu]:
        """Return every GPU of the machine; none if there is no driver."""
        return _asked(self._gpus)

    def sample(self, uuid: str) -> Sample:
        """Return the present use of a GPU."""
        return _asked(lambda: self._sample(uuid))

    def _gpus(self) -> list[Gpu]:
        import pynvml

        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
            found.append(Gpu(index, str(uuid), str(name)))
        return found

    def _sample(self, uuid: str) -> Sample:
        import pynvml

        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        try:  # the second version reports the driver's own reserve separately
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        except pynvml.NVMLError:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        try:
            utilisation = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        except pynvml.NVMLError:  # the driver does not know it for a part of a GPU
            utilisation = None
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        processes = tuple(GpuProcess(int(one.pid), _mib(one.usedGpuMemory)) for one in running)
        return Sample(int(memory.used) // GPU_USED.bytes, utilisation, processes)


class _Pretended:
    def __init__(self, path: Path) -> None:
        self._path = path

    def gpus(self) -> list[Gpu]:
        listed = enumerate(self._read())
        return [Gpu(n, one["uuid"], one.get("name", "pretended")) for n, one in listed]

    def sample(self, uuid: str) -> Sample:
        for one in self._read():
            if one["uuid"] == uuid:
                listed = one.get("processes", ())
                processes = tuple(GpuProcess(p["pid"], p.get("mib")) for p in listed)
                return Sample(one.get("used_mib", 0), one.get("utilisation", 0), processes)
        raise DriverError(f"{uuid} is not there")

    def _read(self) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = json.loads(self._path.read_text())
        except OSError as error:
            raise DriverError(str(error)) from None
        return found


def _asked(question: Callable[[], _T]) -> _T:
    """Query the library, and start it first if needed; its errors become DriverError."""
    try:
        import pynvml
    except ImportError:  # no wheel for this system, so no NVIDIA driver either
        raise DriverError("nvidia-ml-py is not installed") from None
    try:
        _started()
        return question()
    except pynvml.NVMLError as error:
        _start_anew()
        raise DriverError(str(error)) from None


def _start_anew() -> None:
    """Make the next query start the library again: it never notices that a driver came back."""
    import pynvml

    _started.cache_clear()
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


@cache
def _started() -> None:
    import pynvml

    pynvml.nvmlInit()


def _mib(used: int | None) -> int | None:
    return None if used is None else int(used) // GPU_USED.bytes


def _user(pid: int) -> str:
    try:
        return f" ({psutil.Process(pid).username()})"
    except (psutil.Error, KeyError):  # it has ended, or it is outside this container
        return ""
