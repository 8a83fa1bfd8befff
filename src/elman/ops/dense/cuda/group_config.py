"""How a dense recurrence runs as groups of blocks, as csrc/cuda/dense/group.cuh computes it.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

from elman.ops.common.abi_check import all_same
from elman.ops.common.cuda.clusters import MULTIPROCESSORS, rounded_up
from elman.ops.dense.recurrences import DenseRecurrence

SHARED_LIMITS = {
    **dict.fromkeys([(8, 0), (8, 7)], 163 << 10),
    **dict.fromkeys([(8, 6), (8, 9), (12, 0)], 99 << 10),
    **dict.fromkeys([(9, 0), (10, 0)], 227 << 10),
}
"""By compute capability: bytes of shared memory that a block may have."""
MAX_ROWS = 32
"""Rows of the batch for a group."""
FLAG_STRIDE = 8
"""Words from one block's flag to the next."""
_REGISTERS = 65536
_STAGES = (6, 4, 3, 2)
_WARPS = (8, 10, 12, 7, 6, 5, 4, 2, 1)
_OWN = (16, 32, 48, 64, 80, 96, 112, 128)
_MOST_TILES = 16  # of a warp: each takes four registers for sums
_AHEAD = 6

# Of an H200 at 1.8 GHz, on the careful side: steps measured there took 0.45 to 1.1 times as long as
# these numbers say (docs/performance.md).
_CLOCK = 1.8e3
"""Clocks in a microsecond."""
_HAND_OVER = 2200
"""Clocks from a word's store to its load by another block, with the flag and two barriers."""
_INBOUND, _INBOUND_OF_ALL = 48, 2500
"""Bytes that a block, and all blocks together, read from the second-level cache in a clock."""
# Of a step that is a product by cuBLAS and a kernel, replayed as a graph: fitted to what the
# prototype measured at 512 to 1,536 channels and 32 rows.
_LAUNCH_US = 1.9
_MATRIX_BYTES_PER_US = 2.83e6
_FLOP_PER_US = 4e8


class Machine(NamedTuple):
    """What the choice depends on.

    Args:
        multiprocessors: Of the GPU.
        shared_limit: Bytes of shared memory that a block may have.
    """

    multiprocessors: int = MULTIPROCESSORS
    shared_limit: int = SHARED_LIMITS[9, 0]


