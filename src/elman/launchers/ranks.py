"""The ranks of one job on this machine: a process for each GPU, ended together, with one status.

Each gets the environment that torchrun gives its processes. torchrun itself is not used, because it
gives a failed rank's neighbors 30 s to save, always exits with status 1, and passes on no second
signal. Imports no torch.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from elman.base.exit_status import ExitStatus, is_failure, is_interrupted
from elman.base.output import note
from elman.base.rank_place import rank_environment
from elman.launchers.interrupts import Interrupts
from elman.launchers.outcome import ERROR, telling
from elman.runs.status import status_word

POLL_SECONDS = 0.05
GRACE_SECONDS = 30.0
"""Time that ranks get to notice that one has failed and to end, before they are told to end."""
REFUSED_SECONDS = 3.0
"""The same time after a rank that was refused or stopped before it could tell the others."""
ENDING_SECONDS = 60.0
"""Time that ranks get to end after rank 0 has: by then the results are on the disk."""
# The first signal asks for a save, the second stops waiting for the step, the third kills.
_PATIENCE = 2
_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 16384


@dataclass(frozen=True)
class RankStart:
    """How the ranks of a job are started.

    Args:
        command: The command of each.
        gpus: The GPU of each rank, by UUID; an empty name for a rank on the CPU.
        logs: Folder for the output of ranks above 0; that of rank 0 goes where ours goes.
        save_seconds: Time that ranks get to save and end once they have to.
        own_group: Whether they get a process group of their own, which a Ctrl-C at the terminal
            then does not reach; else they are killed with the group of this process.
        inherited: Descriptors that every rank keeps open: the locks of the GPUs.
        environment: Variables beside those of this process.
    """

    command: Sequence[str]
    gpus: Sequence[str]
    logs: Path
    save_seconds: float
    own_group: bool
    inherited: Sequence[int] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def run_ranks(start: RankStart, interrupts: Interrupts) -> int:
    """Run the ranks of a job to their ends and return the job's exit status.

    It is that of the rank that failed first, negative for a signal. A line on stderr names a rank
    that was killed, and any rank but 0 that failed.

    Args:
        start: How they are started.
        interrupts: Signals that this process gets; they are passed on to every rank.

    Raises:
        OSError: a process cannot be started.
    """
    with _reserved_port() as port:
        keeper = _Keeper(start, interrupts)
        try:
            keeper.start(port.getsockname()[1])
            keeper.run()
        finally:
            keeper.kill()
    return keeper.status()


class _Keeper:
    """Starts the ranks, passes signals on, and ends all when one of them has failed."""

    def __init__(self, start: RankStart, interrupts: Interrupts) -> None:
        self._start, self._interrupts = start, interrupts
        self._ranks: list[subprocess.Popen[bytes]] = []
        # Ranks that have ended, in order, with their exit statuses; without those that we killed.
        self._ended: list[tuple[int, int]] = []
        self._failed_at = self._first_at = self._grace = 0.0
        self._told = self._killed = False

    def start(self, port: int) -> None:
        """Start every rank."""
        libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
        self._start.logs.mkdir(parents=True, exist_ok=True)
        for rank in range(len(self._start.gpus)):
            self._ranks.append(self._started(rank, port, libc))

    def run(self) -> None:
        """Wait until every rank has ended."""
        while True:
            alive = self._look()
            if not alive:
                return
            self._forward(alive)
            self._end_others(alive)
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Kill every rank that still runs, and wait for its end."""
        for process in self._ranks:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def status(self) -> int:
        """Return the job's exit status, and say in a line which rank it is from."""
        if not self._ended:  # all were killed, after too many signals or too long a save
            return -int(signal.SIGKILL)
        rank, status = self._ended[telling([status for _, status in self._ended])]
        said = rank == 0 and status > 0  # by the rank itself
        if is_failure(status) and not said:
            note(self._words(rank, status))
        return status

    def _started(self, rank: int, port: int, libc: ctypes.CDLL | None) -> subprocess.Popen[bytes]:
        start, world = self._start, len(self._start.gpus)
        variables = rank_environment(rank, world, world, "127.0.0.1", port)
        group = self._ranks[0].pid if self._ranks else 0
        log = None if rank == 0 else (start.logs / f"rank{rank}.log").open("ab")
        try:
            return subprocess.Popen(
                list(start.command),
                env={**os.environ, **start.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
                pass_fds=tuple(start.inherited),
                process_group=group if start.own_group else None,
                preexec_fn=None if libc is None else _ends_with_us(libc),
            )
        finally:
            if log is not None:
                log.close()

    def _look(self) -> list[int]:
        """Note which ranks have ended; return those that have not."""
        alive = []
        for rank, process in enumerate(self._ranks):
            known = any(rank == before for before, _ in self._ended)
            if (code := process.poll()) is None:
                alive.append(rank)
            elif not known and not self._killed:
                self._note(rank, code)
        return alive

    def _note(self, rank: int, code: int) -> None:
        now = time.monotonic()
        self._ended.append((rank, code))
        if rank == 0:
            self._first_at = now
        if code != ExitStatus.OK and not self._failed_at:
            self._failed_at = now
            early = code == ExitStatus.USER_ERROR or is_interrupted(code)
            self._grace = min(REFUSED_SECONDS, GRACE_SECONDS) if early else GRACE_SECONDS

    def _forward(self, alive: Sequence[int]) -> None:
        """Pass every signal on to every rank; after too many, or too long, kill."""
        for number in self._interrupts.take():
            self._told = True
            self._send(alive, number)
        late = self._interrupts.seconds() > self._start.save_seconds
        if self._interrupts.count > _PATIENCE or late:
            self._kill(alive)

    def _end_others(self, alive: Sequence[int]) -> None:
        """Tell ranks to save and end if one has failed; kill those that do not end in time."""
        now = time.monotonic()
        failed = now - self._failed_at if self._failed_at else 0.0
        if failed > self._grace and not self._told:
            self._told = True
            self._send(alive, signal.SIGTERM)
        since_first = now - self._first_at if self._first_at else 0.0
        if failed > self._grace + self._start.save_seconds or since_first > ENDING_SECONDS:
            self._kill(alive)

    def _kill(self, alive: Sequence[int]) -> None:
        if not self._killed:
            named = ", ".join(f"rank {rank}" for rank in alive)
            note(f"killing {named}: not ended in time")
        self._killed = True
        self._send(alive, signal.SIGKILL)

    def _send(self, ranks: Sequence[int], number: signal.Signals) -> None:
        for rank in ranks:
            self._ranks[rank].send_signal(number)

    def _words(self, rank: int, status: int) -> str:
        gpu = self._start.gpus[rank]
        named = f"rank {rank}" + (f" on {gpu}" if gpu else "")
        if status < 0:
            return f"{named} was {status_word(status)}; the other ranks were ended"
        return f"{named}: {self._last_words(rank) or status_word(status)}"

    def _last_words(self, rank: int) -> str:
        """Return the last line that a rank above 0 printed, or its error line if there is one."""
        with suppress(OSError):
            text = (self._start.logs / f"rank{rank}.log").read_bytes()[-_TAIL_BYTES:]
            lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith(ERROR)]
            return (errors or lines or [""])[-1].removeprefix(ERROR)
        return ""


def _reserved_port() -> socket.socket:
    """Return a socket with a free port, on which rank 0 can listen while we keep it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def _ends_with_us(libc: ctypes.CDLL) -> Callable[[], None]:
    """Return what makes a rank get SIGTERM when this process dies: it then saves and ends."""

    def before_start() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)

    return before_start
