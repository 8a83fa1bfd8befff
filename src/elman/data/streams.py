"""Decodes compressed files as streams, with memory that does not grow with the file.

A file may hold several members (gzip), streams (xz, bz2) or frames (Zstandard) in a row. A file
that ends inside one is reported as damaged; it is never read as a shorter text.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, BinaryIO, NamedTuple

from elman.base.errors import UserError, first_line

_STEP = 64 * 2**10
_LIMIT = 4 * 2**20
# Zstandard returns the whole content of its input; 16 KiB of input hold at most half a GiB.
_ZSTD_PIECE = 16 * 2**10
# Window size that files of `zstd --long=31` need, which is usual for large dumps.
_ZSTD_WINDOW = 2**31
_AGAIN = "; download or compress it again"


class Chunk(NamedTuple):
    """Decoded bytes, and how much of the file was read up to their end."""

    data: bytes
    consumed: int


class _DamageError(Exception):
    """The compressed bytes are wrong; the message says how."""


class _Std:
    """One stream of ``bz2`` or ``lzma``; their objects store the input that they did not use."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data in pieces of limited size."""
        yield self._decoder.decompress(data, _LIMIT)
        while not (self._decoder.eof or self._decoder.needs_input):
            yield self._decoder.decompress(b"", _LIMIT)

    @property
    def ended(self) -> bool:
        """Whether the end of the stream was reached."""
        return bool(self._decoder.eof)

    @property
    def unused(self) -> bytes:
        """Input after its end."""
        return bytes(self._decoder.unused_data)


class _Gzip(_Std):
    """One member of a gzip file; zlib checks its checksum and length."""

    def __init__(self) -> None:
        super().__init__(zlib.decompressobj(wbits=31))

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            yield self._decoder.decompress(data, _LIMIT)
            data = self._decoder.unconsumed_tail


class _Zstd(_Std):
    """One frame of a Zstandard file."""

    def __init__(self, decoder: Any) -> None:
        super().__init__(decoder)
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        view = memoryview(data)
        while len(view) and not self.ended:
            piece, view = view[:_ZSTD_PIECE], view[_ZSTD_PIECE:]
            yield self._decoder.decompress(piece)
        self._rest = bytes(view)

    @property
    def unused(self) -> bytes:
        return super().unused + self._rest


def _decoder(compression: str) -> tuple[Callable[[], _Std], tuple[type[BaseException], ...]]:
    """Return the decoder for one member, and the errors that it raises for damage."""
    if compression == "gz":
        return _Gzip, (zlib.error,)
    if compression == "zst":
        import zstandard

        # Its memory is reused for each frame, because there may be very many.
        frames = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        return lambda: _Zstd(frames.decompressobj()), (zstandard.ZstdError,)
    # Some builds of Python lack these modules.
    name = {"xz": "lzma", "bz2": "bz2"}[compression]
    try:
        module = import_module(name)
    except ImportError:
        raise _DamageError(f"this Python was built without its module {name}") from None
    if compression == "bz2":
        return lambda: _Std(module.BZ2Decompressor()), (OSError, ValueError)
    return lambda: _Std(module.LZMADecompressor(module.FORMAT_XZ)), (module.LZMAError,)


def plain_chunks(path: str) -> Iterator[Chunk]:
    """Yield a file's raw bytes."""
    with open(path, "rb", buffering=0) as raw:
        while data := raw.read(_LIMIT):
            yield Chunk(data, raw.tell())


def decoded_chunks(path: str, compression: str | None, where: str) -> Iterator[Chunk]:
    """Yield a file's decoded bytes in chunks of at most a few MiB.

    Args:
        path: The file.
        compression: ``gz``, ``zst``, ``xz``, ``bz2``, or None for raw bytes.
        where: The setting and the file, for error messages.

    Raises:
        UserError: the file is damaged or ends too early.
        OSError: it cannot be read.
    """
    if compression is None:
        yield from plain_chunks(path)
        return
    try:
        with open(path, "rb", buffering=0) as raw:
            for data in _decoded(raw, compression):
                yield Chunk(data, raw.tell())
    except _DamageError as damage:
        raise UserError(f"{where}: cannot be read as {compression}: {damage}") from None


def _decoded(raw: BinaryIO, compression: str) -> Iterator[bytes]:
    begin, errors = _decoder(compression)
    padded = compression in ("gz", "xz")  # zeros may follow a member
    began, data = False, b""
    while True:
        data = data or raw.read(_STEP)
        if not data:
            return
        if began and padded and not (data := data.lstrip(b"\0")):
            continue
        began, member = True, begin()
        while not member.ended:
            data = data or raw.read(_STEP)
            if not data:
                raise _DamageError(f"it ends too early{_AGAIN}")
            try:
                yield from filter(None, member.feed(data))
            except errors as error:
                raise _DamageError(f"it is damaged ({first_line(error)}){_AGAIN}") from None
            data = member.unused if member.ended else b""
