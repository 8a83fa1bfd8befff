"""How the warps of a block share the rows and columns of a product; csrc/cuda/decode mirrors it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

CHUNK = 256
"""Columns that a warp multiplies at once, 8 a lane."""


@dataclass(frozen=True)
class Share:
    """A product of one byte of some texts, dealt to the blocks of a grid.

    Args:
        outputs: Rows of the matrix.
        inputs: Its columns.
        texts: Texts.
        at_once: Rows whose outputs share a word.
        blocks: Blocks of the grid.
        warps: Warps of a block.
        most: Rows that a warp has at once.
    """

    outputs: int
    inputs: int
    texts: int
    at_once: int
    blocks: int
    warps: int
    most: int

    @cached_property
    def chunks(self) -> int:
        """Chunks of a row."""
        return _share(self.inputs, CHUNK)

    @cached_property
    def places(self) -> int:
        """Tasks of a block: as many rows as share a word."""
        return _share(_share(self.outputs, self.at_once), self.blocks)

    @cached_property
    def parts(self) -> int:
        """Warps that have the same rows: what gives each the least to do, and the fewest chunks."""
        return min(range(min(self.chunks, self.warps), 0, -1), key=self._work)

    def _work(self, parts: int) -> int:
        return _share(self.chunks, parts) * _share(self.places, self.warps // parts)

    @cached_property
    def groups(self) -> int:
        """Groups of warps that have the same columns."""
        return self.warps // self.parts

    @cached_property
    def held(self) -> int:
        """Tasks of a warp in a pass."""
        tasks = _share(self.places, self.groups)
        return _share(tasks, _share(tasks, self.most // self.at_once))

    @property
    def rows(self) -> int:
        """Rows of a block in a pass."""
        return self.held * self.groups * self.at_once

    @property
    def slot_bytes(self) -> int:
        """Shared memory for the weights of a pass."""
        return 2 * self.inputs * self.rows

    @property
    def partial_bytes(self) -> int:
        """Shared memory for the sums of all warps in a pass."""
        return 4 * 32 * self.chunks * self.rows * self.texts


def _share(count: int, among: int) -> int:
    return math.ceil(count / among)
