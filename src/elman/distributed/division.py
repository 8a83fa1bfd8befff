"""How the rows of a batch are divided among ranks and virtual shards. Imports no torch.

A batch is cut into equal parts in the order of its rows. Every rank has an equal run of
neighboring parts, which it computes one after another.
"""

from __future__ import annotations

from dataclasses import dataclass

from elman.base.rank_place import RankPlace
from elman.config.ranks import check_rows, is_exact
from elman.sections.parallel import ParallelConfig


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
    check_rows(parallel, batch_size, size)
    if is_exact(parallel, batch_size, size):
        shards = parallel.virtual_shards
        return Division(place, shards, batch_size // shards, exact=True)
    return Division(place, size, batch_size // size, exact=False)
