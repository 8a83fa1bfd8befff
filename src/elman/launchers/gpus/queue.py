"""The queue of a sweep on one machine: slots, waiting processes, ends of jobs, signals."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from pathlib import Path

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, interrupted_status
from elman.launchers.display import Display
from elman.launchers.gpus.executor import REQUEUED, Executor, dismiss
from elman.launchers.gpus.quarantine import Quarantine
from elman.launchers.gpus.slot import Slot
from elman.launchers.handle import JobHandle
from elman.launchers.interrupts import Interrupts
from elman.launchers.outcome import last_line
from elman.launchers.request import JobLog
from elman.launchers.start_order import HELD, RUNNING
from elman.runs.folder import RunLock, discard_folder

POLL_SECONDS = 0.05
# Most requeues of a job: one that is preempted again and again would block its GPU.
_REQUEUES = 6


class Queue:
    """Runs jobs in order, each in the first free slot, and survives whatever happens to them.

    If the sweep grows, it asks for a job as soon as a slot could take one: later answers know more
    results, so there are never more jobs than free slots and warm processes.

    Args:
        jobs: The jobs.
        slots: Where they can run.
        executor: Starts their processes.
        display: Shows the progress to the user.
        log: Records what becomes of the jobs.
        wait_seconds: Longest time without a running job and without a free slot.
        save_seconds: Time between the first signal to a job and its kill.
        more: Returns up to so many further jobs; None if there are only these.
    """

    def __init__(
        self,
        jobs: Sequence[JobHandle],
        slots: Sequence[Slot],
        executor: Executor,
        display: Display,
        log: JobLog,
        wait_seconds: float,
        save_seconds: float,
        more: Callable[[int], Sequence[JobHandle]] | None = None,
    ) -> None:
        self._pending, self._slots = deque(jobs), list(slots)
        self._executor, self._display, self._log = executor, display, log
        self._wait_seconds, self._save_seconds = wait_seconds, save_seconds
        self._running: list[JobHandle] = []
        self._idle_since = time.monotonic()
        self._quarantine = Quarantine()
        self._more = more
        self._may_ask = more is not None

    def run(self, interrupts: Interrupts) -> bool:
        """Run the jobs to their ends; return False if some could not be started."""
        try:
            while self._running or (not interrupts.count and self._has_pending()):
                self._step(interrupts)
                time.sleep(POLL_SECONDS)
                if self._pending and not self._running and not interrupts.count and self._stuck():
                    return False
            return not self._pending or bool(interrupts.count)
        finally:
            self._end(interrupts)

    def _step(self, interrupts: Interrupts) -> None:
        self._forward(interrupts)
        left = [job.slot for job in list(self._running) if self._look_after(job)]
        if left and not interrupts.count:
            self._ask()
        for slot in left if not self._pending else ():
            assert slot is not None
            slot.leave()
        if not interrupts.count:
            self._place()
            self._ask()
            self._warm_up()
        self._display.show(self._running, self._slots, len(self._pending))

    def _has_pending(self) -> bool:
        """Whether a job waits; if none does, ask for one."""
        if not self._pending:
            self._ask()
        return bool(self._pending)

    def _ask(self) -> None:
        """Ask for the jobs that slots could take, unless the answer would be the last one again."""
        number = self._wanted() - len(self._pending)
        if self._more is None or not self._may_ask or number <= 0:
            return
        came = self._more(number)
        self._pending.extend(came)
        self._may_ask = bool(came)

    def _wanted(self) -> int:
        """Return how many jobs may wait: one for each free slot and for each warm process."""
        if not self._running and not self._pending:
            return 1  # the slots are looked at for this one: then it is known which are free
        taken = {id(job.slot) for job in self._running}
        return sum(
            slot.warm if id(slot) in taken else not (slot.waiting or self._quarantine.resting(slot))
            for slot in self._slots
            if not slot.broken
        )

    def _place(self) -> None:
        """Start the next jobs wherever a slot is free."""
        taken = {id(job.slot) for job in self._running}
        for slot in self._slots:
            if not self._pending:
                return
            if id(slot) in taken or self._quarantine.resting(slot) or not slot.ready():
                continue
            job = self._pending[0]
            if not self._has_process(job):
                continue
            self._pending.popleft()
            assert job.process is not None
            job.slot, job.since = slot, time.monotonic()
            self._running.append(job)
            self._quarantine.started(slot)
            job.process.run_on(slot, f"job {job.number}: {job.label}")
            self._display.started(job)
            self._log.job_started(job.number, slot.name)
            taken.add(id(slot))
            if not self._has_pending():
                self._leave_all_but(taken)

    def _leave_all_but(self, taken: Container[int]) -> None:
        """Give back the slots for which there is no job left."""
        for slot in self._slots:
            if id(slot) not in taken:
                slot.leave()

    def _warm_up(self) -> None:
        """Keep a process waiting for every slot that will get free and can use a warm process."""
        wanted = sum(slot.warm and not slot.broken for slot in self._slots)
        for job in list(self._pending)[:wanted]:
            self._has_process(job)

    def _has_process(self, job: JobHandle) -> bool:
        """Start the process of a pending job; a job whose process cannot start has ended."""
        if job.process is not None and job.process.ended():
            self._pending.remove(job)
            self._over(job, self._closed(job))  # refused, or it died while it waited
            return False
        if job.process is not None:
            return True
        try:
            if job.submitted:
                job.process = self._executor.restart(job.name)
            else:
                job.process = self._executor.start(job.command, job.name)
                job.submitted = True
        except OSError as error:
            place = error.filename or self._executor.paths(job.name).folder
            job.said = f"cannot be started: {place}: {error.strerror or error}"
            self._pending.remove(job)
            self._over(job, int(ExitStatus.FAILED))
            return False
        return True

    def _look_after(self, job: JobHandle) -> bool:
        """Look how far a job is that has got a slot; return whether it has ended for good."""
        assert job.process is not None
        assert job.slot is not None
        self._note_running(job)
        if not job.process.ended():
            return False
        held = not job.running and job.process.said(HELD)
        if not held:
            self._note_running(job)
        status = self._closed(job)
        self._idle_since = time.monotonic()
        self._running.remove(job)
        job.slot.ended()
        if held or (status == REQUEUED and job.requeues < _REQUEUES):
            job.requeues += not held
            job.running, job.slot = False, None
            self._pending.appendleft(job)
            self._display.again(job, held)
            self._log.job_waits(job.number)
            return False
        self._quarantine.ended(job.slot, status, time.monotonic() - job.since)
        self._over(job, int(interrupted_status()) if status == REQUEUED else status)
        return True

    def _note_running(self, job: JobHandle) -> None:
        """Tell the slot of a job when the job has begun to run there."""
        assert job.process is not None
        assert job.slot is not None
        if not job.running and job.process.said(RUNNING):
            job.running = True
            job.slot.started(last=not self._pending and self._more is None)

    def _closed(self, job: JobHandle) -> int:
        """Return the exit status of a job whose process has ended, and close the process."""
        assert job.process is not None
        status, job.said = job.process.status(), last_line(job.process.paths, job.process.begun)
        job.process.close()
        job.process = None
        return status

    def _over(self, job: JobHandle, status: int) -> None:
        job.status = status
        self._may_ask = self._more is not None
        self._display.ended(job, self._log.job_ended(job.number, status, job.said))

    def _stuck(self) -> bool:
        """Whether nothing runs and no slot will get free; if so, print why."""
        if all(slot.broken for slot in self._slots):
            self._display.say("no place is left for the other jobs")
        elif time.monotonic() - self._idle_since > self._wait_seconds:
            minutes = self._wait_seconds / 60
            self._display.say(f"no place was free for {minutes:g} minutes (launcher.wait_minutes)")
        else:
            return False
        reasons = [f"  {slot.name}: {slot.waiting}" for slot in self._slots]
        for line in dict.fromkeys(reasons):  # slots of one GPU have the same
            self._display.say(line)
        return True

    def _forward(self, interrupts: Interrupts) -> None:
        """Pass on the first signal; kill at the second one, or when a job does not end in time."""
        kill = interrupts.count > 1 or interrupts.seconds() > self._save_seconds
        for number in interrupts.take():
            self._display.interrupted(len(self._running), interrupts.count)
            for job in self._running:
                assert job.process is not None
                job.process.signal(number)
        for job in self._running if kill else ():
            assert job.process is not None
            job.process.signal(signal.SIGKILL)

    def _end(self, interrupts: Interrupts) -> None:
        """Clean up: end waiting processes and give claims back."""
        waiting = [job for job in self._pending if job.process is not None]
        processes = [job.process for job in waiting if job.process is not None]
        dismiss(processes, lambda: interrupts.count > 1)
        folders = [Path(job.command.folder) for job in waiting if job.command.folder is not None]
        for folder in folders if interrupts.count > 1 else ():
            with suppress(UserError, OSError), RunLock(folder):
                discard_folder(folder)  # its process was killed before it could do so
        for slot in self._slots:
            with suppress(OSError):
                slot.leave()
        self._display.close()