@dataclass(frozen=True)
class GroupConfig:
    """All that a translation unit is compiled for.

    Args:
        cell: What is computed.
        channels: Channels of the state and zeros, such that every block has 16 or a multiple.
        group: Blocks of a group.
        rows: Rows of the batch for a group; above 8 they are multiples of 8.
        warps: Warps of a block.
        stages: Steps whose inputs are in shared memory or on their way.
        back: Which pass.
        resets: Whether rows may begin anew, from zeros.
    """

    cell: DenseRecurrence
    channels: int
    group: int
    rows: int
    warps: int
    stages: int
    back: bool
    resets: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def own(self) -> int:
        """Channels of a block."""
        return self.channels // self.group

    @property
    def inner(self) -> int:
        """Columns of the block's matrix."""
        return self.cell.blocks * self.channels if self.back else self.channels

    @property
    def out(self) -> int:
        """Rows of the block's matrix."""
        return self.own if self.back else self.cell.blocks * self.own

    @property
    def tiles(self) -> int:
        """Tiles of 16 rows of the matrix, all of which every warp multiplies."""
        return self.out // 16

    @property
    def row_tiles(self) -> int:
        """Products of a step: each takes up to eight rows of the batch."""
        return -(-self.rows // 8)

    @property
    def fragments(self) -> int:
        """Fragments of the matrix that a thread has, of four registers each."""
        return self.tiles * self.inner // self.warps // 16

    @property
    def inputs(self) -> int:
        """Sequences that a pass reads at every step."""
        cell = self.cell
        if not self.back:
            return cell.blocks + cell.others
        return 1 + cell.new + cell.old + cell.memo + cell.kept

    @property
    def passes(self) -> int:
        """Rows of the batch in which a thread has a pair of channels."""
        at_once = min(self.rows, max(1, self.threads // (self.own // 2)))
        return -(-self.rows // at_once)

    @cached_property
    def kept(self) -> int:
        """Fragments that it has in registers: as many as leave room for everything else."""
        limit = min(255, _REGISTERS // (32 * rounded_up(self.warps, 4)) // 8 * 8)
        ahead = min(_AHEAD, self.row_tiles * self.inner // self.warps // 32)
        cell = self.cell
        words = cell.blocks + cell.others if self.back else 1 + cell.memo
        pairs = self.passes * (words + 2 * cell.states + 4 * self.resets)
        free = limit - (62 + 2 * self.inputs + 4 * self.tiles + 4 * ahead + pairs)
        return self.fragments if 4 * self.fragments <= free else max(0, (free - 14) // 4)

    @property
    def exchanged(self) -> int:
        """Numbers that a group exchanges for a step."""
        return self.inner * self.rows

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        partial = self.warps * self.rows * (self.out + 4)
        matrix = (self.fragments - self.kept) * self.warps * 128
        stage = self.passes * self.inputs * self.threads
        return 4 * (partial + matrix + self.stages * stage)

    def fits(self, shared_limit: int) -> bool:
        """Return whether the kernel compiles and a multiprocessor has room for a block."""
        return (
            self.own % 16 == 0
            and self.inner % (32 * self.warps) == 0
            and self.threads >= self.own // 2
            and self.tiles <= _MOST_TILES
            and self.shared_bytes <= shared_limit
        )

    def at_once(self, multiprocessors: int) -> int:
        """Return how many groups run at the same time."""
        return multiprocessors // self.group

    def launches(self, batch: int, multiprocessors: int) -> int:
        """Return how many launches walk all rows of a batch."""
        return -(-batch // (self.rows * self.at_once(multiprocessors)))

    @property
    def clocks(self) -> float:
        """Clocks of a step, about."""
        kept_waiting = rounded_up(self.warps, 4) / self.warps  # four schedulers
        products = self.out // 16 * self.inner // 16 / 4 * 6.2 * kept_waiting
        matrix = (self.fragments - self.kept) * self.warps * 4
        partial = 1.5 * self.warps * self.rows * self.out * 8 / 128
        state = self.exchanged * 2
        inbound = max(state / _INBOUND, state * self.group / _INBOUND_OF_ALL)
        return (products + matrix) * self.row_tiles + partial + _HAND_OVER + inbound

    @property
    def type(self) -> str:
        """The C++ type of the config."""
        numbers = (self.channels, self.group, self.rows, self.warps, self.kept, self.stages)
        flags = (str(flag).lower() for flag in (self.back, self.resets))
        arguments = ", ".join([*map(str, numbers), *flags])
        return f"elman::DenseGroupConfig<elman::GroupCell, {arguments}>"

    def static_checks(self) -> str:
        """Return C++ text that compares the config ``G`` with what Python knows of it."""
        compared = {
            "G::SHARED_BYTES": self.shared_bytes,
            "G::THREADS": self.threads,
            "G::K": self.inner,
            "G::OUT": self.out,
            "2 * G::HALF": self.exchanged,
            "elman::Flags::STRIDE": FLAG_STRIDE,
        }
        return all_same(compared, "group_config.py", self.cell.type)


@cache
def choose(
    cell: DenseRecurrence,
    channels: int,
    batch: int,
    machine: Machine,
    *,
    back: bool,
    resets: bool = False,
) -> GroupConfig | None:
    """Return how a pass runs, or None where all blocks together have no room for the matrix.

    Args:
        cell: What is computed.
        channels: Channels of the state.
        batch: Rows of the batch.
        machine: The GPU.
        back: Which pass.
        resets: Whether rows may begin anew.
    """

    def cost(config: GroupConfig) -> float:
        return config.clocks * config.launches(batch, machine.multiprocessors)

    every = _every(GroupConfig(cell, channels, 1, 1, 1, 2, back, resets), batch, machine)
    return min(every, key=cost, default=None)


def _every(wanted: GroupConfig, batch: int, machine: Machine) -> Iterator[GroupConfig]:
    """Yield every config that fits, with the rows that share a batch out evenly."""
    for own in _OWN:
        for warps in _WARPS:
            padded = rounded_up(wanted.channels, math.lcm(own, 32 * warps))
            group = padded // own
            at_once = machine.multiprocessors // group
            if not at_once:
                continue
            config = replace(wanted, channels=padded, group=group, warps=warps)
            for launches in range(1, 5):
                least = -(-batch // (at_once * launches))
                rows = least if least <= 8 else min(MAX_ROWS, rounded_up(least, 8))
                every = (replace(config, rows=rows, stages=n) for n in _STAGES)
                if one := next((one for one in every if one.fits(machine.shared_limit)), None):
                    yield one


def microseconds(config: GroupConfig, batch: int, multiprocessors: int) -> float:
    """Return how long a step of all rows takes as groups, about."""
    return config.clocks * config.launches(batch, multiprocessors) / _CLOCK


def stepwise_microseconds(cell: DenseRecurrence, channels: int, batch: int, rank: int) -> float:
    """Return how long a step takes as a product and a kernel of a replayed graph, about."""
    width = (1 + cell.blocks) * rank if rank else cell.blocks * channels
    launches, numbers = (3 if rank else 2), width * channels
    work = max(2 * numbers / _MATRIX_BYTES_PER_US, 2 * batch * numbers / _FLOP_PER_US)
    return launches * _LAUNCH_US + work
