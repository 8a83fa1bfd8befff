"""What the ranks tell each other beside the numbers: which live, which failed, which are to stop.

Everything goes through the store at which the ranks met. A thread of each rank writes a
heartbeat every second. The first rank that fails notes the ending of the run, and every other rank
takes it over.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch.distributed.distributed_c10d import Store

from elman.base.exit_status import ExitStatus, RunStatus
from elman.base.rank_place import RankPlace
from elman.base.signals import Interruption
from elman.distributed.living_store import LivingStore

HEARTBEAT_SECONDS = 1.0
SILENT_SECONDS = 15.0
"""Without a sign of life for so long, a rank counts as lost."""
_LOOK_SECONDS = 3.0
# A rank that has not looked for so long was stopped, and so were the others: a suspended job.
_STOPPED_SECONDS = 5.0
# A process that dies closes its connections a moment before its children are orphans.
_ORPHAN_SECONDS = 1.0
NOBODY = -1
"""Stands for a rank where no rank failed."""
_ENDING, _SIGNAL, _CLOSED = "ending", "signal", "closed"


class Ending(NamedTuple):
    """Why all ranks stop.

    Args:
        rank: The rank that failed, or NOBODY.
        status: How the run ends, a value of ``RunStatus``; ``user`` for a mistake of the user.
        error: What happened, in one line.
        lost: Whether the rank is gone or hangs, so that it does nothing about it itself.
    """

    rank: int
    status: str
    error: str
    lost: bool = False


USER = "user"


class TeamError(Exception):
    """Another rank failed, was lost or hangs, so the run cannot go on.

    Attributes:
        ending: What is known about it.
    """

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.error)
        self.ending = ending

    @property
    def status(self) -> RunStatus:
        """How the run ends."""
        return RunStatus.REFUSED if self.ending.status == USER else RunStatus(self.ending.status)


def is_connection(error: Exception) -> bool:
    """Whether an error of a library says that it lost the connection to another rank."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("gloo" in text or "nccl" in text)


class _Heartbeat(NamedTuple):
    """A heartbeat: a sign of life.

    Args:
        signs: How many there were.
        met: How often the rank has met the others.
        doing: What it does.
        busy: Whether the others shall wait for it however long it takes.
        name: Its host and process.
    """

    signs: int
    met: int
    doing: str
    busy: bool
    name: str


