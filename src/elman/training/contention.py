"""Whether others computed on the GPU of a run while it trained."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
import torch

from elman.devices.nvml import Driver, DriverError, GpuProcess, driver

SAMPLE_SECONDS = 5.0


class ContentionWatch:
    """Looks at the GPU of this process now and then.

    Attributes:
        contended: True once a process of somebody else was seen, False after looking in vain; None
            where nobody can look: on a CPU, or without the driver's library.
    """

    def __init__(self, device: torch.device, asked: Driver | None = None) -> None:
        self.contended: bool | None = None
        self._uuid = _uuid(device) if device.type == "cuda" else None
        self._driver = asked or driver()
        self._next = 0.0

    def sample(self) -> None:
        """Look, unless that was just done."""
        if self._uuid is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SAMPLE_SECONDS
        with suppress(DriverError):
            processes = self._driver.sample(self._uuid).processes
            self.contended = bool(self.contended) or foreign(processes)


def foreign(processes: tuple[GpuProcess, ...]) -> bool:
    """Whether there is a process that is neither this one nor of its making.

    In a container the driver may number processes as the machine outside does. Then this process
    is not in the list by its own number, and one that is not there in here is taken for it.
    """
    here = psutil.Process()
    own = {here.pid, *(child.pid for child in here.children(recursive=True))}
    others = [one.pid for one in processes if one.pid not in own]
    if len(others) == len(processes):
        unknown = [pid for pid in others if not psutil.pid_exists(pid)]
        others = others[1:] if unknown else others
    return bool(others)


def _uuid(device: torch.device) -> str:
    """Return the UUID of a GPU as the driver writes it."""
    text = str(torch.cuda.get_device_properties(device).uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
