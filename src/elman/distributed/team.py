"""The ranks that train one model: they meet, exchange numbers and end together.

Numbers of the host travel through gloo, tensors through NCCL between GPUs and gloo between CPUs.
A rank waits for the others patiently, with an eye on whether they live.

Shape legend: n numbers, w ranks, k leaves.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from elman.base import process_exit
from elman.base.errors import UserError, first_line
from elman.base.exit_status import ExitStatus
from elman.base.rank_place import ONE_PROCESS, RankPlace
from elman.base.signals import Interruption
from elman.distributed.tree import summed
from elman.distributed.watch import Ending, TeamError, Watch

_log = logging.getLogger("elman.train")
HANG_SECONDS = 45.0
"""A rank that keeps the others waiting for so long is named, and the run ends."""
_START_TIMEOUT = timedelta(hours=1)
# Our own wait ends earlier; this is what the libraries would wait.
_LIBRARY_TIMEOUT = timedelta(minutes=30)

# Newer versions of torch have renamed it.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Team(Protocol):
    """The ranks that train one model, as one of them sees them."""

    place: RankPlace
    processes: tuple[int, ...]
    """The process numbers of the ranks on this rank's host; empty for a run without ranks."""

    @property
    def writes(self) -> bool:
        """Whether this rank writes what the run leaves."""
        ...

    def gather(self, *values: float) -> list[list[float]]:
        """Return the numbers that each rank gave, by rank; all give equally many."""
        ...

    def gathered(self, values_k: Tensor) -> Tensor:
        """Return the fp32 numbers of all ranks, by rank, as one tensor on their device.

        Where a rank is lost meanwhile, they are NaN, so that no update follows.
        """
        ...

    def tree_sum(self, flat_n: Tensor) -> None:
        """Replace a tensor by the sum over the ranks in the fixed tree's order.

        Args:
            flat_n: Contiguous; n is a multiple of the number of ranks, a power of two.
        """

    def plain_sum(self, flat_n: Tensor) -> None:
        """Replace a tensor by the sum over the ranks, in the order that the library chooses."""

    def busy(self, doing: str) -> AbstractContextManager[None]:
        """Return a context for what this rank does alone while the others wait."""
        ...

    def host_first(self, what: str) -> AbstractContextManager[None]:
        """Return a context that the first rank of each host passes before its others."""
        ...

    def from_leader(self, key: str, say: Callable[[], str]) -> str:
        """Return what rank 0 says under a key that is used once; only it calls ``say``."""
        ...

    def does(self, doing: str) -> None:
        """Note what this rank does, for the line about a rank that hangs."""

    def abandon(self) -> None:
        """Stop waiting for a lost rank: what was asked of the device ends, with NaN."""


class Alone:
    """A team of one: every exchange is with itself."""

    place = ONE_PROCESS
    processes: tuple[int, ...] = ()
    writes = True

    def gather(self, *values: float) -> list[list[float]]:
        """See :class:`Team`."""
        return [list(values)]

    def gathered(self, values_k: Tensor) -> Tensor:
        """See :class:`Team`."""
        return values_k

    def tree_sum(self, flat_n: Tensor) -> None:
        """See :class:`Team`."""

    def plain_sum(self, flat_n: Tensor) -> None:
        """See :class:`Team`."""

    def busy(self, doing: str) -> AbstractContextManager[None]:
        """See :class:`Team`."""
        return nullcontext()

    def host_first(self, what: str) -> AbstractContextManager[None]:
        """See :class:`Team`."""
        return nullcontext()

    def from_leader(self, key: str, say: Callable[[], str]) -> str:
        """See :class:`Team`."""
        return say()

    def does(self, doing: str) -> None:
        """See :class:`Team`."""

    def abandon(self) -> None:
        """See :class:`Team`."""


ALONE = Alone()