class Watch:
    """One rank's view of the others.

    Args:
        store: Where the ranks met; used by the thread that makes this object.
        place: This rank.
        host: The name of its machine.
        on_ending: Called in the watching thread when the run ends because of another rank.
    """

    def __init__(
        self,
        store: Store,
        place: RankPlace,
        host: str,
        on_ending: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = LivingStore(store, SILENT_SECONDS)
        self._of_thread = LivingStore(store.clone(), SILENT_SECONDS)  # type: ignore[attr-defined]
        self._place, self._on_ending = place, on_ending
        self._name = f"{host}, pid {os.getpid()}"
        self._count = self._met = 0
        self._doing, self._busy = "starting", False
        self._seen: dict[int, tuple[_Heartbeat, float]] = {}
        self._looked, self._parent = time.monotonic(), os.getppid()
        self._interruption: Interruption | None = None
        self._stopped = threading.Event()
        self._ending: Ending | None = None
        self._told = False
        self._send_heartbeat(self._store)
        self._thread = threading.Thread(target=self._run, name="elman-watch", daemon=True)
        self._thread.start()

    def watch_for(self, interruption: Interruption) -> None:
        """Pass a signal that this rank gets on to the others, and theirs to it."""
        self._interruption = interruption

    def meets(self, doing: str) -> None:
        """Note that this rank now waits for the others."""
        self._met += 1
        self._doing = doing

    def does(self, doing: str) -> None:
        """Note what this rank does from here on."""
        self._doing = doing

    @contextlib.contextmanager
    def busy(self, doing: str) -> Iterator[None]:
        """Let the others wait while this rank alone does something that takes long."""
        before, self._doing, self._busy = self._doing, doing, True
        with contextlib.suppress(RuntimeError):  # the store is gone, and nobody waits
            self._send_heartbeat(self._store)
        try:
            yield
        finally:
            self._doing, self._busy = before, False

    def someone_busy(self) -> bool:
        """Whether another rank that lives has said that it takes long."""
        heartbeats = self._others(self._store)
        return any(one.busy and not self._silent(rank) for rank, one in heartbeats.items())

    @property
    def ending(self) -> Ending | None:
        """Why all stop, once the watching thread has seen it."""
        return self._ending

    def end(self, status: str, error: str) -> Ending:
        """Note why all stop, unless a rank has already done so; return what holds."""
        return self._post(self._store, Ending(self._place.rank, status, error))

    def find_failed_rank(self) -> Ending:
        """Return why a meeting of the ranks failed: what a rank noted, or which rank is missing."""
        began = {rank: heartbeat.signs for rank, heartbeat in self._others(self._store).items()}
        until = time.monotonic() + _LOOK_SECONDS
        while time.monotonic() < until:
            if (known := self._posted(self._store)) is not None:
                return known
            time.sleep(0.1)
        heartbeats = self._others(self._store)
        missing = set(range(self._place.size)) - heartbeats.keys() - {self._place.rank}
        silent = [rank for rank, one in heartbeats.items() if one.signs == began.get(rank)]
        if missing or silent:
            rank = min(missing or silent)
            return self._post(self._store, self._lost(rank, heartbeats.get(rank)))
        rank = min(heartbeats, key=lambda rank: (heartbeats[rank].met, rank))
        last = heartbeats[rank]
        what = f"rank {rank} ({last.name}) kept the other ranks waiting; it was {last.doing}"
        return self._post(self._store, Ending(rank, RunStatus.CRASH.value, what, True))

    def tell(self, key: str, value: str) -> None:
        """Tell the other ranks something under a key that is used once.

        Raises:
            TeamError: the store is gone.
        """
        try:
            self._store.set(f"told/{key}", value)
        except RuntimeError:
            raise self._cut_off() from None

    def read(self, key: str, owner: int) -> str:
        """Wait until rank ``owner`` has told something, however long that takes, and return it.

        Raises:
            TeamError: the run ended, or the rank was lost.
        """
        self.meets(f"waiting for rank {owner} ({key})")
        while not self._has(f"told/{key}"):
            if self._ending is not None:
                raise TeamError(self._ending)
            heartbeat = self._others(self._store).get(owner)
            if self._silent(owner):
                raise TeamError(self._post(self._store, self._lost(owner, heartbeat)))
            time.sleep(0.05)
        return str(self._store.get(f"told/{key}").decode())

    def _has(self, key: str) -> bool:
        try:
            return bool(self._store.check([key]))
        except RuntimeError:
            raise self._cut_off() from None

    def _cut_off(self) -> TeamError:
        self._ending = self._ending or self._without_store()
        return TeamError(self._ending)

    def _without_store(self) -> Ending:
        """Return why all stop when the store is gone, and with it torchrun or rank 0.

        The death of torchrun is an order to stop, as that of every launcher is. All ranks must be
        its children to tell it from the loss of rank 0's host.
        """
        until = time.monotonic() + _ORPHAN_SECONDS
        children = os.environ.get("LOCAL_WORLD_SIZE") == str(self._place.size)
        while children and time.monotonic() < until:
            if os.getppid() != self._parent:
                return Ending(NOBODY, RunStatus.INTERRUPTED.value, "torchrun was lost")
            time.sleep(0.05)
        return Ending(0, RunStatus.CRASH.value, "torchrun, or rank 0, was lost", True)

    def close(self, code: ExitStatus | None) -> ExitStatus | None:
        """End this rank's part; rank 0 tells its exit status, the others take it over.

        Returns:
            The exit status of rank 0; None if it was lost.
        """
        status = code
        with contextlib.suppress(RuntimeError):
            if code is not None and self._place.leads:
                self._store.set(_CLOSED, str(int(code)))
                self._wait_for_shutdown_notices()
                return code
            while not self._store.check([_CLOSED]):
                self._others(self._store)
                if self._silent(0):
                    return None
                time.sleep(0.05)
            status = ExitStatus(int(self._store.get(_CLOSED)))
            self._store.set(f"shutdown_notice/{self._place.rank}", "")
        return status

    def _wait_for_shutdown_notices(self) -> None:
        """Wait a moment until the others have read the status: the store may end with this rank."""
        until = time.monotonic() + _LOOK_SECONDS
        left = set(range(1, self._place.size))
        while left and time.monotonic() < until:
            left = {rank for rank in left if not self._store.check([f"shutdown_notice/{rank}"])}
            time.sleep(0.02)

    def stop(self) -> None:
        """Send no more heartbeats."""
        self._stopped.set()
        self._thread.join(2 * HEARTBEAT_SECONDS)

    # ------------------------------------------------------------------ the watching thread

    def _run(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            try:
                self._send_heartbeat(self._of_thread)
                self._pass_signals_on(self._of_thread)
                self._look(self._of_thread)
            except RuntimeError:
                self._learn(self._without_store())
                return

    def _look(self, store: LivingStore) -> None:
        """Take over an ending; note one for a rank that gives no sign of life."""
        known = self._posted(store)
        heartbeats = self._others(store)
        silent = [rank for rank in heartbeats if self._silent(rank)]
        if known is None and silent and not store.check([_CLOSED]):
            known = self._post(store, self._lost(silent[0], heartbeats[silent[0]]))
        if known is not None:
            self._learn(known)

    def _learn(self, ending: Ending) -> None:
        self._ending = self._ending or ending
        if not self._told and ending.rank != self._place.rank:
            self._told = True
            self._on_ending()

    def _pass_signals_on(self, store: LivingStore) -> None:
        interruption = self._interruption
        if interruption is None:
            return
        if interruption.name is not None:
            store.compare_set(_SIGNAL, "", interruption.name)
        elif store.check([_SIGNAL]):
            number = getattr(signal, store.get(_SIGNAL).decode(), signal.SIGTERM)
            os.kill(os.getpid(), number)

    # ------------------------------------------------------------------ the store

    def _send_heartbeat(self, store: LivingStore) -> None:
        self._count += 1
        heartbeat = _Heartbeat(self._count, self._met, self._doing, self._busy, self._name)
        store.set(f"heartbeat/{self._place.rank}", json.dumps(heartbeat))

    def _others(self, store: LivingStore) -> dict[int, _Heartbeat]:
        """Return the last sign of life of every other rank, and note when each was new.

        Without the store, which ends with rank 0 where torchrun does not keep it, there is none.
        """
        heartbeats, now = dict[int, _Heartbeat](), time.monotonic()
        if now - self._looked > _STOPPED_SECONDS:  # the others shall have time for a sign
            self._seen = {rank: (heartbeat, now) for rank, (heartbeat, _) in self._seen.items()}
        self._looked = now
        for rank in range(self._place.size):
            try:
                if rank == self._place.rank or not store.check([f"heartbeat/{rank}"]):
                    continue
                heartbeat = _Heartbeat(*json.loads(store.get(f"heartbeat/{rank}")))
            except RuntimeError:
                return {}
            last = self._seen.get(rank)
            if last is None or last[0].signs != heartbeat.signs:
                self._seen[rank] = (heartbeat, now)
            heartbeats[rank] = heartbeat
        return heartbeats

    def _silent(self, rank: int) -> bool:
        seen = self._seen.get(rank)
        return seen is not None and time.monotonic() - seen[1] > SILENT_SECONDS

    def _lost(self, rank: int, heartbeat: _Heartbeat | None) -> Ending:
        who = f"rank {rank} ({heartbeat.name})" if heartbeat else f"rank {rank}"
        doing = f"; it was {heartbeat.doing}" if heartbeat else ""
        what = f"{who} was lost: it gives no sign of life{doing}"
        return Ending(rank, RunStatus.CRASH.value, what, True)

    def _post(self, store: LivingStore, ending: Ending) -> Ending:
        """Note an ending; of several, the first counts."""
        try:
            known = store.compare_set(_ENDING, "", json.dumps(ending))
        except RuntimeError:  # the store is gone
            self._ending = self._ending or ending
            return self._ending
        self._ending = Ending(*json.loads(known))
        return self._ending

    def _posted(self, store: LivingStore) -> Ending | None:
        with contextlib.suppress(RuntimeError):
            if store.check([_ENDING]):
                self._ending = Ending(*json.loads(store.get(_ENDING)))
        return self._ending
