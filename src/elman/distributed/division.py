"""How the rows of a batch are divided among ranks and virtual shards. Imports no torch.

A batch is cut into equal parts in the order of its rows. Every rank has an equal run of
neighbouring parts, which it computes one after another.
"""

from __future__ import annotations

from dataclasses import dataclass

from elman.base.errors import UserError
from elman.base.rank_place import RankPlace
from elman.sections.parallel import ParallelConfig, refuse_uneven


@dataclass(frozen=True)
class Division:
    """Which rows of a batch this rank computes, and in which parts.

    Args:
        place: The rank.
        parts: Equal parts of a batch, over all ranks.
        rows: Rows of a part.
        exact: Whether the parts do not depend on the number of ranks.
    """

    place: RankPlace
    parts: int
    rows: int
    exact: bool

    @property
    def own_parts(self) -> int:
        """Number of parts that each rank computes."""
        return self.parts // self.place.size

    @property
    def first_part(self) -> int:
        """Number of this rank's first part."""
        return self.place.rank * self.own_parts

    @property
    def own_rows(self) -> slice:
        """This rank's rows of a batch."""
        first = self.first_part * self.rows
        return slice(first, first + self.own_parts * self.rows)

    @property
    def whole(self) -> bool:
        """Whether one rank computes the batch in one pass, as without any division."""
        return self.parts == 1


def divide(parallel: ParallelConfig, batch_size: int, place: RankPlace) -> Division:
    """Return how the rows of a batch are divided.

    Args:
        parallel: Group ``parallel``.
        batch_size: Rows of a batch, over all ranks.
        place: The rank.

    Raises:
        UserError: the rows, the parts or the settings do not fit the number of ranks.
    """
    size = place.size
    _check_size(parallel, size)
    if _is_exact(parallel, batch_size, size):
        _check_exact(parallel, batch_size, size)
        shards = parallel.virtual_shards
        return Division(place, shards, batch_size // shards, exact=True)
    if batch_size % size:
        near = max(size, batch_size // size * size)
        raise UserError(
            f"train.batch_size={batch_size}: {size} ranks cannot share its rows equally; "
            f"use {near} or {near + size}"
        )
    return Division(place, size, batch_size // size, exact=False)


def _is_exact(parallel: ParallelConfig, batch_size: int, size: int) -> bool:
    if parallel.exact != "auto":
        return parallel.exact
    plain = parallel.shard == "none" and not parallel.average_every
    # One virtual shard for each rank: the same passes as without, and as many bytes to exchange.
    fits = size == parallel.virtual_shards and batch_size % size == 0
    return size > 1 and plain and fits


def _check_size(parallel: ParallelConfig, size: int) -> None:
    """Raise UserError if settings need another number of ranks."""
    if parallel.data not in ("auto", size):
        ranks = f"{size} ranks" if size > 1 else "one process"
        raise UserError(
            f"parallel.data={parallel.data}: the run has {ranks}; drop it, or start "
            f"torchrun --nproc_per_node={parallel.data} -m elman ..."
        )
    if size > 1:
        return
    several = {"shard": parallel.shard != "none", "average_every": parallel.average_every > 0}
    for name, used in several.items():
        if used:
            raise UserError(
                f"parallel.{name}={getattr(parallel, name)}: needs several ranks, and this run is "
                "one process; drop it, or start torchrun --nproc_per_node=2 -m elman ..."
            )


def _check_exact(parallel: ParallelConfig, batch_size: int, size: int) -> None:
    """Raise UserError if the virtual shards do not fit the batch or the ranks."""
    shards = parallel.virtual_shards
    if shards % size:
        fewer = 1 << (min(size, shards).bit_length() - 1)
        raise UserError(
            f"parallel.exact=true: {size} ranks cannot share {shards} virtual shards equally; "
            f"start {fewer} ranks, or use parallel.exact=false"
        )
    refuse_uneven(shards, batch_size)
