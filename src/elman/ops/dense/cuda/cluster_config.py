"""How a dense recurrence runs as thread-block clusters, as csrc/cuda/dense/cluster.cuh computes it.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
from elman.ops.dense.recurrences import DenseRecurrence

_REGISTERS = 65536
_STAGES = (8, 6, 4, 3, 2)
_SUM = 250
"""Clocks of a sum over the channels of a block, and over blocks, beside the exchange; a guess."""


@dataclass(frozen=True)
class Product:
    """A product of every step, as a block multiplies it.

    Args:
        out: Rows of the block's matrix.
        inner: Its columns.
        rows: Rows of the batch for a cluster.
        warps: Warps of a block.
        row_warps: Groups of warps that share the rows of the block's matrix.
    """

    out: int
    inner: int
    rows: int
    warps: int
    row_warps: int

    @property
    def k_warps(self) -> int:
        """Warps that share the columns."""
        return self.warps // self.row_warps

    @property
    def tiles(self) -> int:
        """Tiles of 16 rows that a warp multiplies."""
        return self.out // 16 // self.row_warps

    @property
    def fragments(self) -> int:
        """Fragments of the matrix that a thread has, of four registers each."""
        return self.tiles * self.inner // self.k_warps // 16

    @property
    def mail(self) -> int:
        """Words that are delivered to a block for it."""
        return self.inner // 32 * self.rows * 16

    @property
    def partial(self) -> int:
        """Room for sums of the warps, in numbers."""
        return self.k_warps * self.rows * (self.out + 4)

    @property
    def fits(self) -> bool:
        """Whether warps can share it."""
        return self.out // 16 % self.row_warps == 0 and self.inner % (32 * self.k_warps) == 0

    def cost(self, cluster: int) -> float:
        """Clocks from a delivery to the next one, about, without fragments in shared memory."""
        kept_waiting = rounded_up(self.warps, 4) / self.warps  # four schedulers
        products = self.out // 16 * self.inner // 16 / 4 * 6.2 * kept_waiting
        state = self.inner * MAX_ROWS * 2 * self.row_warps / 128
        # What goes through the block's barrier costs more than its bytes.
        partial = 1.5 * self.k_warps * self.rows * self.out * 8 / 128
        exchange = HOP[cluster] + self.inner * self.rows * 2 / INBOUND[cluster]
        return products + state + partial + exchange


@dataclass(frozen=True)
class ClusterConfig:
    """All that a translation unit is compiled for.

    Args:
        cell: What is computed.
        channels: Channels of the state and zeros, such that every block has 16 or a multiple.
        cluster: Blocks of a cluster.
        rows: Rows of the batch for a cluster.
        warps: Warps of a block.
        row_warps: Groups of warps that share the rows of the block's matrix.
        stages: Steps whose inputs are in shared memory or on their way.
        back: Which pass.
        resets: Whether it knows resets.
        heads: Of a block-diagonal matrix; everything else is of one head.
    """

    cell: DenseRecurrence
    channels: int
    cluster: int
    rows: int
    warps: int
    row_warps: int
    stages: int
    back: bool
    resets: bool = False
    heads: int = 1

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
    def first(self) -> Product:
        """The product with R."""
        return self._product(self.out, self.inner)

    @property
    def second(self) -> Product | None:
        """The product with U, of a GRU."""
        return self._product(self.own, self.channels) if self.cell.extra else None

    def _product(self, out: int, inner: int) -> Product:
        return Product(out, inner, self.rows, self.warps, self.row_warps)

    @property
    def products(self) -> list[Product]:
        """The products of a step."""
        return [self.first, *([self.second] if self.second else [])]

    @property
    def fragments(self) -> int:
        """Fragments of the matrices that a thread has, of four registers each."""
        return sum(product.fragments for product in self.products)

    @cached_property
    def kept(self) -> int:
        """Fragments that it has in registers: as many as leave room for everything else."""
        limit = min(255, _REGISTERS // (32 * rounded_up(self.warps, 4)) // 8 * 8)
        free = limit - (44 + 4 * self.cell.blocks + 2 * self.inputs + 4 * self.first.tiles)
        free -= 4 * self.cell.extra + 2 * self._passes * max(0, self.cell.states - 2)
        # Those that do not fit are loaded from shared memory some time before their use.
        return self.fragments if 4 * self.fragments <= free else max(0, (free - 14) // 4)

    @property
    def inputs(self) -> int:
        """Sequences that a pass reads at every step."""
        cell = self.cell
        if not self.back:
            return cell.blocks + cell.others
        return 1 + (cell.new or cell.norm) + cell.old + cell.memo + cell.kept

    @property
    def _passes(self) -> int:
        """Rows that a thread walks, with a pair of channels in each."""
        at_once = min(self.rows, max(1, self.threads // (self.own // 2)))
        return -(-self.rows // at_once)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        sums = self.cell.norm and self.back  # over channels, exchanged too
        k_warps = self.first.k_warps
        boxes = rounded_up((2 * k_warps + sums) * 8, 16)
        halves = [self.first, self.second or self.first]
        mail, partial = sum(one.mail for one in halves), sum(one.partial for one in halves)
        matrix = (self.fragments - self.kept) * self.warps * 128
        stage = self._passes * self.inputs * self.threads
        left, told = self.rows * self.own // 16, 2 * self.rows * self.cluster
        exchanged = sums * (rounded_up(left, 4) + rounded_up(told, 4))
        return boxes + 4 * (mail + partial + matrix + self.stages * stage + exchanged)

    @property
    def fits(self) -> bool:
        """Whether the kernel compiles and a multiprocessor has room for a block."""
        return (
            self.own % 16 == 0
            and all(product.fits for product in self.products)
            and self.threads >= self.own // 2
            and (self.warps <= 8 or self.kept == self.fragments or not self.cell.extra)  # spills
            and self.shared_bytes <= SHARED_LIMIT
        )

    @property
    def cost(self) -> float:
        """A step's clocks, about: they tell configs apart as measurements did."""
        cost = (self.fragments - self.kept) * self.warps * 4.0
        cost += sum(product.cost(self.cluster) for product in self.products)
        if self.cell.norm and self.back:
            cost += HOP[self.cluster] + _SUM
        return cost

    @property
    def type(self) -> str:
        """The C++ type of the config."""
        numbers = (self.channels, self.cluster, self.rows, self.warps, self.row_warps, self.kept)
        flags = (str(flag).lower() for flag in (self.back, self.resets))
        heads = (self.heads,) if self.heads > 1 else ()
        arguments = ", ".join(map(str, (*numbers, self.stages, *flags, *heads)))
        return f"elman::DenseClusterConfig<elman::ClusterCell, {arguments}>"

    def static_checks(self) -> str:
        """Return C++ text that compares the config ``G`` with what Python knows of it."""
        compared = {
            "G::SHARED_BYTES": self.shared_bytes,
            "G::THREADS": self.threads,
            "G::K": self.inner,
            "G::OUT": self.out,
            "G::INPUTS": self.inputs,
        }
        return all_same(compared, "cluster_config.py", self.cell.type)


