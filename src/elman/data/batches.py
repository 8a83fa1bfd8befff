"""The training batches of a run.

NumPy only; no torch. The same seed gives the same order of data whatever the model.

Shapes: B rows, b rows (at most B), T predicted tokens in a row (``chunk_size``). A row has T + 1
tokens, so that every predicted one has its predecessor in the row. A token is a byte unless the
data has a tokenizer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from elman.base.errors import UserError
from elman.data.ahead import AheadBatches, Rows
from elman.data.files import Offsets
from elman.data.tasks.batches import TaskBatches, TaskData
from elman.data.text import AnyRunData, Data
from elman.data.token_windows import Cursor, TokenReader
from elman.data.tokenizers.tokenizer import Ids
from elman.sections.training import TrainConfig


class Batches(AheadBatches):
    """Training batches of text; the next one is read ahead, so a slow disk stalls no step.

    Args:
        data: The run's data; rows stay inside its training part.
        batch_size: B.
        chunk_size: T.
        seed: Seed of the positions.
        rows: Rows of each batch to read; the others belong to other ranks. Positions are drawn for
            all B rows, so that a row depends on the seed, the step and its number alone.
    """

    def __init__(
        self,
        data: Data,
        batch_size: int,
        chunk_size: int,
        seed: int,
        rows: slice = slice(None),
    ) -> None:
        super().__init__()
        self._rows = rows
        self._source = data.source
        self._tokens = (
            None
            if data.tokenizer is None
            else TokenReader(data.source, data.train_bytes, data.tokenizer)
        )
        self._chunk_size = chunk_size
        self._batch_size = batch_size
        if data.tokenizer is not None and self._tokens is not None:
            self.token_lengths = data.tokenizer.lengths
            self.bytes_per_token = self._tokens.bytes_per_token
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._pending: Future[tuple[Rows, bool]]

    def next(self) -> Rows:
        """Return the next batch: [b, T+1], a new array that belongs to the caller.

        It has this rank's rows, all B without ranks. Bytes are uint8, other tokens int32.

        Raises:
            UserError: a file became shorter than it was when opened.
        """
        batch, self.restarted = self._pending.result()
        self._prepare()
        return batch

    def close(self) -> None:
        """See :class:`~.ahead.AheadBatches`."""
        super().close()
        if self._tokens is not None:
            self._tokens.close()

    def state_dict(self) -> dict[str, Any]:
        """See :class:`~.ahead.AheadBatches`."""
        return self._state_before_pending

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`; the batch that was read ahead is dropped.

        Raises:
            UserError: the state is of the other kind of batches, or does not fit these streams.
        """
        if state["kind"] != self.kind:
            was_tbptt = str(state["kind"] != RandomBatches.kind).lower()
            raise UserError(
                f"train.tbptt: the run to resume read its data as {state['kind']}, not as "
                f"{self.kind}; resume with train.tbptt={was_tbptt}"
            )
        wait([self._pending])  # it may still move on in the data
        self._restore(state)
        self._generator.bit_generator.state = state["generator"]
        self._prepare()

    def _prepare(self) -> None:
        """Draw the positions of the batch after this one and start to read it."""
        generator = dict(self._generator.bit_generator.state)
        self._state_before_pending = {"kind": self.kind, "generator": generator} | self._state()
        self._pending = self._maker.submit(self._work())

    def _work(self) -> Callable[[], tuple[Rows, bool]]:
        """Draw positions; return what reads their rows."""
        offsets_b, restarts = self._draw()
        return partial(self._read, offsets_b[self._rows], restarts)

    def _read(self, offsets_b: Offsets, restarts: bool) -> tuple[Rows, bool]:
        """Return the rows at these positions, and whether they restart."""
        reader = self._source if self._tokens is None else self._tokens
        return reader.gather(offsets_b, self._chunk_size + 1), restarts

    def _draw(self) -> tuple[Offsets, bool]:
        """Return the offsets of the next rows, and whether they restart."""
        raise NotImplementedError

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Return the state besides the generator's."""

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None:
        """Continue from a result of :meth:`_state` if it fits."""


