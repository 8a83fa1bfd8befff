"""GPUs that several jobs of one sweep use at a time, because the user asked for it.

The GPU is claimed and found free once, before the first of these jobs. While one of them runs, the
next one starts at once. When the last one has ended, its memory is waited for and the GPU is
looked at again, as after a job that had it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elman.devices.sharing import VARIABLE
from elman.launchers.gpus.mps import MpsServer, why_no_mps
from elman.launchers.gpus.slot import GpuSlot, Slot
from elman.sections.launching import GpusLauncher


class SharedGpu:
    """A GPU with several slots; it holds the claim as long as one of them is in use.

    Args:
        slot: The GPU.
        jobs: How many jobs use it at a time.
        server: Lets their kernels overlap, if it can be started.
    """

    def __init__(self, slot: GpuSlot, jobs: int, server: MpsServer) -> None:
        self.slot, self.server, self._jobs = slot, server, jobs
        self._open = False
        self._lent: set[int] = set()

    def lend(self, number: int) -> bool:
        """Lend a slot if the GPU is ours or free; it stays lent until it is given back."""
        if not self._open:
            if not self.slot.ready():
                return False
            self.slot.started(last=False)
            self.server.start()
            self._open = True
        if not self.server.settled():
            self.slot.waiting = "MPS is being started"
            return False
        self.slot.waiting = ""
        self._lent.add(number)
        return True

    def environment(self) -> dict[str, str]:
        """Return the variables of a job here."""
        shared = {VARIABLE: str(self._jobs)}
        return self.slot.environment() | shared | self.server.environment()

    def ended(self, number: int) -> None:
        """Take a slot back whose job has ended; after the last one wait for the memory."""
        self._lent.discard(number)
        if not self._lent:
            self._close()
            self.slot.ended()

    def leave(self, number: int) -> None:
        """Give a slot up; with the last one that is in use the claim goes."""
        self._lent.discard(number)
        if not self._lent:
            self._close()
            self.slot.leave()

    def _close(self) -> None:
        self._open = False
        self.server.stop()


class SharedSlot:
    """One of the slots of a shared GPU, for one job at a time; named like the GPU.

    Args:
        gpu: The GPU.
        number: The number of the slot on it.
    """

    warm = True

    def __init__(self, gpu: SharedGpu, number: int) -> None:
        self.gpu, self._number = gpu, number
        self.name = gpu.slot.name

    @property
    def waiting(self) -> str:
        """Why no job can start here now: what the GPU waits for."""
        return self.gpu.slot.waiting

    @waiting.setter
    def waiting(self, reason: str) -> None:
        self.gpu.slot.waiting = reason

    @property
    def broken(self) -> str:
        """Why no job will start on this GPU again."""
        return self.gpu.slot.broken

    @broken.setter
    def broken(self, reason: str) -> None:
        self.gpu.slot.broken = reason

    def ready(self) -> bool:
        """Return whether a job may start here now; the slot then counts as in use."""
        return self.gpu.lend(self._number)

    def environment(self) -> dict[str, str]:
        """Return the variables that pin a job to the GPU and tell it that it shares the GPU."""
        return self.gpu.environment()

    def uuids(self) -> list[str]:
        """Return the GPU's UUID."""
        return self.gpu.slot.uuids()

    def gpus(self) -> list[str]:
        """Return the GPU's name."""
        return self.gpu.slot.gpus()

    def started(self, last: bool) -> None:
        """Do nothing: the claim is kept for the jobs of the other slots."""

    def ended(self) -> None:
        """Note that the job has ended."""
        self.gpu.ended(self._number)

    def leave(self) -> None:
        """Give the slot back."""
        self.gpu.leave(self._number)


def shared_slots(
    slots: Sequence[GpuSlot], settings: GpusLauncher, say: Callable[[str], None]
) -> list[SharedSlot]:
    """Return the slots of shared GPUs: the first slot of every GPU comes before the second.

    Args:
        slots: The GPUs.
        settings: Settings of the launcher.
        say: Prints one line.
    """
    refused = why_no_mps(settings.detach)
    servers = [
        MpsServer(slot.name, slot.uuids()[0], settings.save_seconds, refused, say) for slot in slots
    ]
    pairs = zip(slots, servers, strict=True)
    gpus = [SharedGpu(slot, settings.jobs_per_gpu, server) for slot, server in pairs]
    return [SharedSlot(gpu, number) for number in range(settings.jobs_per_gpu) for gpu in gpus]


def end_sharing(slots: Sequence[Slot]) -> None:
    """End the MPS daemons of the GPUs among these slots, and wait for their ends."""
    servers = {slot.gpu.server for slot in slots if isinstance(slot, SharedSlot)}
    for server in servers:
        server.stop()
    for server in servers:
        server.join()
