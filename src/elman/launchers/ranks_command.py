"""The command of a job that several processes of this machine run together, one for each GPU."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from elman.base.exit_status import interrupted_status
from elman.kernels.threads import cpu_share
from elman.launchers.command import JobCommand, visible_devices
from elman.launchers.interrupts import Interrupts
from elman.launchers.ranks import RankStart, run_ranks
from elman.launchers.start_order import held_locks, order_to_start

_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class RanksCommand(JobCommand):
    """A job of several ranks; this process starts and ends them, and trains nothing itself.

    Args:
        ranks: Number of its processes.
        end_seconds: Time that ranks get to save and end once they have to.
        logs: Folder for what ranks above 0 print.
    """

    ranks: int = 2
    end_seconds: float = 120.0
    logs: str = ""

    def _run(self) -> int:
        try:
            order_to_start()()
        except KeyboardInterrupt:  # there is no work, or another job has one of the GPUs
            return int(interrupted_status())
        arguments = self.command_line()
        with Interrupts() as interrupts:
            return run_ranks(
                rank_start(
                    arguments, self.ranks, Path(self.logs), self.end_seconds, own_group=False
                ),
                interrupts,
            )


def rank_start(
    arguments: list[str], ranks: int, logs: Path, save_seconds: float, *, own_group: bool
) -> RankStart:
    """Return how the ranks of a job start on the GPUs that this process sees and has locked.

    Args:
        arguments: The job's command line, without the program's name.
        ranks: Number of its ranks.
        logs: As :class:`~elman.launchers.ranks.RankStart`, like the next two.
        save_seconds: Time to save and end.
        own_group: Whether the ranks get a process group of their own.
    """
    locks = [lock.descriptor for lock in held_locks()]
    return RankStart(
        [sys.executable, "-m", "elman", *arguments],
        visible_devices() or [""] * ranks,
        logs,
        save_seconds,
        own_group,
        [descriptor for descriptor in locks if descriptor is not None],
        {} if _THREADS in os.environ else {_THREADS: str(max(1, cpu_share() // ranks))},
    )
