"""How a plan of the channel engine runs on a GPU, as csrc/cuda/channel/tiles.cuh computes it."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, replace

import torch

from elman.base.errors import UserError
from elman.ops.channel.abi import MAX_SLOTS, SEQUENCE_WORDS, WORDS, layouts
from elman.ops.channel.plan import Plan
from elman.ops.common.abi_check import all_same

LANES = 32
_SIZE = len(SEQUENCE_WORDS)
_READ = tuple(range(WORDS["x"], WORDS["x"] + _SIZE * MAX_SLOTS, _SIZE))
_READ_BACK = (*_READ, WORDS["dy"])
"""The first words of the sequences that a pass copies."""


@dataclass(frozen=True)
class Tuning:
    """Sizes that change no number but the time and the memory that a call takes.

    Args:
        steps: Steps of a tile, which are also those between two checkpoints; a multiple of 8, at
            most 32. All that the backward pass computes of them stays in registers.
        stages: Tiles of a sequence in shared memory, all but one of them in flight.
        warps: Warps of a block.
    """

    steps: int = 16
    stages: int = 3
    warps: int = 2


@dataclass(frozen=True)
class TileConfig:
    """All that a translation unit is compiled for.

    Args:
        plan: What is computed.
        io: Dtype of the sequences.
        state: Dtype of everything else.
        tuning: Sizes.
        unit: Bytes of a copy into shared memory.
        per: Channels of a thread where a block owns all channels of a sequence, as a step with a
            norm needs it (csrc/cuda/channel/rows.cuh); 0: every warp owns 32 channels.
        resets: Whether some steps begin with a state of zeros.
    """

    plan: Plan
    io: torch.dtype
    state: torch.dtype
    tuning: Tuning = Tuning()
    unit: int = 16
    per: int = 0
    resets: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return LANES * self.tuning.warps

    def shared_bytes(self, backward: bool) -> int:
        """Return the shared memory of a block in a pass over time."""
        if self.per:
            return self._shared_of_rows(backward)
        number = self.io.itemsize
        row = (LANES + (number < self.unit == 4)) * number
        row += -row % self.unit
        scale = self.state.itemsize if self.plan.unit is not None else 0
        step = (len(self.plan.slices()) + backward) * row + scale
        return self.tuning.warps * self.tuning.stages * self.tuning.steps * step

    def _shared_of_rows(self, backward: bool) -> int:
        """Return the same where a block owns whole rows."""
        number, wide = self.io.itemsize, self.state.itemsize
        row = (self.per * self.threads + (number < self.unit == 4)) * number
        row += -row % self.unit
        scale = wide if self.plan.unit is not None else 0
        stage = (len(self.plan.slices()) + backward) * row + scale
        stage += -stage % 16
        sums, norms = 2 * self.tuning.warps * wide, backward * 2 * self.tuning.steps * wide
        return self.tuning.stages * stage + sums + -sums % 16 + norms + -norms % 16


MAX_SHARED = 99 * 1024
"""Bytes of shared memory that a block may have on every GPU of compute capability 8.0 or later."""
_STAGES = (6, 5, 4, 3)
# Channels up to which a thread has so many of them: the fewer warps, the shorter is the sum over
# the block. Up to 4096 channels, everything stays in registers.
_PER = {256: 1, 512: 2, 2048: 4, 8192: 8}


def row_config(tile_config: TileConfig, channels: int) -> TileConfig:
    """Return how a step with a norm over so many channels runs: a block for every sequence.

    Raises:
        UserError: a block has no room for so many channels.
    """
    per = next((per for most, per in _PER.items() if channels <= most), 0)
    if per:
        warps = math.ceil(channels / (per * LANES))
        for stages in _STAGES:
            tuning = replace(tile_config.tuning, stages=stages, warps=warps)
            found = replace(tile_config, tuning=tuning, per=per)
            if found.shared_bytes(backward=True) <= MAX_SHARED:
                return found
    raise UserError(
        f"kernels.backend=cuda: step {tile_config.plan.step} has a norm over {channels} channels, "
        f"more than a block has room for in {tile_config.io}; use kernels.backend=reference or a "
        "narrower model"
    )


def copy_unit(words: array[int], io: torch.dtype, backward: bool) -> int:
    """Return the bytes of the widest copies that the sequences of a call are aligned to.

    Args:
        words: The call's arguments.
        io: Dtype of its sequences.
        backward: Which pass.
    """
    number, places, distances = io.itemsize, 0, 0
    for at in _READ_BACK if backward else _READ:
        places |= words[at]
        distances |= words[at + 1] | words[at + 2]
    even = (places | distances * number) % 16 == 0
    return 16 if even else max(4, number)


def static_checks(tile_config: TileConfig) -> str:
    """Return C++ text that compares a translation unit with what Python knows of it."""
    compared: dict[str, int] = {"G::THREADS": tile_config.threads} | {
        f"G::shared_bytes({word})": tile_config.shared_bytes(word == "true")
        for word in ("false", "true")
    }
    return layouts() + all_same(compared, "tile_config.py", tile_config.plan.step)
