"""Reads the micro-batches of an optimizer step: all of them, or none."""

from __future__ import annotations

import time
from typing import NamedTuple

from elman.base.errors import UserError
from elman.data.ahead import Rows
from elman.data.batches import AnyBatches, StreamBatches, TokenStreamBatches


class MicroBatch(NamedTuple):
    """A rank's rows, and whether they start without recurrent states."""

    rows: Rows
    restarted: bool


class MicroBatches:
    """The micro-batches of one step after another.

    Args:
        batches: Where they come from.
        grad_accum: Micro-batches of a step.

    Attributes:
        wait: Seconds spent waiting for data so far.
        bytes: What the predicted tokens of this rank stand for in this session, if they are no
            bytes themselves.
    """

    def __init__(self, batches: AnyBatches, grad_accum: int) -> None:
        self._batches, self._grad_accum = batches, grad_accum
        self._streams = isinstance(batches, StreamBatches | TokenStreamBatches)
        self.wait = 0.0
        self.bytes = 0

    def of_step(self) -> list[MicroBatch]:
        """Return the micro-batches of the next step.

        Raises:
            UserError: one cannot be read; then none counts as read.
        """
        before, size = self._batches.state_dict(), self.bytes
        read: list[MicroBatch] = []
        for _ in range(self._grad_accum):
            try:
                rows = self._next_rows()
                read.append(MicroBatch(rows, self._streams and self._batches.restarted))
            except (UserError, OSError):
                if read:
                    self._batches.load_state_dict(before)
                self.bytes = size
                raise
        return read

    def _next_rows(self) -> Rows:
        began = time.perf_counter()
        rows = self._batches.next()
        self.wait += time.perf_counter() - began
        if (lengths := self._batches.token_lengths) is not None:
            self.bytes += int(lengths[rows[:, 1:]].sum())
        return rows