class Joined:
    """Several ranks; :func:`joined` makes it.

    Args:
        store: Where the ranks met.
        place: This rank.
        device: Where this rank's model lives.
    """

    def __init__(self, store: Store, place: RankPlace, device: torch.device) -> None:
        self.place, self._device = place, device
        host = socket.gethostname()
        self.watch = Watch(store, place, host, self.abandon)
        # All have come when this is done: rank 0 may pack data before it does, which takes long.
        self.hosts = self._hosts(host)
        self.processes = self._processes()
        # We abort NCCL ourselves when a rank is lost, so that the weights can still be saved.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            store=PrefixStore("group", store),
            rank=place.rank,
            world_size=place.size,
            timeout=_LIBRARY_TIMEOUT,
            device_id=device if device.type == "cuda" else None,
        )
        self._firsts = 0

    @property
    def first_of_host(self) -> int:
        """The lowest rank on this rank's host."""
        return self.hosts.index(self.hosts[self.place.rank])

    def gather(self, *values: float) -> list[list[float]]:
        """See :class:`Team`."""
        own_n = torch.tensor(values, dtype=torch.float64)
        all_wn = torch.empty(self.place.size * len(values), dtype=torch.float64)
        self._patiently(_all_gather(all_wn, own_n, async_op=True))
        return [[float(value) for value in row] for row in all_wn.view(-1, len(values)).tolist()]

    def gathered(self, values_k: Tensor) -> Tensor:
        """See :class:`Team`."""
        size = self.place.size * values_k.numel()
        all_wk = torch.full((size,), torch.nan, dtype=torch.float32, device=self._device)
        self._exchanged(_all_gather(all_wk, values_k.float(), async_op=True))
        return all_wk

    def tree_sum(self, flat_n: Tensor) -> None:
        """See :class:`Team`: each rank sums a part of all tensors, and all exchange the sums."""
        received_n = torch.empty_like(flat_n)
        self._exchanged(dist.all_to_all_single(received_n, flat_n, async_op=True))
        part_n = summed(list(received_n.chunk(self.place.size)))
        self._exchanged(_all_gather(flat_n, part_n, async_op=True))

    def plain_sum(self, flat_n: Tensor) -> None:
        """See :class:`Team`."""
        self._exchanged(dist.all_reduce(flat_n, async_op=True))

    def busy(self, doing: str) -> AbstractContextManager[None]:
        """See :class:`Team`."""
        return self.watch.busy(doing)

    @contextmanager
    def host_first(self, what: str) -> Iterator[None]:
        """See :class:`Team`."""
        self._firsts += 1
        first, key = self.first_of_host, f"{what}/{self.first_of_host}/{self._firsts}"
        if first != self.place.rank:
            self.watch.read(key, first)
        with self.busy(what):
            yield
        if first == self.place.rank:
            self.watch.tell(key, "")

    def from_leader(self, key: str, say: Callable[[], str]) -> str:
        """See :class:`Team`."""
        if not self.place.leads:
            return self.watch.read(key, 0)
        said = say()
        self.watch.tell(key, said)
        return said

    def does(self, doing: str) -> None:
        """See :class:`Team`."""
        self.watch.does(doing)

    def abandon(self) -> None:
        """See :class:`Team`."""
        if self._device.type == "cuda":
            with suppress(Exception):  # nothing is left to lose
                backend = dist.distributed_c10d._get_default_group()._get_backend(self._device)
                backend.abort()

    def watch_for(self, interruption: Interruption) -> None:
        """Pass signals on among the ranks."""
        self.watch.watch_for(interruption)

    def end(self, status: str, error: str) -> Ending:
        """Note why all stop, unless a rank has done so; return what holds."""
        return self.watch.end(status, error)

    def close(self, code: ExitStatus | None) -> ExitStatus | None:
        """End this rank's part; see :meth:`Watch.close`."""
        return self.watch.close(code)

    @property
    def writes(self) -> bool:
        """Whether this rank writes the result: rank 0 does, and rank 1 where rank 0 was lost."""
        lost = self.watch.ending is not None and self.watch.ending.lost
        successor = lost and self.watch.ending is not None and self.watch.ending.rank == 0
        return self.place.rank == (1 if successor else 0)

    def leave(self) -> None:
        """Leave the group, however the run ended.

        If a rank was lost, its end would wait for that rank, so this process ends without it.
        """
        self.watch.stop()
        if self.watch.ending is None:
            with suppress(RuntimeError):
                dist.destroy_process_group()
            return
        process_exit.skip_destructors()
        if self.writes:
            self._kill_the_hung()

    def _kill_the_hung(self) -> None:
        """Kill a lost rank of this host that hangs: it would keep its GPU and torchrun."""
        ending, own = self.watch.ending, self.hosts[self.place.rank]
        if ending is None or not ending.lost or self.hosts[ending.rank] != own:
            return
        here = [rank for rank, host in enumerate(self.hosts) if host == own]
        pid = self.processes[here.index(ending.rank)]
        if pid != os.getpid() and _parent_of(pid) == os.getppid():  # else the number is another's
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _hosts(self, host: str) -> list[str]:
        self.watch.tell(f"host/{self.place.rank}", f"{host} {_gpu(self._device)}")
        said = [self.watch.read(f"host/{rank}", rank) for rank in range(self.place.size)]
        for rank, text in enumerate(said):
            if text in said[:rank] and self._device.type == "cuda":
                raise UserError(
                    f"ranks {said.index(text)} and {rank} of {text.split()[0]} would share one "
                    "GPU; start one rank for each GPU"
                )
        return [text.split()[0] for text in said]

    def _processes(self) -> tuple[int, ...]:
        self.watch.tell(f"process/{self.place.rank}", str(os.getpid()))
        own = self.hosts[self.place.rank]
        here = [rank for rank, host in enumerate(self.hosts) if host == own]
        return tuple(int(self.watch.read(f"process/{rank}", rank)) for rank in here)

    def _exchanged(self, work: dist.Work | None) -> None:
        self._patiently(work, on_device=self._device.type == "cuda")

    def _patiently(self, work: dist.Work | None, on_device: bool = False) -> None:
        """Wait for an exchange, as long as the other ranks live and do not hang.

        Args:
            work: The exchange.
            on_device: It is NCCL's. Then this only orders what follows on the GPU; the host does
                not wait.

        Raises:
            TeamError: the exchange failed, or another rank ended the run.
        """
        assert work is not None
        if self.watch.ending is not None:
            raise TeamError(self.watch.ending)
        self.watch.meets("waiting for the other ranks")
        if on_device:
            work.wait()  # with a time limit NCCL would block the host
            return
        waited = 0.0
        while True:
            began = time.monotonic()
            try:
                work.wait(timedelta(seconds=1))
                self.watch.does("computing")
                return
            except RuntimeError as error:
                if self.watch.ending is not None:
                    raise TeamError(self.watch.ending) from None
                # Longer than asked for: this process was stopped meanwhile, and so were the others.
                waited += min(time.monotonic() - began, 2.0)
                if self.watch.someone_busy():
                    waited = 0.0
                if waited > HANG_SECONDS or work.is_completed():
                    _log.info("an exchange with the other ranks failed: %s", first_line(error))
                    raise TeamError(self.watch.find_failed_rank()) from None


