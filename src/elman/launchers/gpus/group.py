"""Slots of several GPUs each: a group is put together from whichever GPUs are free.

A group holds the claims of all its GPUs or of none. While a launcher puts one together it holds a
lock of the machine, so no two launchers ever hold half of what they need and wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from elman.devices.locks import GpuLock
from elman.launchers.gpus.slot import SAMPLE_SECONDS, GpuSlot

_EVERY_GPU = "groups"
"""Names the lock that a launcher holds while it puts a group together."""


class Pool:
    """The GPUs of a sweep, of which some are in groups.

    Args:
        slots: The GPUs, in the order in which groups take them.
        size: GPUs of a group.
        clock: Seconds, for tests.
    """

    def __init__(
        self, slots: Sequence[GpuSlot], size: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots, self.size, self.clock = list(slots), size, clock
        self._grouped: set[str] = set()
        self._lock = GpuLock(_EVERY_GPU, "claim")
        self._next = 0.0
        self.waiting = ""

    def slots(self) -> list[GroupSlot]:
        """Return as many slots as there can be groups at a time."""
        return [GroupSlot(self, number) for number in range(1, len(self._slots) // self.size + 1)]

    def possible(self) -> int:
        """Return how many groups the GPUs suffice for that are not given up."""
        return sum(not slot.broken for slot in self._slots) // self.size

    def gather(self) -> list[GpuSlot]:
        """Return the GPUs of a new group, all claimed; an empty list, and no claim, if too few."""
        if self.clock() < self._next or not self._lock.take("puts a group of GPUs together"):
            return []
        try:
            found: list[GpuSlot] = []
            for slot in self._free():
                slot.ready()
                if slot.claimed and not slot.waiting:
                    found.append(slot)
                    if len(found) == self.size:
                        self._grouped |= {one.name for one in found}
                        return found
                else:
                    slot.leave()
            self._too_few(found)
            return []
        finally:
            self._lock.drop()

    def take_back(self, slots: Sequence[GpuSlot]) -> None:
        """Give up the claims of a group's GPUs."""
        for slot in slots:
            slot.leave()
            self._grouped.discard(slot.name)

    def _free(self) -> list[GpuSlot]:
        return [slot for slot in self._slots if slot.name not in self._grouped and not slot.broken]

    def _too_few(self, found: Sequence[GpuSlot]) -> None:
        for slot in found:
            slot.leave()
        busy = [f"{slot.name}: {slot.waiting}" for slot in self._slots if slot.waiting]
        needed = f"{len(found)} of {self.size} GPUs are free"
        self.waiting = "; ".join([needed, *busy])
        self._next = self.clock() + SAMPLE_SECONDS


class GroupSlot:
    """A slot for a job of several GPUs; which ones it has changes only between jobs.

    Args:
        pool: Where it gets its GPUs from.
        number: Its number among the slots of the pool, from 1.
    """

    warm = True

    def __init__(self, pool: Pool, number: int) -> None:
        self.name, self.waiting, self.broken = f"group {number}", "", ""
        self._pool, self._number = pool, number
        self._members: list[GpuSlot] = []
        self._free_at: dict[str, float] = {}

    def ready(self) -> bool:
        """Put the group together, or sample its GPUs; True once all are free together."""
        if not self._members:
            self._gather()
            return False
        now = self._pool.clock()
        # Each GPU has a moment of its own for its samples.
        self._free_at |= {member.name: now for member in self._members if member.ready()}
        self.waiting = "; ".join(f"{one.name}: {one.waiting}" for one in self._busy())
        if not all(member.claimed for member in self._members):
            self._give_back()
            return False
        times = [self._free_at.get(member.name, -SAMPLE_SECONDS) for member in self._members]
        return now - min(times) < SAMPLE_SECONDS

    def environment(self) -> dict[str, str]:
        """Return the variables that make these GPUs the only ones that the job sees."""
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(self.uuids()),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        }

    def uuids(self) -> list[str]:
        """Return the UUIDs of its GPUs; rank n of a job gets the n-th."""
        return [uuid for member in self._members for uuid in member.uuids()]

    def gpus(self) -> list[str]:
        """Return the names of its GPUs."""
        return [member.name for member in self._members]

    def started(self, last: bool) -> None:
        """Keep the claims while the sweep has another job for this group."""
        self._free_at.clear()
        for member in self._members:
            member.started(last)

    def ended(self) -> None:
        """Begin to wait until the memory of every GPU is released."""
        for member in self._members:
            member.ended()

    def leave(self) -> None:
        """Give every claim back."""
        self._give_back()

    def _gather(self) -> None:
        if self._pool.possible() < self._number:
            self.waiting = self.broken = f"too few GPUs are left for a group of {self._pool.size}"
            return
        self._members = self._pool.gather()
        if self._members:
            numbers = ",".join(gpu.removeprefix("GPU ") for gpu in self.gpus())
            self.name, self.waiting = f"GPUs {numbers}", ""
        else:
            self.name, self.waiting = f"group {self._number}", self._pool.waiting

    def _busy(self) -> list[GpuSlot]:
        return [member for member in self._members if member.waiting]

    def _give_back(self) -> None:
        self._pool.take_back(self._members)
        self._members = []
        self._free_at.clear()
