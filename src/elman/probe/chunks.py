"""Reads rows of text in chunks, with the states carried from chunk to chunk.

Memory depends on the size of a chunk and not on the length of a row. The states of a group of rows
stay below a limit, and a call that finds no room is made anew in halves.

Shape legend: b rows, t positions of a chunk, v byte values; t1 is one position more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from elman.data.files import Bytes, ByteSource, Offsets
from elman.evaluation.validation import autocast, to_device
from elman.models.language_model import LanguageModel
from elman.models.state import State

LONGEST_CHUNK = 2048
"""Positions of a chunk at most."""
States = list[State]
Read = Callable[[int, int], Bytes]
"""From a position in the rows and a number of bytes to these bytes of every row: uint8 [b, n]."""


class NotFiniteError(Exception):
    """A state or a prediction is not finite; the message names the layer, the part and the byte."""


@dataclass
class Reader:
    """A model, and how it reads.

    Args:
        model: The model, in evaluation mode.
        device: Where it is.
        precision: As ``train.precision``.
        trained: Bytes of the rows that it was trained on.
        positions: Most positions of one call, over all rows.
        row_bytes: Bytes of the states of all layers for one row.
        state_bytes: Most bytes of the states of all rows that are read together.
        progress: Called with the positions of each call.
    """

    model: LanguageModel
    device: torch.device
    precision: str
    trained: int
    positions: int
    row_bytes: int = 1
    state_bytes: int = 2**30
    progress: Callable[[int], None] = lambda positions: None

    @torch.no_grad()
    def __call__(self, tokens_bt: Tensor, states: States | None) -> tuple[Tensor, States]:
        """Return the logits [b, t, v] in fp32 and the states after the last token.

        Raises:
            torch.OutOfMemoryError: there is no room for a single position of a single row.
        """
        logits_btv, carried = self._in_parts(tokens_bt, states)
        self.progress(tokens_bt.numel())
        return logits_btv, carried

    def _in_parts(self, tokens_bt: Tensor, states: States | None) -> tuple[Tensor, States]:
        """Run the model on fewer positions at a time than had no room: first rows, then time."""
        if tokens_bt.numel() <= self.positions:
            try:
                with autocast(self.device, self.precision):
                    logits_btv, carried = self.model(tokens_bt, states)
                return logits_btv.float(), carried
            except torch.OutOfMemoryError:
                if tokens_bt.numel() == 1:
                    raise
                self.positions = tokens_bt.numel() // 2
            # Behind the handler, where no traceback holds the tensors of the call any more.
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        rows, steps = tokens_bt.shape
        if rows == 1:
            first, states = self._in_parts(tokens_bt[:, : steps // 2], states)
            second, states = self._in_parts(tokens_bt[:, steps // 2 :], states)
            return torch.cat([first, second], dim=1), states
        half = rows // 2
        pairs = (
            self._in_parts(tokens_bt[part], states and _rows_of(states, part))
            for part in (slice(half), slice(half, None))
        )
        (upper, upper_states), (lower, lower_states) = pairs
        joined = [
            {name: torch.cat([one, two[name]]) for name, one in above.items()}
            for above, two in zip(upper_states, lower_states, strict=True)
        ]
        return torch.cat([upper, lower]), joined

    def chunk(self, rows: int) -> int:
        """Return how many positions of so many rows are read at once."""
        return max(1, min(LONGEST_CHUNK, self.positions // rows))

    def rows(self, length: int) -> int:
        """Return how many rows of a length are read at once."""
        return max(1, min(self.positions // min(length, LONGEST_CHUNK), self.most_rows))

    @property
    def most_rows(self) -> int:
        """How many rows may be read together, by the size of their states."""
        return max(1, self.state_bytes // self.row_bytes)

    def groups(self, documents: int, rows: int) -> list[Offsets]:
        """Return the numbers of documents that are read together, each as so many rows."""
        size = max(1, self.most_rows // rows)
        return [np.arange(n, min(n + size, documents)) for n in range(0, documents, size)]

    def tokens(self, rows_bn: Bytes) -> Tensor:
        """Return bytes as tokens on the model's device."""
        return to_device(rows_bn, self.device)


def _rows_of(states: States, rows: slice) -> States:
    return [{name: part[rows] for name, part in state.items()} for state in states]


