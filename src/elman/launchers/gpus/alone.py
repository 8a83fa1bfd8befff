"""One command on several GPUs of this machine: leases them, starts the ranks, and waits.

It is ``torchrun --nproc_per_node=N -m elman ...`` on N GPUs that nobody else uses meanwhile.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from rich.console import Console

from elman.base.exit_status import ExitStatus, interrupted_status, is_failure, shell_status
from elman.devices.locks import take_run_locks
from elman.launchers.display import Display
from elman.launchers.gpus.queue import POLL_SECONDS
from elman.launchers.gpus.slot import Slot
from elman.launchers.gpus.slots import machine_slots
from elman.launchers.interrupts import Interrupts
from elman.launchers.ranks import run_ranks
from elman.launchers.ranks_command import rank_start
from elman.launchers.start_order import hold
from elman.sections.launching import GpusLauncher


def run_alone(arguments: list[str], settings: GpusLauncher, wanted: bool) -> int:
    """Run one command as several ranks and return its exit status, as a shell gives it.

    Args:
        arguments: The command line of each rank, without the program's name.
        settings: Settings of the launcher; ``gpus_per_job`` is the number of ranks.
        wanted: Whether it takes GPUs; otherwise the ranks run on the CPU.

    Raises:
        UserError: there are too few GPUs.
    """
    # Lines, not a live table: the terminal is for the display of rank 0.
    display = Display(1, Console(force_terminal=False, soft_wrap=True))
    slot = machine_slots(settings, wanted, display.say)[0]
    logs = Path(tempfile.mkdtemp(prefix="elman-ranks-"))
    with Interrupts() as interrupts:
        if not _leased(slot, " ".join(arguments), settings, display, interrupts):
            shutil.rmtree(logs)
            return int(interrupted_status() if interrupts.count else ExitStatus.FAILED)
        ranks = settings.gpus_per_job
        start = rank_start(arguments, ranks, logs, settings.save_seconds, own_group=True)
        status = run_ranks(start, interrupts)
    if is_failure(status):
        display.say(f"output of the other ranks: {logs}")
    else:
        shutil.rmtree(logs, ignore_errors=True)
    return shell_status(status)


def _leased(
    slot: Slot, what: str, settings: GpusLauncher, display: Display, interrupts: Interrupts
) -> bool:
    """Wait until the slot is free and take its locks; False after a signal or too long a wait."""
    began = time.monotonic()
    while not interrupts.count:
        if slot.ready():
            locks = take_run_locks(slot.uuids(), f"runs {what}")
            if locks is not None:
                hold(locks)
                os.environ.update(slot.environment())
                slot.started(last=True)
                if slot.gpus():
                    display.say(f"{len(slot.uuids())} ranks on {slot.name}")
                return True
            slot.leave()
        waited = time.monotonic() - began
        if slot.broken or waited > 60 * settings.wait_minutes:
            display.say(f"{slot.name}: {slot.waiting}")
            display.say(f"not free for {waited / 60:.3g} minutes (launcher.wait_minutes)")
            break
        display.show((), [slot], 1)
        time.sleep(POLL_SECONDS)
    slot.leave()
    return False
