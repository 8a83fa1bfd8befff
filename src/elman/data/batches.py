"""A run's data, split for training and validation, and its training batches.

NumPy only; no torch. The same seed gives the same order of data whatever the model.

Shapes: B rows, b rows (at most B), T predicted bytes in a row (``chunk_size``). A row has T + 1
bytes, so that every predicted byte has its predecessor in the row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from elman.base.closing import Closing
from elman.base.errors import UserError
from elman.data.ahead import AheadBatches
from elman.data.apart import HeldApart
from elman.data.choosing import Chosen, chosen_line, chosen_to_hold_out, chosen_to_train
from elman.data.corpus import default_corpus
from elman.data.files import Bytes, ByteSource, Offsets
from elman.data.opening import open_files, open_unpacked
from elman.data.packing import LISTED
from elman.data.planning import SourceFile
from elman.data.tasks.batches import TaskBatches, TaskData
from elman.sections.data import AnyData
from elman.sections.tasks import TaskConfig
from elman.sections.training import DataConfig, TrainConfig

VAL_PERCENT = 5
VAL_BYTES_LIMIT = 4 * 2**20
_BLANKS, _BLANK_STEP = b"\0 \t\r\n\v\f", 2**20


@dataclass(frozen=True)
class Data(Closing):
    """A source with a held-out tail: training reads [0, train_bytes), validation the rest.

    The tail is the end of the text, or files of their own.

    Args:
        source: Both texts.
        train_bytes: Length of the first one.
        chosen: The files of a run, and what lies beside them.
    """

    source: ByteSource
    train_bytes: int
    chosen: Chosen = field(default_factory=lambda: Chosen(()))

    @property
    def val_bytes(self) -> int:
        """Length of the held-out tail."""
        return len(self.source) - self.train_bytes

    def describe(self) -> dict[str, Any]:
        """Return :meth:`ByteSource.describe` with ``train_bytes``, ``val_bytes`` and ``left``."""
        split = {"train_bytes": self.train_bytes, "val_bytes": self.val_bytes}
        left = [{"path": one.path, "why": one.why} for one in self.chosen.left[:LISTED]]
        return self.source.describe() | split | {"left": left}

    def identity(self) -> dict[str, str | int | None]:
        """Return what identifies the data: file names may change; the bytes and split may not."""
        described = self.describe()
        return {key: described[key] for key in ("bytes", "sha256", "sample_sha256", "train_bytes")}

    @property
    def label(self) -> str:
        """What to call it."""
        return self.source.label

    def close(self) -> None:
        """Close the files. Close the batches that read them first."""
        self.source.close()


AnyRunData = Data | TaskData
"""The data of a run: text, or a task."""


def open_data(config: AnyData, chunk_size: int, announce: Callable[[str], None]) -> AnyRunData:
    """Open the data of a run; text is split.

    Args:
        config: Group ``data``.
        chunk_size: T. The training part must hold one row of T + 1 bytes, and the tail one
            validation window plus one byte.
        announce: Called with one line if the default data has to be built.

    Raises:
        UserError: a file cannot be used, or there is too little text for ``chunk_size``.
    """
    if isinstance(config, TaskConfig):
        return TaskData(config)
    return open_text(config, chunk_size, announce)


def open_text(config: DataConfig, chunk_size: int, announce: Callable[[str], None]) -> Data:
    """Open text and split it; see :func:`open_data`."""
    data = _opened(config, chunk_size, announce, open_files)
    assert data is not None, "packed now"
    return data


def check_data(config: DataConfig, chunk_size: int, *, may_pack: bool) -> None:
    """Raise the errors of :func:`open_data` that can be found without packing.

    Args:
        config: Group ``data``, with a path.
        chunk_size: T.
        may_pack: Whether to pack unpacked data now; then everything is checked.

    Raises:
        UserError: as :func:`open_data`.
    """
    opened = open_files if may_pack else open_unpacked
    data = _opened(config, chunk_size, lambda line: None, opened)
    if data is not None:
        data.close()


def files_line(config: DataConfig) -> str:
    """Say which files are read, if a glob or folder holds others, too; else return nothing.

    Raises:
        UserError: as :func:`open_data`.
    """
    return chosen_line(_chosen(config))


def identity_without_packing(
    config: AnyData, chunk_size: int, announce: Callable[[str], None]
) -> dict[str, str | int | None] | None:
    """Return what identifies the data as a run records it; None if it must be packed first.

    Args:
        config: Group ``data``.
        chunk_size: T.
        announce: Called with one line if the default data has to be built.

    Raises:
        UserError: as :func:`open_data`.
    """
    if isinstance(config, TaskConfig):
        return TaskData(config).identity()
    data = _opened(config, chunk_size, announce, open_unpacked)
    if data is None:
        return None
    with data:
        return data.identity()


_Open = Callable[[Sequence[SourceFile], str, str], ByteSource | None]


def _chosen(config: DataConfig) -> Chosen:
    if config.path is not None:
        return chosen_to_train(config.path, config.val_path, config.format, config.field)
    if config.val_path is not None:
        return chosen_to_hold_out(config.val_path, config.format, config.field)
    return Chosen(())


def _opened(
    config: DataConfig, chunk_size: int, announce: Callable[[str], None], opened: _Open
) -> Data | None:
    """Return the data; None if ``opened`` returns None for a part of it."""
    chosen, setting = _chosen(config), "data.path"
    if chosen.held_out and config.val_bytes is not None:
        raise UserError(
            f"data.val_bytes={config.val_bytes}: not read, because whole files are held out "
            f"({chosen_line(chosen)}); drop it"
        )
    train = (
        opened(chosen.train, config.field, setting)
        if config.path is not None
        else ByteSource(default_corpus(announce))
    )
    if train is None:
        return None
    if config.path is not None:
        _refuse_blank(train, config)
    if not chosen.held_out:
        return _divided(train, config, chunk_size, chosen)
    setting = setting if config.val_path is None else "data.val_path"
    try:
        held_out = opened(chosen.held_out, config.field, setting)
        if held_out is not None:
            _check_apart(train, held_out, config, chunk_size)
            return Data(HeldApart(train, held_out), len(train), chosen)
    except BaseException:
        train.close()
        raise
    train.close()
    return None


def _refuse_blank(source: ByteSource, config: DataConfig) -> None:
    """Raise UserError if a text is nothing but blanks or zeros, as a failed download may be."""
    if config.format == "raw":
        return
    for offset in range(0, len(source), _BLANK_STEP):
        if source.read(offset, min(_BLANK_STEP, len(source) - offset)).tobytes().strip(_BLANKS):
            return
    where = f"{source.setting}={source.label}"
    source.close()
    raise UserError(
        f"{where}: holds nothing but blanks or zeros; name files that hold text, or type "
        f"data.format=raw to read their bytes as they are"
    )


def _check_apart(
    train: ByteSource, held_out: ByteSource, config: DataConfig, chunk_size: int
) -> None:
    """Raise UserError if one of two texts is too short for its rows."""
    for source, key, length in (
        (train, "train.chunk_size", chunk_size),
        (held_out, "data.val_window", config.val_window),
    ):
        if len(source) <= length:
            use = "train on" if source is train else "validate on"
            shorter = f"set {key}={len(source) - 1} or less, or " if len(source) > 1 else ""
            raise UserError(
                f"{source.setting}={source.label}: {len(source)} bytes to {use}, but "
                f"{key}={length} needs at least {length + 1}; {shorter}name more text"
            )


def _divided(source: ByteSource, config: DataConfig, chunk_size: int, chosen: Chosen) -> Data:
    try:
        val_bytes = _held_out(source, config, chunk_size)
    except BaseException:
        source.close()
        raise
    return Data(source, len(source) - val_bytes, chosen)


def _held_out(source: ByteSource, config: DataConfig, chunk_size: int) -> int:
    """Return the length of the tail after checking it against the size of the text."""
    row, window, size = chunk_size + 1, config.val_window + 1, len(source)
    where = f"{source.setting}={source.label}: {size} bytes"
    if size < row + window:
        longest = size // 2 - 1
        shorter = f"set both to {longest} or less, or " if longest > 0 else ""
        raise UserError(
            f"{where}, but train.chunk_size={chunk_size} and data.val_window={config.val_window} "
            f"need at least {row + window} ({row} to train on, {window} held out); "
            f"{shorter}name more text"
        )
    if config.val_bytes is None:
        return min(max(window, min(size * VAL_PERCENT // 100, VAL_BYTES_LIMIT)), size - row)
    if config.val_bytes < window:
        raise UserError(
            f"data.val_bytes={config.val_bytes}: shorter than one row of data.val_window="
            f"{config.val_window}; set data.val_bytes={window} or more"
        )
    if config.val_bytes > size - row:
        raise UserError(
            f"{where}, and data.val_bytes={config.val_bytes} leaves "
            f"{max(0, size - config.val_bytes)} to train on, but train.chunk_size={chunk_size} "
            f"needs {row}; set data.val_bytes={size - row} or less, or name more text"
        )
    return config.val_bytes


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
        self._chunk_size = chunk_size
        self._batch_size = batch_size
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._pending: Future[Bytes]

    def next(self) -> Bytes:
        """Return the next batch: uint8 [b, T+1], a new array that belongs to the caller.

        It has this rank's rows, all B without ranks.

        Raises:
            UserError: a file became shorter than it was when opened.
        """
        batch = self._pending.result()
        self.restarted = self._pending_restarts
        self._prepare()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """See :class:`~.ahead.AheadBatches`."""
        return self._state_before_pending

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a :meth:`state_dict`; the batch that was read ahead is dropped.

        Raises:
            UserError: the state is of the other kind of batches, or does not fit these streams.
        """
        if state["kind"] != self.kind:
            was_tbptt = str(state["kind"] == StreamBatches.kind).lower()
            raise UserError(
                f"train.tbptt: the run to resume read its data as {state['kind']}, not as "
                f"{self.kind}; resume with train.tbptt={was_tbptt}"
            )
        self._restore(state)
        self._generator.bit_generator.state = state["generator"]
        self._prepare()

    def _prepare(self) -> None:
        """Draw the positions of the batch after this one and start to read it."""
        generator = dict(self._generator.bit_generator.state)
        self._state_before_pending = {"kind": self.kind, "generator": generator} | self._state()
        offsets_b, self._pending_restarts = self._draw()
        row = self._chunk_size + 1
        self._pending = self._maker.submit(self._source.gather, offsets_b[self._rows], row)

    @abstractmethod
    def _draw(self) -> tuple[Offsets, bool]:
        """Return the offsets of the next rows, and whether they restart."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Return the state besides the generator's."""

    @abstractmethod
    def _restore(self, state: dict[str, Any]) -> None:
        """Continue from a result of :meth:`_state` if it fits."""


class RandomBatches(Batches):
    """Rows at random positions, uniform over all positions where T + 1 training bytes fit.

    Rows are independent, and the separator between documents is a byte like any other
    (lm-and-training specification, section 3).

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
        self._n_starts = data.train_bytes - chunk_size
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
            raise UserError(
                f"train.batch_size={self._batch_size}: the run to resume carries the states of "
                f"{state['streams']} streams; resume with train.batch_size={state['streams']}"
            )
        if state["segment"] != self._segment:
            raise UserError(
                f"{self._source.setting}={self._source.label}: streams of {self._segment} bytes, "
                f"but the run to resume had {state['segment']}; name the data that it had, "
                f"or start a new run"
            )
        self._position = state["position"]


AnyBatches = RandomBatches | StreamBatches | TaskBatches
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
    source = StreamBatches if train.tbptt else RandomBatches
    return source(data, *shape, rows)