@dataclass(frozen=True)
class Chunk:
    """One call of the model.

    Args:
        start: Position of its first input in the rows.
        tokens_bt1: Its inputs, with the byte behind them.
        logits_btv: The predictions of ``tokens_bt1[:, 1:]``.
        states: The states of all layers after its last input.
    """

    start: int
    tokens_bt1: Tensor
    logits_btv: Tensor
    states: States

    @property
    def end(self) -> int:
        """Position of the byte behind its last input."""
        return self.start + self.logits_btv.shape[1]

    @property
    def nats_bt(self) -> Tensor:
        """Nats of each predicted byte; place i predicts position ``start + i + 1`` of the rows."""
        return nats_of(self.logits_btv, self.tokens_bt1[:, 1:])


def nats_of(logits_btv: Tensor, targets_bt: Tensor) -> Tensor:
    """Return the nats of each target."""
    return functional.cross_entropy(logits_btv.transpose(1, 2), targets_bt.long(), reduction="none")


def walk(
    reader: Reader,
    read: Read,
    rows: int,
    length: int,
    *,
    stops: Sequence[int] = (),
    restart: int = 0,
    states: States | None = None,
    begin: int = 0,
) -> Iterator[Chunk]:
    """Yield the calls that read rows from a position to ``length``, with states carried.

    Args:
        reader: The model.
        read: Gives the bytes of the rows.
        rows: How many.
        length: Position behind the last input.
        stops: Positions at which a chunk ends, so that the states there are seen.
        restart: Every so many positions all states are zero again; 0 is never.
        states: The states before the first input; None is the start.
        begin: Position of the first input.

    Raises:
        NotFiniteError: a state or a prediction is not finite.
    """
    ends = {length, *(stop for stop in stops if begin < stop < length)}
    if restart:
        ends |= set(range(begin + restart, length, restart))
    ends |= {*range(begin, length, reader.chunk(rows))}
    for start, end in pairwise(sorted(ends)):
        if restart and (start - begin) % restart == 0:
            states = None
        tokens_bt1 = reader.tokens(read(start, end - start + 1))
        logits_btv, states = reader(tokens_bt1[:, :-1], states)
        check_finite(states, logits_btv, end)
        yield Chunk(start, tokens_bt1, logits_btv, states)


def check_finite(states: States, logits_btv: Tensor, position: int) -> None:
    """Raise NotFiniteError if something is not finite after the byte at a position."""
    parts = [
        (f"layer {n}: state {key}", part)
        for n, one in enumerate(states)
        for key, part in one.items()
    ]
    parts.append(("the prediction", logits_btv))
    finite = torch.stack([part.isfinite().all() for _, part in parts]).tolist()
    for (name, part), good in zip(parts, finite, strict=True):
        if not good:
            bad_b = ~part.flatten(1).isfinite().all(dim=1)
            row = int(bad_b.nonzero()[0, 0])
            raise NotFiniteError(f"{name} of row {row} is not finite after {position:,} bytes")


@dataclass(frozen=True)
class Text:
    """Stretches of one text, the documents of a probe.

    Args:
        source: The text.
        offsets_d: Where each document begins.
        length: Bytes that are predicted in each; it has one more.
    """

    source: ByteSource
    offsets_d: Offsets
    length: int

    @property
    def documents(self) -> int:
        """How many there are."""
        return len(self.offsets_d)

    def read(self, start: int, count: int) -> Bytes:
        """Return bytes of every document: uint8 [d, n]."""
        return self.source.gather(self.offsets_d + start, count)

    def fingerprint(self) -> str:
        """Return a checksum of the bytes of all documents."""
        digest = hashlib.sha256()
        for offset in self.offsets_d:
            row_1n = self.source.gather(np.array([offset]), self.length + 1)
            digest.update(np.ascontiguousarray(row_1n).data)
        return digest.hexdigest()

    def some(self, documents_g: Offsets) -> Text:
        """Return some of the documents."""
        return replace(self, offsets_d=self.offsets_d[documents_g])

    def segments(self, document_s: Offsets, start_s: Offsets) -> Read:
        """Return what reads segments, given the document of each and its first position there."""
        offsets_s = self.offsets_d[document_s] + start_s
        return lambda start, count: self.source.gather(offsets_s + start, count)


def powers(low: int, high: int) -> list[int]:
    """Return the powers of two from ``low``, itself one, to ``high``."""
    return [2**n for n in range(low.bit_length() - 1, high.bit_length()) if 2**n <= high]


def evenly(count: int, first: int, last: int) -> Offsets:
    """Return ``count`` evenly spaced positions from ``first`` to ``last``."""
    places = [first + index * (last - first) // max(count - 1, 1) for index in range(count)]
    return np.array(places, dtype=np.int64)
