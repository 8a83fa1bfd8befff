"""A run's data: text, split for training and validation, or a task.

NumPy only; no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elman.base.closing import Closing
from elman.base.errors import UserError
from elman.data.apart import HeldApart
from elman.data.choosing import Chosen, chosen_line, chosen_to_hold_out, chosen_to_train
from elman.data.corpus import default_corpus
from elman.data.files import ByteSource
from elman.data.opening import open_files, open_unpacked
from elman.data.packing import LISTED
from elman.data.planning import SourceFile
from elman.data.tasks.batches import TaskData
from elman.data.tokenizers.opening import open_tokenizer
from elman.data.tokenizers.tokenizer import Tokenizer
from elman.sections.data import AnyData
from elman.sections.tasks import TaskConfig
from elman.sections.training import DataConfig

VAL_PERCENT = 5
VAL_BYTES_LIMIT = 4 * 2**20
_TOKENS_SAMPLE = 2**20
_BLANKS, _BLANK_STEP = b"\0 \t\r\n\v\f", 2**20


@dataclass(frozen=True)
class Data(Closing):
    """A source with a held-out tail: training reads [0, train_bytes), validation the rest.

    The tail is the end of the text, or files of their own.

    Args:
        source: Both texts.
        train_bytes: Length of the first one.
        chosen: The files of a run, and what lies beside them.
        tokenizer: Makes tokens of the bytes; None if a token is a byte.
    """

    source: ByteSource
    train_bytes: int
    chosen: Chosen = field(default_factory=lambda: Chosen(()))
    tokenizer: Tokenizer | None = None

    @property
    def val_bytes(self) -> int:
        """Length of the held-out tail."""
        return len(self.source) - self.train_bytes

    def describe(self) -> dict[str, Any]:
        """Return :meth:`ByteSource.describe` with ``train_bytes``, ``val_bytes`` and ``left``."""
        split = {"train_bytes": self.train_bytes, "val_bytes": self.val_bytes}
        left = [{"path": one.path, "why": one.why} for one in self.chosen.left[:LISTED]]
        tokens = {} if self.tokenizer is None else {"tokenizer": self._describe_tokens()}
        return self.source.describe() | split | {"left": left} | tokens

    def identity(self) -> dict[str, str | int | None]:
        """Return what identifies the data: file names may change; the bytes and split may not."""
        described = self.describe()
        keys = ("bytes", "sha256", "sample_sha256", "train_bytes")
        tokens = {} if self.tokenizer is None else {"tokenizer": self.tokenizer.fingerprint}
        return {key: described[key] for key in keys} | tokens

    @property
    def label(self) -> str:
        """What to call it."""
        return self.source.label

    def close(self) -> None:
        """Close the files. Close the batches that read them first."""
        self.source.close()

    def _describe_tokens(self) -> dict[str, Any]:
        """Return what result.json says of the tokens."""
        assert self.tokenizer is not None
        text = self.source.read(0, min(self.train_bytes, _TOKENS_SAMPLE)).tobytes()
        return {
            "name": self.tokenizer.name,
            "vocab_size": self.tokenizer.vocab_size,
            "sha256": self.tokenizer.fingerprint,
            "bytes_per_token": round(self.tokenizer.bytes_per_token(text), 4),
        }


AnyRunData = Data | TaskData
"""The data of a run: text, or a task."""


def reset_token(config: AnyData, tokenizer: Tokenizer | None) -> int | None:
    """Return the token after which a model's state is zeroed, or None.

    Args:
        config: Group ``data``.
        tokenizer: Its tokenizer; None if a token is a byte.
    """
    after = config.reset_after
    return after if after is None or tokenizer is None else tokenizer.separator


def open_data(
    config: AnyData,
    chunk_size: int,
    announce: Callable[[str], None],
    tokenizer: Tokenizer | None = None,
) -> AnyRunData:
    """Open the data of a run; text is split.

    Args:
        config: Group ``data``.
        chunk_size: T. The training part must hold one row of T + 1 bytes, and the tail one
            validation window plus one byte.
        announce: Called with one line if the default data or a tokenizer has to be made.
        tokenizer: That of an earlier session, in place of the one that is configured.

    Raises:
        UserError: a file cannot be used, or there is too little text for ``chunk_size``.
    """
    if isinstance(config, TaskConfig):
        return TaskData(config)
    return open_text(config, chunk_size, announce, tokenizer)


def open_text(
    config: DataConfig,
    chunk_size: int,
    announce: Callable[[str], None],
    tokenizer: Tokenizer | None = None,
) -> Data:
    """Open text and split it; see :func:`open_data`."""
    data = _opened(config, chunk_size, announce, open_files)
    assert data is not None, "packed now"
    if config.has_bytes:
        return data
    try:
        if tokenizer is None:
            tokenizer = open_tokenizer(config, data.source, data.train_bytes, announce)
        return replace(data, tokenizer=tokenizer)
    except BaseException:
        data.close()
        raise


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
