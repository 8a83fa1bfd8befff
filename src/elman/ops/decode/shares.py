"""How the blocks of a grid share the rows of a product; csrc/cuda/decode mirrors it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

CHUNK = 128
"""Columns that a warp multiplies at once."""


@dataclass(frozen=True)
class Share:
    """A product of one byte of some texts, dealt to the blocks of a grid.

    Args:
        outputs: Rows of the matrix.
        inputs: Its columns.
        texts: Texts.
        at_once: Rows whose outputs share a word.
        blocks: Blocks of the grid.
        pass_rows: Most rows that a block multiplies in a pass.
    """

    outputs: int
    inputs: int
    texts: int
    at_once: int
    blocks: int
    pass_rows: int

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return _share(self.inputs, CHUNK)

    @property
    def tasks(self) -> int:
        """Tasks of a block: as many rows as share a word."""
        return _share(_share(self.outputs, self.at_once), self.blocks)

    @property
    def passes(self) -> int:
        """Passes of a block."""
        return _share(self.tasks, self.pass_rows // self.at_once)

    @cached_property
    def rows(self) -> int:
        """Rows of a block in a pass."""
        return _share(self.tasks, self.passes) * self.at_once

    @property
    def slot_bytes(self) -> int:
        """Shared memory for the weights of a pass, whose rows are apart by 64 bytes and 128 n."""
        return 2 * (self.inputs + (96 - self.inputs % 64) % 64) * self.rows

    @property
    def partial_bytes(self) -> int:
        """Shared memory for the sums of all warps in a pass."""
        return 4 * self.chunks * self.rows * self.texts


def _share(count: int, among: int) -> int:
    return math.ceil(count / among)
