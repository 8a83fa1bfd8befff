"""Slots in which a job can run: a free GPU that we have claimed, or a worker on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from elman.base.errors import UserError
from elman.base.units import used_text
from elman.devices.locks import GpuLock
from elman.devices.nvml import Driver, DriverError, Gpu, Sample

FREE_BELOW_MIB = 500
"""A GPU counts as free if it uses less memory than this, besides the driver's own."""
FREE_BELOW_PERCENT = 5
SAMPLES = 3
"""An unknown GPU is free after this many free samples in a row, :data:`SAMPLE_SECONDS` apart."""
SAMPLE_SECONDS = 1.0
RELEASE_SECONDS = 30.0
"""Time for the driver to release the memory of an ended job, or to answer again."""
_RELEASE_POLL = 0.1


class Slot(Protocol):
    """Where one job runs at a time."""

    name: str
    waiting: str
    """Why no job can start here now, in words."""
    broken: str
    """Why no job will start here again in this sweep; empty if one may."""
    warm: bool
    """Whether the next process may be started while a job runs here."""

    def ready(self) -> bool:
        """Sample the slot if that is due, and return whether a job may start here now."""
        ...

    def environment(self) -> dict[str, str]:
        """Return the variables that pin a job to this slot."""
        ...

    def uuids(self) -> list[str]:
        """Return the UUIDs of its GPUs, whose ``run`` locks the job has to take."""
        ...

    def gpus(self) -> list[str]:
        """Return the names of its GPUs; none for a worker on the CPU."""
        ...

    def started(self, last: bool) -> None:
        """Note that a job runs here; ``last``: this sweep has no further job for this slot."""
        ...

    def ended(self) -> None:
        """Note that the job has ended."""
        ...

    def leave(self) -> None:
        """Give the slot back."""
        ...


class CpuSlot:
    """A worker on the CPU; its next process starts only after the last one has ended."""

    warm = False

    def __init__(self, number: int) -> None:
        self.name, self.waiting, self.broken = f"worker {number}", "", ""

    def ready(self) -> bool:
        """Return True: no other program uses a worker."""
        return True

    def environment(self) -> dict[str, str]:
        """Return the variables that hide every GPU."""
        return {"CUDA_VISIBLE_DEVICES": ""}

    def uuids(self) -> list[str]:
        """Return nothing."""
        return []

    def gpus(self) -> list[str]:
        """Return nothing."""
        return []

    def started(self, last: bool) -> None:
        """Do nothing."""

    def ended(self) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""


class GpuSlot:
    """A GPU: claimed and found free before a job, and watched after it until its memory is free."""

    warm = True

    def __init__(
        self, gpu: Gpu, driver: Driver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self.waiting, self.broken = f"GPU {gpu.index}", "", ""
        self._gpu, self._driver, self._clock = gpu, driver, clock
        self._claim, self._run = GpuLock(gpu.uuid, "claim"), GpuLock(gpu.uuid, "run")
        self._good, self._next = 0, 0.0
        self._lost_since: float | None = None
        # Since when the memory of the last job here is being released.
        self._releasing: float | None = None

    def ready(self) -> bool:
        """Take the next sample if it is due; True after enough free ones in a row."""
        now = self._clock()
        if self.broken or now < self._next:
            return False
        try:
            if not self._hold():
                return self._not_yet(now)
            sample = self._driver.sample(self._gpu.uuid)
        except DriverError as error:
            return self._lost(now, str(error))
        except UserError as error:
            return self._break(str(error))
        self._lost_since = None
        if self._releasing is not None:
            return self._released(now, sample)
        self.waiting = _busy(sample)
        if self.waiting:
            self._claim.drop()
            return self._not_yet(now)
        self._good += 1
        self._next = now + SAMPLE_SECONDS
        return self._good >= SAMPLES

    def environment(self) -> dict[str, str]:
        """Return the variables that make this GPU the only one that the job sees."""
        # A UUID means the same GPU however GPUs are numbered.
        return {"CUDA_VISIBLE_DEVICES": self._gpu.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    @property
    def claimed(self) -> bool:
        """Whether this launcher holds the GPU's claim."""
        return self._claim.held

    def uuids(self) -> list[str]:
        """Return the GPU's UUID."""
        return [self._gpu.uuid]

    def gpus(self) -> list[str]:
        """Return the GPU's name."""
        return [self.name]

    def started(self, last: bool) -> None:
        """Keep the claim while the sweep has another job for this GPU."""
        self._good, self._releasing = 0, None
        if last:
            self._claim.drop()

    def ended(self) -> None:
        """Begin to wait until the memory is released."""
        self._releasing = self._clock() if self._claim.held else None
        self._next = 0.0

    def leave(self) -> None:
        """Give the claim back."""
        self._claim.drop()
        self._good, self._releasing = 0, None

    def _hold(self) -> bool:
        """Take the claim, and check that no job of any launcher holds the GPU."""
        if not self._claim.take("is looking for a free GPU"):
            self.waiting = f"held by {self._claim.holder()}"
            return False
        if not self._run.take():
            self.waiting = f"held by {self._run.holder()}"
            if self._releasing is None:
                self._claim.drop()
            return False
        self._run.drop()
        return True

    def _released(self, now: float, sample: Sample) -> bool:
        """After our own job: one free sample is enough, once its memory is released."""
        if not sample.processes and sample.used_mib < FREE_BELOW_MIB:
            # Utilisation is a mean over the last second, in which our own job ran.
            return True
        assert self._releasing is not None
        self._next = now + _RELEASE_POLL
        self.waiting = f"memory is being released: {_busy(sample)}"
        if now - self._releasing < RELEASE_SECONDS:
            return False
        if not sample.processes:
            return self._break(f"quarantined: {used_text(sample.used_mib)} were never released")
        self._releasing = None  # somebody else uses it now
        return False

    def _not_yet(self, now: float) -> bool:
        self._good = 0
        self._next = now + (_RELEASE_POLL if self._releasing is not None else SAMPLE_SECONDS)
        if self._releasing is not None and now - self._releasing >= RELEASE_SECONDS:
            self._releasing = None
        return False

    def _lost(self, now: float, reason: str) -> bool:
        self._good, self._next = 0, now + SAMPLE_SECONDS
        self.waiting = f"the driver does not answer: {reason}"
        if self._lost_since is None:
            self._lost_since = now
        if now - self._lost_since >= RELEASE_SECONDS:
            return self._break(f"quarantined: the driver does not answer: {reason}")
        return False

    def _break(self, reason: str) -> bool:
        self.waiting = self.broken = reason
        self._claim.drop()
        return False


def _busy(sample: Sample) -> str:
    """Return who uses a GPU, or nothing."""
    if sample.processes:
        return "used by " + ", ".join(map(str, sample.processes))
    if sample.used_mib >= FREE_BELOW_MIB:
        return f"{used_text(sample.used_mib)} used by processes that cannot be seen from here"
    if (sample.utilisation or 0) >= FREE_BELOW_PERCENT:
        return f"{sample.utilisation} % busy"
    return ""