class RandomBatches(Batches):
    """Rows at random positions, uniform over all positions where T + 1 training bytes fit.

    Rows are independent, and the separator between documents is a byte like any other
    (lm-and-training specification, section 3). Rows of other tokens begin at a safe cut behind such
    a position, as :mod:`elman.data.token_windows` says, and have T + 1 tokens, whatever bytes these
    need.

    Args:
        data: The run's data; rows stay inside its training part.
        batch_size: B.
        chunk_size: T.
        seed: Seed of the positions.
        rows: As :class:`Batches`.
    """

    kind = "random positions"

    def __init__(
        self,
        data: Data,
        batch_size: int,
        chunk_size: int,
        seed: int,
        rows: slice = slice(None),
    ) -> None:
        super().__init__(data, batch_size, chunk_size, seed, rows)
        self._n_starts = data.train_bytes - (chunk_size if data.tokenizer is None else 0)
        assert self._n_starts > 0, "open_data makes sure that one row fits"
        self._prepare()

    def _draw(self) -> tuple[Offsets, bool]:
        return self._generator.integers(self._n_starts, size=self._batch_size), True

    def _state(self) -> dict[str, Any]:
        return {}

    def _restore(self, state: dict[str, Any]) -> None:
        pass


class StreamBatches(Batches):
    """B contiguous streams, for truncated backpropagation through time with carried states.

    The training part is cut into B equal segments. Row i moves through segment i by T bytes per
    batch and reads T + 1, so that each byte is predicted once. All rows start at the same random
    offset in the first tenth of their segments (or in the first T bytes if that is more and they
    fit). They reach the end together. Then they restart at a new random offset, and ``restarted``
    is true.

    Args:
        data: The run's data; streams stay inside its training part.
        batch_size: B.
        chunk_size: T.
        seed: Seed of the starting offsets.
        rows: As :class:`Batches`.

    Raises:
        UserError: the training part is too short for B segments of T + 1 bytes.
    """

    kind = "streams"

    def __init__(
        self,
        data: Data,
        batch_size: int,
        chunk_size: int,
        seed: int,
        rows: slice = slice(None),
    ) -> None:
        self._segment = data.train_bytes // batch_size
        if self._segment < chunk_size + 1:
            raise UserError(
                f"{data.source.setting}={data.source.label}: {data.train_bytes} bytes to train on, "
                f"but {batch_size} streams of train.chunk_size={chunk_size} need "
                f"{batch_size * (chunk_size + 1)}; set train.batch_size="
                f"{data.train_bytes // (chunk_size + 1)} or less, or name more text"
            )
        super().__init__(data, batch_size, chunk_size, seed, rows)
        self._bases_b = np.arange(batch_size, dtype=np.int64) * self._segment
        self._position = self._segment
        self._prepare()

    def _draw(self) -> tuple[Offsets, bool]:
        last_start = self._segment - self._chunk_size - 1
        if restarts := self._position > last_start:
            n_places = min(max(self._segment // 10, self._chunk_size), last_start + 1)
            self._position = int(self._generator.integers(n_places))
        offsets_b = self._bases_b + self._position
        self._position += self._chunk_size
        return offsets_b, restarts

    def _state(self) -> dict[str, Any]:
        return {"position": self._position, "streams": self._batch_size, "segment": self._segment}

    def _restore(self, state: dict[str, Any]) -> None:
        if state["streams"] != self._batch_size:
            raise UserError(_other_streams(self._batch_size, state["streams"]))
        if state["segment"] != self._segment:
            raise UserError(
                f"{self._source.setting}={self._source.label}: streams of {self._segment} bytes, "
                f"but the run to resume had {state['segment']}; name the data that it had, "
                f"or start a new run"
            )
        self._position = state["position"]


def _other_streams(now: int, before: int) -> str:
    return (
        f"train.batch_size={now}: the run to resume carries the states of {before} streams; resume "
        f"with train.batch_size={before}"
    )


class TokenStreamBatches(Batches):
    """The same streams of tokens: row i moves through segment i by T tokens per batch.

    All rows start at the same random offset, as those of :class:`StreamBatches` do, but a stretch
    of text has more tokens in one segment than in another. When the first row has come to the end
    of its segment, all restart at a new random offset. A row goes on at the byte at which its last
    prediction begins: with the tokens that it would have without a stop.

    Args:
        data: The run's data; streams stay inside its training part.
        batch_size: B.
        chunk_size: T.
        seed: Seed of the starting offsets.

    Raises:
        UserError: the training part is too short for B segments of T + 1 tokens.
    """

    kind = "streams of tokens"

    def __init__(self, data: Data, batch_size: int, chunk_size: int, seed: int) -> None:
        super().__init__(data, batch_size, chunk_size, seed)
        self._segment = data.train_bytes // batch_size
        self._cursors: list[Cursor] = []
        self._prepare()

    def _work(self) -> Callable[[], tuple[Rows, bool]]:
        return self._read_on

    def _read_on(self) -> tuple[Rows, bool]:
        """Return the next rows, and whether they restart."""
        if self._cursors and (rows_bn := self._rows_behind(self._cursors)) is not None:
            return rows_bn, False
        places = max(self._segment // 10, 1)
        for offset in (int(self._generator.integers(places)), 0):
            bases = range(0, self._segment * self._batch_size, self._segment)
            assert self._tokens is not None
            starts = [Cursor(self._tokens.start(base + offset)) for base in bases]
            if (rows_bn := self._rows_behind(starts)) is not None:
                return rows_bn, True
        raise UserError(
            f"{self._source.setting}={self._source.label}: {self._batch_size} streams of "
            f"{self._segment} bytes are too short for train.chunk_size={self._chunk_size} tokens; "
            f"set a smaller train.batch_size or train.chunk_size, or name more text"
        )

    def _rows_behind(self, cursors: list[Cursor]) -> Ids | None:
        """Return the rows behind these places and move on; None if one leaves its segment."""
        after = [replace(cursor) for cursor in cursors]
        assert self._tokens is not None
        rows_bn = self._tokens.read(after, self._chunk_size + 1, overlap=1)
        ends = range(self._segment, self._segment * (self._batch_size + 1), self._segment)
        for before, cursor, end in zip(cursors, after, ends, strict=True):
            if not before.position <= cursor.position < end:
                return None
        self._cursors = after
        return rows_bn

    def _state(self) -> dict[str, Any]:
        return {
            "positions": [cursor.position for cursor in self._cursors],
            "skips": [cursor.skip for cursor in self._cursors],
            "streams": self._batch_size,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        if state["streams"] != self._batch_size:
            raise UserError(_other_streams(self._batch_size, state["streams"]))
        pairs = zip(state["positions"], state["skips"], strict=True)
        self._cursors = [Cursor(position, skip) for position, skip in pairs]


AnyBatches = RandomBatches | StreamBatches | TokenStreamBatches | TaskBatches
"""Training batches of text, or of a task."""


def open_batches(data: AnyRunData, train: TrainConfig, rows: slice = slice(None)) -> AnyBatches:
    """Return the training batches that a run's settings ask for.

    Args:
        data: The run's data.
        train: Section ``train``.
        rows: As :class:`Batches`; all of them for a task.

    Raises:
        UserError: there is too little text for ``train.batch_size`` streams.
    """
    shape = (train.batch_size, train.chunk_size, train.seed_of_data)
    if isinstance(data, TaskData):
        whole = len(range(train.batch_size)[rows]) == train.batch_size
        assert whole, "check_ranks refuses a task on several ranks"
        return TaskBatches(data, *shape)
    if not train.tbptt:
        return RandomBatches(data, *shape, rows)
    if data.tokenizer is None:
        return StreamBatches(data, *shape, rows)
    whole = len(range(train.batch_size)[rows]) == train.batch_size
    assert whole, "check_ranks refuses streams of tokens on several ranks"
    return TokenStreamBatches(data, *shape)
