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
_MEETING = ("MASTER_ADDR", "MASTER_PORT")


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


ONE_PROCESS = RankPlace()


_START = "start the ranks with torchrun --nproc_per_node=<GPUs> -m elman ..."


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
