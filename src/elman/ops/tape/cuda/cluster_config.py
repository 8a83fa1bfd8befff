"""How the tape engine runs as thread-block clusters, as csrc/cuda/tape/cluster.cuh computes it.

Imports no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property

from elman.ops.common.abi_check import all_same
from elman.ops.common.cuda.clusters import (
    HOP,
    INBOUND,
    MAX_ROWS,
    MULTIPROCESSORS,
    SHARED_LIMIT,
    clusters_at_once,
    rounded_up,
)
from elman.ops.tape.recurrences import NO_PRODUCT, TapeRecurrence

_WARPS = (8, 4, 2, 1)
"""Of a block: a smaller number for matrices that are too small to share out further."""
_WAVES = (1, 2, 3, 4)
"""How often the GPU's clusters take other rows of the batch."""
AHEAD = True
"""Whether a pass back reads a round ahead where it can; tools compare both."""


@dataclass(frozen=True)
class ClusterConfig:
    """All that a translation unit is compiled for.

    Args:
        cell: What is computed.
        slots: Of the tape.
        channels: Channels of the state and zeros, such that every block has 16 or a multiple.
        cluster: Blocks of a cluster.
        rows: Rows of the batch for a cluster.
        parts: Warps that share the block's channels of a row.
        warps: Warps of a block.
        row_warps: Groups of warps that share the rows of the block's matrix.
        back: Which pass.
        ahead: Whether a round of the way back reads for the next one, which takes a tape more.
    """

    cell: TapeRecurrence
    slots: int
    channels: int
    cluster: int
    rows: int
    parts: int
    warps: int
    row_warps: int
    back: bool
    ahead: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def own(self) -> int:
        """Channels of a block."""
        return self.channels // self.cluster

    @property
    def inner(self) -> int:
        """Columns of the block's matrix."""
        return self.cell.blocks * self.channels if self.back else self.channels

    @property
    def out(self) -> int:
        """Rows of the block's matrix."""
        return self.own if self.back else self.cell.blocks * self.own

    @property
    def k_warps(self) -> int:
        """Warps that share the columns of the block's matrix."""
        return self.warps // self.row_warps

    @property
    def fragments(self) -> int:
        """Fragments of the matrix that a thread has, of four registers each."""
        return self.out // 16 // self.row_warps * self.inner // self.k_warps // 16

    @property
    def padded(self) -> int:
        """Slots, and those that fill up eight."""
        return rounded_up(self.slots, 8)

    @property
    def per(self) -> int:
        """Pairs of channels that a lane has in the walk."""
        return math.ceil(self.own // 2 / self.parts / 32)

    @cached_property
    def kept(self) -> int:
        """Fragments that it has in registers: as many as leave room for everything else."""
        tiles = self.out // 16 // self.row_warps
        some = min(2, self.padded // 8)  # from two times eight slots on there is a loop over them
        used = (100 + 12 * self.per + 6 * some) if self.back else (70 + 8 * self.per + 4 * some)
        free = 255 - (used + 4 * tiles)
        return self.fragments if 4 * self.fragments <= free else max(0, (free - 14) // 4)

    @property
    def summed(self) -> int:
        """Parts of one sum, by all warps of the cluster that walk a row."""
        return self.cluster * self.parts

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        mail = 2 * self.inner // 32 * self.rows * 16
        partial = 2 * self.k_warps * self.rows * (self.out + 4)
        matrix = (self.fragments - self.kept) * self.warps * 128
        sums = 2 * self.rows * self.summed * self.padded
        others = rounded_up(2 * self.rows * self.summed * (self.padded if self.back else 1), 4)
        shared = self.rows * self.parts * (3 if self.back else 2) * self.padded
        copies = 3 + self.ahead if self.back else 1
        tapes = copies * self.rows * self.parts * self.slots * self.per * 64
        words = mail + partial + matrix + sums + others + shared + tapes
        return 8 * (2 * self.k_warps + 4) + 4 * words

    @property
    def fits(self) -> bool:
        """Whether the kernel compiles and a multiprocessor has room for a block."""
        return (
            self.own % 16 == 0
            and self.own % (4 * self.parts) == 0
            and self.rows * self.parts <= self.warps - self.back  # a warp replays tapes
            and (self.parts == 1 or self.cell.value != NO_PRODUCT)
            and self.summed <= 32
            and self.out // 16 % self.row_warps == 0
            and self.inner % (32 * self.k_warps) == 0
            and self.shared_bytes <= SHARED_LIMIT
        )

    @property
    def cost(self) -> float:
        """A step's clocks, about; where it was not measured, as the dense engine's are."""
        products = self.out // 16 * self.inner // 16 / min(4, self.warps) * 6.2
        matrix = (self.fragments - self.kept) * self.warps * 4
        state = self.inner * MAX_ROWS * 2 * self.row_warps / 128
        partial = 1.5 * self.k_warps * self.rows * self.out * 8 / 128
        sums = self.rows * self.summed * self.padded * 4 * (2 if self.back else 1)
        sent = (self.inner * self.rows * 2 + sums) / INBOUND[self.cluster]
        # The walk: passes over the slots of a warp's channels, and sums over slots and channels.
        passes = 8 if self.back else 5
        walk = self.per * self.slots * (2 * passes + self.rows * self.parts) + 20 * self.padded
        return products + matrix + state + partial + 2 * HOP[self.cluster] + sent + walk

    @property
    def type(self) -> str:
        """The C++ type of the config."""
        numbers = (
            *(self.channels, self.slots, self.cluster, self.rows, self.parts),
            *(self.warps, self.row_warps, self.kept),
        )
        flags = (str(flag).lower() for flag in (self.back, self.ahead))
        arguments = ", ".join(map(str, (*numbers, *flags)))
        return f"elman::TapeClusterConfig<elman::{self.cell.type}, {arguments}>"

    def static_checks(self) -> str:
        """Return C++ text that compares the config ``G`` with what Python knows of it."""
        compared = {
            "G::SHARED_BYTES": self.shared_bytes,
            "G::THREADS": self.threads,
            "G::K": self.inner,
            "G::OUT": self.out,
        }
        return all_same(compared, "cluster_config.py", self.type)


@cache
def choose(
    cell: TapeRecurrence,
    channels: int,
    slots: int,
    batch: int,
    multiprocessors: int = MULTIPROCESSORS,
    *,
    back: bool,
) -> ClusterConfig | None:
    """Return how a pass runs, or None where no block has room for matrix and tapes.

    Args:
        cell: What is computed.
        channels: Channels of the state.
        slots: Of the tape.
        batch: Rows of the batch.
        multiprocessors: Of the GPU.
        back: Which pass.
    """
    at_once = clusters_at_once(multiprocessors)
    for warps in _WARPS:
        found: list[tuple[float, ClusterConfig]] = []
        for (cluster, most), waves in itertools.product(at_once.items(), _WAVES):
            rows = min(math.ceil(batch / most / waves), MAX_ROWS, warps - back)
            if rows < 1:
                continue
            passed = math.ceil(math.ceil(batch / rows) / most)
            padded = rounded_up(channels, max(32, 16 * cluster))
            config = ClusterConfig(cell, slots, padded, cluster, rows, 1, warps, 1, back)
            found += ((one.cost * passed, one) for one in _split(config))
        if found:
            return _ahead(min(found, key=lambda one: one[0])[1])
    return None


def _ahead(config: ClusterConfig) -> ClusterConfig:
    """Return a config that reads a round ahead where a block has room for one more tape.

    A write without a product, with one pair of channels in a lane, does not: the compiler spills
    then, however much of the matrix lies in shared memory.
    """
    spills = config.cell.value == NO_PRODUCT and config.per == 1
    more = replace(config, ahead=config.back and AHEAD and not spills)
    return more if more.fits else config


def _split(config: ClusterConfig) -> Iterator[ClusterConfig]:
    """Yield a config with its work shared out among the warps in every way that fits."""
    for parts, row_warps in itertools.product((1, 2, 4), (1, 2, 4, 8)):
        if row_warps <= config.warps:
            one = replace(config, parts=parts, row_warps=row_warps)
            if one.fits:
                yield one
