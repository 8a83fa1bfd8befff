"""Which rank this process is, as torchrun or a launcher says in its environment. Imports no torch.

A rank is one of the processes that train one model together. Rank 0 leads: it makes the run's
folder, writes and shows; the others compute.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from elman.base.errors import UserError

_SIZE, _RANK, _LOCAL = "WORLD_SIZE", "RANK", "LOCAL_RANK"
_MEETING = _ADDRESS, _PORT = "MASTER_ADDR", "MASTER_PORT"


@dataclass(frozen=True)
class RankPlace:
    """The place of a process among the ranks.

    Args:
        rank: Its number, 0 to ``size - 1``.
        size: Number of ranks.
        local_rank: Its number among the ranks of its host, which is the number of its GPU.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def alone(self) -> bool:
        """Whether this process trains its model alone."""
        return self.size == 1

    @property
    def leads(self) -> bool:
        """Whether this process makes the run folder, writes and shows."""
        return self.rank == 0


ONE_PROCESS = RankPlace()
_START = "start the ranks with torchrun --nproc_per_node=<GPUs> -m elman ..."


def rank_place(environment: Mapping[str, str] | None = None) -> RankPlace:
    """Return the place that the environment names; alone if it names none.

    Args:
        environment: The variables; those of this process if None.

    Raises:
        UserError: it names several ranks, but not which one this is or where they meet.
    """
    given = os.environ if environment is None else environment
    size = _number(given, _SIZE, default=1)
    if size <= 1:
        return RankPlace()
    for name in _MEETING:
        if not given.get(name):
            raise UserError(_unset(name, given))
    rank, local = (_number(given, name) for name in (_RANK, _LOCAL))
    if rank >= size:
        raise UserError(f"RANK={rank}: not below WORLD_SIZE={size}; {_START}")
    return RankPlace(rank, size, local)


def rank_count() -> int:
    """Return how many ranks train this process's model, as the environment says: at least 1."""
    return _number(os.environ, _SIZE, default=1)


def is_rank() -> bool:
    """Whether torchrun or one of our launchers started this process as a rank, even a lone one."""
    return _RANK in os.environ and _SIZE in os.environ


def rank_environment(
    rank: int, world: int, local_world: int, address: str, port: int
) -> dict[str, str]:
    """Return the variables that tell a process which rank it is, as torchrun sets them.

    Args:
        rank: Its number among all ranks.
        world: Number of all ranks.
        local_world: Number of ranks on each host.
        address: Host of rank 0.
        port: Port on which rank 0 listens.
    """
    return {
        _RANK: str(rank),
        _LOCAL: str(rank % local_world),
        "GROUP_RANK": str(rank // local_world),
        _SIZE: str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        _ADDRESS: address,
        _PORT: str(port),
    }


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = given.get(name)
    if not text:
        if default is None:
            raise UserError(_unset(name, given))
        return default
    if not text.isdigit():
        raise UserError(f"{name}={text}: expected a whole number; {_START}")
    return int(text)


def _unset(name: str, given: Mapping[str, str]) -> str:
    return (
        f"{name}: not set, but WORLD_SIZE={given[_SIZE]} says that this is one of several ranks; "
        f"{_START}, or unset WORLD_SIZE"
    )
