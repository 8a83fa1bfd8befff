"""Watches whether other processes used the GPU or the CPUs of a run while it trained."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from contextlib import suppress

import psutil
import torch

from elman.base.cpus import usable_cpus
from elman.devices.nvml import Driver, DriverError, GpuProcess, driver
from elman.devices.sharing import jobs_per_gpu
from elman.training.cpu_share import CpuShare, reading

SAMPLE_SECONDS = 5.0
LOST = 0.1
"""Share of its threads' time that others may take from a run on a CPU before it is contended."""


class ContentionWatch:
    """Looks from time to time for other work on the GPU, or on the CPUs, of this process.

    On a GPU any other process counts. A CPU always has some; there it counts what they took over
    the whole session.

    Args:
        device: Where the model lives.
        ranks: The processes of the run's ranks on this host.
        asked: Who knows the processes of a GPU; this machine's driver if None.

    Attributes:
        contended: True once a foreign process was seen, or while others have taken more than
            :data:`LOST` of the CPUs' time; False if no look found that; None where looking is
            impossible, as without the driver's library, or where it tells nothing: in the first
            seconds on a CPU, or because jobs of the sweep share the GPU.
    """

    def __init__(
        self, device: torch.device, ranks: Collection[int] = (), asked: Driver | None = None
    ) -> None:
        self.contended: bool | None = None
        alone = device.type == "cuda" and jobs_per_gpu() == 1
        self._uuid = _uuid(device) if alone else None
        self._ranks, self._driver = ranks, asked or driver()
        self._next = 0.0
        self._on_cpu = device.type == "cpu"
        self._cpu: CpuShare | None = None
        self._earlier: bool | None = None

    def recall(self, contended: bool | None) -> None:
        """Go on from what earlier sessions of the run found."""
        self.contended = self._earlier = contended

    def begin(self) -> None:
        """Count what others take of the CPUs from now on."""
        if self._on_cpu:
            cpus, processes = usable_cpus(), {os.getpid(), *self._ranks}
            threads = torch.get_num_threads() * len(processes)
            self._cpu = CpuShare(len(cpus), threads, lambda: reading(cpus, processes))

    def sample(self) -> None:
        """Look, unless the last look was a moment ago."""
        watches = self._uuid is not None or self._cpu is not None
        if not watches or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SAMPLE_SECONDS
        if self._cpu is not None:
            self._look_at_cpus(self._cpu)
        if self._uuid is None:
            return
        with suppress(DriverError):
            processes = self._driver.sample(self._uuid).processes
            self.contended = bool(self.contended) or foreign(processes, self._ranks)

    def _look_at_cpus(self, share: CpuShare) -> None:
        lost = share.lost()
        if lost is not None:
            self.contended = bool(self._earlier) or lost > LOST


def foreign(processes: tuple[GpuProcess, ...], ranks: Collection[int] = ()) -> bool:
    """Whether a process uses the GPU that is neither a rank of this run nor a child of one.

    A rank computes on its own GPU, but it may hold memory on that of another.

    In a container the driver may list processes by their numbers on the host. Then the list does
    not contain this process's own number, so a listed number that does not exist in the container
    is taken for this process.

    Args:
        processes: What the driver lists.
        ranks: The processes of the run's ranks on this host; this one is always among them.
    """
    own: set[int] = set()
    for pid in {os.getpid(), *ranks}:
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(pid).children(recursive=True)
            own |= {pid, *(child.pid for child in children)}
    others = [one.pid for one in processes if one.pid not in own]
    if len(others) == len(processes):
        unknown = [pid for pid in others if not psutil.pid_exists(pid)]
        others = others[1:] if unknown else others
    return bool(others)


def _uuid(device: torch.device) -> str:
    """Return the UUID of a GPU as the driver writes it."""
    text = str(torch.cuda.get_device_properties(device).uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