def leader_alone(team: Team, doing: str) -> AbstractContextManager[None]:
    """Return a context in which the other ranks wait for rank 0 without a limit."""
    return team.busy(doing) if team.place.leads else nullcontext()


def joined(place: RankPlace, device: torch.device) -> Joined:
    """Meet the other ranks.

    Args:
        place: This rank.
        device: Where its model lives.

    Raises:
        UserError: the ranks cannot meet, or two of them would share a GPU.
    """
    try:
        store, _, _ = next(rendezvous("env://", timeout=_START_TIMEOUT))
        return Joined(PrefixStore("elman", store), place, device)
    except (dist.DistError, dist.DistNetworkError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"MASTER_ADDR:MASTER_PORT={where}: the ranks cannot meet there ({first}); "
            "name a host and a free port that every rank reaches"
        ) from None


def own_device(device: torch.device, place: RankPlace) -> torch.device:
    """Return this rank's own device, and make it the current one.

    Raises:
        UserError: there are fewer GPUs than ranks on this host.
    """
    if place.alone or device.type != "cuda":
        return device
    count = torch.cuda.device_count()
    # A cluster may show every rank its own GPU only.
    index = 0 if count == 1 else place.local_rank
    if index >= count:
        raise UserError(
            f"rank {place.rank} is number {place.local_rank} of its host, which has {count} GPUs; "
            f"start torchrun --nproc_per_node={count} -m elman ..., or add train.device=cpu"
        )
    own = torch.device("cuda", index)
    torch.cuda.set_device(own)
    return own


def _parent_of(pid: int) -> int | None:
    """Return the process that started another one; None if that cannot be told."""
    with suppress(OSError, ValueError):
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
        return int(after_name.split()[1])
    return None


def _gpu(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else "cpu"


def same_everywhere(team: Team, what: str, value: str) -> None:
    """Raise UserError unless every rank has the value that rank 0 has.

    Args:
        team: The ranks.
        what: What the value is, in the plural, for the error.
        value: A text of this rank.
    """
    if team.from_leader(f"same/{what}", lambda: value) != value:
        raise UserError(
            f"rank {team.place.rank}: its {what} are not those of rank 0; start every rank with "
            "the same command, code and files, on GPUs of one kind"
        )


def ordered(rows: Sequence[Sequence[float]], count: int) -> list[float]:
    """Return what was dealt out to the ranks in turn, in its first order.

    Args:
        rows: By rank: the values of number rank, rank + w, rank + 2 w ...
        count: How many there are.
    """
    return [rows[number % len(rows)][number // len(rows)] for number in range(count)]