@cache
def choose(
    cell: DenseRecurrence,
    channels: int,
    batch: int,
    multiprocessors: int = MULTIPROCESSORS,
    *,
    back: bool,
    resets: bool = False,
    heads: int = 1,
) -> ClusterConfig | None:
    """Return how a pass runs, or None where no block has room for its part of the matrix.

    Args:
        cell: What is computed.
        channels: Channels of the state, those of one head.
        batch: Rows of the batch.
        multiprocessors: Of the GPU.
        back: Which pass.
        resets: Whether it knows resets.
        heads: Of a block-diagonal matrix; each head has clusters of its own.
    """
    every = []
    for cluster, n in clusters_at_once(multiprocessors).items():
        rows = min(MAX_ROWS, math.ceil(batch / max(1, n // heads)))
        if best := _best(cell, channels, rows, cluster, back, resets, heads):
            waves = math.ceil(heads * math.ceil(batch / rows) / n) if heads > 1 else 1
            every.append((best.cost * waves, best))
    return min(every, key=lambda one: one[0], default=(0.0, None))[1]


def _best(
    cell: DenseRecurrence,
    channels: int,
    rows: int,
    cluster: int,
    back: bool,
    resets: bool,
    heads: int,
) -> ClusterConfig | None:
    padded = rounded_up(channels, max(32, 16 * cluster))
    config = ClusterConfig(cell, padded, cluster, rows, 8, 1, 2, back, resets, heads)
    many, few = _split(config, (8, 10, 12)), _split(config, (4, 5, 6, 7))
    return min(many, key=_cost, default=None) or min(few, key=_cost, default=None)


def _cost(config: ClusterConfig) -> float:
    return config.cost


def _split(config: ClusterConfig, numbers: Sequence[int]) -> Iterator[ClusterConfig]:
    """Yield a config with its work shared out among these numbers of warps in every way."""
    for warps in numbers:
        for row_warps in (n for n in range(1, warps + 1) if warps % n == 0):
            every = (replace(config, warps=warps, row_warps=row_warps, stages=n) for n in _STAGES)
            if one := next((one for one in every if one.fits), None):
                yield one
