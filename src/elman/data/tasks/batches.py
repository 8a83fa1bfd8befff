"""The rows of a run that learns a task: for training, validation and the test.

NumPy only; no torch. A training row is a pure function of (seed, number of its batch, number of its
row); validation and test rows are the same in every run of a task.

Shapes: B rows (``batch_size``), b rows (at most B), T positions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

import numpy as np

from elman.base.closing import Closing
from elman.base.errors import UserError
from elman.data.ahead import AheadBatches
from elman.data.files import Bytes
from elman.data.tasks.draws import Draws
from elman.data.tasks.table import make_rows
from elman.sections.tasks import TaskConfig

ROWS_VERSION = 1
"""Counts up whenever the same settings give other rows."""
_TRAIN, _VALIDATION, _TEST = 1, 2, 3
# Positions that are made at once: a row costs as much as a batch, since Python runs once for each.
_BLOCK_POSITIONS = 2**19
_MOST_BATCHES = 256


class TaskData(Closing):
    """A task as the data of a run; it takes the place of :class:`~elman.data.text.Data`.

    Args:
        config: Group ``data``.
    """

    tokenizer: ClassVar[None] = None

    def __init__(self, config: TaskConfig) -> None:
        self.config = config

    @property
    def label(self) -> str:
        """What to call it."""
        return f"task {self.config.task}"

    def describe(self) -> dict[str, Any]:
        """Return its settings and its identity; as of text, but there are no bytes."""
        config = self.config
        return {
            "task": config.task,
            "settings": config.difficulty(),
            "definition": config.definition,
            "vocabulary": config.vocabulary,
            "paths": [],
            **self.identity(),
        }

    def identity(self) -> dict[str, str | int | None]:
        """Return what identifies the rows, in the form of a text's identity."""
        kept = {"task": self.config.task, **self.config.difficulty(), "rows": ROWS_VERSION}
        text = json.dumps(kept, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return {"bytes": None, "sha256": digest, "sample_sha256": None, "train_bytes": None}

    def validation_rows(self, length: int, count: int, batch_size: int) -> Iterator[Bytes]:
        """Yield the rows of a validation in batches: uint8 [b, 2, T]."""
        return self._fixed(_VALIDATION, length, count, batch_size)

    def test_rows(self, length: int, batch_size: int) -> Iterator[Bytes]:
        """Yield the test's rows of one length in batches: uint8 [b, 2, T]."""
        return self._fixed(_TEST, length, self.config.test_rows, batch_size)

    def close(self) -> None:
        """Nothing is open."""

    def _fixed(self, split: int, length: int, count: int, batch_size: int) -> Iterator[Bytes]:
        for first in range(0, count, batch_size):
            rows_b = np.arange(first, min(first + batch_size, count), dtype=np.int64)
            yield make_rows(self.config, Draws((0, split, length), rows_b), length)


class TaskBatches(AheadBatches):
    """Training batches of a task; a block of them is made ahead. Rows never continue a batch.

    Args:
        data: The task.
        batch_size: B.
        length: T.
        seed: Seed of the rows.
    """

    kind = "rows of a task"

    def __init__(self, data: TaskData, batch_size: int, length: int, seed: int) -> None:
        super().__init__()
        self._config, self._batch_size = data.config, batch_size
        self._length, self._seed = length, seed
        per_block = _BLOCK_POSITIONS // (batch_size * length)
        self._per_block = min(max(1, per_block), _MOST_BATCHES)
        self._number = 0
        self._start()

    def next(self) -> Bytes:
        """Return the next batch: uint8 [B, 2, T], inputs and targets."""
        if self._number == self._first + len(self._block):
            self._take()
        batch: Bytes = self._block[self._number - self._first]
        self._number += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from: how many batches were taken."""
        return {"kind": self.kind, "batches": self._number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`.

        Raises:
            UserError: the state is of batches of text.
        """
        if state["kind"] != self.kind:
            raise UserError(
                f"data={self._config.task}: the run to resume read its data as {state['kind']}; "
                "start a new run"
            )
        self._number = state["batches"]
        self._start()

    def _start(self) -> None:
        """Begin a short block at the next batch: the first step must not wait for a long one."""
        self._pending: Future[Bytes] = self._maker.submit(self._made, self._number, 1)
        self._pending_first = self._number
        self._take()

    def _take(self) -> None:
        """Take the block that was made ahead, and let the one after it be made."""
        self._block, self._first = self._pending.result(), self._pending_first
        self._pending_first = self._first + len(self._block)
        self._pending = self._maker.submit(self._made, self._pending_first, self._per_block)

    def _made(self, first: int, count: int) -> Bytes:
        """Return ``count`` batches: uint8 [count, B, 2, T]."""
        batches = np.repeat(np.arange(first, first + count, dtype=np.int64), self._batch_size)
        row = np.tile(np.arange(self._batch_size, dtype=np.int64), count)
        draws = Draws((self._seed, _TRAIN), batches << 24 | row)
        rows = make_rows(self._config, draws, self._length)
        return rows.reshape(count, self._batch_size, 2, self._length)
