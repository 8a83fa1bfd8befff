"""What a user sees while a sweep runs: one live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.text import Text

from elman.base import run_files
from elman.base.consoles import LiveArea, say
from elman.base.exit_status import ExitStatus, is_interrupted
from elman.base.live_line import is_silenced
from elman.base.tables import TerminalTable, names, numbers
from elman.base.units import duration
from elman.launchers.job import job_count
from elman.launchers.outcome import ERROR

if TYPE_CHECKING:
    from elman.launchers.gpus.slot import Slot
    from elman.launchers.handle import JobHandle

_REFRESH_SECONDS = 0.5
# Away from a terminal, the reason why a slot is busy is printed when it changes, and this often.
_REMIND_SECONDS = 60.0
# There, a running job says how far it is after a minute, two, four, eight, sixteen, and then every
# ten: lines of a log, few for a long sweep.
_FIRST_REPORT_SECONDS, _LONGEST_PAUSE_SECONDS = 60.0, 600.0
_TAIL_BYTES = 8192
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Display:
    """Shows a sweep: lines on standard output, and a live table on a terminal.

    Args:
        total: Number of jobs in the whole sweep, as far as it is known.
        console: Where it is shown; standard output by default.
        grows: Whether more jobs may come.
    """

    def __init__(self, total: int, console: Console | None = None, *, grows: bool = False) -> None:
        self.console = console or Console()
        self.total, self._grows, self._shown = total, grows, 0.0
        self._done, self._failed = 0, 0
        self._said: dict[str, tuple[str, float]] = {}
        self._due: dict[int, float] = {}  # when a job reports next, in seconds since its start
        self._live = LiveArea(self.console)
        self._live.start()

    def say(self, text: str) -> None:
        """Print one line if possible; if the disk behind stdout is full, the jobs still go on."""
        try:
            say(self.console, text)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise

    def started(self, job: JobHandle) -> None:
        """Say that a job has got a slot."""
        self._due.pop(job.number, None)
        self.say(f"{self._count(job)} {job.label}")

    def ended(self, job: JobHandle, word: str) -> None:
        """Say how a job ended, in ``word``; if it failed, add the last thing that it printed."""
        assert job.status is not None
        good = job.status == ExitStatus.OK
        self._done, self._failed = self._done + good, self._failed + (not good)
        took = f" after {duration(time.monotonic() - job.since)}" if job.since else ""
        where = f" on {job.slot.name}" if job.slot else ""
        # The last line of an interrupted run says how to resume it alone: not wanted in a sweep.
        silent = good or (is_interrupted(job.status) and not job.said.startswith(ERROR))
        words = f": {job.said}" if job.said and not silent else ""
        self.say(f"{self._count(job)} {word}{took}{where}{words}")

    def again(self, job: JobHandle, held: bool) -> None:
        """Say that a job goes back to the head of the queue."""
        reason = "its GPU was taken by another elman" if held else "preempted"
        self.say(f"{self._count(job)} {reason}: queued again")

    def interrupted(self, running: int, count: int) -> None:
        """Say what a signal does."""
        if count > 1:
            self.say(f"killing {running} running jobs")
        else:
            self.say(f"stopping: {running} running jobs save and end; again kills them")

    def show(self, running: Sequence[JobHandle], slots: Sequence[Slot], pending: int) -> None:
        """Show the progress of the sweep, if it is time to."""
        now = time.monotonic()
        if now - self._shown < _REFRESH_SECONDS:
            return
        self._shown = now
        if self._live.shown:
            self._live.draw(self._table(running, slots, pending))
        else:
            self._report(running, now)
            if pending:
                self._explain(running, slots, now)

    def close(self) -> None:
        """End the live table."""
        self._live.stop()

    def _count(self, job: JobHandle) -> str:
        return job_count(job.number, self.total, grows=self._grows)

    def _report(self, running: Sequence[JobHandle], now: float) -> None:
        """Say how far running jobs are, ever more seldom."""
        if is_silenced():
            return
        for job in running:
            spent, due = now - job.since, self._due.get(job.number, _FIRST_REPORT_SECONDS)
            if not job.running or spent < due:
                continue
            self._due[job.number] = due + min(due, _LONGEST_PAUSE_SECONDS)
            step, loss, rate = _progress(job.command.folder)
            words = [f"step {step}" if step else "still running"]
            words += [f"loss {loss}"] * bool(loss) + [f"{rate} tok/s"] * bool(rate)
            self.say(f"{self._count(job)} {', '.join(words)} after {duration(spent)}")

    def _explain(self, running: Sequence[JobHandle], slots: Sequence[Slot], now: float) -> None:
        """Say why slots are not free, if the reason is new or was last printed long ago."""
        busy = {id(job.slot) for job in running}
        for slot in slots:
            if id(slot) in busy or not slot.waiting:
                self._said.pop(slot.name, None)
                continue
            text, before = self._said.get(slot.name, ("", now))
            # Numbers change at every look; the user and the program rarely do.
            known = text.split(",")[0].rstrip("0123456789 ") == _kind(slot.waiting)
            if not known or now - before > _REMIND_SECONDS:
                self._said[slot.name] = (_kind(slot.waiting), now)
                self.say(f"{slot.name}: {slot.waiting}")

    def _table(self, running: Sequence[JobHandle], slots: Sequence[Slot], pending: int) -> Group:
        headings = [*names("where"), *numbers("job"), *names("what")]
        headings += numbers("step", "loss", "tok/s", "time")
        table = TerminalTable(headings, ("tok/s", "step", "loss", "time"))
        by_slot = {id(job.slot): job for job in running}
        for slot in slots:
            job = by_slot.get(id(slot))
            if job is None:
                idle = Text(slot.waiting or "free", style="dim")
                table.add(slot.name, "", idle, "", "", "", "")
                continue
            spent = duration(time.monotonic() - job.since)
            cells = _progress(job.command.folder) if job.running else ["", "", ""]
            table.add(slot.name, str(job.number), job.label, *cells, spent)
        counts = f"{self._done} ok, {self._failed} failed, {len(running)} running, {pending} queued"
        if self._grows:
            ended = self._done + self._failed
            counts += f"; {ended + len(running) + pending} of {self.total} jobs"
        return Group(table, Text(counts, style="dim"))


def _kind(waiting: str) -> str:
    return waiting.split(",")[0].rstrip("0123456789 ")


def _progress(folder: str | None) -> list[str]:
    """Return step, loss and rate of the newest window in a run's metrics."""
    record: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        if folder is not None:
            with (Path(folder) / run_files.METRICS).open("rb") as stream:
                stream.seek(0, 2)
                stream.seek(max(0, stream.tell() - _TAIL_BYTES))
                lines = stream.read().decode(errors="replace").splitlines()
            windows = [line for line in lines if line.startswith('{"kind": "window"')]
            record = json.loads(windows[-1]) if windows else {}
    loss, rate = record.get("loss"), record.get("tok_s")
    return [
        str(record.get("step", "")),
        f"{loss:.4f}" if isinstance(loss, float) else "",
        f"{rate:,.0f}" if isinstance(rate, float) else "",
    ]
